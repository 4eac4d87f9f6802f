//! Answers of every family: what becomes text, reasoning and tool calls. Each answer is read with
//! its tags as added tokens and as characters, and in batches of all sizes.

use paceline_vocabulary::generation::FinishReason;
use proptest::prelude::*;
use serde_json::{Map, Value};

use super::parts::Parts;
use super::{AnswerPart, ConversationReading, ToolCallStart};
use crate::prompt::format::ToolCallFormat;
use crate::samples::answers::{Model, SampleAnswer, TAGS, offered, sample_answers};

fn shown(parts: &[AnswerPart]) -> Vec<String> {
    let mut out: Vec<String> = Vec::new();
    for part in parts {
        match part {
            AnswerPart::Text(text) => out.push(format!("text {text}")),
            AnswerPart::Reasoning(text) => out.push(format!("thought {text}")),
            AnswerPart::ToolCallStart(ToolCallStart { index, id, name }) => {
                assert_eq!(id, &format!("c{index}"));
                out.push(format!("call {index} {name} "));
            }
            AnswerPart::ToolCallArguments(text) => out.last_mut().expect("a call").push_str(text),
            AnswerPart::ToolCallEnd => {
                let call = out.last_mut().expect("a call");
                let arguments = call.splitn(4, ' ').nth(3).expect("arguments");
                let parsed: Result<Map<String, Value>, _> = serde_json::from_str(arguments);
                assert!(parsed.is_ok(), "{arguments}");
                call.push('.');
            }
            AnswerPart::ToolCallCut => out.last_mut().expect("a call").push_str(" cut"),
            AnswerPart::MalformedToolCall(_) => out.push("fault".into()),
            AnswerPart::Warning(_) => {}
        }
    }
    out
}

#[track_caller]
fn check_as(
    calls: ToolCallFormat,
    tokens: bool,
    reading: &ConversationReading,
    answer: &str,
    expected: &[&str],
) {
    check_end(calls, tokens, reading, answer, FinishReason::Stop, expected);
}

#[track_caller]
fn check_end(
    calls: ToolCallFormat,
    tokens: bool,
    reading: &ConversationReading,
    answer: &str,
    reason: FinishReason,
    expected: &[&str],
) {
    let model = Model::new(calls, tokens);
    let ids = model.ids(answer);
    for size in [1, 2, 1000] {
        let parts = model.parts(&ids, reading.clone(), &[size], reason);
        assert_eq!(shown(&parts), expected, "{answer:?} tokens={tokens} size={size}");
    }
}

/// Checks an answer with tags as tokens and with tags as characters.
#[track_caller]
fn check(calls: ToolCallFormat, answer: &str, expected: &[&str]) {
    for tokens in [true, false] {
        check_as(calls, tokens, &offered(), answer, expected);
    }
}

#[test]
fn thoughts_are_told_from_the_answer() {
    for calls in [
        ToolCallFormat::None,
        ToolCallFormat::Hermes,
        ToolCallFormat::QwenXml,
        ToolCallFormat::Llama3,
    ] {
        check(
            calls,
            "<think>\nso\n\nand so\n</think>\n\nIt is 5.",
            &["thought so\n\nand so", "text It is 5."],
        );
        check(calls, "<think>\n\n</think>\n\nIt is 5.\n", &["text It is 5.\n"]);
        check(calls, "It is </think> 5 < 6.\n\nYes", &["text It is </think> 5 < 6.\n\nYes"]);
        check(calls, "<think>cut o", &["thought cut o"]);
    }
    let open = ConversationReading { thought_is_open: true, ..offered() };
    for tokens in [true, false] {
        let check = |answer: &str, expected: &[&str]| {
            check_as(ToolCallFormat::Hermes, tokens, &open, answer, expected);
        };
        check(
            "so <tool_call> is a tag\n</think>\n\n5",
            &["thought so <tool_call> is a tag", "text 5"],
        );
        check("only thoughts", &["thought only thoughts"]);
    }
}

/// A tag that is ordinary text for the tokenizer could be the answer's own text. It is a tag in
/// front of the answer alone, where every published template has it.
#[test]
fn a_tag_of_thoughts_in_ordinary_text_counts_in_front_of_the_answer_alone() {
    let check = |answer: &str, expected: &[&str]| {
        check_as(ToolCallFormat::Hermes, false, &offered(), answer, expected);
    };
    check("\n<think>a</think>b", &["text \n", "thought a", "text b"]);
    for answer in ["a <think>b</think> c", "a</think>b", "</think>", "<thinking>a</thinking>"] {
        check(answer, &[&format!("text {answer}")]);
    }
    check("<think>a</think>b <think>c</think>", &["thought a", "text b <think>c</think>"]);
    check("<think>a <think> b</think>c", &["thought a <think> b", "text c"]);
}

#[test]
fn tags_that_are_tokens_are_no_characters_and_without_tools_there_is_no_tool_call() {
    let answer = "a<think>b</think><tool_call>{\"name\": \"read\"}</tool_call>";
    let model = Model::new(ToolCallFormat::Hermes, true);
    // The characters of the tags, as the model spelled them.
    let ids = Model { tokens: false, ..model }.ids(answer);
    let model = Model::new(ToolCallFormat::Hermes, true);
    let parts = model.parts(&ids, offered(), &[1], FinishReason::Stop);
    assert_eq!(shown(&parts), [format!("text {answer}")]);
    let no_tools = ConversationReading::default();
    let call = "<tool_call>{\"name\": \"read\"}</tool_call>";
    for tokens in [true, false] {
        check_as(ToolCallFormat::Hermes, tokens, &no_tools, call, &[&format!("text {call}")]);
    }
}

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

/// Checks an answer that the limit of tokens cuts.
#[track_caller]
fn check_cut(calls: ToolCallFormat, answer: &str, expected: &[&str]) {
    for tokens in [true, false] {
        check_end(calls, tokens, &offered(), answer, FinishReason::Length, expected);
    }
}

/// Checks a cut answer with half a tag. A tokenizer that has the tag as a token makes no halves.
#[track_caller]
fn check_half(calls: ToolCallFormat, answer: &str, expected: &[&str]) {
    check_end(calls, false, &offered(), answer, FinishReason::Length, expected);
}

#[test]
fn a_tool_call_that_the_limit_cuts_is_sent_as_far_as_it_came() {
    let check =
        |answer: &str, expected: &[&str]| check_cut(ToolCallFormat::Hermes, answer, expected);
    let begun = "I look.\n<tool_call>\n{\"name\": \"read\"";
    check(begun, &["text I look.", "call 0 read  cut"]);
    check(&format!("{begun}, \"arg"), &["text I look.", "call 0 read  cut"]);
    check(
        &format!("{begun}, \"arguments\": {{\"n\": 12"),
        &["text I look.", "call 0 read {\"n\": 12 cut"],
    );
    // Its arguments are whole, and its object is not.
    let arguments = format!("{begun}, \"arguments\": {{\"n\": 1}}");
    check(&arguments, &["text I look.", "call 0 read {\"n\": 1} cut"]);
    // The tool call is whole, and half its closing tag came.
    let whole = format!("{arguments}}}\n</tool_c");
    check_half(ToolCallFormat::Hermes, &whole, &["text I look.", "call 0 read {\"n\": 1}."]);
    check(
        &format!("{arguments}}}\n</tool_call>\n<tool_call>\n{{\"name\": \"get-time\", "),
        &["text I look.", "call 0 read {\"n\": 1}.", "call 1 get-time  cut"],
    );
    let tagged = "<tool_call>\n<function=read>\n<parameter=";
    let check = |answer: &str, expected: &[&str]| {
        check_cut(ToolCallFormat::QwenXml, &format!("{tagged}{answer}"), expected);
    };
    check("text>\nab\n</para", &["call 0 read {\"text\": \"ab cut"]);
    check("n>\n12", &["call 0 read {\"n\": 12 cut"]);
    check("maybe>\na \"b\"", &["call 0 read {\"maybe\": \"a \\\"b\\\" cut"]);
    check("n>\n5\n</parameter>\n</func", &["call 0 read {\"n\": 5 cut"]);
    let whole = format!("{tagged}n>\n5\n</parameter>\n</function>\n</tool");
    check_half(ToolCallFormat::QwenXml, &whole, &["call 0 read {\"n\": 5}."]);
    check_cut(
        ToolCallFormat::Llama3,
        "{\"name\": \"read\", \"parameters\": {\"n\": 1",
        &["call 0 read {\"n\": 1 cut"],
    );
    let gemma = "<|tool_call>call:read{list:[<|\"|>x<|\"|>,1";
    check_cut(ToolCallFormat::Gemma4, gemma, &["call 0 read {\"list\":[\"x\",1 cut"]);
    check_cut(
        ToolCallFormat::Gemma4,
        &gemma[..gemma.len() - 7],
        &["call 0 read {\"list\":[\"x cut"],
    );
    let listed = "[TOOL_CALLS][{\"name\": \"read\", \"arguments\": {\"n\": 5";
    check_cut(ToolCallFormat::MistralList, listed, &["call 0 read {\"n\": 5 cut"]);
    let whole = format!("{listed}}}}}, ");
    check_cut(ToolCallFormat::MistralList, &whole, &["call 0 read {\"n\": 5}."]);
    let args = "[TOOL_CALLS]read[ARGS]{\"n\": 5";
    check_cut(ToolCallFormat::MistralArgs, args, &["call 0 read {\"n\": 5 cut"]);
    let minicpm = "<function name=\"read\"><param name=\"text\">ab &l";
    check_cut(ToolCallFormat::MiniCpm, minicpm, &["call 0 read {\"text\": \"ab  cut"]);
    let glm = "<tool_call>read<arg_key>n</arg_key><arg_value>12";
    check_cut(ToolCallFormat::Glm, glm, &["call 0 read {\"n\": 12 cut"]);
    let header = "<|channel|>commentary to=functions.read <|constrain|>json<|message|>";
    check_cut(ToolCallFormat::Harmony, header, &["call 0 read  cut"]);
    check_cut(
        ToolCallFormat::Harmony,
        &format!("{header}{{\"n\": 5"),
        &["call 0 read {\"n\": 5 cut"],
    );
    check_half(ToolCallFormat::Harmony, &format!("{header}{{}}<|ca"), &["call 0 read {}."]);
}

/// A tool call that the limit cuts before its name is left out, and also half a tag.
#[test]
fn a_tool_call_that_the_limit_cuts_before_its_name_is_left_out() {
    for (calls, opening) in [
        (ToolCallFormat::Hermes, "<tool_call>\n{\"arguments\": {\"n\": 1}, \"name\": \"re"),
        (ToolCallFormat::QwenXml, "<tool_call>\n<function=re"),
        (ToolCallFormat::Gemma4, "<|tool_call>call:re"),
        (ToolCallFormat::MistralList, "[TOOL_CALLS] [{\"id\": \"a1b2c3d4e\", \"name\": \"re"),
        (ToolCallFormat::MistralArgs, "[TOOL_CALLS]re"),
        (ToolCallFormat::MiniCpm, "<function name=\"re"),
        (ToolCallFormat::Glm, "<tool_call>re"),
    ] {
        for end in 1..=opening.len() {
            check_half(calls, &opening[..end], &[]);
            let answer = format!("I look.\n{}", &opening[..end]);
            let model = Model::new(calls, false);
            let ids = model.ids(&answer);
            let parts = model.parts(&ids, offered(), &[1], FinishReason::Length);
            let shown = shown(&parts);
            let text = ["text I look.".to_owned(), "text I look.\n".to_owned()];
            assert!(shown.len() == 1 && text.contains(&shown[0]), "{answer:?}: {shown:?}");
        }
    }
    for after_tag in ["", "\n{", "\n{\"na", "\n{\"name\": \"re"] {
        check_cut(ToolCallFormat::Hermes, &format!("a\n<tool_call>{after_tag}"), &["text a"]);
    }
    check_cut(ToolCallFormat::Gemma4, "a<|tool_call>call:re", &["text a"]);
    check_cut(ToolCallFormat::QwenXml, "a\n<function=re", &["text a"]);
    let header = "<|channel|>commentary to=functions.read <|constrain|>json<|mess";
    for end in ["<|channel|>".len(), 20, 40, header.len()] {
        check_cut(ToolCallFormat::Harmony, &header[..end], &[]);
    }
    check_cut(ToolCallFormat::Harmony, " to=functions.re", &[]);
    check_cut(ToolCallFormat::Harmony, "short", &["text short"]);
    // JSON that cannot become a tool call of an offered tool is an answer.
    let llama =
        |answer: &str, expected: &[&str]| check_cut(ToolCallFormat::Llama3, answer, expected);
    llama("{\"name\": \"re", &[]);
    llama("{\"type\": \"function\", \"na", &[]);
    llama("{\"name\": \"Ad", &["text {\"name\": \"Ad"]);
    llama("{\"tit", &["text {\"tit"]);
    // Half a tag of a thought.
    check_half(ToolCallFormat::Hermes, "<think>so</th", &["thought so"]);
    check_half(ToolCallFormat::None, "<thi", &[]);
    check_cut(ToolCallFormat::None, "a <thi", &["text a <thi"]);
}

#[test]
fn line_breaks_around_tool_calls_are_kept_between_texts_alone() {
    let call = "<tool_call>\n{\"name\": \"read\", \"arguments\": {}}\n</tool_call>";
    let hermes = |answer: &str, expected: &[&str]| check(ToolCallFormat::Hermes, answer, expected);
    let (first, second) = ("call 0 read {}.", "call 1 read {}.");
    hermes(&format!("I look.\n{call}\nDone."), &["text I look.", first, "text \n\nDone."]);
    hermes(&format!("I look.{call}\n\nDone.\n"), &["text I look.", first, "text \n\nDone.\n"]);
    hermes(&format!("I look.\n{call}Done."), &["text I look.", first, "text \nDone."]);
    // Separators of tool calls are no text.
    hermes(
        &format!("I look.\n{call}\n{call}\nDone."),
        &["text I look.", first, second, "text \n\nDone."],
    );
    hermes(
        &format!("I look.\n{call}\nYes.\n\n{call}\nDone."),
        &["text I look.", first, "text \n\nYes.", second, "text \n\n\nDone."],
    );
    hermes(&format!("I look.\n\n{call}\n{call}\n"), &["text I look.", first, second]);
    hermes(&format!("\n{call}\n{call}\n\nDone."), &[first, second, "text Done."]);
    let thinking = format!("I look.\n{call}\n<think>so</think>\n\nDone.");
    let expected = ["text I look.", first, "thought so", "text \nDone."];
    check_as(ToolCallFormat::Hermes, true, &offered(), &thinking, &expected);
    // A tool call that is none is text with what stood before it.
    hermes(
        &format!("I look.\n{call}\n<tool_call>oops</tool_call>"),
        &["text I look.", first, "text \n\n", "fault", "text <tool_call>oops</tool_call>"],
    );
    let tagged = "<tool_call>\n<function=read>\n</function>\n</tool_call>";
    let shown = ["text I look.", first, "text \n\nDone."];
    check(ToolCallFormat::QwenXml, &format!("I look.\n{tagged}\nDone."), &shown);
    let gemma = "<|tool_call>call:read{}<tool_call|>";
    check(ToolCallFormat::Gemma4, &format!("I look.\n{gemma}\nDone."), &shown);
    let llama = "{\"name\": \"read\", \"parameters\": {}}";
    check(
        ToolCallFormat::Llama3,
        &format!("{llama}\n{llama}\nDone."),
        &[first, second, "text Done."],
    );
}

#[test]
fn tokens_of_thoughts_are_counted_with_their_tags_whatever_the_batches() {
    let usage =
        |calls: ToolCallFormat, reading: &ConversationReading, answer: &str, size: usize| {
            let model = Model::new(calls, true);
            let ids = model.ids(answer);
            let events = model.events(&ids, reading.clone(), &[size], &[], FinishReason::Stop);
            let end = events.into_iter().rev().find_map(|event| event.last).expect("an end");
            (end.usage.reasoning_tokens as usize, end.usage.completion_tokens as usize)
        };
    let model = Model::new(ToolCallFormat::Hermes, true);
    let (thought, text) = ("so it is", "\n\nIt is 5.");
    let thoughts = model.ids(thought).len();
    let open = ConversationReading { thought_is_open: true, ..offered() };
    for size in [1, 2, 5, 1000] {
        let whole = format!("<think>{thought}</think>{text}");
        let all = model.ids(&whole).len();
        assert_eq!(usage(ToolCallFormat::Hermes, &offered(), &whole, size), (thoughts + 2, all));
        let rest = &whole["<think>".len()..];
        assert_eq!(usage(ToolCallFormat::Hermes, &open, rest, size), (thoughts + 1, all - 1));
        assert_eq!(usage(ToolCallFormat::Hermes, &offered(), text, size).0, 0);
        let harmony = format!(
            "<|channel|>analysis<|message|>{thought}<|end|><|start|>assistant<|channel|>final<|message|>5"
        );
        assert_eq!(usage(ToolCallFormat::Harmony, &offered(), &harmony, size).0, thoughts + 2);
    }
}

#[test]
fn an_answer_with_one_tool_call_ends_where_the_call_does() {
    let one = ConversationReading { one_call: true, ..offered() };
    for SampleAnswer { calls, answer, .. } in sample_answers() {
        let model = Model::new(calls, true);
        let other = answer.replacen("read", "nope", 1);
        let second = if calls == ToolCallFormat::Harmony { "read" } else { "get-time" };
        for (answer, ended) in [(&answer, "read"), (&other, second)] {
            // A call of another tool is no call in this format.
            if calls == ToolCallFormat::Llama3 && *answer == other {
                continue;
            }
            let ids = model.ids(answer);
            for size in [1, 3, 1000] {
                let reason = FinishReason::Length;
                let events = model.events(&ids, one.clone(), &[size], &[], reason);
                let parts: Vec<AnswerPart> =
                    events.iter().flat_map(|event| event.parts.clone()).collect();
                let start = parts.iter().rev().find_map(|part| match part {
                    AnswerPart::ToolCallStart(start) => Some(start.name.as_str()),
                    _ => None,
                });
                assert_eq!((start, parts.last()), (Some(ended), Some(&AnswerPart::ToolCallEnd)));
                let end = events.last().and_then(|event| event.last.as_ref()).expect("an end");
                assert_eq!(end.finish_reason, Some(FinishReason::Stop), "{calls:?}");
                assert_eq!(end.stop, "");
                let read: usize = events.iter().map(|event| event.token_ids.len()).sum();
                assert_eq!(end.usage.completion_tokens as usize, read);
                assert!(read < ids.len() || *answer == other, "{calls:?}: nothing was left out");
            }
        }
    }
}

#[test]
fn an_answer_to_tools_begins_with_a_warning_if_calls_are_not_read() {
    let parts = |calls: ToolCallFormat, reading: ConversationReading, answer: &str| {
        let model = Model::new(calls, true);
        model.parts(&model.ids(answer), reading, &[1], FinishReason::Stop)
    };
    for answer in ["", "f(1)"] {
        let unread = parts(ToolCallFormat::None, offered(), answer);
        let [AnswerPart::Warning(warning), rest @ ..] = &unread[..] else { panic!("{unread:?}") };
        assert!(warning.contains("not known") && shown(rest).concat().ends_with(answer));
        let no_tools = parts(ToolCallFormat::None, ConversationReading::default(), answer);
        let read = parts(ToolCallFormat::Hermes, offered(), answer);
        assert_eq!((shown(&no_tools), no_tools), (shown(&read), read));
    }
}

#[test]
fn arguments_are_sent_as_they_come() {
    let model = Model::new(ToolCallFormat::QwenXml, true);
    let answer = "<tool_call><function=read><parameter=text>one two three four five";
    let mut seen = String::new();
    for event in model.events(&model.ids(answer), offered(), &[1], &[], FinishReason::Stop) {
        if event.last.is_none() {
            for part in event.parts {
                if let AnswerPart::ToolCallArguments(text) = part {
                    seen.push_str(&text);
                }
            }
        }
    }
    assert!(seen.starts_with("{\"text\": \"one two three"), "{seen}");
}

#[test]
fn a_stop_string_is_looked_for_in_the_text_alone() {
    let model = Model::new(ToolCallFormat::Hermes, true);
    let answer = "<think>a END b</think>c E<tool_call>{\"name\": \"read\", \"arguments\": {\"text\": \"END\"}}</tool_call>ND d END e";
    let events = model.events(&model.ids(answer), offered(), &[3], &["END"], FinishReason::Stop);
    let end = events.last().and_then(|event| event.last.clone()).expect("an end");
    assert_eq!(end.stop, "END");
    let mut parts = Parts::default();
    events.into_iter().flat_map(|event| event.parts).for_each(|part| parts.push(part));
    let expected =
        ["thought a END b", "text c E", "call 0 read {\"text\": \"END\"}.", "text ND d "];
    assert_eq!(shown(&parts.take()), expected);
}

/// Pieces of answers of all families, in any order. A word stands once in an answer.
fn fragments() -> impl Strategy<Value = Vec<&'static str>> {
    let fragments = [
        &TAGS[..],
        &[
            "WORD", "WORD", "WORD", " ", "\n", "{", "}", "\"", ":", ",", ";", "<", "é🦀",
            "{\"name\": \"read\", \"arguments\": {\"text\": \"WORD\"}}",
            "{\"name\": \"read\", \"parameters\": {\"WORD\": 1}}",
            "\"name\": \"read\"",
            "\"arguments\": {}",
            "<function=read>",
            "<parameter=text>\nWORD\n</parameter>\n",
            "</function>",
            "<parameter=",
            "call:read{text:",
            "call:read{}",
            "<|\"|>WORD<|\"|>",
            "<|channel>thought\n",
            "<|start|>assistant",
            "<|channel|>analysis<|message|>",
            "<|channel|>final<|message|>",
            "<|channel|>commentary to=functions.read <|constrain|>json<|message|>{\"text\": \"WORD\"}<|call|>",
            "[", "]",
            "read[ARGS]{\"text\": \"WORD\"}",
            "read[CALL_ID]a1b2c3d4e[ARGS]",
            "<function name=\"read\">",
            "<param name=\"text\">WORD</param>",
            "<param name=\"list\">['WORD', 1",
            "<![CDATA[WORD]]>",
            "<tool_call>read\n",
            "<arg_key>text</arg_key>",
            "<arg_value>WORD</arg_value>",
        ][..],
    ]
    .concat();
    proptest::collection::vec(proptest::sample::select(fragments), 0..12)
}

#[test]
fn batches_do_not_matter_and_nothing_is_lost() {
    let formats = [
        ToolCallFormat::None,
        ToolCallFormat::Hermes,
        ToolCallFormat::QwenXml,
        ToolCallFormat::Llama3,
        ToolCallFormat::Gemma4,
        ToolCallFormat::Harmony,
        ToolCallFormat::MistralList,
        ToolCallFormat::MistralArgs,
        ToolCallFormat::MiniCpm,
        ToolCallFormat::Glm,
    ];
    let models: Vec<Model> = [true, false]
        .into_iter()
        .flat_map(|tokens| formats.map(|format| Model::new(format, tokens)))
        .collect();
    let mut config = ProptestConfig::with_cases(2500);
    config.rng_seed = proptest::test_runner::RngSeed::Fixed(29);
    proptest!(config, |(fragments in fragments(), model in 0..models.len(), sizes in proptest::collection::vec(1_usize..6, 1..5), tools: bool, thought_is_open: bool)| {
        let model = &models[model];
        let mut words = Vec::new();
        let mut answer = String::new();
        for fragment in fragments {
            let word = format!("w{}x", words.len());
            if fragment.contains("WORD") {
                words.push(word.clone());
            }
            answer.push_str(&fragment.replace("WORD", &word));
        }
        let ids = model.ids(&answer);
        let tools = offered().tools.filter(|_| tools);
        let reading = ConversationReading { tools, thought_is_open, ..offered() };
        let parts = model.parts(&ids, reading.clone(), &[usize::MAX >> 1], FinishReason::Stop);
        prop_assert_eq!(&model.parts(&ids, reading, &sizes, FinishReason::Stop), &parts, "{}", answer);
        // Tool calls that end have arguments that are JSON, which `shown` checks.
        let seen = shown(&parts).concat();
        for word in words {
            prop_assert!(seen.contains(&word), "{} of {:?} is not in {:?}", word, answer, parts);
        }
        let void = parts.iter().filter(|part| matches!(part, AnswerPart::ToolCallStart(_))).count()
            - parts.iter().filter(|part| matches!(part, AnswerPart::ToolCallEnd)).count();
        let faults = parts.iter().filter(|part| matches!(part, AnswerPart::MalformedToolCall(_))).count();
        prop_assert!(void <= faults, "{:?}", parts);
    });
}
