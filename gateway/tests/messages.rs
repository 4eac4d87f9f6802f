//! The Messages protocol over HTTP, and the requests of Claude Code.

use axum::http::StatusCode;
use paceline_proto::status::{Reason, ReasonStatus as _};
use serde_json::{Value, json};

use crate::stage::exchange::{Answer, CONTEXT, Exchange, Reply, fixture};

const PATH: &str = "/v1/messages";
const COUNT: &str = "/v1/messages/count_tokens";

fn request(words: &str) -> Value {
    let message = json!({"role": "user", "content": words});
    json!({"model": "claude-sonnet-4-5", "max_tokens": 100, "messages": [message]})
}

/// A request of Claude Code after a system prompt of about 20,000 tokens.
fn long(name: &str) -> Value {
    let mut body = fixture(name);
    body["system"][2]["text"] = "Work in small steps. ".repeat(3_400).into();
    body
}

#[track_caller]
fn refused(reply: &Reply, status: StatusCode, kind: &str) -> String {
    assert_eq!(reply.status, status, "{}", reply.body);
    let body = reply.json();
    assert_eq!((&body["type"], &body["error"]["type"]), (&json!("error"), &json!(kind)));
    let id = reply.headers["x-request-id"].to_str().expect("text");
    assert_eq!(body["request_id"], id);
    body["error"]["message"].as_str().expect("a message").to_owned()
}

#[tokio::test]
async fn an_answer_is_a_message_whole_and_in_events() {
    let mut exchange = Exchange::serving().await;
    let answer = Answer { text: "Grüße 🦀!", cached: 3 };
    let served = exchange.answered(PATH, &request("Hi"), &answer).await;
    assert_eq!(served.reply.status, StatusCode::OK, "{}", served.reply.body);
    let whole = served.reply.json();
    assert_eq!(whole["content"], json!([{"type": "text", "text": "Grüße 🦀!"}]));
    assert_eq!((&whole["model"], &whole["stop_reason"]), (&json!("agentic"), &json!("end_turn")));

    let mut streamed = request("Hi");
    streamed["stream"] = true.into();
    let again = exchange.answered(PATH, &streamed, &answer).await;
    assert_eq!(again.prompt, served.prompt);
    let events = again.reply.events();
    let names: Vec<_> = events.iter().filter_map(|event| event.name.as_deref()).collect();
    assert_eq!((names.first(), names.last()), (Some(&"message_start"), Some(&"message_stop")));
    let text: String =
        events.iter().filter_map(|event| event.data["delta"]["text"].as_str()).collect();
    assert_eq!(text, "Grüße 🦀!");
    let end = &events[events.len() - 2].data;
    assert_eq!(
        (&end["usage"], &end["delta"]["stop_reason"]),
        (&whole["usage"], &json!("end_turn"))
    );
}

#[tokio::test]
async fn input_tokens_and_cached_ones_are_what_count_tokens_says() {
    let mut exchange = Exchange::serving().await;
    for body in
        [request("Hi"), fixture("claude_code_turn_1.json"), fixture("claude_code_turn_2.json")]
    {
        let counted = exchange.post(COUNT, &body).await;
        assert_eq!(counted.status, StatusCode::OK, "{}", counted.body);
        let counted = counted.json()["input_tokens"].as_u64().expect("a number");
        let mut body = body;
        body["stream"] = true.into();
        let served = exchange.answered(PATH, &body, &Answer { text: "So it is.", cached: 5 }).await;
        assert_eq!(served.prompt.len() as u64, counted);
        let events = served.reply.events();
        let first = &events[0].data["message"]["usage"];
        let last = &events[events.len() - 2].data["usage"];
        for usage in [first, last] {
            assert_eq!(usage["cache_read_input_tokens"], 5);
            let tokens = |name: &str| usage[name].as_u64().expect("a number");
            assert_eq!(tokens("input_tokens") + tokens("cache_read_input_tokens"), counted);
        }
    }
}

#[tokio::test]
async fn claude_code_counts_its_tools_with_a_message_of_no_meaning() {
    let exchange = Exchange::serving().await;
    let body = fixture("claude_code_count_tokens.json");
    let all = exchange.post(COUNT, &body).await.json()["input_tokens"].as_u64().expect("a number");
    let mut without = body.clone();
    without["tools"] = json!([]);
    let without = exchange.post(COUNT, &without).await.json()["input_tokens"].as_u64();
    assert!(all > without.expect("a number") + 50);
}

#[tokio::test]
async fn claude_codes_first_turn_is_served_with_its_tools_and_without_its_bill() {
    let mut exchange = Exchange::serving().await;
    let body = fixture("claude_code_turn_1.json");
    let served = exchange.answered(PATH, &body, &Answer { text: "I look.", cached: 0 }).await;
    assert_eq!(served.reply.status, StatusCode::OK, "{}", served.reply.body);
    let prompt = exchange.text(&served.prompt);
    for word in ["You are a coding agent", "mcp__tracker__list_issues", "Today is", "Which tests"] {
        assert!(prompt.contains(word), "{word:?} in {prompt}");
    }
    assert!(!prompt.contains("billing"), "{prompt}");
    let events = served.reply.events();
    assert_eq!(events[0].name.as_deref(), Some("message_start"));
    assert_eq!(events[0].data["message"]["model"], "agentic");
}

#[tokio::test]
async fn claude_codes_second_turn_begins_with_the_prompt_of_the_first() {
    let mut exchange = Exchange::serving().await;
    let answer = Answer { text: "I look.", cached: 0 };
    let first = exchange.answered(PATH, &long("claude_code_turn_1.json"), &answer).await;
    let second = exchange.answered(PATH, &long("claude_code_turn_2.json"), &answer).await;
    assert!(first.prompt.len() > 20_000, "{}", first.prompt.len());
    // The end of the first prompt is where the assistant's answer begins.
    let (one, two) = (exchange.text(&first.prompt), exchange.text(&second.prompt));
    let begins = one.strip_suffix("<|im_start|>assistant\n").expect("the template's end");
    assert!(two.starts_with(begins), "{}", &two[..200]);
    let same = first.prompt.iter().zip(&second.prompt).take_while(|(one, two)| one == two).count();
    assert!(same + 4 > first.prompt.len(), "{same} of {}", first.prompt.len());
    let told = &two[begins.len()..];
    for word in ["The suite must run first.", "make test", "2 failed", "pub mod a", "plan mode"] {
        assert!(told.contains(word), "{word:?} in {told}");
    }
}

#[tokio::test]
async fn an_image_that_a_tool_read_is_refused_by_a_model_that_sees_none() {
    let exchange = Exchange::serving().await;
    let reply = exchange.post(PATH, &fixture("claude_code_image.json")).await;
    let message = refused(&reply, StatusCode::BAD_REQUEST, "invalid_request_error");
    assert_eq!(reply.json()["error"]["reason"], "NO_VISION", "{message}");
}

#[tokio::test]
async fn a_prompt_without_room_has_the_words_that_make_claude_code_compact() {
    let exchange = Exchange::serving().await;
    let reply = exchange.post(PATH, &request(&"word ".repeat(200_000))).await;
    let message = refused(&reply, StatusCode::BAD_REQUEST, "invalid_request_error");
    assert!(message.starts_with("prompt is too long: "), "{message}");
    assert!(message.contains(&format!("tokens > {CONTEXT} maximum")), "{message}");
}

#[tokio::test]
async fn max_tokens_above_the_context_is_an_upper_bound() {
    let mut exchange = Exchange::serving().await;
    let mut body = request("Hi");
    body["max_tokens"] = 64_000.into();
    let served = exchange.answered(PATH, &body, &Answer { text: "Yes.", cached: 0 }).await;
    assert_eq!(served.reply.status, StatusCode::OK, "{}", served.reply.body);
    assert_eq!(served.max_tokens as usize, CONTEXT as usize - served.prompt.len());
}

#[tokio::test]
async fn errors_name_the_clients_own_field() {
    let exchange = Exchange::serving().await;
    let with = |field: &str, value: Value| {
        let mut body = request("Hi");
        body[field] = value;
        body
    };
    let unnamed = json!([{"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "mystery"}]}]}]);
    let bad_name = json!([{"name": "a b", "input_schema": {"type": "object"}}]);
    for (body, field) in [
        (with("stop_sequences", json!([""])), "stop_sequences[0]"),
        (with("temperature", json!(-1)), "temperature"),
        (with("max_tokens", json!(0)), "max_tokens"),
        (with("tools", bad_name), "tools[0].name"),
        (with("messages", json!([])), "messages"),
        (with("messages", unnamed), "messages[0].content[0]"),
        (with("no_such_field", json!(1)), "no_such_field"),
    ] {
        let reply = exchange.post(PATH, &body).await;
        let message = refused(&reply, StatusCode::BAD_REQUEST, "invalid_request_error");
        assert!(message.starts_with(&format!("{field}: ")), "{field}: {message}");
    }
}

#[tokio::test]
async fn an_error_of_the_service_has_its_type_and_its_pause() {
    let mut exchange = Exchange::serving().await;
    let router = exchange.router.clone();
    let refusing = async {
        let submission = exchange.fake.submission().await;
        let full =
            paceline_proto::status::Refusal::new(paceline_vocabulary::Reason::QueueFull, "64 wait");
        submission.refuse(full.into());
    };
    let body = request("Hi");
    let (reply, ()) = tokio::join!(crate::stage::exchange::reply(router, PATH, &body), refusing);
    refused(&reply, StatusCode::TOO_MANY_REQUESTS, "rate_limit_error");
    assert!(reply.headers.contains_key("retry-after"));
}

#[tokio::test]
async fn an_answer_that_breaks_ends_with_an_error_event() {
    let mut exchange = Exchange::serving().await;
    let router = exchange.router.clone();
    let breaking = async {
        let mut accepted = exchange.fake.submission().await.accept();
        accepted.tokens(&[300, 301]).await;
        let failed = Reason::CrashLoop.status("it does not stay up");
        accepted.batches.send(Err(failed)).await.expect("the stream runs");
    };
    let mut body = request("Hi");
    body["stream"] = true.into();
    let (reply, ()) = tokio::join!(crate::stage::exchange::reply(router, PATH, &body), breaking);
    assert_eq!(reply.status, StatusCode::OK);
    let events = reply.events();
    let last = events.last().expect("an error");
    assert_eq!(
        (last.name.as_deref(), &last.data["error"]["reason"]),
        (Some("error"), &json!("CRASH_LOOP"))
    );
    assert!(events.iter().all(|event| event.name.as_deref() != Some("message_stop")));
}
