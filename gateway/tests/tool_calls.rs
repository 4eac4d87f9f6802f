//! Tool calls over HTTP: all that the model makes, or one if the client allows one.

use axum::http::StatusCode;
use serde_json::{Value, json};

use crate::stage::exchange::{Answer, Exchange};

/// Two tool calls, as a model of the family of the stage's template writes them.
const TWO_CALLS: &str = concat!(
    "<tool_call>\n{\"name\": \"read\", \"arguments\": {\"path\": \"a\"}}\n</tool_call>\n",
    "<tool_call>\n{\"name\": \"list\", \"arguments\": {}}\n</tool_call>",
);

/// A tool call of a tool that no request here has, and one of a tool that all have.
const OTHER_FIRST: &str = concat!(
    "<tool_call>\n{\"name\": \"fly\", \"arguments\": {\"to\": \"b\"}}\n</tool_call>\n",
    "<tool_call>\n{\"name\": \"list\", \"arguments\": {}}\n</tool_call>",
);

/// The names of the tools in the answer to this request, and the answer.
async fn called(path: &str, body: &Value, pointer: &str, name: &str) -> (Vec<String>, Value) {
    called_in(TWO_CALLS, path, body, pointer, name).await
}

/// As [`called`], if the model writes this text.
async fn called_in(
    text: &'static str,
    path: &str,
    body: &Value,
    pointer: &str,
    name: &str,
) -> (Vec<String>, Value) {
    let mut stage = Exchange::serving().await;
    let answer = Answer { text, cached: 0 };
    let reply = stage.answered(path, body, &answer).await.reply;
    assert_eq!(reply.status, StatusCode::OK, "{}", reply.body);
    let whole = reply.json();
    let items = whole.pointer(pointer).and_then(Value::as_array).expect("a list").clone();
    let names = items.iter().filter_map(|item| item.pointer(name)?.as_str().map(str::to_owned));
    (names.collect(), whole)
}

#[tokio::test]
async fn a_chat_completion_has_all_tool_calls_or_the_first() {
    let tool = |name: &str| json!({"type": "function", "function": {"name": name}});
    let mut body = json!({
        "messages": [{"role": "user", "content": "Go"}], "tools": [tool("read"), tool("list")],
    });
    let (path, calls, name) =
        ("/v1/chat/completions", "/choices/0/message/tool_calls", "/function/name");
    let (names, _) = called(path, &body, calls, name).await;
    assert_eq!(names, ["read", "list"]);

    body["parallel_tool_calls"] = json!(false);
    let (names, whole) = called(path, &body, calls, name).await;
    assert_eq!(names, ["read"]);
    let choice = &whole["choices"][0];
    let arguments = choice["message"]["tool_calls"][0]["function"]["arguments"].as_str();
    let arguments: Value = serde_json::from_str(arguments.expect("a text")).expect("JSON");
    assert_eq!((arguments, &choice["finish_reason"]), (json!({"path": "a"}), &json!("tool_calls")));

    let (names, whole) = called_in(OTHER_FIRST, path, &body, calls, name).await;
    assert_eq!(names, ["list"]);
    let content = whole["choices"][0]["message"]["content"].as_str().expect("a text");
    assert!(content.contains("\"name\": \"fly\""), "{content:?}");
    assert_eq!(whole["paceline"]["warnings"].as_array().map(Vec::len), Some(1));

    body["stream"] = json!(true);
    let mut stage = Exchange::serving().await;
    let answer = Answer { text: TWO_CALLS, cached: 0 };
    let events = stage.answered(path, &body, &answer).await.reply.events();
    let deltas = events
        .iter()
        .filter_map(|event| event.data.pointer("/choices/0/delta/tool_calls")?.as_array().cloned());
    let names: Vec<Value> =
        deltas.flatten().filter_map(|call| call.pointer("/function/name").cloned()).collect();
    assert_eq!(names, [json!("read")]);
}

#[tokio::test]
async fn a_response_has_all_tool_calls_or_the_first() {
    let tool = |name: &str| json!({"type": "function", "name": name});
    let mut body = json!({"input": "Go", "tools": [tool("read"), tool("list")]});
    let (names, _) = called("/v1/responses", &body, "/output", "/name").await;
    assert_eq!(names, ["read", "list"]);
    body["parallel_tool_calls"] = json!(false);
    let (names, whole) = called("/v1/responses", &body, "/output", "/name").await;
    assert_eq!((names, &whole["parallel_tool_calls"]), (vec!["read".to_owned()], &json!(false)));
    let (names, _) = called_in(OTHER_FIRST, "/v1/responses", &body, "/output", "/name").await;
    assert_eq!(names, ["list"]);
}

#[tokio::test]
async fn a_message_has_all_tool_calls_or_the_first() {
    let tool = |name: &str| json!({"name": name, "input_schema": {"type": "object"}});
    let mut body = json!({
        "model": "m", "max_tokens": 100, "messages": [{"role": "user", "content": "Go"}],
        "tools": [tool("read"), tool("list")],
    });
    let (names, _) = called("/v1/messages", &body, "/content", "/name").await;
    assert_eq!(names, ["read", "list"]);
    body["tool_choice"] = json!({"type": "auto", "disable_parallel_tool_use": true});
    let (names, whole) = called("/v1/messages", &body, "/content", "/name").await;
    assert_eq!((names, &whole["stop_reason"]), (vec!["read".to_owned()], &json!("tool_use")));
    let (names, _) = called_in(OTHER_FIRST, "/v1/messages", &body, "/content", "/name").await;
    assert_eq!(names, ["list"]);
}

/// A client that may make several tool calls answers one of an unknown tool by itself.
#[tokio::test]
async fn a_tool_call_of_another_tool_is_one_where_several_are_allowed() {
    let tool = |name: &str| json!({"type": "function", "name": name});
    let body = json!({"input": "Go", "tools": [tool("read"), tool("list")]});
    let (names, _) = called_in(OTHER_FIRST, "/v1/responses", &body, "/output", "/name").await;
    assert_eq!(names, ["fly", "list"]);
}
