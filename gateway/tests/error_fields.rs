//! An error names a field that the client sent, also if several fields of a protocol become one.

use axum::http::StatusCode;
use serde_json::{Value, json};

use crate::stage::exchange::Exchange;

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

/// A request of one short turn, with these fields as well.
fn with(path: &str, fields: Value) -> Value {
    let mut body = match path {
        COMPLETIONS => json!({"prompt": "Hi"}),
        _ => json!({"messages": [{"role": "user", "content": "Hi"}]}),
    };
    let Value::Object(fields) = fields else { panic!("an object was meant") };
    body.as_object_mut().expect("an object").extend(fields);
    body
}

/// The place of a tool is the client's, also if tools before it are not offered to the model.
#[tokio::test]
async fn an_error_of_a_tool_names_its_place_in_the_request() {
    let stage = Exchange::serving().await;
    let function = |name: &str| json!({"type": "function", "function": {"name": name}});
    let flat = |name: &str| json!({"type": "function", "name": name});
    let message = |name: &str| json!({"name": name, "input_schema": {"type": "object"}});
    let web = json!({"type": "web_search"});
    let dated = json!({"type": "web_search_20250305", "name": "web_search"});
    let deferred =
        json!({"name": "late", "input_schema": {"type": "object"}, "defer_loading": true});
    let group =
        json!({"type": "namespace", "name": "n", "description": "d", "tools": [flat("a b")]});
    let later = json!([
        {"type": "additional_tools", "role": "developer", "tools": [flat("a b")]},
        {"role": "user", "content": "Hi"},
    ]);
    let allowed = json!({"type": "allowed_tools", "allowed_tools": {
        "mode": "auto", "tools": [function("a b")],
    }});
    for (path, body, field) in [
        ("/v1/responses", json!({"input": "Hi", "tools": [web, flat("a b")]}), "tools[1].name"),
        ("/v1/responses", json!({"input": "Hi", "tools": [web, group]}), "tools[1].tools[0].name"),
        ("/v1/responses", json!({"input": later, "tools": [web]}), "input[0].tools[0].name"),
        (
            CHAT,
            with(CHAT, json!({"tools": [function("f"), function("a b")], "tool_choice": allowed})),
            "tools[1].function.name",
        ),
        (
            "/v1/messages",
            with("", json!({"max_tokens": 9, "tools": [dated, deferred, message("a b")]})),
            "tools[2].name",
        ),
    ] {
        let mut body = body;
        body["model"] = "m".into();
        let (found, words) = refused(&stage, path, &body).await;
        // Messages has no field of its own for the path.
        assert!(words.contains(&format!("{field}: ")), "{words}");
        assert!(found.is_empty() || found == field, "{found}: {words}");
    }
}

/// The field and the message of a refusal.
async fn refused(stage: &Exchange, path: &str, body: &Value) -> (String, String) {
    let reply = stage.post(path, body).await;
    assert_eq!(reply.status, StatusCode::BAD_REQUEST, "{body}: {}", reply.body);
    let error = reply.json()["error"].clone();
    let text = |name: &str| error[name].as_str().unwrap_or_default().to_owned();
    (text("param"), text("message"))
}

#[tokio::test]
async fn a_field_of_two_names_is_refused_by_the_name_that_was_sent() {
    let stage = Exchange::serving().await;
    let turn = |name: &str| json!({"messages": [{"role": "user", "content": "a", name: "hm"}]});
    for (path, fields, field) in [
        (CHAT, turn("reasoning"), "messages[0].reasoning"),
        (CHAT, turn("reasoning_content"), "messages[0].reasoning_content"),
        (CHAT, json!({"repeat_penalty": 99}), "repeat_penalty"),
        (CHAT, json!({"repetition_penalty": 99}), "repetition_penalty"),
        (COMPLETIONS, json!({"repeat_penalty": 99}), "repeat_penalty"),
        (CHAT, json!({"chat_template_kwargs": {"messages": []}}), "chat_template_kwargs"),
        (
            CHAT,
            json!({"paceline": {"template_arguments": {"messages": []}}}),
            "paceline.template_arguments",
        ),
    ] {
        let (found, message) = refused(&stage, path, &with(path, fields)).await;
        assert_eq!(found, field, "{message}");
        assert!(message.starts_with(&format!("{field}: ")), "{message}");
    }
}
