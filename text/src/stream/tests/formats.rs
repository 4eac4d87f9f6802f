//! Tool calls in each format.

use super::*;

#[test]
fn hermes_tool_calls_are_json_between_tags() {
    let check = |answer: &str, expected: &[&str]| check(ToolCallFormat::Hermes, answer, expected);
    let call = "<tool_call>\n{\"name\": \"read\", \"arguments\": {\"text\": \"a</tool_call>\\n\", \"n\": [1.0, null]}}\n</tool_call>";
    let read = "call 0 read {\"text\": \"a</tool_call>\\n\", \"n\": [1.0, null]}.";
    check(call, &[read]);
    check(&format!("<think>\nfiles\n</think>\n\n{call}"), &["thought files", read]);
    check(&format!("Let me see.\n\n{call}\n"), &["text Let me see.", read]);
    let next = "<tool_call>{\"arguments\": {}, \"name\": \"get-time\"}</tool_call>";
    check(&format!("{call}\n{next}"), &[read, "call 1 get-time {}."]);
    check(&format!("{next}\n\nDone."), &["call 0 get-time {}.", "text Done."]);
    check("<tool_call>{\"name\": \"other.tool\"}</tool_call>", &["call 0 other.tool {}."]);
    check(
        "<tool_call>{\"name\": \"read\", \"arguments\": \"{\\\"n\\\": 1}\"}",
        &["call 0 read {\"n\": 1}."],
    );
    // A tool call without its closing tag is complete, one without its last brace is not.
    check("<tool_call>{\"name\": \"read\", \"arguments\": {}}", &["call 0 read {}."]);
    check(
        "a\n<tool_call>{\"name\": \"read\", \"arguments\": {\"te",
        &[
            "text a",
            "call 0 read {\"te",
            "fault",
            "text \n<tool_call>{\"name\": \"read\", \"arguments\": {\"te",
        ],
    );
    check(
        &format!("<tool_call>not JSON</tool_call>\n{next}"),
        &["fault", "text <tool_call>not JSON</tool_call>", "call 0 get-time {}."],
    );
    for wrong in [
        "{\"name\": \"a b\"}",
        "{\"other\": 1, \"name\": \"f\"}",
        "{\"arguments\": {}}",
        "{\"name\": 5}",
        "{\"arguments\": {}, \"arguments\": {}}",
        "[1]",
        "",
    ] {
        let answer = format!("a<tool_call>{wrong}</tool_call>b");
        check(&answer, &["text a", "fault", &format!("text {}", &answer[1..])]);
    }
}

#[test]
fn qwen_tool_calls_are_tags_with_values_by_the_schema() {
    let check = |answer: &str, expected: &[&str]| check(ToolCallFormat::QwenXml, answer, expected);
    let parameter =
        |name: &str, value: &str| format!("<parameter={name}>\n{value}\n</parameter>\n");
    let call = |parameters: &str| {
        format!("<tool_call>\n<function=read>\n{parameters}</function>\n</tool_call>")
    };
    let text = parameter("text", "a \"b\"\n\n<c> </tool_call> \\ é\n");
    check(
        &call(
            &(text
                + &parameter("n", "5")
                + &parameter("flag", "True")
                + &parameter("list", "[1, \"x\"]")),
        ),
        &[
            "call 0 read {\"text\": \"a \\\"b\\\"\\n\\n<c> </tool_call> \\\\ é\\n\", \"n\": 5, \"flag\": true, \"list\": [1, \"x\"]}.",
        ],
    );
    check(
        &call(&(parameter("n", "five") + &parameter("maybe", "None") + &parameter("else", "7"))),
        &["call 0 read {\"n\": \"five\", \"maybe\": null, \"else\": \"7\"}."],
    );
    check(&format!("{}\n{}", call(""), call("")), &["call 0 read {}.", "call 1 read {}."]);
    // Some answers leave the outer tag out.
    check("Now.\n<function=read>\n</function>", &["text Now.", "call 0 read {}."]);
    check("Write <function=read> here.", &["text Write <function=read> here."]);
    check(
        &call(&(parameter("n", "1") + &parameter("n", "2"))),
        &[
            "call 0 read {\"n\": 1",
            "fault",
            &format!("text {}", call(&(parameter("n", "1") + &parameter("n", "2")))),
        ],
    );
    // Values as Python prints them, which the family's templates write.
    let printed = "[1, 'it\\'s \\n\\xe9', \"a'b\", True, None, {'k': -2.5, 3: []}, ()]";
    check(
        &call(&parameter("list", printed)),
        &[
            "call 0 read {\"list\": [1, \"it's \\né\", \"a'b\", true, null, {\"k\": -2.5, \"3\": []}, []]}.",
        ],
    );
    for broken in ["[1, 'a]", "['a' 'b']", "[nan]", "[1] and [2]", "{1: 2"] {
        let text = Value::from(broken).to_string();
        check(&call(&parameter("list", broken)), &[&format!("call 0 read {{\"list\": {text}}}.")]);
    }
    let cut = "<tool_call>\n<function=read>\n<parameter=text>\nab\n</para";
    check(cut, &["call 0 read {\"text\": \"ab", "fault", &format!("text {cut}")]);
}

#[test]
fn llama_tool_calls_are_the_whole_answer() {
    let check = |answer: &str, expected: &[&str]| check(ToolCallFormat::Llama3, answer, expected);
    let call = "{\"name\": \"read\", \"parameters\": {\"n\": 5}}";
    check(call, &["call 0 read {\"n\": 5}."]);
    check(&format!("<|python_tag|>{call}"), &["call 0 read {\"n\": 5}."]);
    check("{\"type\": \"function\", \"name\": \"read\", \"parameters\": {}}", &["call 0 read {}."]);
    check(&format!("{call}; {call}"), &["call 0 read {\"n\": 5}.", "call 1 read {\"n\": 5}."]);
    // JSON that is the answer, and a tool call inside of text.
    let json = "{\"name\": \"Ada\", \"born\": 1815}";
    check(json, &[&format!("text {json}")]);
    check("{\"a\": [1, 2]} ; b", &["text {\"a\": [1, 2]} ; b"]);
    check(&format!("See {call}"), &[&format!("text See {call}")]);
    check("<|python_tag|>print(1)", &["fault", "text <|python_tag|>print(1)"]);
    let cut = "{\"name\": \"read\", \"parameters\": {\"n\"";
    check(cut, &["call 0 read {\"n\"", "fault", &format!("text {cut}")]);
}

#[test]
fn gemma_tool_calls_have_keys_without_quotes() {
    let check = |answer: &str, expected: &[&str]| check(ToolCallFormat::Gemma4, answer, expected);
    let call = "<|tool_call>call:read{flag:true,list:[1,<|\"|>x<|\"|>,{}],n:-2.5,sub:{a:None},text:<|\"|>a \"b\"\n} é<|\"|>}<tool_call|>";
    let read = "call 0 read {\"flag\":true,\"list\":[1,\"x\",{}],\"n\":-2.5,\"sub\":{\"a\":null},\"text\":\"a \\\"b\\\"\\n} é\"}.";
    check(call, &[read]);
    check(
        &format!(
            "<|channel>thought\nso\n<channel|>Now.{call}<|tool_call>call:get-time{{}}<tool_call|>"
        ),
        &["thought so", "text Now.", read, "call 1 get-time {}."],
    );
    check("<|channel>thought\n<channel|>Hi", &["text Hi"]);
    check("<|channel>thinking<channel|>Hi", &["thought thinking", "text Hi"]);
    check(
        "<|tool_call>call:read{<|\"|>a b<|\"|>:1, \"c\": \"d\\n\"}<tool_call|>",
        &["call 0 read {\"a b\":1,\"c\":\"d\\n\"}."],
    );
    for wrong in
        ["read{}", "call:read{n:five}", "call:read{n:1,}", "call:read{n:1}}", "call:re ad{}"]
    {
        let answer = format!("<|tool_call>{wrong}<tool_call|>");
        let model = Model::new(ToolCallFormat::Gemma4, true);
        let parts = shown(&model.parts(&model.ids(&answer), offered(), &[1], FinishReason::Stop));
        let text = format!("text {answer}");
        assert_eq!(parts[parts.len() - 2..], ["fault".to_owned(), text], "{wrong}");
    }
}

#[test]
fn harmony_messages_go_by_their_channel_and_recipient() {
    let check = |answer: &str, expected: &[&str]| check(ToolCallFormat::Harmony, answer, expected);
    let thought = "<|channel|>analysis<|message|>so\n<|end|>";
    let call = "<|start|>assistant<|channel|>commentary to=functions.read <|constrain|>json<|message|>{\"n\": 5}<|call|>";
    check(
        &format!("{thought}<|start|>assistant<|channel|>final<|message|>It is 5."),
        &["thought so\n", "text It is 5."],
    );
    check(&format!("{thought}{call}"), &["thought so\n", "call 0 read {\"n\": 5}."]);
    check(
        " to=functions.get-time<|channel|>commentary json<|message|>{}<|call|>",
        &["call 0 get-time {}."],
    );
    check(
        &format!("<|channel|>commentary<|message|>First I read.<|end|>{call}"),
        &["text First I read.", "call 0 read {\"n\": 5}."],
    );
    check("no header\nat all", &["text no header\nat all"]);
    check("short", &["text short"]);
    let built_in = "<|channel|>analysis to=python code<|message|>1 + 1<|call|>";
    check(built_in, &["fault", "text <|channel|>analysis to=python code<|message|>1 + 1"]);
    let cut = &call["<|start|>assistant".len()..call.len() - "}<|call|>".len()];
    check(cut, &["call 0 read {\"n\": ", "fault", &format!("text {cut}")]);
    check("<|channel|>unknown<|message|>a", &["text <|channel|>unknown<|message|>a"]);
}

#[test]
fn mistral_tool_calls_are_a_list_or_a_name_with_arguments() {
    for calls in [ToolCallFormat::MistralList, ToolCallFormat::MistralArgs] {
        let check = |answer: &str, expected: &[&str]| check(calls, answer, expected);
        let first = "{\"name\": \"read\", \"arguments\": {\"text\": \"a]},[ARGS]\", \"n\": 5}, \"id\": \"a1b2c3d4e\"}";
        let second = "{\"id\": \"000000000\", \"name\": \"get-time\", \"arguments\": {}}";
        let read = "call 0 read {\"text\": \"a]},[ARGS]\", \"n\": 5}.";
        check(&format!("[TOOL_CALLS] [{first}]"), &[read]);
        check(
            &format!("I look.[TOOL_CALLS][{first}, {second}]"),
            &["text I look.", read, "call 1 get-time {}."],
        );
        check(&format!("[TOOL_CALLS][{first}]\nDone."), &[read, "text Done."]);
        check(&format!("[TOOL_CALLS] {second}"), &["call 0 get-time {}."]);
        // The list lacks its end, or an object is none.
        check(&format!("[TOOL_CALLS][{first},"), &[read]);
        check(
            &format!("[TOOL_CALLS][{first}, {{\"no\": 1}}]"),
            &[read, "text , ", "fault", "text {\"no\": 1}]"],
        );
        let args = "[TOOL_CALLS]read[ARGS]{\"n\": 5}";
        check(args, &["call 0 read {\"n\": 5}."]);
        let id = "[TOOL_CALLS]get-time[CALL_ID]a1b2c3d4e[ARGS]{}";
        check(
            &format!("Now.\n{args}{id}"),
            &["text Now.", "call 0 read {\"n\": 5}.", "call 1 get-time {}."],
        );
        check("[TOOL_CALLS]read{\"n\": 5}", &["call 0 read {\"n\": 5}."]);
        for wrong in ["", "read", "re ad[ARGS]{}", "read[ARGS]\"a\"", "read[ARGS]x", "[5]", "[]"] {
            let answer = format!("a[TOOL_CALLS]{wrong}");
            let model = Model::new(calls, true);
            let parts = model.parts(&model.ids(&answer), offered(), &[1], FinishReason::Stop);
            let shown = shown(&parts);
            let text = format!("text {}", &answer[1..]);
            assert_eq!(shown[shown.len() - 2..], ["fault".to_owned(), text], "{wrong}");
        }
    }
    // The tags are control tokens: their characters alone are text.
    let model = Model::new(ToolCallFormat::MistralArgs, true);
    let spelled = Model { tokens: false, ..Model::new(ToolCallFormat::MistralArgs, true) };
    let answer = "Write [TOOL_CALLS]read[ARGS]{} here.";
    let parts = model.parts(&spelled.ids(answer), offered(), &[1], FinishReason::Stop);
    assert_eq!(shown(&parts), [format!("text {answer}")]);
}

#[test]
fn minicpm_tool_calls_are_functions_with_a_tag_for_each_parameter() {
    let check = |answer: &str, expected: &[&str]| check(ToolCallFormat::MiniCpm, answer, expected);
    let call = |inside: &str| format!("<function name=\"read\">{inside}</function>");
    let param = |name: &str, value: &str| format!("<param name=\"{name}\">{value}</param>");
    check(
        &call(
            &(param("text", "Tokyo &amp; &lt;b&gt; & co")
                + &param("n", "5")
                + &param("flag", "True")),
        ),
        &["call 0 read {\"text\": \"Tokyo & <b> & co\", \"n\": 5, \"flag\": true}."],
    );
    check(
        &call(&param("text", "<![CDATA[\na &amp; ]] <b> </param>\n]]>")),
        &["call 0 read {\"text\": \"\\na &amp; ]] <b> </param>\\n\"}."],
    );
    check(
        &call(
            "\n  <param name='text'>\n<![CDATA[a]]>\n</param>\n <param name=\"list\">['x', 1]</param>\n",
        ),
        &["call 0 read {\"text\": \"a\", \"list\": [\"x\", 1]}."],
    );
    check(
        &call(&(param("text", "") + &param("maybe", "None"))),
        &["call 0 read {\"text\": \"\", \"maybe\": null}."],
    );
    check(
        &format!("<think>so</think>\n\nNow.\n{}\n{}", call(""), call("")),
        &["thought so", "text Now.", "call 0 read {}.", "call 1 read {}."],
    );
    let twice = call(&(param("n", "1") + &param("n", "2")));
    check(&twice, &["call 0 read {\"n\": 1", "fault", &format!("text {twice}")]);
    let cut = "<function name=\"read\"><param name=\"text\">ab</par";
    check(cut, &["call 0 read {\"text\": \"ab", "fault", &format!("text {cut}")]);
    // As characters it is a tool call only with the name of a tool.
    let text = "Write <function name=\"other\"> or <functional> here.";
    check_as(ToolCallFormat::MiniCpm, false, &offered(), text, &[&format!("text {text}")]);
}

#[test]
fn glm_tool_calls_are_a_name_with_keys_and_values() {
    let check = |answer: &str, expected: &[&str]| check(ToolCallFormat::Glm, answer, expected);
    for line in ["", "\n"] {
        let argument = |key: &str, value: &str| {
            format!("<arg_key>{key}</arg_key>{line}<arg_value>{value}</arg_value>{line}")
        };
        let call = |inside: &str| format!("<tool_call>read{line}{inside}</tool_call>");
        let text = argument("text", "a \"b\"\n</tool_call> <c> é\n");
        check(
            &call(&(text + &argument("n", "5") + &argument("list", "[1, \"x\"]"))),
            &[
                "call 0 read {\"text\": \"a \\\"b\\\"\\n</tool_call> <c> é\\n\", \"n\": 5, \"list\": [1, \"x\"]}.",
            ],
        );
        check(
            &format!("I look.\n{}\n{}\nDone.", call(""), call("")),
            &["text I look.", "call 0 read {}.", "call 1 read {}.", "text \n\nDone."],
        );
    }
    for wrong in
        ["", "re ad", "read</arg_key>", "read<arg_key>n</arg_key>5", "{\"name\": \"read\"}"]
    {
        let answer = format!("<tool_call>{wrong}</tool_call>");
        let model = Model::new(ToolCallFormat::Glm, true);
        let parts = shown(&model.parts(&model.ids(&answer), offered(), &[1], FinishReason::Stop));
        let text = format!("text {answer}");
        assert_eq!(parts[parts.len() - 2..], ["fault".to_owned(), text], "{wrong}");
    }
}
