//! OpenAI's paths over HTTP, with a scripted supervisor behind them, and the requests that clients
//! send to them.

use axum::body::Body;
use axum::http::{Request, StatusCode};
use serde_json::{Value, json};
use tower::ServiceExt as _;

use crate::stage::exchange::{Answer, CONTEXT, Event, Exchange, Served, fixture};
use crate::stage::within;

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

/// Sends a GET, and returns status and body of its answer.
async fn got(stage: &Exchange, path: &str) -> (StatusCode, Value) {
    let request = Request::get(path).body(Body::empty()).expect("a request");
    let response = within(stage.router.clone().oneshot(request)).await.expect("infallible");
    assert!(response.headers().contains_key("x-request-id"));
    let (parts, body) = response.into_parts();
    let body = within(axum::body::to_bytes(body, 1 << 20)).await.expect("a whole body");
    (parts.status, serde_json::from_slice(&body).expect("JSON"))
}

/// The deltas of a stream's chunks.
fn deltas(events: &[Event]) -> Vec<&Value> {
    events.iter().filter_map(|event| event.data["choices"][0].get("delta")).collect()
}

/// The text of a stream's chunks.
fn content(events: &[Event]) -> String {
    deltas(events).iter().filter_map(|delta| delta["content"].as_str()).collect()
}

/// A prompt without the line breaks between its turns.
fn shown(stage: &Exchange, served: &Served) -> String {
    stage.text(&served.prompt).replace('\n', " ")
}

#[tokio::test]
async fn the_served_model_is_listed_for_openai_and_for_codex() {
    let stage = Exchange::serving().await;
    let (status, list) = got(&stage, "/v1/models?client_version=0.150.0").await;
    assert_eq!(status, StatusCode::OK);
    let model = &list["data"][0];
    assert_eq!((&model["id"], &model["object"]), (&json!("agentic"), &json!("model")));
    assert_eq!(model["context_length"], CONTEXT);
    assert_eq!(
        model["paceline"]["capabilities"],
        json!({"chat": true, "tools": true, "vision": false})
    );
    let codex = &list["models"][0];
    assert_eq!((&codex["slug"], &codex["context_window"]), (&json!("agentic"), &json!(CONTEXT)));
    // Names may have slashes, and on a loopback address every name is an alias.
    for path in ["/v1/models/agentic", "/v1/models/some/other"] {
        let (status, found) = got(&stage, path).await;
        assert_eq!((status, &found["id"]), (StatusCode::OK, &json!("agentic")), "{path}");
    }
}

#[tokio::test]
async fn an_answer_is_a_chat_completion_whole_and_in_chunks() {
    let mut stage = Exchange::serving().await;
    let mut body =
        json!({"model": "gpt-5", "messages": [{"role": "user", "content": "Hi"}], "seed": 7});
    let answer = Answer { text: "Good morning", cached: 3 };
    let Served { reply, prompt, .. } = stage.answered(CHAT, &body, &answer).await;
    assert_eq!(reply.status, StatusCode::OK, "{}", reply.body);
    assert!(reply.headers.contains_key("x-request-id"));
    let whole = reply.json();
    assert_eq!(whole["choices"][0]["message"]["content"], "Good morning");
    assert_eq!(whole["choices"][0]["finish_reason"], "stop");
    assert_eq!((&whole["model"], &whole["object"]), (&json!("agentic"), &json!("chat.completion")));
    assert_eq!(whole["usage"]["prompt_tokens"], prompt.len());
    assert_eq!(whole["usage"]["prompt_tokens_details"]["cached_tokens"], 3);
    assert_eq!(whole["paceline"]["seed"], 7);

    body["stream"] = json!(true);
    body["stream_options"] = json!({"include_usage": true});
    let served = stage.answered(CHAT, &body, &answer).await;
    let events = served.reply.events();
    assert_eq!(served.prompt, prompt, "the same request");
    assert_eq!(content(&events), "Good morning");
    assert!(events.iter().all(|event| event.name.is_none()), "this protocol has no names");
    let [.., usage, done] = &events[..] else { panic!("{events:?}") };
    assert_eq!(done.data, "[DONE]");
    assert_eq!(usage.data["usage"], whole["usage"]);
    assert_eq!(usage.data["choices"], json!([]));
}

#[tokio::test]
async fn a_text_is_continued_whole_and_in_chunks() {
    let mut stage = Exchange::serving().await;
    let mut body = json!({"model": "agentic", "prompt": [5, 6, 7], "max_tokens": 40});
    let answer = Answer { text: " and so on", cached: 0 };
    let served = stage.answered(COMPLETIONS, &body, &answer).await;
    assert_eq!((served.prompt.as_slice(), served.max_tokens), (&[5, 6, 7][..], 40));
    let whole = served.reply.json();
    assert_eq!(whole["choices"][0]["text"], " and so on");
    assert_eq!(whole["object"], "text_completion");

    body["stream"] = json!(true);
    let events = stage.answered(COMPLETIONS, &body, &answer).await.reply.events();
    let text: String =
        events.iter().filter_map(|event| event.data["choices"][0]["text"].as_str()).collect();
    assert_eq!(text, " and so on");
    assert_eq!(events.last().expect("some").data, "[DONE]");
}

#[tokio::test]
async fn opencodes_second_turn_is_served_in_a_stream_with_usage() {
    let mut stage = Exchange::serving().await;
    let mut body = fixture("opencode_turn_2.json");
    // Its limit is a fixed number, for which the context may have no room.
    body["max_tokens"] = json!(CONTEXT);
    let answer = Answer { text: "None fails.", cached: 64 };
    let served = stage.answered(CHAT, &body, &answer).await;
    let prompt = shown(&stage, &served);
    for part in ["You are a coding agent.", "\"filePath\"", "Reads a file.", "1\tpub mod a;"] {
        assert!(prompt.contains(part), "{part:?} in {prompt}");
    }
    assert_eq!(served.max_tokens as usize, CONTEXT as usize - served.prompt.len());
    let events = served.reply.events();
    assert_eq!(content(&events), "None fails.");
    let usage = &events[events.len() - 2].data["usage"];
    assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], 64);
}

#[tokio::test]
async fn clines_first_turn_is_served_in_a_stream() {
    let mut stage = Exchange::serving().await;
    let body = fixture("cline_turn_1.json");
    let served = stage.answered(CHAT, &body, &Answer { text: "Yes.", cached: 0 }).await;
    assert_eq!(served.reply.status, StatusCode::OK, "{}", served.reply.body);
    assert_eq!(content(&served.reply.events()), "Yes.");
}

#[tokio::test]
async fn errors_have_the_shape_of_the_protocol_and_the_clients_field() {
    let stage = Exchange::serving().await;
    let chat = |fields: Value| {
        let mut body = json!({"messages": [{"role": "user", "content": "Hi"}]});
        let members = body.as_object_mut().expect("an object");
        members.extend(fields.as_object().expect("an object").clone());
        body
    };
    let call = json!({"id": "c", "type": "function", "function": {"name": "a b", "arguments": ""}});
    for (path, body, field) in [
        (CHAT, chat(json!({"guided_regex": "a"})), "guided_regex"),
        (CHAT, chat(json!({"max_tokens": "many"})), "max_tokens"),
        (CHAT, chat(json!({"max_completion_tokens": 0})), "max_completion_tokens"),
        (CHAT, chat(json!({"top_p": 7})), "top_p"),
        (CHAT, chat(json!({"n": 99})), "n"),
        (CHAT, chat(json!({"response_format": {"type": "xml"}})), "response_format.type"),
        (
            CHAT,
            chat(json!({"tools": [{"type": "function", "function": {"name": "a b"}}]})),
            "tools[0].function.name",
        ),
        (
            CHAT,
            json!({"messages": [{"role": "assistant", "tool_calls": [call]}]}),
            "messages[0].tool_calls[0].function.name",
        ),
        (CHAT, json!({"model": "agentic"}), "messages"),
        (COMPLETIONS, json!({"prompt": vec!["a"; 129]}), "prompt"),
        (COMPLETIONS, json!({"prompt": [5, 4096]}), "prompt[1]"),
        (COMPLETIONS, json!({"prompt": "a", "echo": true}), "echo"),
    ] {
        let reply = stage.post(path, &body).await;
        assert_eq!(reply.status, StatusCode::BAD_REQUEST, "{}", reply.body);
        let error = &reply.json()["error"];
        assert_eq!(error["param"], field, "{error}");
        assert_eq!(error["type"], "invalid_request_error");
        assert_eq!(error["reason"], "INVALID_ARGUMENT");
        assert_eq!(error["request_id"], reply.headers["x-request-id"].to_str().expect("text"));
        let message = error["message"].as_str().expect("a text");
        assert!(message.starts_with(field), "{message}");
    }
}

#[tokio::test]
async fn a_prompt_that_is_too_long_has_the_words_that_clients_search_for() {
    let stage = Exchange::serving().await;
    let long = "word ".repeat(CONTEXT as usize * 2);
    let reply = stage.post(CHAT, &json!({"messages": [{"role": "user", "content": long}]})).await;
    assert_eq!(reply.status, StatusCode::BAD_REQUEST);
    let error = &reply.json()["error"];
    assert_eq!(
        (&error["code"], &error["reason"]),
        (&json!("context_length_exceeded"), &json!("PROMPT_TOO_LONG"))
    );
    let message = error["message"].as_str().expect("a text");
    assert!(message.contains("maximum context length is 32768 tokens"), "{message}");
}
