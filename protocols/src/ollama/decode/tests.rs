use paceline_text::samples::infill;
use serde_json::json;

use super::*;
use crate::inference::request::{Request, check as checked};
use paceline_text::images::ReservedTokens;
use paceline_text::prompt::Source;
use paceline_text::prompt::conversation::{Conversation, Role};

/// A request of `/api/chat` with these fields, and a message if there is none.
fn of_chat(mut fields: Value) -> Result<Decoded<()>> {
    let body = fields.as_object_mut().expect("an object");
    body.entry("messages").or_insert_with(|| json!([{"role": "user", "content": "hi"}]));
    chat(serde_json::from_value(fields).expect("a body"))
}

fn of_generate(fields: Value) -> Result<Decoded<()>> {
    let markers = ["<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>"];
    generate(serde_json::from_value(fields).expect("a body"), || infill(&markers))
}

fn request(decoded: Result<Decoded<()>>) -> Result<Request> {
    let Decoded { input, paths, .. } = decoded?;
    checked(input, ReservedTokens::new(None)).map_err(|error| paths.translate(error))
}

fn conversation(decoded: Result<Decoded<()>>) -> Conversation {
    match request(decoded).expect("served").source {
        Source::Chat(conversation) => conversation,
        other => panic!("no conversation: {other:?}"),
    }
}

/// The field that is refused.
fn refused(decoded: Result<Decoded<()>>) -> String {
    request(decoded).expect_err("refused").field.expect("a field")
}

#[test]
fn options_choose_tokens_and_end_the_answer() {
    let options = json!({
        "num_predict": 20.0, "temperature": 0.5, "top_k": 0, "top_p": null, "min_p": 0.1, "seed": 7,
        "stop": ["a"], "repeat_penalty": 0, "num_ctx": 3900, "mirostat": 0, "typical_p": 1.0,
    });
    let params = of_chat(json!({"options": options})).expect("served").input.params;
    assert_eq!(
        (params.max_tokens, params.seed, params.stop),
        (Some(20), Some(7), vec!["a".into()])
    );
    let expected = SamplingWish {
        temperature: Some(0.5),
        top_k: Some(0),
        min_p: Some(0.1),
        repetition_penalty: Some(1.0),
        ..Default::default()
    };
    assert_eq!(params.sampling, expected);
    let open = json!({"options": {"num_predict": -1, "seed": -1, "top_k": -1}});
    let params = of_chat(open).expect("served").input.params;
    assert_eq!((params.max_tokens, params.seed, params.sampling.top_k), (None, None, Some(0)));
    // Fields beside the options count where these have none.
    let beside =
        json!({"temperature": 0.2, "max_output_tokens": 5, "options": {"temperature": 0.3}});
    let params = of_chat(beside).expect("served").input.params;
    assert_eq!((params.sampling.temperature, params.max_tokens), (Some(0.3), Some(5)));
    for (options, field) in [
        (json!({"mirostat": 2}), "options.mirostat"),
        (json!({"zq": 1}), "options.zq"),
        (json!({"top_p": 2.0}), "options.top_p"),
        (json!({"repeat_penalty": -1.0}), "options.repeat_penalty"),
    ] {
        assert_eq!(refused(of_chat(json!({ "options": options }))), field);
    }
}

#[test]
fn an_answer_is_streamed_unless_the_request_says_no() {
    for (stream, expected) in [(Value::Null, true), (json!(true), true), (json!(false), false)] {
        assert_eq!(of_chat(json!({"stream": stream})).expect("served").stream, expected);
        assert_eq!(
            of_generate(json!({"prompt": "a", "stream": stream})).expect("served").stream,
            expected
        );
    }
}

#[test]
fn a_tools_result_belongs_to_the_call_that_it_answers() {
    let call =
        |id: Value, name: &str| json!({"id": id, "function": {"name": name, "arguments": {}}});
    let answered = |calls: Vec<Value>, results: Vec<Value>| {
        let mut messages = vec![
            json!({"role": "user", "content": "hi"}),
            json!({"role": "assistant", "tool_calls": calls}),
        ];
        messages.extend(results);
        let conversation = conversation(of_chat(json!({"messages": messages})));
        let tools = conversation.messages.into_iter().filter(|one| one.role == Role::Tool);
        tools.map(|one| (one.call_id, one.name)).collect::<Vec<_>>()
    };
    let pair = |id: &str, name: &str| (id.to_owned(), name.to_owned());
    let both = || vec![call(Value::Null, "f"), call(Value::Null, "g")];
    let result = |field: &str, value: &str| json!({"role": "tool", "content": "1", field: value});
    // Neither id nor name, as langchain-ollama and llama-index resend them: in their order.
    let plain = || json!({"role": "tool", "content": "1"});
    assert_eq!(
        answered(both(), vec![plain(), plain()]),
        [pair("call_0", "f"), pair("call_1", "g")]
    );
    // By name, in another order.
    let named = vec![result("tool_name", "g"), result("tool_name", "f")];
    assert_eq!(answered(both(), named), [pair("call_1", "g"), pair("call_0", "f")]);
    // By id; and with an id that the client made up, the next one.
    let known = vec![call(json!("a"), "f"), call(json!("b"), "g")];
    let by_id = vec![result("tool_call_id", "b"), result("tool_call_id", "zq")];
    assert_eq!(answered(known, by_id), [pair("b", "g"), pair("a", "f")]);
    let elsewhere = json!({"messages": [{"role": "user", "content": "a", "tool_name": "f"}]});
    assert_eq!(refused(of_chat(elsewhere)), "messages[0].tool_name");
}

#[test]
fn tools_come_as_the_clients_write_them() {
    let tool = json!({"function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {}}}}});
    let conversation_of = |fields: Value| conversation(of_chat(fields));
    assert_eq!(conversation_of(json!({"tools": [tool]})).tools[0].name, "f");
    assert_eq!(conversation_of(json!({"tools": []})).tools.len(), 0);
    let unused = json!({"tools": [tool], "tool_choice": "none"});
    assert_eq!(conversation_of(unused).tools.len(), 0);
    let mut odd = tool.clone();
    odd["type"] = "web_search".into();
    assert_eq!(refused(of_chat(json!({"tools": [odd]}))), "tools[0].type");
    odd = json!({"type": "function", "function": {"name": "a b"}});
    assert_eq!(refused(of_chat(json!({"tools": [odd]}))), "tools[0].function.name");
}

#[test]
fn images_are_shown_before_the_text_and_errors_name_them() {
    let message =
        |images: Value| json!({"messages": [{"role": "user", "content": "a", "images": images}]});
    let shown = conversation(of_chat(message(json!(["aGk="]))));
    assert_eq!((shown.images.len(), shown.messages[0].parts.len()), (1, 2));
    assert_eq!(
        refused(of_chat(message(json!(["aGk=", "data:image/png;base64,aGk="])))),
        "messages[0].images[1]"
    );
    let prompt = json!({"prompt": "a", "images": ["?"]});
    assert_eq!(refused(of_generate(prompt)), "images[0]");
}

#[test]
fn the_form_of_a_text_is_json_or_a_schema() {
    let form =
        |format: Value| of_chat(json!({"format": format})).map(|one| one.input.params.shape.text);
    assert_eq!(form(Value::Null), Ok(None));
    assert_eq!(form(json!("")), Ok(None));
    assert_eq!(form(json!("json")), Ok(Some(TextForm::JsonObject)));
    let schema = json!({"type": "object"});
    assert_eq!(form(schema.clone()), Ok(Some(TextForm::JsonSchema(schema.to_string()))));
    assert_eq!(refused(of_chat(json!({"format": "xml"}))), "format");
}

#[test]
fn thinking_is_the_templates_own_unless_it_is_asked_for() {
    let variables = |think: Value| {
        let arguments = conversation(of_chat(json!({"think": think}))).arguments;
        arguments.get("enable_thinking").cloned()
    };
    assert_eq!(variables(Value::Null), None);
    assert_eq!(variables(json!(false)), Some(json!(false)));
    assert_eq!(variables(json!(true)), Some(json!(true)));
    assert_eq!(variables(json!("low")), None, "an amount");
}

#[test]
fn a_text_is_answered_continued_or_filled_in() {
    let source = |fields: Value| request(of_generate(fields)).expect("served").source;
    let Source::Chat(asked) = source(json!({"prompt": "a", "system": "s"})) else {
        panic!("a text")
    };
    assert_eq!(asked.messages.len(), 2);
    assert_eq!(source(json!({"prompt": "a", "raw": true})), Source::Text("a".into()));
    let filled = "<|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>";
    assert_eq!(source(json!({"prompt": "a", "suffix": "b"})), Source::Text(filled.into()));
    let none = generate(
        serde_json::from_value(json!({"prompt": "a", "suffix": "b"})).expect("a body"),
        || None,
    );
    assert_eq!(refused(none), "suffix");
    assert_eq!(refused(of_generate(json!({"prompt": "a", "raw": true, "system": "s"}))), "system");
    assert_eq!(refused(of_generate(json!({"prompt": "a", "context": [1, 2]}))), "context");
}
