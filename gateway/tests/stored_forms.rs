//! Turns that clients have stored and resend, over HTTP. One turn does not end a session.

use axum::body::Body;
use axum::http::{Request, StatusCode};
use paceline_proto::internal::v1::{Done, TokenBatch};
use paceline_proto::v1::FinishReason;
use serde_json::{Value, json};
use tower::ServiceExt as _;

use crate::stage::exchange::{Answer, Exchange, Reply, fixture};
use crate::stage::within;

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";
const RESPONSES: &str = "/v1/responses";
const MESSAGES: &str = "/v1/messages";
const COUNT: &str = "/v1/messages/count_tokens";

/// Members whose names are the client's own: schemas, arguments and maps.
const FREE: &[&str] = &[
    "input_schema",
    "metadata",
    "parameters",
    "schema",
    "client_metadata",
    "template_arguments",
    "logit_bias",
];

/// Adds a field without a value to every object of a body that has no free names.
fn with_nulls(value: &mut Value) {
    match value {
        Value::Object(members) => {
            for (name, member) in members.iter_mut() {
                // The input of a tool call is the client's own, that of a request is a list.
                let is_free =
                    FREE.contains(&name.as_str()) || name == "input" && member.is_object();
                if !is_free {
                    with_nulls(member);
                }
            }
            members.insert("field_of_a_later_version".to_owned(), Value::Null);
        }
        Value::Array(items) => items.iter_mut().for_each(with_nulls),
        _ => {}
    }
}

#[tokio::test]
async fn a_field_without_a_value_is_as_if_it_were_absent() {
    let mut stage = Exchange::serving().await;
    let answer = Answer { text: "Yes.", cached: 0 };
    for (path, name) in [
        (CHAT, "opencode_turn_2.json"),
        (CHAT, "cline_turn_1.json"),
        (RESPONSES, "codex_cli_turn_1.json"),
        (RESPONSES, "codex_cli_turn_2.json"),
        (MESSAGES, "claude_code_turn_1.json"),
        (MESSAGES, "claude_code_turn_2.json"),
    ] {
        let mut body = fixture(name);
        body["stream"] = false.into();
        if let Some(fields) = body.as_object_mut() {
            fields.remove("stream_options");
        }
        let before = stage.answered(path, &body, &answer).await;
        assert_eq!(before.reply.status, StatusCode::OK, "{name}: {}", before.reply.body);
        with_nulls(&mut body);
        let after = stage.answered(path, &body, &answer).await;
        assert_eq!(after.reply.status, StatusCode::OK, "{name}: {}", after.reply.body);
        assert_eq!(after.prompt, before.prompt, "{name}");
    }
}

#[tokio::test]
async fn a_field_without_a_value_is_absent_for_a_text_and_for_a_count() {
    let mut stage = Exchange::serving().await;
    let answer = Answer { text: "Yes.", cached: 0 };
    let options = json!({"include_usage": true});
    let mut body = json!({"prompt": "Hi", "max_tokens": 4, "stream": true,
        "stream_options": options, "paceline": {"route": "plain"}});
    let before = stage.answered(COMPLETIONS, &body, &answer).await;
    with_nulls(&mut body);
    let after = stage.answered(COMPLETIONS, &body, &answer).await;
    assert_eq!(after.reply.status, StatusCode::OK, "{}", after.reply.body);
    assert_eq!((after.prompt, after.max_tokens), (before.prompt, before.max_tokens));

    let mut body = fixture("claude_code_turn_2.json");
    if let Some(fields) = body.as_object_mut() {
        fields.retain(|name, _| ["model", "messages", "system", "tools"].contains(&name.as_str()));
    }
    let before = stage.post(COUNT, &body).await;
    with_nulls(&mut body);
    let after = stage.post(COUNT, &body).await;
    assert_eq!(after.status, StatusCode::OK, "{}", after.body);
    assert_eq!(after.json(), before.json());
}

#[tokio::test]
async fn a_chat_that_ends_with_the_assistant_gets_a_new_turn() {
    let mut stage = Exchange::serving().await;
    let body = json!({"messages": [
        {"role": "user", "content": "Count."}, {"role": "assistant", "content": "One, two"},
    ]});
    let answer = Answer { text: "Three.", cached: 0 };
    let served = stage.answered(CHAT, &body, &answer).await;
    assert_eq!(served.reply.json()["choices"][0]["message"]["content"], "Three.");
    let prompt = stage.text(&served.prompt);
    let end = "One, two<|im_end|>\n<|im_start|>assistant\n";
    assert!(prompt.ends_with(end), "{prompt}");
}

/// The answer to a request whose text the limit of tokens cuts, whole or as events.
async fn cut(stage: &mut Exchange, path: &str, body: &Value, text: &str) -> Reply {
    let ids = stage.language.tokens.encode(text, false).expect("encodes");
    let serving = async {
        let mut accepted = stage.fake.submission().await.accept();
        let done = Done { finish_reason: FinishReason::Length as i32, ..Default::default() };
        accepted.send(TokenBatch { ids, done: Some(done), ..Default::default() }).await;
    };
    let asking = crate::stage::exchange::reply(stage.router.clone(), path, body);
    let (reply, ()) = within(async { tokio::join!(asking, serving) }).await;
    assert_eq!(reply.status, StatusCode::OK, "{}", reply.body);
    reply
}

/// A question with a tool, by a protocol.
fn asking(path: &str) -> Value {
    let schema = json!({"type": "object", "properties": {"item": {"type": "string"}}});
    let function = json!({"name": "buy", "parameters": schema});
    let turns = json!([{"role": "user", "content": "Buy it."}]);
    match path {
        CHAT => json!({"messages": turns, "max_tokens": 50,
            "tools": [{"type": "function", "function": function}]}),
        RESPONSES => json!({"input": turns, "max_output_tokens": 50,
            "tools": [{"type": "function", "name": "buy", "parameters": schema}]}),
        _ => json!({"model": "m", "messages": turns, "max_tokens": 50,
            "tools": [{"name": "buy", "input_schema": schema}]}),
    }
}

/// The next turn: what was answered, as it came, and the answer of the tool.
fn resent(path: &str, first: &Value, whole: &Value) -> Value {
    let mut body = first.clone();
    let (list, turns) = match path {
        CHAT => {
            let message = whole["choices"][0]["message"].clone();
            let id = message["tool_calls"][0]["id"].clone();
            let result = json!({"role": "tool", "tool_call_id": id, "content": "cut off"});
            ("messages", vec![message, result])
        }
        RESPONSES => {
            let mut items = whole["output"].as_array().expect("a list").clone();
            let id = items.last().expect("a tool call")["call_id"].clone();
            let result =
                json!({"type": "function_call_output", "call_id": id, "output": "cut off"});
            items.push(result);
            ("input", items)
        }
        _ => {
            let content = whole["content"].clone();
            let id =
                content.as_array().and_then(|blocks| blocks.last()).expect("a tool call")["id"]
                    .clone();
            let result = json!({"type": "tool_result", "tool_use_id": id, "content": "cut off"});
            let turn = json!({"role": "assistant", "content": content});
            ("messages", vec![turn, json!({"role": "user", "content": [result]})])
        }
    };
    body[list].as_array_mut().expect("a list").extend(turns);
    body
}

#[tokio::test]
async fn an_answer_whose_tool_call_was_cut_can_be_sent_back_as_it_came() {
    let mut stage = Exchange::serving().await;
    let text = format!("I buy.\n<tool_call>\n{{\"name\": \"buy\", \"arguments\": {CUT}");
    let answer = Answer { text: "Sorry.", cached: 0 };
    for path in [CHAT, RESPONSES, MESSAGES] {
        let first = asking(path);
        let whole = cut(&mut stage, path, &first, &text).await.json();
        let next = resent(path, &first, &whole);
        let served = stage.answered(path, &next, &answer).await;
        assert_eq!(served.reply.status, StatusCode::OK, "{path}: {}", served.reply.body);
        let prompt = stage.text(&served.prompt);
        let shown = match path {
            MESSAGES => format!("{{\"incomplete\": {}}}", json!(CUT)),
            _ => CUT.to_owned(),
        };
        assert!(prompt.contains(&shown), "{path} {whole}: {prompt}");
        assert!(prompt.contains("I buy.") && prompt.contains("cut off"), "{path}: {prompt}");
    }
}

/// A text that `max_tokens` cut.
const CUT: &str = r#"{"item": "bri"#;

/// A conversation with a tool call whose arguments are this text, and the tool's answer.
fn called(path: &str, arguments: &str) -> Value {
    match path {
        CHAT => {
            let function = json!({"name": "buy", "arguments": arguments});
            let calls = json!([{"id": "c1", "type": "function", "function": function}]);
            json!({"messages": [
                {"role": "user", "content": "Buy it."},
                {"role": "assistant", "content": null, "tool_calls": calls},
                {"role": "tool", "tool_call_id": "c1", "content": "broken arguments"},
            ]})
        }
        RESPONSES => json!({"input": [
            {"role": "user", "content": "Buy it."},
            {"type": "function_call", "call_id": "c1", "name": "buy", "arguments": arguments},
            {"type": "function_call_output", "call_id": "c1", "output": "broken arguments"},
        ]}),
        _ => json!({"model": "m", "max_tokens": 50, "messages": [
            {"role": "user", "content": "Buy it."},
            {"role": "assistant", "content": [
                {"type": "tool_use", "id": "c1", "name": "buy", "input": arguments},
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": "broken arguments"},
            ]},
        ]}),
    }
}

#[tokio::test]
async fn arguments_that_are_no_json_are_shown_as_they_are() {
    let mut stage = Exchange::serving().await;
    let answer = Answer { text: "Sorry.", cached: 0 };
    for path in [CHAT, RESPONSES, MESSAGES] {
        for arguments in [CUT, "no JSON", "[1]", "3"] {
            let served = stage.answered(path, &called(path, arguments), &answer).await;
            assert_eq!(served.reply.status, StatusCode::OK, "{path}: {}", served.reply.body);
            let prompt = stage.text(&served.prompt);
            let shown = format!(r#"{{"name": "buy", "arguments": {arguments}}}"#);
            assert!(prompt.contains(&shown), "{path}: {prompt}");
        }
    }
}

/// A conversation in which Anthropic's service ran tools itself and found a deferred one.
fn run_by_provider() -> Value {
    let tool = |name: &str| json!({"name": name, "input_schema": {}, "defer_loading": true});
    let used = |id: &str, name: &str| json!({"type": "server_tool_use", "id": id, "name": name, "input": {}});
    let reference = json!({"type": "tool_reference", "tool_name": "get_weather"});
    let found = json!({"type": "tool_search_tool_search_result", "tool_references": [reference]});
    let page = json!({"type": "web_search_result", "url": "https://sea.example", "title": "Sea",
        "encrypted_content": "e", "page_age": null});
    let source = json!({"type": "web_search_result_location", "url": "https://sea.example",
        "title": "Sea", "cited_text": "Cold.", "encrypted_index": "i"});
    let blocks = json!([
        {"type": "text", "text": "I look."},
        used("s1", "tool_search_tool_bm25"),
        {"type": "tool_search_tool_result", "tool_use_id": "s1", "content": found},
        used("s2", "web_search"),
        {"type": "web_search_tool_result", "tool_use_id": "s2", "content": [page]},
        {"type": "text", "text": "It is cold.", "citations": [source]},
    ]);
    json!({"model": "m", "max_tokens": 50, "tools": [tool("get_weather"), tool("buy")], "messages": [
        {"role": "user", "content": "Is the sea cold?"},
        {"role": "assistant", "content": blocks},
        {"role": "user", "content": "Sure?"},
    ]})
}

#[tokio::test]
async fn a_conversation_with_tools_that_the_provider_ran_goes_on() {
    let mut stage = Exchange::serving().await;
    let mut body = run_by_provider();
    let answer = Answer { text: "Yes.", cached: 0 };
    let served = stage.answered(MESSAGES, &body, &answer).await;
    assert_eq!(served.reply.status, StatusCode::OK, "{}", served.reply.body);
    let prompt = stage.text(&served.prompt);
    assert!(prompt.contains("I look.\n\nIt is cold."), "{prompt}");
    assert!(prompt.contains("get_weather") && !prompt.contains("buy"), "{prompt}");
    for hidden in ["web_search", "tool_search", "sea.example"] {
        assert!(!prompt.contains(hidden), "{hidden}: {prompt}");
    }
    with_nulls(&mut body);
    let again = stage.answered(MESSAGES, &body, &answer).await;
    assert_eq!(again.reply.status, StatusCode::OK, "{}", again.reply.body);
    assert_eq!(again.prompt, served.prompt);
}

/// Sends a GET of a client of Anthropic's API, and returns status and body of its answer.
async fn got(stage: &Exchange, path: &str) -> (StatusCode, Value) {
    let request = Request::get(path).header("anthropic-version", "2023-06-01");
    let request = request.body(Body::empty()).expect("a request");
    let response = within(stage.router.clone().oneshot(request)).await.expect("infallible");
    let (parts, body) = response.into_parts();
    let body = within(axum::body::to_bytes(body, 1 << 20)).await.expect("a whole body");
    (parts.status, serde_json::from_slice(&body).expect("JSON"))
}

#[tokio::test]
async fn the_models_have_anthropics_form_for_its_clients() {
    let stage = Exchange::serving().await;
    let (status, list) = got(&stage, "/v1/models?limit=20").await;
    assert_eq!((status, &list["has_more"]), (StatusCode::OK, &json!(false)));
    assert_eq!((&list["first_id"], &list["last_id"]), (&json!("agentic"), &json!("agentic")));
    let model = &list["data"][0];
    assert_eq!((&model["type"], &model["display_name"]), (&json!("model"), &json!("agentic")));
    assert!(model["created_at"].as_str().is_some_and(|time| time.ends_with('Z')), "{model}");
    let (_, one) = got(&stage, "/v1/models/agentic").await;
    assert_eq!(one, *model);
}

#[tokio::test]
async fn a_list_of_models_may_be_asked_for_with_a_slash() {
    let stage = Exchange::serving().await;
    let (status, list) = got(&stage, "/v1/models/").await;
    assert_eq!((status, &list["data"][0]["id"]), (StatusCode::OK, &json!("agentic")));
}

#[tokio::test]
async fn an_image_for_a_model_of_text_is_refused_in_words_that_clients_act_on() {
    let stage = Exchange::serving().await;
    let file = json!({"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="});
    let image = json!({"type": "image", "source": file});
    let result = json!({"type": "tool_result", "tool_use_id": "t", "content": [image]});
    let body = json!({"model": "m", "max_tokens": 9, "messages": [
        {"role": "user", "content": "Read it."},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {}}]},
        {"role": "user", "content": [result]},
    ]});
    let reply = stage.post(MESSAGES, &body).await;
    assert_eq!(reply.status, StatusCode::BAD_REQUEST);
    let error = &reply.json()["error"];
    assert_eq!(error["field"], "messages[2].content[0].content[0]");
    let message = error["message"].as_str().expect("a message");
    assert!(message.contains("Could not process image"), "{message}");
    let mut earlier = body;
    let messages = earlier["messages"].as_array_mut().expect("a list");
    messages.push(json!({"role": "assistant", "content": "I see none."}));
    messages.push(json!({"role": "user", "content": "Go on."}));
    let reply = stage.post("/v1/messages/count_tokens", &earlier).await;
    assert_eq!(reply.status, StatusCode::OK, "{}", reply.body);
}

#[tokio::test]
async fn a_thread_is_refused_with_the_code_that_anthropics_package_knows() {
    let stage = Exchange::serving().await;
    let body = json!({"model": "m", "max_tokens": 9, "thread": {"type": "create"},
        "messages": [{"role": "user", "content": "Hi"}]});
    let reply = stage.post(MESSAGES, &body).await;
    assert_eq!(reply.status, StatusCode::BAD_REQUEST);
    let error = &reply.json()["error"];
    assert_eq!(error["details"]["error_code"], "thread_unsupported_request");
    assert_eq!(error["type"], "invalid_request_error");
}

#[tokio::test]
async fn a_list_of_prompts_has_an_answer_for_each() {
    let mut stage = Exchange::serving().await;
    for stream in [false, true] {
        let body = json!({"prompt": [[5, 6], [7]], "max_tokens": 4, "stream": stream,
            "stream_options": if stream { json!({"include_usage": true}) } else { Value::Null }});
        let (router, language) = (stage.router.clone(), stage.language.clone());
        let serving = async {
            let mut prompts = Vec::new();
            for text in ["first", "second"] {
                let ids = language.tokens.encode(text, false).expect("encodes");
                let submission = stage.fake.submission().await;
                prompts.push(submission.generation().prompt_ids.clone());
                let accepted = submission.accept();
                accepted.done(&ids).await;
            }
            prompts
        };
        let posting = crate::stage::exchange::reply(router, "/v1/completions", &body);
        let (reply, prompts) = within(async { tokio::join!(posting, serving) }).await;
        assert_eq!(prompts, [vec![5, 6], vec![7]]);
        assert_eq!(reply.status, StatusCode::OK, "{}", reply.body);
        let (choices, usage) = match stream {
            false => {
                let whole = reply.json();
                (whole["choices"].as_array().expect("choices").clone(), whole["usage"].clone())
            }
            true => {
                let events = reply.events();
                let of = |event: &crate::stage::exchange::Event| event.data["choices"][0].clone();
                let usage = events[events.len() - 2].data["usage"].clone();
                (events.iter().map(of).filter(Value::is_object).collect(), usage)
            }
        };
        let text = |index: u64| -> String {
            let mine = choices.iter().filter(|choice| choice["index"] == index);
            mine.filter_map(|choice| choice["text"].as_str()).collect()
        };
        assert_eq!((text(0), text(1)), ("first".to_owned(), "second".to_owned()));
        assert_eq!(usage["prompt_tokens"], 3);
    }
}
