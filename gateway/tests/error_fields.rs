//! An error names a field that the client sent, also if several fields of a protocol become one.

mod stage;

use axum::http::StatusCode;
use serde_json::{Value, json};

use stage::exchange::Exchange;

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
