//! Requests of the Messages protocol: their form in the middle, and fields that are refused by
//! name.

use paceline_vocabulary::RouteWish;
use serde_json::json;

use super::*;
use crate::inference::input::{JsonInput, MessageInput, ToolInput};

fn decoded(body: Value, purpose: Purpose) -> Result<Decoded<Asked>, InferenceError> {
    decode(serde_json::from_value(body).expect("a request"), purpose)
}

fn with(mut more: Value) -> Value {
    let mut body =
        json!({"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]});
    let (body_fields, more) =
        (body.as_object_mut().expect("an object"), more.as_object_mut().expect("an object"));
    body_fields.append(more);
    body
}

fn served(more: Value) -> Decoded<Asked> {
    decoded(with(more), Purpose::Answer).expect("served")
}

fn conversation(decoded: Decoded<Asked>) -> ConversationInput {
    match decoded.input.prompt {
        PromptInput::Conversation(conversation) => conversation,
        other => panic!("a conversation, not {other:?}"),
    }
}

/// Messages in a short form: `role:part|part`, then thoughts, tool calls and the call that is
/// answered.
fn short(messages: &[MessageInput]) -> Vec<String> {
    let part = |part: &ContentPartInput| match part {
        ContentPartInput::Text(text) => text.clone(),
        ContentPartInput::Image(file) => format!("<{} bytes>", file.len()),
        ContentPartInput::ImageUrl { url, .. } => format!("<{url}>"),
    };
    let one = |message: &MessageInput| {
        let MessageInput { role, content, tool_calls, tool_call_id, name, reasoning } = message;
        let mut line = format!("{role}:{}", content.iter().map(part).collect::<Vec<_>>().join("|"));
        if !reasoning.is_empty() {
            line += &format!(" ({reasoning})");
        }
        for call in tool_calls {
            line += &format!(" !{} {}{}", call.id, call.name, call.arguments.text());
        }
        if !tool_call_id.is_empty() {
            line += &format!(" @{tool_call_id} {name}");
        }
        line
    };
    messages.iter().map(one).collect()
}

#[track_caller]
fn refused(body: Value, field: &str, word: &str) {
    let error = decoded(body, Purpose::Answer).expect_err("refused");
    assert_eq!(error.field.as_deref(), Some(field), "{error}");
    assert!(error.message.contains(word), "{word:?} in {error}");
}

#[test]
fn each_answer_of_a_tool_is_a_message_in_its_place() {
    let image = json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAEC"}});
    let url = json!({"type": "image", "source": {"type": "url", "url": "data:,x"}});
    let decoded = served(json!({
        "system": [
            {"type": "text", "text": "You help.", "cache_control": {"type": "ephemeral"}},
            {"type": "text", "text": "Briefly."},
        ],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "a"}, url]},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "text", "text": "b"},
                {"type": "tool_use", "id": "t1", "name": "read", "input": {"z": 1, "a": [2]}},
                {"type": "tool_use", "id": "t2", "name": "list", "input": {}},
                {"type": "text", "text": "after"},
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "1"}, image]},
                {"type": "tool_result", "tool_use_id": "t2", "content": "2", "is_error": true},
                {"type": "tool_result", "tool_use_id": "t3"},
                {"type": "tool_result", "tool_use_id": "t4", "is_error": true},
                {"type": "text", "text": "go on"},
            ]},
            {"role": "system", "content": "now in French"},
            {"role": "user", "content": ""},
        ],
    }));
    let paths: Vec<_> = decoded.paths.messages.iter().map(|message| message.path.clone()).collect();
    assert_eq!(
        short(&conversation(decoded).messages),
        [
            "system:You help.|Briefly.",
            "user:a|<data:,x>",
            r#"assistant:b (hm) !t1 read{"z":1,"a":[2]} !t2 list{}"#,
            "assistant:after",
            "tool:1|<3 bytes> @t1 read",
            "tool:2 @t2 list",
            "tool: @t3 ",
            "tool:the tool failed @t4 ",
            "user:go on",
            "system:now in French",
            "user:",
        ]
    );
    assert_eq!(
        paths,
        [
            "system",
            "messages[0]",
            "messages[1]",
            "messages[1]",
            "messages[2].content[0]",
            "messages[2].content[1]",
            "messages[2].content[2]",
            "messages[2].content[3]",
            "messages[2]",
            "messages[3]",
            "messages[4]",
        ]
    );
}

#[test]
fn parameters_have_the_middles_names() {
    let decoded = served(json!({
        "temperature": 0.5, "top_k": 3, "top_p": 0.9, "stop_sequences": ["x"], "stream": true,
        "paceline": {"route": "plain"},
    }));
    assert!(decoded.stream);
    assert_eq!(decoded.writer, Asked { max_tokens: 9, hide_thinking: false });
    let params = decoded.input.params;
    let sampling = &params.sampling;
    assert_eq!(
        (sampling.temperature, sampling.top_k, sampling.top_p),
        (Some(0.5), Some(3), Some(0.9))
    );
    assert_eq!((params.max_tokens, params.stop.as_slice()), (Some(9), &["x".to_owned()][..]));
    assert_eq!(params.route, Some(RouteWish::Plain));
    assert!(params.lower_max_tokens && params.report_usage);
}

#[test]
fn tools_are_offered_unless_the_choice_is_none() {
    let tool = json!({"name": "f", "description": "d", "input_schema": {"type": "object"}, "type": "custom"});
    let offered =
        |choice: Value| conversation(served(json!({"tools": [tool], "tool_choice": choice}))).tools;
    let expected = ToolInput {
        name: "f".into(),
        description: "d".into(),
        parameters: json!({"type": "object"}).into(),
        strict: false,
        path: "tools[0]".into(),
    };
    for choice in [json!(null), json!({"type": "auto", "disable_parallel_tool_use": false})] {
        assert_eq!(offered(choice).as_slice(), std::slice::from_ref(&expected));
    }
    assert_eq!(offered(json!({"type": "none"})), []);
}

#[test]
fn a_message_of_the_assistant_may_have_its_thought_under_each_name() {
    let user = json!({"role": "user", "content": "Hi"});
    for name in ["reasoning_content", "thinking", "reasoning"] {
        let message = |role: &str| json!({"role": role, "content": "a", (name): "hm"});
        let decoded = served(json!({"messages": [message("assistant"), user]}));
        assert_eq!(short(&conversation(decoded).messages), ["assistant:a (hm)", "user:Hi"]);
        let field = format!("messages[0].{name}");
        refused(with(json!({"messages": [message("user")]})), &field, "assistant");
    }
    let details = json!({"role": "assistant", "content": "a", "reasoning_details": [{}]});
    served(json!({"messages": [details, user]}));
}

#[test]
fn none_is_minus_one_empty_or_null() {
    let tool = json!({"name": "f", "input_schema": {"type": "object"}});
    let plain = served(json!({"tools": [tool], "top_k": 0}));
    let mut tool = tool;
    tool["description"] = json!(null);
    assert_eq!(served(json!({"tools": [tool], "top_k": -1})).input, plain.input);
    assert_eq!(served(json!({"tools": []})).input, served(json!({})).input);
}

#[test]
fn a_choice_may_force_tool_calls_and_a_tool_may_be_strict() {
    let tool = json!({"name": "f", "input_schema": {"type": "object"}, "strict": true});
    let with = |choice: Value| {
        let conversation = conversation(served(json!({"tools": [tool], "tool_choice": choice})));
        assert!(conversation.tools.iter().all(|tool| tool.strict));
        conversation.calls
    };
    assert_eq!(with(json!({"type": "auto"})), ToolCallRule::Auto);
    assert_eq!(with(json!({"type": "any"})), ToolCallRule::Required);
    assert_eq!(with(json!({"type": "tool", "name": "f"})), ToolCallRule::Named("f".into()));
}

#[test]
fn the_output_may_have_a_schema() {
    let format = json!({"type": "json_schema", "schema": {"type": "object"}});
    let decoded = served(json!({"output_config": {"format": format}}));
    let expected = TextForm::JsonSchema(r#"{"type":"object"}"#.into());
    assert_eq!(decoded.input.params.shape.text, Some(expected));
    assert_eq!(served(json!({"output_config": {"format": null}})).input.params.shape.text, None);
}

#[test]
fn a_choice_may_allow_one_tool_call() {
    let calls = |choice: Value| served(json!({ "tool_choice": choice })).calls;
    assert_eq!(calls(json!(null)), AllowedToolCalls::All);
    let choice = |flag: bool| json!({"type": "auto", "disable_parallel_tool_use": flag});
    assert_eq!(calls(choice(false)), AllowedToolCalls::All);
    assert_eq!(calls(choice(true)), AllowedToolCalls::One);
}

#[test]
fn thinking_and_effort_are_for_the_template() {
    let variables = |more: Value| match conversation(served(more)).template_arguments {
        JsonInput::Value(variables) => variables,
        JsonInput::Text(none) => none.is_empty().then_some(Value::Null).expect("no text"),
    };
    assert_eq!(variables(json!({})), Value::Null);
    let off = json!({"type": "disabled"});
    assert_eq!(variables(json!({ "thinking": off })), json!({"enable_thinking": false}));
    let on = json!({"type": "enabled", "budget_tokens": 1024});
    let both = json!({"thinking": on, "output_config": {"effort": "max"}});
    assert_eq!(variables(both.clone()), json!({"enable_thinking": true}));
    assert_eq!(conversation(served(both)).effort, Some(Effort::Max));
    let by_name =
        json!({"thinking": off, "paceline": {"template_arguments": {"enable_thinking": true}}});
    assert_eq!(variables(by_name), json!({"enable_thinking": true}));
    let omitted = served(json!({"thinking": {"type": "adaptive", "display": "omitted"}}));
    assert!(omitted.writer.hide_thinking);
}

#[test]
fn the_budget_of_thinking_is_decoded() {
    let budget = |thinking: Value| {
        served(json!({ "thinking": thinking })).input.params.shape.thinking_budget
    };
    assert_eq!(budget(json!({"type": "enabled", "budget_tokens": 1024})), Some(1024));
    assert_eq!(budget(json!({"type": "adaptive", "budget_tokens": null})), None);
    assert_eq!(budget(json!(null)), None);
}

#[test]
fn a_bill_before_the_system_prompt_is_not_for_the_model() {
    let bill =
        json!({"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1; cch=1f;"});
    let text = json!({"type": "text", "text": "You help."});
    let both = conversation(served(json!({"system": [bill, text]})));
    assert_eq!(short(&both.messages), ["system:You help.", "user:Hi"]);
    assert_eq!(short(&conversation(served(json!({"system": [bill]}))).messages), ["user:Hi"]);
}

#[test]
fn what_is_not_served_is_refused_by_its_path() {
    refused(with(json!({"unknown": 1})), "unknown", "does not serve");
    refused(with(json!({"container": "c"})), "container", "does not serve");
    refused(with(json!({"speed": "fast"})), "speed", "standard");
    refused(with(json!({"max_tokens": null})), "max_tokens", "none");
    for (choice, field) in [
        (json!({"type": "some"}), "tool_choice.type"),
        (json!({"type": "tool"}), "tool_choice.name"),
        (json!({"type": "any", "name": "f"}), "tool_choice.name"),
    ] {
        refused(with(json!({ "tool_choice": choice })), field, "expected");
    }
    let format = json!({"output_config": {"format": {"type": "xml", "schema": {}}}});
    refused(with(format), "output_config.format.type", "xml");
    refused(with(json!({"thinking": {"type": "deep"}})), "thinking.type", "\"deep\"");
    let bash = json!({"type": "bash_20250124", "name": "bash"});
    refused(with(json!({"tools": [bash]})), "tools[0].type", "bash_20250124");
    refused(with(json!({"tools": [{"name": "f"}]})), "tools[0].input_schema", "none");
    let said = |content: Value| with(json!({"messages": [{"role": "user", "content": content}]}));
    let field = "messages[0].content[0]";
    let strange = json!({"type": "text", "text": "a", "mood": 1});
    refused(said(json!([strange])), &format!("{field}.mood"), "does not serve");
    let call = json!({"type": "tool_use", "id": "t", "name": "f", "input": {}});
    refused(said(json!([call])), field, "assistant");
    let broken = json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "?"}});
    let data = format!("{field}.source.data");
    refused(said(json!([broken])), &data, "Could not process image: expected base64");
    let begun = json!({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]});
    refused(with(begun.clone()), "messages[1]", "continue");
    assert!(decoded(with(begun), Purpose::Count).is_ok(), "a count has no answer to continue");
    let robot = json!({"messages": [{"role": "robot", "content": "a"}]});
    refused(with(robot), "messages[0].role", "\"robot\"");
}

/// Where the client finds a field of a message of the input.
fn place(decoded: &Decoded<Asked>, inner: &str) -> Option<String> {
    decoded.paths.translate(InferenceError::invalid(inner, "a", "b")).field
}

#[test]
fn errors_name_the_clients_own_fields() {
    let decoded = served(json!({
        "system": [
            {"type": "text", "text": "x-anthropic-billing-header: a"},
            {"type": "text", "text": "You help."},
        ],
        "messages": [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "hm"},
                {"type": "text", "text": "b"},
                {"type": "tool_use", "id": "t1", "name": "f", "input": {}},
                {"type": "tool_use", "id": "t2", "name": "g", "input": {}},
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "1"}]},
                {"type": "tool_result", "tool_use_id": "t2", "content": "2"},
                {"type": "text", "text": "c"},
            ]},
        ],
    }));
    for (inner, outer) in [
        ("messages[0].content[0]", "system[1]"),
        ("messages[1].content[0]", "messages[0].content"),
        ("messages[2].reasoning", "messages[1].content[0].thinking"),
        ("messages[2].content[0]", "messages[1].content[1]"),
        ("messages[2].tool_calls[1].arguments", "messages[1].content[3].input"),
        ("messages[2].tool_calls[1].name", "messages[1].content[3].name"),
        ("messages[2].tool_calls", "messages[1].content"),
        ("messages[3].content[0]", "messages[2].content[0].content[0]"),
        ("messages[4].content[0]", "messages[2].content[1].content"),
        ("messages[4].tool_call_id", "messages[2].content[1].tool_use_id"),
        ("messages[5].content[0]", "messages[2].content[2]"),
        ("messages[5].content", "messages[2].content"),
    ] {
        assert_eq!(place(&decoded, inner).as_deref(), Some(outer), "{inner}");
    }
}

#[test]
fn what_a_client_stored_is_served_again() {
    let decoded = served(json!({"messages": [
        {"role": "user", "content": "a", "id": null},
        {"role": "assistant", "content": [
            {"type": "redacted_thinking", "data": "gAAAA"},
            {"type": "thinking", "thinking": "hm", "signature": null, "summary": null},
            {"type": "tool_use", "id": "t1", "name": "f", "input": {"incomplete": "{\"a"}},
            {"type": "tool_use", "id": "t2", "name": "f", "input": "{\"item\": \"bri"},
            {"type": "tool_use", "id": "t3", "name": "f", "input": null},
        ]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": null}]},
    ]}));
    assert_eq!(
        short(&conversation(decoded).messages),
        [
            "user:a",
            r#"assistant: (hm) !t1 f{"incomplete":"{\"a"} !t2 f{"item": "bri !t3 f"#,
            "tool: @t1 f",
        ]
    );
}

#[test]
fn a_tool_is_offered_from_its_reference_on() {
    let tool =
        |name: &str| json!({"name": name, "input_schema": {}, "defer_loading": name != "search"});
    let all = json!([tool("search"), tool("read"), tool("write")]);
    let with = |messages: Value| {
        let found = conversation(served(json!({"tools": all, "messages": messages})));
        let names: Vec<_> = found.tools.iter().map(|tool| tool.name.clone()).collect();
        (names.join(" "), short(&found.messages))
    };
    let user = json!({"role": "user", "content": "Hi"});
    assert_eq!(with(json!([user])).0, "search");
    let reference = json!({"type": "tool_reference", "tool_name": "read"});
    let result = json!({"type": "tool_result", "tool_use_id": "t", "content": [reference]});
    let (names, messages) = with(json!([user, {"role": "user", "content": [result]}]));
    assert_eq!(names, "search read");
    assert_eq!(messages, ["user:Hi", "tool:The tool read is offered now. @t "]);
    let change = |kind: &str, name: &str| json!({"type": kind, "tool": {"type": "tool_reference", "name": name}});
    let changes = json!([change("tool_addition", "write"), change("tool_removal", "search")]);
    let (names, messages) = with(json!([user, {"role": "system", "content": changes}]));
    assert_eq!((names.as_str(), messages), ("write", vec!["user:Hi".to_owned()]));
    let unknown = json!([user, {"role": "system", "content": [change("tool_addition", "x")]}]);
    let field = "messages[1].content[0].tool.name";
    refused(with_messages(unknown), field, "a tool of this request");
    let by_user = json!([{"role": "user", "content": [change("tool_addition", "x")]}]);
    refused(with_messages(by_user), "messages[0].content[0]", "system");
}

/// Blocks of one turn of the assistant: a tool that the provider ran, and its result.
fn run_by_provider(used: &str, name: &str, result: &str, content: Value) -> [Value; 2] {
    let used = json!({"type": used, "id": "s1", "name": name, "input": {"q": "a"}});
    [used, json!({"type": result, "tool_use_id": "s1", "content": content})]
}

#[test]
fn blocks_of_tools_that_the_provider_ran_are_left_out() {
    let page = json!({"type": "web_search_result", "url": "https://a.example", "title": "t",
        "encrypted_content": "e", "page_age": null});
    let failed = json!({"type": "web_fetch_tool_result_error", "error_code": "unavailable"});
    let output = json!({"type": "code_execution_result", "stdout": "1", "stderr": "",
        "return_code": 0, "content": []});
    let text = json!([{"type": "text", "text": "hidden"}]);
    for (used, name, result, content) in [
        ("server_tool_use", "web_search", "web_search_tool_result", json!([page])),
        ("server_tool_use", "web_fetch", "web_fetch_tool_result", failed),
        ("server_tool_use", "code_execution", "code_execution_tool_result", output.clone()),
        ("server_tool_use", "bash_code_execution", "bash_code_execution_tool_result", output),
        (
            "server_tool_use",
            "text_editor_code_execution",
            "text_editor_code_execution_tool_result",
            json!({"type": "text_editor_code_execution_create_result", "is_file_update": false}),
        ),
        ("server_tool_use", "advisor", "advisor_tool_result", json!({"type": "advisor_result"})),
        ("mcp_tool_use", "read", "mcp_tool_result", text),
    ] {
        let [used, answer] = run_by_provider(used, name, result, content);
        let decoded = served(json!({"messages": [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "text", "text": "I look."},
                used,
                answer,
                {"type": "text", "text": "Found.", "citations": [{"type": "web_search_result_location"}]},
                {"type": "tool_use", "id": "t1", "name": "f", "input": {}},
            ]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "1"}]},
        ]}));
        let arguments = place(&decoded, "messages[2].tool_calls[0].arguments");
        assert_eq!(arguments.as_deref(), Some("messages[1].content[5].input"), "{result}");
        assert_eq!(
            short(&conversation(decoded).messages),
            ["user:a", "assistant:I look. (hm)", "assistant:Found. !t1 f{}", "tool:1 @t1 f"],
            "{result}"
        );
    }
}

#[test]
fn a_message_of_nothing_but_the_providers_blocks_is_as_one_without_blocks() {
    let blocks = run_by_provider("mcp_tool_use", "read", "mcp_tool_result", json!("x"));
    let [alone, result] = blocks.clone();
    let said = |blocks: Value| {
        let user = json!({"role": "user", "content": "a"});
        let assistant = json!({"role": "assistant", "content": blocks});
        let found = conversation(served(json!({"messages": [user, assistant, user]})));
        short(&found.messages)
    };
    for left_out in [json!([]), json!(blocks), json!([alone]), json!([result])] {
        assert_eq!(said(left_out), ["user:a", "user:a"]);
    }
}

/// The result of a search for tools that Anthropic's service made.
fn search_result(content: Value) -> Value {
    json!({"type": "tool_search_tool_result", "tool_use_id": "s1", "content": content})
}

#[test]
fn a_tool_is_offered_from_the_providers_search_result_on() {
    let tool =
        |name: &str| json!({"name": name, "input_schema": {}, "defer_loading": name != "now"});
    let used = json!({"type": "server_tool_use", "id": "s1",
        "name": "tool_search_tool_regex", "input": {"query": "read"}, "caller": {"type": "direct"}});
    let with = |content: Value| {
        let blocks = json!([used, search_result(content), {"type": "text", "text": "b"}]);
        let user = json!({"role": "user", "content": "a"});
        let messages = json!([user, {"role": "assistant", "content": blocks}, user]);
        let tools = json!([tool("now"), tool("read"), tool("write")]);
        let found = conversation(served(json!({"tools": tools, "messages": messages})));
        assert_eq!(short(&found.messages), ["user:a", "assistant:b", "user:a"]);
        found.tools.iter().map(|tool| tool.name.clone()).collect::<Vec<_>>().join(" ")
    };
    let found = |names: &[&str]| {
        let reference = |name: &&str| json!({"type": "tool_reference", "tool_name": name});
        let references: Vec<Value> = names.iter().map(reference).collect();
        json!({"type": "tool_search_tool_search_result", "tool_references": references})
    };
    assert_eq!(with(found(&[])), "now");
    assert_eq!(with(found(&["read", "gone"])), "now read");
    assert_eq!(with(found(&["write", "read"])), "now read write");
    let failed = json!({"type": "tool_search_tool_result_error", "error_code": "unavailable",
        "error_message": null});
    assert_eq!(with(failed), "now");
}

#[test]
fn the_providers_blocks_are_the_assistants_and_have_no_other_fields() {
    let message = |role: &str, block: Value| {
        let user = json!({"role": "user", "content": "a"});
        with_messages(json!([{"role": role, "content": [block]}, user]))
    };
    let [used, result] =
        run_by_provider("server_tool_use", "web_search", "web_search_tool_result", json!([]));
    let empty = json!({"type": "tool_search_tool_search_result", "tool_references": []});
    let field = "messages[0].content[0]";
    for block in [used, result, search_result(empty.clone())] {
        refused(message("user", block.clone()), field, "assistant");
        let mut strange = block;
        strange["mood"] = 1.into();
        refused(message("assistant", strange), &format!("{field}.mood"), "does not serve");
    }
    let inside = |name: &str, value: Value| {
        let mut content = empty.clone();
        content[name] = value;
        message("assistant", search_result(content))
    };
    refused(inside("mood", json!(1)), &format!("{field}.content.mood"), "does not serve");
    let reference = json!({"type": "tool_reference", "tool_name": "f", "mood": 1});
    let place = format!("{field}.content.tool_references[1].mood");
    let fine = json!({"type": "tool_reference", "tool_name": "f"});
    refused(inside("tool_references", json!([fine, reference])), &place, "does not serve");
    let many = json!(vec![fine; limits::MAX_TOOLS as usize + 1]);
    let place = format!("{field}.content.tool_references");
    refused(inside("tool_references", many), &place, &limits::MAX_TOOLS.to_string());
}

fn with_messages(messages: Value) -> Value {
    with(json!({ "messages": messages }))
}

#[test]
fn a_message_of_the_system_may_be_for_one_turn() {
    let system = json!({"role": "system", "content": "s", "clear_at": "next_user_message",
        "output_config": {"effort": "low"}});
    let user = json!({"role": "user", "content": "a"});
    let found = |messages: Value| conversation(served(json!({ "messages": messages })));
    let now = found(json!([user, system]));
    assert_eq!(
        (short(&now.messages), now.effort),
        (vec!["user:a".into(), "system:s".into()], Some(Effort::Low))
    );
    let later = found(json!([user, system, user]));
    assert_eq!(
        (short(&later.messages), later.effort),
        (vec!["user:a".into(), "user:a".into()], None)
    );
    for (message, field) in [
        (json!({"role": "user", "content": "a", "clear_at": "never"}), "messages[0].clear_at"),
        (json!({"role": "system", "content": "a", "clear_at": "x"}), "messages[0].clear_at"),
        (
            json!({"role": "system", "content": "a", "output_config": {"effort": "x"}}),
            "messages[0].output_config.effort",
        ),
    ] {
        refused(with_messages(json!([message])), field, "expected");
    }
}

#[test]
fn a_thread_is_refused_with_the_code_that_clients_know() {
    let error = decoded(with(json!({"thread": {"type": "create"}})), Purpose::Answer);
    let error = error.expect_err("no thread");
    let code = error.facts.get(ERROR_CODE).map(String::as_str);
    assert_eq!(
        (error.field.as_deref(), code),
        (Some("thread"), Some("thread_unsupported_request"))
    );
    served(json!({"thread": null}));
}

#[test]
fn tools_of_the_provider_are_left_out() {
    let own = json!({"name": "f", "input_schema": {"type": "object"}});
    let search = json!({"type": "web_search_20250305", "name": "web_search", "max_uses": 3});
    let found = conversation(served(json!({"tools": [search, own]})));
    assert_eq!(found.tools.iter().map(|tool| tool.name.as_str()).collect::<Vec<_>>(), ["f"]);
}
