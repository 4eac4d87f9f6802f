//! Requests of the Responses protocol: their form in the middle, and fields that are refused by
//! name.

use paceline_vocabulary::RouteWish;
use serde_json::json;

use super::*;
use crate::inference::error::InferenceError;
use crate::inference::input::ToolCallRule;

fn decoded(body: Value) -> Result<Decoded<Asked>, InferenceError> {
    decode(serde_json::from_value(body).expect("a request"))
}

fn with(mut more: Value) -> Value {
    let mut body = json!({"model": "m", "input": "Hi"});
    let (body_fields, more) =
        (body.as_object_mut().expect("an object"), more.as_object_mut().expect("an object"));
    body_fields.append(more);
    body
}

fn served(more: Value) -> Decoded<Asked> {
    decoded(with(more)).expect("served")
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
        ContentPartInput::ImageUrl { url, detail } => format!("<{url} {detail:?}>"),
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
fn refused(more: Value, field: &str, word: &str) {
    let error = decoded(with(more)).expect_err("refused");
    assert_eq!(error.field.as_deref(), Some(field), "{error}");
    assert!(error.message.contains(word), "{word:?} in {error}");
}

fn paths(decoded: &Decoded<Asked>) -> Vec<&str> {
    decoded.paths.messages.iter().map(|message| message.path.as_str()).collect()
}

#[test]
fn a_text_is_a_message_of_the_user() {
    let decoded = served(json!({"instructions": "Help."}));
    assert_eq!(paths(&decoded), ["instructions", "input"]);
    assert_eq!(short(&conversation(decoded).messages), ["system:Help.", "user:Hi"]);
}

#[test]
fn each_item_is_a_message() {
    let decoded = served(json!({"input": [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "d"}]},
        {"role": "user", "content": [
            {"type": "input_text", "text": "a"},
            {"type": "input_image", "image_url": "data:,x", "detail": "low"},
        ]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": encrypted("hm")},
        {"type": "message", "role": "assistant", "id": "msg_1", "status": "completed",
            "content": [{"type": "output_text", "text": "b", "annotations": [], "logprobs": []}]},
        {"type": "function_call", "call_id": "c1", "name": "read", "namespace": "mcp__docs", "arguments": "{}"},
        {"type": "custom_tool_call", "call_id": "c2", "name": "apply_patch", "input": "*** \"x\"", "status": "completed"},
        {"type": "function_call_output", "call_id": "c1", "output": "1"},
        {"type": "custom_tool_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "2"}]},
        {"type": "function_call_output", "call_id": "c9", "output": []},
    ]}));
    let expected: Vec<_> = (0..9).map(|at| format!("input[{at}]")).collect();
    assert_eq!(paths(&decoded), expected);
    assert_eq!(
        short(&conversation(decoded).messages),
        [
            "developer:d",
            "user:a|<data:,x Low>",
            "assistant: (hm)",
            "assistant:b",
            "assistant: !c1 mcp__docs__read{}",
            r#"assistant: !c2 apply_patch{"input":"*** \"x\""}"#,
            "tool:1 @c1 mcp__docs__read",
            "tool:2 @c2 apply_patch",
            "tool: @c9 ",
        ]
    );
}

#[test]
fn calls_of_a_shell_are_tool_calls_and_their_outputs_results() {
    let decoded = served(json!({"input": [
        {"role": "user", "content": "a"},
        {"type": "local_shell_call", "id": "l0", "call_id": "c1", "status": "completed",
            "action": {"type": "exec", "command": ["ls"], "timeout_ms": null}},
        {"type": "local_shell_call_output", "id": "c1", "output": "x", "status": "completed"},
        {"type": "local_shell_call", "id": "c2", "call_id": null, "action": {"command": []}},
        {"type": "function_call_output", "call_id": "c2", "output": "y"},
        {"type": "shell_call", "call_id": "c3", "action": {"commands": ["ls"]}, "environment": null},
        {"type": "shell_call_output", "call_id": "c3", "max_output_length": 9,
            "output": [{"stdout": "o", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}]},
        {"type": "apply_patch_call", "call_id": "c4", "status": "completed",
            "operation": {"type": "delete_file", "path": "p"}},
        {"type": "apply_patch_call_output", "call_id": "c4", "status": "completed", "output": null},
    ]}));
    let place = |inner| decoded.paths.translate(InferenceError::invalid(inner, "a", "b")).field;
    for (inner, outer) in [
        ("messages[1].tool_calls[0].arguments", "input[1].action"),
        ("messages[2].content[0]", "input[2].output"),
        ("messages[7].tool_calls[0].arguments", "input[7].operation"),
    ] {
        assert_eq!(place(inner).as_deref(), Some(outer), "{inner}");
    }
    assert_eq!(
        short(&conversation(decoded).messages),
        [
            "user:a",
            r#"assistant: !c1 local_shell{"type":"exec","command":["ls"],"timeout_ms":null}"#,
            "tool:x @c1 local_shell",
            r#"assistant: !c2 local_shell{"command":[]}"#,
            "tool:y @c2 local_shell",
            r#"assistant: !c3 shell{"commands":["ls"]}"#,
            r#"tool:[{"stdout":"o","stderr":"","outcome":{"type":"exit","exit_code":0}}] @c3 shell"#,
            r#"assistant: !c4 apply_patch{"type":"delete_file","path":"p"}"#,
            "tool: @c4 apply_patch",
        ]
    );
}

#[test]
fn a_resent_thought_is_read_from_its_text_then_from_its_hidden_form_then_from_its_summary() {
    let text = |kind: &str, text: &str| json!({"type": kind, "text": text});
    let thought = |mut item: Value| {
        item["type"] = "reasoning".into();
        let messages = conversation(served(json!({ "input": [item] }))).messages;
        messages[0].reasoning.clone()
    };
    let content = json!([text("reasoning_text", "a"), text("text", "b")]);
    let all = json!({"content": content, "encrypted_content": encrypted("c"), "summary": [text("summary_text", "d")]});
    assert_eq!(thought(all), "a\n\nb");
    let hidden =
        json!({"encrypted_content": encrypted("c"), "summary": [text("summary_text", "d")]});
    assert_eq!(thought(hidden), "c");
    let foreign = json!({"encrypted_content": "gAAAA", "summary": [text("summary_text", "d")]});
    assert_eq!(thought(foreign), "d");
    assert_eq!(thought(json!({"encrypted_content": "paceline1:?", "summary": []})), "");
}

#[test]
fn tools_of_the_request_and_of_the_conversation_are_offered_unless_the_choice_is_none() {
    let function = |name: &str| json!({"type": "function", "name": name, "strict": false});
    let body = |choice: Value| {
        json!({
            "tools": [function("f"), {"type": "web_search"}],
            "tool_choice": choice,
            "input": [
                {"type": "additional_tools", "role": "developer", "tools": [function("g")]},
                {"role": "user", "content": "Hi"},
            ],
        })
    };
    let names = |choice| {
        let tools = conversation(served(body(choice))).tools;
        tools.into_iter().map(|tool| tool.name).collect::<Vec<_>>()
    };
    assert_eq!(names(json!("auto")), ["f", "g"]);
    assert_eq!(names(json!("none")), [""; 0]);
}

#[test]
fn a_choice_of_tools_has_the_name_that_the_model_knows() {
    let function = json!({"type": "function", "name": "f", "strict": true});
    let group = json!({"type": "namespace", "name": "g", "description": "d", "tools": [
        {"type": "function", "name": "h"},
    ]});
    let with = |choice: Value| {
        let body = json!({"tools": [function, group], "tool_choice": choice});
        let conversation = conversation(served(body));
        assert!(conversation.tools[0].strict && !conversation.tools[1].strict);
        conversation.calls
    };
    assert_eq!(with(json!("auto")), ToolCallRule::Auto);
    assert_eq!(with(json!("required")), ToolCallRule::Required);
    let named = |name: &str| json!({"type": "function", "name": name});
    assert_eq!(with(named("f")), ToolCallRule::Named("f".into()));
    assert_eq!(with(named("h")), ToolCallRule::Named("g__h".into()));
    assert_eq!(with(named("x")), ToolCallRule::Named("x".into()), "the middle refuses it");
}

#[test]
fn a_format_holds_the_text_and_is_repeated() {
    let with = |format: Value| served(json!({"text": {"format": format, "verbosity": "low"}}));
    assert_eq!(with(json!({"type": "text"})).input.params.shape.text, None);
    let object = with(json!({"type": "json_object"}));
    assert_eq!(object.input.params.shape.text, Some(TextForm::JsonObject));
    let format =
        json!({"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": true});
    let schema = with(format.clone());
    let expected = TextForm::JsonSchema(r#"{"type":"object"}"#.into());
    assert_eq!(schema.input.params.shape.text, Some(expected));
    assert_eq!(schema.writer.repeated["text"], json!({ "format": format }));
    let plain = served(json!({}));
    assert_eq!(plain.writer.repeated["text"], json!({"format": {"type": "text"}}));
    assert_eq!(plain.writer.repeated["tool_choice"], json!("auto"));
    let choice = json!({"type": "function", "name": "f"});
    let repeated = served(json!({ "tool_choice": choice })).writer.repeated;
    assert_eq!(repeated["tool_choice"], choice);
}

#[test]
fn parameters_have_the_middles_names() {
    let decoded = served(json!({
        "max_output_tokens": 9, "temperature": 0.5, "top_p": 0.9, "seed": 7, "stop": ["x"],
        "stream": true, "include": ["reasoning.encrypted_content"], "metadata": {"a": "b"},
        "reasoning": {"effort": "xhigh", "summary": "auto"}, "paceline": {"route": "plain"},
    }));
    assert!(decoded.stream && decoded.writer.encrypted_reasoning);
    assert_eq!(decoded.writer.repeated["metadata"], json!({"a": "b"}));
    let params = &decoded.input.params;
    let sampling = &params.sampling;
    assert_eq!(
        (sampling.temperature, sampling.top_p, params.seed),
        (Some(0.5), Some(0.9), Some(7))
    );
    assert_eq!((params.max_tokens, params.stop.as_slice()), (Some(9), &["x".to_owned()][..]));
    assert_eq!(params.route, Some(RouteWish::Plain));
    let decoded = conversation(decoded);
    assert_eq!((decoded.effort, &*decoded.template_arguments.text()), (Some(Effort::XHigh), ""));
    let ultra = conversation(served(json!({"reasoning": {"effort": "ultra"}})));
    assert_eq!(ultra.effort, Some(Effort::Max));
    let none = conversation(served(json!({"reasoning": {"effort": "none"}})));
    assert_eq!(none.template_arguments.text(), r#"{"enable_thinking":false}"#);
}

#[test]
fn what_is_not_served_is_refused_by_its_path() {
    refused(json!({"unknown": 1}), "unknown", "does not serve");
    refused(json!({"store": true}), "store", "false");
    refused(json!({"previous_response_id": "resp_1"}), "previous_response_id", "does not serve");
    refused(json!({"background": true}), "background", "false");
    refused(json!({"tool_choice": "any"}), "tool_choice", "any");
    let choice = json!({"type": "some_tools", "mode": "auto", "tools": []});
    refused(json!({ "tool_choice": choice }), "tool_choice.type", "some_tools");
    let format = |format: Value| json!({"text": {"format": format}});
    refused(format(json!({"type": "xml"})), "text.format.type", "xml");
    refused(format(json!({"type": "json_schema"})), "text.format.schema", "none");
    let beside = json!({"type": "json_object", "schema": {}});
    refused(format(beside), "text.format.schema", "json_object");
    refused(format(json!({"type": "text", "mode": 1})), "text.format.mode", "does not serve");
    refused(json!({"include": ["message.input_image"]}), "include[0]", "message.input_image");
    refused(json!({"top_logprobs": 2}), "top_logprobs", "message.output_text.logprobs");
    refused(json!({"reasoning": {"effort": "endless"}}), "reasoning.effort", "endless");
    let item = |item: Value| json!({ "input": [item] });
    let strange = json!({"type": "message", "role": "user", "content": "a", "mood": 1});
    refused(item(strange), "input[0].mood", "does not serve");
    let kind = json!({"type": "mood", "call_id": "c"});
    assert!(serde_json::from_value::<ResponsesRequest>(with(item(kind))).is_err());
}

#[test]
fn a_request_may_allow_one_tool_call() {
    let calls = |flag: Value| served(json!({ "parallel_tool_calls": flag })).calls;
    assert_eq!(calls(json!(null)), AllowedToolCalls::All);
    assert_eq!(calls(json!(true)), AllowedToolCalls::All);
    assert_eq!(calls(json!(false)), AllowedToolCalls::One);
}

#[test]
fn log_probabilities_come_if_they_are_included() {
    let include = json!(["message.output_text.logprobs"]);
    let asked =
        |top: Value| served(json!({"include": include, "top_logprobs": top})).input.params.logprobs;
    assert_eq!((asked(json!(null)), asked(json!(3))), (Some(0), Some(3)));
    assert_eq!(served(json!({"top_logprobs": 0})).input.params.logprobs, None);
}

#[test]
fn errors_name_the_clients_own_fields() {
    let decoded = served(json!({"instructions": "Help.", "input": [
        {"role": "user", "content": "a"},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
        {"type": "custom_tool_call", "call_id": "c2", "name": "g", "input": "x"},
        {"type": "function_call_output", "call_id": "c1", "output": "1"},
        {"type": "custom_tool_call_output", "call_id": "c2", "output": [
            {"type": "input_text", "text": "2"}, {"type": "input_image", "image_url": "data:,x"},
        ]},
        {"role": "user", "content": [{"type": "input_text", "text": "b"}]},
    ]}));
    let place = |inner| decoded.paths.translate(InferenceError::invalid(inner, "a", "b")).field;
    for (inner, outer) in [
        ("messages[0].content[0]", "instructions"),
        ("messages[1].content[0]", "input[0].content"),
        ("messages[2].reasoning", "input[1]"),
        ("messages[3].tool_calls[0].arguments", "input[2].arguments"),
        ("messages[3].tool_calls[0].name", "input[2].name"),
        ("messages[3].tool_calls[0].id", "input[2].call_id"),
        ("messages[4].tool_calls[0].arguments", "input[3].input"),
        ("messages[5].content[0]", "input[4].output"),
        ("messages[5].tool_call_id", "input[4].call_id"),
        ("messages[6].content[1]", "input[5].output[1]"),
        ("messages[7].content[0]", "input[6].content[0]"),
    ] {
        assert_eq!(place(inner).as_deref(), Some(outer), "{inner}");
    }
}

#[test]
fn what_a_client_stored_is_served_again() {
    let decoded = served(json!({"text": {"format": null, "extra": null}, "input": [
        {"type": null, "role": "user", "content": "a", "name": null},
        {"type": "reasoning", "id": "r", "summary": null, "content": null, "status": null},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm", "id": null}]},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{\"item\": \"bri"},
        {"type": "function_call", "call_id": "c2", "name": "f", "arguments": {"a": 1}},
        {"type": "function_call", "call_id": "c3", "name": "f", "arguments": null,
            "parsed_arguments": {"a": 1}},
        {"type": "function_call_output", "call_id": "c1", "output": null},
        {"role": "assistant", "content": [
            {"type": "output_text", "text": "t", "parsed": {"a": 1}},
        ]},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
        {"role": "assistant", "content": null},
    ]}));
    assert_eq!(
        short(&conversation(decoded).messages),
        [
            "user:a",
            "assistant:",
            "assistant: (hm)",
            r#"assistant: !c1 f{"item": "bri"#,
            r#"assistant: !c2 f{"a":1}"#,
            "assistant: !c3 f",
            "tool: @c1 f",
            "assistant:t",
            "assistant:No.",
            "assistant:",
        ]
    );
}

#[test]
fn a_message_of_the_assistant_may_have_its_thought_under_each_name() {
    for name in ["reasoning_content", "thinking", "reasoning"] {
        let message = |role: &str| json!({"role": role, "content": "a", (name): "hm"});
        let decoded = served(json!({"input": [message("assistant")]}));
        assert_eq!(short(&conversation(decoded).messages), ["assistant:a (hm)"], "{name}");
        let field = format!("input[0].{name}");
        refused(json!({"input": [message("user")]}), &field, "assistant");
    }
    served(json!({"input": [{"role": "assistant", "content": "a", "reasoning_details": [{}]}]}));
}

#[test]
fn none_is_minus_one_empty_or_null() {
    let plain = served(json!({"tools": [{"type": "function", "name": "f"}]}));
    let tool = json!({"type": "function", "name": "f", "description": null, "parameters": null});
    let none = json!({"seed": -1, "max_output_tokens": -1, "tools": [tool]});
    let none = served(none);
    assert_eq!(none.input, plain.input);
    assert_eq!(served(json!({"tools": []})).input, served(json!({})).input);
}

#[test]
fn only_allowed_tools_are_offered() {
    let function = |name: &str| json!({"type": "function", "name": name});
    let group = json!({"type": "namespace", "name": "g", "tools": [function("h"), function("i")]});
    let allowed = json!([function("h"), {"type": "web_search"}]);
    let choice = json!({"type": "allowed_tools", "mode": "required", "tools": allowed});
    let body = json!({"tools": [function("f"), group], "tool_choice": choice});
    let found = conversation(served(body));
    let names: Vec<_> = found.tools.iter().map(|tool| tool.name.as_str()).collect();
    assert_eq!((names, found.calls), (vec!["g__h"], ToolCallRule::Required));
    let unknown = json!({"type": "allowed_tools", "mode": "auto", "tools": [function("x")]});
    refused(json!({ "tool_choice": unknown }), "tool_choice.tools[0]", "the request's tools");
}

#[test]
fn a_search_of_the_client_is_one_of_the_allowed_tools() {
    let function = |name: &str| json!({"type": "function", "name": name});
    let offered = |search: &Value, allowed: Value| {
        let choice = json!({"type": "allowed_tools", "mode": "auto", "tools": allowed});
        let body = json!({"tools": [function("f"), function("g"), search], "tool_choice": choice});
        let found = conversation(served(body));
        found.tools.iter().map(|tool| tool.name.clone()).collect::<Vec<_>>().join(" ")
    };
    let own = json!({"type": "tool_search", "execution": "client", "description": "d"});
    let hosted = json!({"type": "tool_search"});
    for entry in [hosted.clone(), own.clone(), function(SEARCH)] {
        assert_eq!(offered(&own, json!([function("f"), entry])), "f tool_search", "{entry}");
    }
    assert_eq!(offered(&own, json!([function("f")])), "f");
    for entry in [hosted.clone(), json!({"type": "tool_search", "execution": "server"})] {
        assert_eq!(offered(&hosted, json!([function("f"), entry])), "f", "{entry}");
    }
    let by_server = json!({"type": "tool_search", "execution": "server"});
    assert_eq!(offered(&own, json!([function("f"), by_server])), "f");
    let forced = json!({"tools": [function("f"), own], "tool_choice": {"type": "tool_search"}});
    assert_eq!(conversation(served(forced)).calls, ToolCallRule::Named(SEARCH.into()));
    let strange = json!({"type": "tool_search", "mood": 1});
    let choice = json!({"type": "allowed_tools", "mode": "auto", "tools": [strange]});
    let body = json!({"tools": [own], "tool_choice": choice});
    refused(body, "tool_choice.tools[0].mood", "does not serve");
}

#[test]
fn values_that_change_nothing_are_accepted() {
    served(json!({
        "truncation": "auto", "max_tool_calls": 3, "service_tier": "priority",
        "include": ["file_search_call.results", "code_interpreter_call.outputs"],
        "input": [{"role": "user", "content": [
            {"type": "input_image", "image_url": "data:,x", "detail": "original"},
        ]}],
    }));
}
