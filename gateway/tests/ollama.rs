//! Ollama's API over HTTP: answers in JSON lines, the served model, and what a connection shows of a
//! failure.

use axum::http::StatusCode;
use paceline_process::config::OllamaApi;
use paceline_proto::status::{Reason, Refusal};
use serde_json::{Value, json};

use crate::stage::exchange::{Answer, Exchange, Reply};
use crate::stage::http::{HttpClient, RawHttp};
use crate::stage::{Stage, within};

const CHAT: &str = "/api/chat";
const GENERATE: &str = "/api/generate";

fn request(words: &str) -> Value {
    json!({"model": "agentic:latest", "messages": [{"role": "user", "content": words}]})
}

/// The objects of a stream.
fn lines(reply: &Reply) -> Vec<Value> {
    assert_eq!(reply.headers["content-type"], "application/x-ndjson", "{}", reply.body);
    reply.body.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

#[tokio::test]
async fn an_answer_is_the_same_in_lines_at_once_and_through_another_protocol() {
    let mut exchange = Exchange::serving().await;
    let answer = Answer { text: "Grüße 🦀! a\u{2028}b", cached: 3 };
    let streamed = exchange.answered(CHAT, &request("Hi"), &answer).await;
    let lines = lines(&streamed.reply);
    let text: String =
        lines.iter().filter_map(|line| line["message"]["content"].as_str()).collect();
    assert_eq!(text, answer.text);
    assert!(!streamed.reply.body.contains('\u{2028}'), "some clients end a line there");

    let mut body = request("Hi");
    body["stream"] = false.into();
    let whole = exchange.answered(CHAT, &body, &answer).await;
    let (whole, last) = (whole.reply.json(), lines.last().expect("an end"));
    assert_eq!(whole["message"], json!({"role": "assistant", "content": answer.text}));
    for field in ["model", "done", "done_reason", "prompt_eval_count", "eval_count"] {
        assert_eq!(whole[field], last[field], "{field}");
    }
    assert_eq!(whole["prompt_eval_count"], streamed.prompt.len());

    let same = json!({"model": "agentic", "messages": body["messages"]});
    let other = exchange.answered("/v1/chat/completions", &same, &answer).await;
    assert_eq!(other.prompt, streamed.prompt);
    assert_eq!(other.reply.json()["choices"][0]["message"]["content"], answer.text);

    let asked = json!({"model": "agentic", "prompt": "Hi", "stream": false});
    let generated = exchange.answered(GENERATE, &asked, &answer).await;
    assert_eq!(generated.prompt, streamed.prompt);
    assert_eq!(generated.reply.json()["response"], answer.text);
}

#[tokio::test]
async fn all_calls_of_an_answer_are_one_line_with_objects() {
    let mut exchange = Exchange::serving().await;
    let mut body = request("Hi");
    body["tools"] = json!([{"function": {"name": "look", "parameters": {"type": "object",
        "properties": {"at": {"type": "string"}}}}}]);
    let call = |at: &str| {
        format!(
            "<tool_call>\n{{\"name\": \"look\", \"arguments\": {{\"at\": \"{at}\"}}}}\n</tool_call>"
        )
    };
    let text = format!("{}\n{}", call("a"), call("b"));
    let served = exchange.answered(CHAT, &body, &Answer { text: &text, cached: 0 }).await;
    let with_calls: Vec<Value> = lines(&served.reply)
        .into_iter()
        .filter(|line| line["message"].get("tool_calls").is_some())
        .collect();
    assert_eq!(with_calls.len(), 1, "{}", served.reply.body);
    let calls = with_calls[0]["message"]["tool_calls"].as_array().expect("a list");
    let found: Vec<(&Value, &Value)> = calls
        .iter()
        .map(|call| (&call["function"]["name"], &call["function"]["arguments"]))
        .collect();
    let look = json!("look");
    assert_eq!(found, [(&look, &json!({"at": "a"})), (&look, &json!({"at": "b"}))]);
}

#[tokio::test]
async fn a_request_without_a_message_is_answered_without_the_model() {
    let exchange = Exchange::serving().await;
    for (path, body, field, reason) in [
        (CHAT, json!({"model": "agentic"}), "message", "load"),
        (CHAT, json!({"model": "agentic", "messages": [], "keep_alive": 0}), "message", "unload"),
        (GENERATE, json!({"model": "agentic", "keep_alive": "5m"}), "response", "load"),
    ] {
        let reply = exchange.post(path, &body).await;
        let answer = reply.json();
        assert_eq!((reply.status, &answer["done_reason"]), (StatusCode::OK, &json!(reason)));
        assert!(answer.get(field).is_some() && answer["done"] == true, "{answer}");
    }
}

#[tokio::test]
async fn an_error_before_the_answer_is_a_status_and_a_text() {
    let exchange = Exchange::serving().await;
    let refused = async |path: &str, body: Value| {
        let reply = exchange.post(path, &body).await;
        (reply.status, reply.json()["error"].as_str().expect("a text").to_owned())
    };
    let (status, error) = refused(CHAT, json!({"messages": []})).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert!(error.starts_with("model: expected the name of a model"), "{error}");
    let mut body = request("Hi");
    body["options"] = json!({"num_predict": 9, "temperature": 900});
    let (status, error) = refused(CHAT, body).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert!(error.starts_with("options.temperature: expected"), "{error}");
    let (status, error) = refused("/api/pull", json!({"model": "m"})).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    assert!(error.contains("/api/pull"), "{error}");
}

/// A service with this API.
async fn serving() -> (Stage, crate::stage::supervisor::Fake, crate::stage::supervisor::Attachment)
{
    Stage::serving(|config| config.gateway.ollama = OllamaApi::WithHttp).await
}

#[tokio::test]
async fn a_failure_in_a_stream_is_a_line_and_a_broken_connection() {
    let (stage, mut fake, _attachment) = serving().await;
    let mut client = RawHttp::connect(stage.http).await;
    let body = request("Hi").to_string();
    let failing = async {
        let mut accepted = fake.submission().await.accept();
        accepted.tokens(&[300]).await;
        let refused = Refusal::new(Reason::KvExhausted, "expected x, found y");
        accepted.batches.send(Err(refused.into())).await.expect("the stream runs");
    };
    client.head(CHAT, body.len()).await;
    client.write(&body).await;
    let ((), answer) = within(async { tokio::join!(failing, client.read()) }).await;
    assert!(answer.contains("\"done\":false"), "{answer}");
    let error = answer.lines().find(|line| line.starts_with("{\"error\":"));
    assert!(error.is_some_and(|line| line.contains("found y")), "{answer}");
    // The last chunk of HTTP/1.1, with which a whole answer ends.
    assert!(!answer.ends_with("\r\n0\r\n\r\n") && !answer.contains("\"done\":true"), "{answer}");
}

#[tokio::test]
async fn the_served_model_is_in_the_lists_and_has_its_facts() {
    let (stage, _fake, _attachment) = serving().await;
    let client = HttpClient::new(stage.http);
    let tags = client.get("/api/tags").await.json();
    let name = tags["models"][0]["name"].as_str().expect("a name").to_owned();
    assert!(name.ends_with(":latest"), "{name}");
    assert_eq!(client.get("/api/ps").await.json()["models"][0]["model"], name);
    assert!(client.get("/api/version").await.json()["version"].is_string());
    for question in [json!({"model": name}), json!({"name": name, "verbose": true})] {
        let shown = client.post("/api/show", &question).await.json();
        assert!(shown["model_info"].is_object() && shown["capabilities"].is_array(), "{shown}");
    }
    let reply = client.post("/api/show", &json!({})).await;
    assert_eq!(reply.status, StatusCode::BAD_REQUEST, "{}", reply.json());
    // Ollama's own words, and for browsers the page.
    let greeting = client.get("/").await;
    assert_eq!(
        (greeting.status, greeting.body.as_ref()),
        (StatusCode::OK, &b"Ollama is running"[..])
    );
    let page = client.with("accept", "text/html,*/*").get("/").await;
    assert!(page.header("content-type").is_some_and(|kind| kind.starts_with("text/html")));
}

#[tokio::test]
async fn a_page_of_another_site_is_refused_in_the_words_of_this_api() {
    let (stage, _fake, _attachment) = serving().await;
    let foreign = HttpClient::new(stage.http).with("origin", "https://evil.example");
    for (method, path) in [
        ("POST", CHAT),
        ("POST", GENERATE),
        ("POST", "/api/show"),
        ("GET", "/api/tags"),
        ("GET", "/api/ps"),
        ("GET", "/api/version"),
    ] {
        let reply = foreign.send(method, path, "{}").await;
        assert_eq!(reply.status, StatusCode::FORBIDDEN, "{path}");
        assert!(reply.json()["error"].as_str().is_some_and(|text| text.starts_with("origin")));
    }
}

#[tokio::test]
async fn the_api_is_served_only_if_a_setting_says_so() {
    let (stage, _fake, _attachment) = Stage::serving(|_| {}).await;
    let client = HttpClient::new(stage.http);
    assert_eq!(client.get("/api/tags").await.status, StatusCode::NOT_FOUND);
    assert_eq!(client.post(CHAT, &request("Hi")).await.status, StatusCode::NOT_FOUND);
    assert_ne!(client.get("/").await.body.as_ref(), b"Ollama is running");
}
