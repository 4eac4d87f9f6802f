//! Requests of clients against the middle's input, field by field.

use paceline_text::images::Detail;
use paceline_text::prompt::conversation::Effort;
use paceline_text::shape::AnswerShape;
use paceline_vocabulary::generation::TextForm;
use paceline_vocabulary::sampling::{LogitBias, SamplingWish};
use paceline_vocabulary::{Reason, RouteWish};
use serde_json::{Value, json};

use super::chat;
use crate::inference::bounds::SampleCount;
use crate::inference::error::InferenceError;
use crate::inference::input::{
    ContentPartInput, ConversationInput, MessageInput, PromptInput, ToolCallInput, ToolCallRule,
    ToolInput,
};
use crate::inference::params::GenerationParams;
use crate::openai::chat::request::ChatCompletionRequest;
use crate::openai::params::Asked;
use crate::protocol::{AllowedToolCalls, Decoded};

fn decoded(request: Value) -> Result<Decoded<Asked>, InferenceError> {
    chat(serde_json::from_value::<ChatCompletionRequest>(request).expect("the message's form"))
}

/// A request with these fields beside one message.
fn asking(fields: Value) -> Value {
    let mut request = json!({"model": "m", "messages": [{"role": "user", "content": "Hi"}]});
    let (Some(request), Value::Object(fields)) = (request.as_object_mut(), fields) else {
        panic!("objects")
    };
    request.extend(fields);
    Value::Object(request.clone())
}

fn params(fields: Value) -> GenerationParams {
    decoded(asking(fields)).expect("served").input.params
}

fn conversation(request: Value) -> ConversationInput {
    match decoded(request).expect("served").input.prompt {
        PromptInput::Conversation(conversation) => conversation,
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn refused(fields: Value, field: &str, words: &str) {
    let error = decoded(asking(fields)).expect_err("not served");
    assert_eq!((error.kind, error.field.as_deref()), (Reason::InvalidArgument, Some(field)));
    assert!(error.message.contains(words), "{words:?} in {error}");
}

#[test]
fn every_parameter_is_decoded() {
    let found = params(json!({
        "max_completion_tokens": 30, "n": 2, "stop": ["a", "b"], "temperature": 0.5, "top_p": 0.8, "seed": -2,
        "presence_penalty": 0.25, "frequency_penalty": -0.5, "logit_bias": {"7": -100, "9": 1.5}, "logprobs": true,
        "top_logprobs": 3, "top_k": 9, "min_p": 0.125, "top_a": 0.25, "repetition_penalty": 1.5, "min_tokens": 4, "ignore_eos": true,
        "stop_token_ids": [5], "paceline": {"route": "plain"},
    }));
    let expected = GenerationParams {
        show_special: false,
        model: String::new(),
        sampling: SamplingWish {
            temperature: Some(0.5),
            top_k: Some(9),
            top_p: Some(0.8),
            min_p: Some(0.125),
            top_a: Some(0.25),
            repetition_penalty: Some(1.5),
            presence_penalty: Some(0.25),
            frequency_penalty: Some(-0.5),
        },
        seed: Some(u64::MAX - 1),
        logit_bias: vec![
            LogitBias { token_id: 7, bias: -100.0 },
            LogitBias { token_id: 9, bias: 1.5 },
        ],
        max_tokens: Some(30),
        lower_max_tokens: true,
        drop_oldest: false,
        min_tokens: 4,
        ignore_eos: true,
        stop_token_ids: vec![5],
        stop: vec!["a".into(), "b".into()],
        route: Some(RouteWish::Plain),
        report_margins: false,
        report_usage: false,
        logprobs: Some(3),
        samples: SampleCount::checked(2).expect("few"),
        shape: AnswerShape::default(),
    };
    assert_eq!(found, expected);
}

#[test]
fn the_budget_of_thinking_is_decoded_from_the_fields_of_every_service() {
    let budget = |fields: Value| params(fields).shape.thinking_budget;
    assert_eq!(budget(json!({"reasoning": {"max_tokens": 2048}})), Some(2048));
    let of_deepseek = json!({"type": "enabled", "budget_tokens": 1024});
    assert_eq!(budget(json!({ "thinking": of_deepseek })), Some(1024));
    let same = json!({"thinking": of_deepseek, "reasoning": {"max_tokens": 1024}});
    assert_eq!(budget(same), Some(1024));
    assert_eq!(budget(json!({"reasoning": {"effort": "low"}})), None);
    let two = json!({"thinking": of_deepseek, "reasoning": {"max_tokens": 2048}});
    refused(two, "reasoning.max_tokens", "1024");
}

#[test]
fn absent_and_null_parameters_are_the_models_own() {
    let nulls = json!({
        "max_tokens": null, "max_completion_tokens": null, "n": null, "stop": null, "temperature": null, "top_p": null,
        "seed": null, "logit_bias": null, "logprobs": null, "top_logprobs": null, "tools": null, "tool_choice": null,
        "response_format": null, "stream": null, "stream_options": null, "paceline": null, "reasoning_effort": null,
        "user": null, "metadata": null, "parallel_tool_calls": null, "audio": null,
    });
    assert_eq!(params(nulls), params(json!({})));
    let found = params(json!({}));
    assert_eq!(found.samples, SampleCount::ONE);
    assert_eq!((found.max_tokens, found.logprobs), (None, None));
    assert_eq!(params(json!({"stop": "x"})).stop, ["x"]);
    // Some clients write -1 for none.
    let none = params(json!({"seed": -1, "max_tokens": -1, "max_completion_tokens": -1.0}));
    assert_eq!(none, params(json!({})));
    assert_eq!(params(json!({"top_k": -1})), params(json!({"top_k": 0})));
    assert_eq!(params(json!({"logprobs": true})).logprobs, Some(0));
    assert_eq!(params(json!({"logprobs": false, "top_logprobs": 0})).logprobs, None);
}

#[test]
fn every_field_of_a_conversation_is_decoded() {
    let found = conversation(json!({
        "messages": [
            {"role": "system", "content": "s", "name": "n"},
            {"role": "user", "content": [
                {"type": "text", "text": "t", "cache_control": {"type": "ephemeral"}},
                {"type": "image_url", "image_url": {"url": "data:,", "detail": "low"}},
            ]},
            {"role": "assistant", "content": null, "reasoning_content": "r", "refusal": null, "tool_calls": [
                {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}},
            ]},
            {"role": "tool", "tool_call_id": "c", "content": "done"},
        ],
        "tools": [{"type": "function", "function": {"name": "f", "description": "d", "strict": false,
            "parameters": {"type": "object", "properties": {"z": {}, "a": {}}}}}],
        "tool_choice": "auto",
        "paceline": {"template_arguments": {"x": 1}},
    }));
    let text = |text: &str| ContentPartInput::Text(text.into());
    let image = ContentPartInput::ImageUrl { url: "data:,".into(), detail: Detail::Low };
    let message =
        |role: &str, content| MessageInput { role: role.into(), content, ..Default::default() };
    let call = ToolCallInput { id: "c".into(), name: "f".into(), arguments: "{}".into() };
    let expected = ConversationInput {
        messages: vec![
            MessageInput { name: "n".into(), ..message("system", vec![text("s")]) },
            message("user", vec![text("t"), image]),
            MessageInput {
                reasoning: "r".into(),
                tool_calls: vec![call],
                ..message("assistant", vec![])
            },
            MessageInput { tool_call_id: "c".into(), ..message("tool", vec![text("done")]) },
        ],
        tools: vec![ToolInput {
            name: "f".into(),
            description: "d".into(),
            parameters: json!({"type": "object", "properties": {"z": {}, "a": {}}}).into(),
            strict: false,
            path: "tools[0]".into(),
        }],
        calls: ToolCallRule::Auto,
        template_arguments: json!({"x": 1}).into(),
        effort: None,
    };
    assert_eq!(found, expected);
}

#[test]
fn reasoning_is_taken_under_each_of_its_names() {
    let reasoning = |fields: Value| {
        let mut message = json!({"role": "assistant", "content": "a"});
        message.as_object_mut().expect("one").extend(fields.as_object().expect("one").clone());
        decoded(json!({"messages": [message]})).map(|found| match found.input.prompt {
            PromptInput::Conversation(found) => found.messages[0].reasoning.clone(),
            other => panic!("{other:?}"),
        })
    };
    for fields in [
        json!({"reasoning": "r"}),
        json!({"reasoning_content": "r", "reasoning": null}),
        json!({"reasoning_content": "r", "reasoning": "r"}),
        json!({"thinking": "r", "reasoning_details": [{"type": "reasoning.text", "text": "q"}]}),
        json!({"thinking": "r", "thinking_blocks": [{"type": "thinking", "thinking": "r"}]}),
        json!({"reasoning_content": "", "thinking": "r", "reasoning": "r"}),
    ] {
        assert_eq!(reasoning(fields).expect("served"), "r");
    }
    let error = reasoning(json!({"reasoning_content": "r", "reasoning": "q"})).expect_err("two");
    assert_eq!(error.field.as_deref(), Some("messages[0].reasoning"));
    let error = reasoning(json!({"reasoning": "r", "thinking": "q"})).expect_err("two");
    assert_eq!(error.field.as_deref(), Some("messages[0].reasoning"));
    let user = json!({"messages": [{"role": "user", "content": "a", "thinking": "r"}]});
    let error = decoded(user).expect_err("of an assistant alone");
    assert_eq!(error.field.as_deref(), Some("messages[0].thinking"));
}

#[test]
fn a_choice_of_no_tool_leaves_the_tools_out_of_the_prompt() {
    let tools = json!([{"type": "function", "function": {"name": "f"}}]);
    let with = |choice: &str| conversation(asking(json!({"tools": tools, "tool_choice": choice})));
    assert_eq!((with("auto").tools.len(), with("none").tools.len()), (1, 0));
    let rule =
        |choice: Value| conversation(asking(json!({"tools": tools, "tool_choice": choice}))).calls;
    assert_eq!(rule(json!("auto")), ToolCallRule::Auto);
    assert_eq!(rule(json!("required")), ToolCallRule::Required);
    let named = json!({"type": "function", "function": {"name": "f"}});
    assert_eq!(rule(named), ToolCallRule::Named("f".into()));
    refused(json!({"tool_choice": "any"}), "tool_choice", "any");
}

#[test]
fn the_format_of_the_answer_is_text_json_or_a_schema() {
    let form = |format: Value| params(json!({ "response_format": format })).shape.text;
    assert_eq!(form(json!({"type": "text"})), None);
    assert_eq!(form(json!({"type": "json_object"})), Some(TextForm::JsonObject));
    let schema =
        json!({"name": "n", "description": "d", "strict": true, "schema": {"b": 1, "a": 2}});
    let expected = TextForm::JsonSchema(r#"{"b":1,"a":2}"#.into());
    assert_eq!(form(json!({"type": "json_schema", "json_schema": schema})), Some(expected));
    let wrong = |format: Value, field: &str, word: &str| {
        refused(json!({ "response_format": format }), field, word);
    };
    wrong(json!({"type": "xml"}), "response_format.type", "xml");
    wrong(json!({"type": "json_schema"}), "response_format.json_schema", "none");
    let nameless = json!({"type": "json_schema", "json_schema": {"name": "n"}});
    wrong(nameless, "response_format.json_schema.schema", "none");
    let other = json!({"type": "json_schema", "json_schema": {"schema": {}, "mode": 1}});
    wrong(other, "response_format.json_schema.mode", "does not serve");
    let beside = json!({"type": "json_object", "json_schema": {"schema": {}}});
    wrong(beside, "response_format.json_schema", "json_object");
}

#[test]
fn the_effort_of_reasoning_is_for_the_template_and_its_own_words_are_variables() {
    let with = |fields| conversation(asking(fields)).template_arguments.text().into_owned();
    let effort = |fields| {
        let conversation = conversation(asking(fields));
        (conversation.effort, conversation.template_arguments.text().into_owned())
    };
    for &known in Effort::ALL {
        let expected = (Some(known), String::new());
        assert_eq!(effort(json!({"reasoning_effort": known.word()})), expected);
    }
    let own = (None, r#"{"reasoning_effort":"ultra"}"#.to_owned());
    assert_eq!(effort(json!({"reasoning_effort": "ultra"})), own);
    let named = json!({"chat_template_kwargs": {"reasoning_effort": "high"}});
    assert_eq!(effort(named), (None, r#"{"reasoning_effort":"high"}"#.to_owned()));
    assert_eq!(with(json!({"reasoning_effort": "none"})), r#"{"enable_thinking":false}"#);
    let both =
        json!({"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": false}});
    assert_eq!(with(both), r#"{"enable_thinking":false}"#);
    let other =
        json!({"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": true}});
    refused(other, "reasoning_effort", "true");
    let twice = json!({"chat_template_kwargs": {}, "paceline": {"template_arguments": {}}});
    refused(twice, "chat_template_kwargs", "both");
}

#[test]
fn values_that_contradict_each_other_are_refused() {
    let both = json!({"max_completion_tokens": 3, "max_tokens": 3});
    assert_eq!(params(both).max_tokens, Some(3));
    refused(json!({"max_completion_tokens": 3, "max_tokens": 4}), "max_tokens", "found 4");
    refused(json!({"top_logprobs": 2}), "top_logprobs", "`logprobs` is not true");
    refused(json!({"stream_options": {"include_usage": true}}), "stream_options", "stream");
}

#[test]
fn fields_and_parts_that_are_not_served_are_refused_by_their_path() {
    refused(json!({"guided_json": {}}), "guided_json", "does not serve");
    refused(json!({"stream": true, "stream_options": {"x": 1}}), "stream_options.x", "not serve");
    let with = |message: Value| json!({"messages": [message]});
    let part = |part: Value| with(json!({"role": "user", "content": [part]}));
    for (request, field) in [
        (with(json!({"role": "user", "content": "x", "weight": 1})), "messages[0].weight"),
        (part(json!({"type": "input_video"})), "messages[0].content[0].type"),
        (part(json!({"type": "file"})), "messages[0].content[0].file.file_data"),
        (part(json!({"type": "text", "text": "a", "file": {}})), "messages[0].content[0].file"),
        (part(json!({"type": "text"})), "messages[0].content[0].text"),
        (part(json!({"type": "text", "text": "a", "x": 1})), "messages[0].content[0].x"),
        (
            part(json!({"type": "image_url", "image_url": {"url": "u", "detail": "tiny"}})),
            "messages[0].content[0].image_url.detail",
        ),
        (
            with(json!({"role": "assistant", "tool_calls": [
                {"id": "c", "type": "custom", "function": {"name": "f", "arguments": ""}}]})),
            "messages[0].tool_calls[0].type",
        ),
    ] {
        let error = decoded(request).expect_err("not served");
        assert_eq!(error.field.as_deref(), Some(field));
    }
    refused(json!({"tools": [{"type": "custom"}]}), "tools[0].type", "custom");
    refused(json!({"tools": [{"type": "function"}]}), "tools[0].function", "none");
}

#[test]
fn every_form_of_an_image_is_decoded() {
    let part = |part: Value| {
        let request = json!({"messages": [{"role": "user", "content": [part]}]});
        conversation(request).messages[0].content[0].clone()
    };
    let image = |detail| ContentPartInput::ImageUrl { url: "data:,x".into(), detail };
    for form in [
        json!({"type": "image_url", "image_url": {"url": "data:,x"}}),
        json!({"type": "image_url", "image_url": "data:,x"}),
        json!({"type": "input_image", "image_url": "data:,x"}),
        json!({"type": "input_image", "image_url": {"url": "data:,x"}, "detail": "auto"}),
        json!({"type": "image", "image": "data:,x"}),
        json!({"type": "image", "image": {"url": "data:,x"}}),
        json!({"type": "image", "image_url": "data:,x", "text": null}),
        json!({"type": "image", "image_url": {"url": "data:,x"}, "url": null}),
        json!({"type": "image", "url": "data:,x", "cache_control": {"type": "ephemeral"}}),
    ] {
        assert_eq!(part(form.clone()), image(Detail::Full), "{form}");
    }
    for form in [
        json!({"type": "input_image", "image_url": "data:,x", "detail": "low"}),
        json!({"type": "image", "image": {"url": "data:,x", "detail": "low"}, "detail": "high"}),
    ] {
        assert_eq!(part(form.clone()), image(Detail::Low), "{form}");
    }
}

#[test]
fn a_part_whose_image_does_not_fit_its_type_is_refused_by_its_path() {
    let url = "data:,x";
    for (part, field) in [
        (json!({"type": "image_url"}), "image_url"),
        (json!({"type": "image_url", "image": url}), "image"),
        (json!({"type": "input_image", "url": url}), "url"),
        (json!({"type": "image"}), "image"),
        (json!({"type": "image", "image": url, "url": url}), "url"),
        (json!({"type": "image", "image": url, "text": "a"}), "text"),
        (json!({"type": "text", "text": "a", "image_url": url}), "text"),
        (json!({"type": "image", "image": {"url": url, "x": 1}}), "image.x"),
        (json!({"type": "image", "image": {"url": url, "detail": "tiny"}}), "image.detail"),
        (json!({"type": "image", "image": url, "detail": "tiny"}), "detail"),
        (json!({"type": "video", "video": url}), "video"),
        (json!({"type": "video_url"}), "type"),
    ] {
        let request = json!({"messages": [{"role": "user", "content": [part]}]});
        let error = decoded(request).expect_err("not served");
        let expected = format!("messages[0].content[0].{field}");
        assert_eq!(error.field, Some(expected), "{part}");
    }
}

#[test]
fn special_tokens_are_shown_if_the_request_does_not_skip_them() {
    let shown = |skipped: Value| params(json!({ "skip_special_tokens": skipped })).show_special;
    assert_eq!([json!(true), json!(null), json!(false)].map(shown), [false, false, true]);
}

#[test]
fn a_function_may_be_strict() {
    let strict = |value: Value| {
        let function = json!({"name": "f", "strict": value});
        let tools = json!({"tools": [{"type": "function", "function": function}]});
        conversation(asking(tools)).tools[0].strict
    };
    assert_eq!([json!(true), json!(false), json!(null)].map(strict), [true, false, false]);
}

#[test]
fn a_stream_has_usage_if_the_client_asks_for_it() {
    let with = |fields| {
        let found = decoded(asking(fields)).expect("served");
        (found.stream, found.writer.include_usage)
    };
    assert_eq!(with(json!({})), (false, false));
    assert_eq!(with(json!({"stream": true})), (true, false));
    let asked = json!({"stream": true, "stream_options": {"include_usage": true}});
    assert_eq!(with(asked), (true, true));
}

#[test]
fn a_request_may_allow_one_tool_call() {
    let calls = |flag: Value| {
        decoded(asking(json!({ "parallel_tool_calls": flag }))).expect("served").calls
    };
    assert_eq!(calls(json!(null)), AllowedToolCalls::All);
    assert_eq!(calls(json!(true)), AllowedToolCalls::All);
    assert_eq!(calls(json!(false)), AllowedToolCalls::One);
}

#[test]
fn what_a_client_stored_is_served_again() {
    let parsed = json!({
        "role": "assistant", "content": null, "parsed": {"item": "brick"}, "annotations": null,
        "function_call": null, "tool_calls": [{
            "id": "c", "type": "function", "index": null,
            "function": {"name": "f", "arguments": "{\"item\": \"bri", "parsed_arguments": {"item": 1}},
        }],
    });
    let call = |arguments: Value| {
        let function = json!({"name": "f", "arguments": arguments, "strict": null});
        json!({"role": "assistant", "tool_calls": [{"id": "c", "function": function, "note": null}]})
    };
    let found = conversation(json!({"messages": [
        {"role": "user", "content": "Hi", "weight": null},
        parsed,
        {"role": "tool", "tool_call_id": "c", "content": null},
        call(json!({"item": 1})),
        call(Value::Null),
        {"role": "assistant", "content": null},
        {"role": "assistant", "content": []},
        {"role": "assistant", "content": null, "refusal": "No."},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "Never."}]},
        {"role": "assistant", "content": "a", "provider_specific_fields": {"refusal": null}},
    ]}));
    let short = |message: &MessageInput| {
        let text = |part: &ContentPartInput| match part {
            ContentPartInput::Text(text) => text.clone(),
            other => panic!("{other:?}"),
        };
        let texts: Vec<_> = message.content.iter().map(text).collect();
        let calls: Vec<_> = message.tool_calls.iter().map(|call| call.arguments.text()).collect();
        format!("{}:{} {}", message.role, texts.join("|"), calls.join(" "))
    };
    let lines: Vec<_> = found.messages.iter().map(short).collect();
    assert_eq!(
        lines,
        [
            "user:Hi ",
            "assistant: {\"item\": \"bri",
            "tool: ",
            "assistant: {\"item\":1}",
            "assistant: ",
            "assistant: ",
            "assistant: ",
            "assistant:No. ",
            "assistant:Never. ",
            "assistant:a ",
        ]
    );
    let twice = json!([{"role": "assistant", "content": "a", "refusal": "No."}]);
    refused(json!({ "messages": twice }), "messages[0].refusal", "beside content");
    refused(
        json!({"messages": [{"role": "user", "content": "a", "weight": 1}]}),
        "messages[0].weight",
        "not serve",
    );
}

#[test]
fn fields_of_other_services_are_served_or_change_nothing() {
    params(json!({
        "verbosity": "low", "service_tier": "priority", "skip_special_tokens": true, "num_ctx": 8192,
        "cache_prompt": true, "include_reasoning": true, "continue_final_message": false,
        "add_generation_prompt": true, "unknown": null,
    }));
    assert_eq!(params(json!({"repeat_penalty": 1.5})).sampling.repetition_penalty, Some(1.5));
    let both = json!({"repeat_penalty": 1.5, "repetition_penalty": 1.25});
    refused(both, "repeat_penalty", "1.25");
    let usage = decoded(asking(json!({"stream": true, "usage": {"include": true}})));
    assert!(usage.expect("served").writer.include_usage);
    let streamed = |each_chunk: bool| {
        let options = json!({"include_usage": true, "continuous_usage_stats": each_chunk});
        json!({"stream": true, "stream_options": options})
    };
    assert!(decoded(asking(streamed(false))).expect("served").writer.include_usage);
    refused(streamed(true), "stream_options.continuous_usage_stats", "false");
    let off = conversation(asking(json!({"enable_thinking": false}))).template_arguments;
    assert_eq!(off.text(), r#"{"enable_thinking":false}"#);
}

/// Templates show an empty list as one that is absent, and null in a tool as nothing.
#[test]
fn empty_lists_and_null_are_as_absent_fields() {
    let messages = |calls: Value| {
        json!([
            {"role": "user", "content": "Hi", "tool_calls": calls, "name": null},
            {"role": "assistant", "content": "a", "tool_calls": calls},
            {"role": "user", "content": [{"type": "text", "text": "b"}]},
        ])
    };
    let plain = conversation(json!({ "messages": messages(json!(null)) }));
    assert_eq!(conversation(json!({"messages": messages(json!([])), "tools": []})), plain);
    let tool = |function: Value| {
        let tools = json!([{"type": "function", "function": function}]);
        conversation(asking(json!({ "tools": tools }))).tools
    };
    let nulls = json!({"name": "f", "description": null, "parameters": null, "strict": null});
    assert_eq!(tool(nulls), tool(json!({"name": "f"})));
}

#[test]
fn only_allowed_tools_are_offered() {
    let function = |name: &str| json!({"type": "function", "function": {"name": name}});
    let allowed = json!({"mode": "required", "tools": [function("g")]});
    let choice = json!({"type": "allowed_tools", "allowed_tools": allowed});
    let tools = json!([function("f"), function("g")]);
    let found = conversation(asking(json!({"tools": tools, "tool_choice": choice})));
    let names: Vec<_> = found.tools.iter().map(|tool| tool.name.as_str()).collect();
    assert_eq!((names, found.calls), (vec!["g"], ToolCallRule::Required));
    // A search for tools is a function here, as every tool.
    let allowed = json!({"mode": "auto", "tools": [function("g"), {"type": "tool_search"}]});
    let choice = json!({"type": "allowed_tools", "allowed_tools": allowed});
    let fields = json!({"tools": tools, "tool_choice": choice});
    refused(fields, "tool_choice.allowed_tools.tools[1].type", "tool_search");
}
