//! The Responses protocol over HTTP, and the requests of Codex CLI.

mod stage;

use axum::http::StatusCode;
use serde_json::{Value, json};

use stage::exchange::{Answer, Exchange, fixture};

const PATH: &str = "/v1/responses";

#[tokio::test]
async fn an_answer_is_a_response_whole_and_in_events() {
    let mut exchange = Exchange::serving().await;
    let answer = Answer { text: "Grüße 🦀!", cached: 3 };
    let mut body = json!({"model": "gpt-5", "instructions": "Help.", "input": "Hi"});
    let served = exchange.answered(PATH, &body, &answer).await;
    assert_eq!(served.reply.status, StatusCode::OK, "{}", served.reply.body);
    let whole = served.reply.json();
    assert_eq!((&whole["status"], &whole["model"]), (&json!("completed"), &json!("agentic")));
    assert_eq!(whole["output"][0]["content"][0]["text"], "Grüße 🦀!");
    assert_eq!(whole["usage"]["input_tokens"].as_u64(), Some(served.prompt.len() as u64));
    assert_eq!(whole["usage"]["input_tokens_details"]["cached_tokens"], 3);
    let prompt = exchange.text(&served.prompt);
    assert!(prompt.starts_with("<|im_start|>system\nHelp.<|im_end|>"), "{prompt}");

    body["stream"] = true.into();
    let again = exchange.answered(PATH, &body, &answer).await;
    assert_eq!(again.prompt, served.prompt);
    let events = again.reply.events();
    let text: String = events
        .iter()
        .filter(|event| event.name.as_deref() == Some("response.output_text.delta"))
        .filter_map(|event| event.data["delta"].as_str())
        .collect();
    assert_eq!(text, "Grüße 🦀!");
    let last = &events.last().expect("an end").data;
    assert_eq!(last["type"], "response.completed");
    assert_eq!(last["response"]["usage"], whole["usage"]);
}

#[tokio::test]
async fn codex_clis_first_turn_is_served_with_functions_of_all_its_tools() {
    let mut exchange = Exchange::serving().await;
    let body = fixture("codex_cli_turn_1.json");
    let served = exchange.answered(PATH, &body, &Answer { text: "I look.", cached: 0 }).await;
    assert_eq!(served.reply.status, StatusCode::OK, "{}", served.reply.body);
    let prompt = exchange.text(&served.prompt);
    for word in [
        "exec_command",
        "\"apply_patch\"",
        "begin_patch hunk+",
        "mcp__tracker__list_issues",
        "<cwd>",
    ] {
        assert!(prompt.contains(word), "{word:?} in {prompt}");
    }
    assert!(!prompt.contains("web_search"), "{prompt}");
    let events = served.reply.events();
    // What Codex CLI reads, in the order that it needs.
    let read: Vec<_> = events
        .iter()
        .filter_map(|event| event.name.as_deref())
        .filter(|name| !name.contains("content_part") && !name.ends_with("text.done"))
        .collect();
    let (first, rest) = read.split_at(3);
    assert_eq!(first, ["response.created", "response.in_progress", "response.output_item.added"]);
    let (pieces, end) = rest.split_at(rest.len() - 2);
    assert!(pieces.iter().all(|name| *name == "response.output_text.delta"), "{pieces:?}");
    assert_eq!(end, ["response.output_item.done", "response.completed"]);
    let usage = &events.last().expect("an end").data["response"]["usage"];
    assert!(usage["output_tokens_details"]["reasoning_tokens"].is_u64());
}

#[tokio::test]
async fn codex_clis_second_turn_begins_with_the_prompt_of_the_first() {
    let mut exchange = Exchange::serving().await;
    let answer = Answer { text: "I look.", cached: 0 };
    let long = |name: &str| {
        let mut body = fixture(name);
        body["instructions"] = "Work in small steps. ".repeat(3_400).into();
        body
    };
    let first = exchange.answered(PATH, &long("codex_cli_turn_1.json"), &answer).await;
    let second = exchange.answered(PATH, &long("codex_cli_turn_2.json"), &answer).await;
    assert!(first.prompt.len() > 20_000, "{}", first.prompt.len());
    let (one, two) = (exchange.text(&first.prompt), exchange.text(&second.prompt));
    let begins = one.strip_suffix("<|im_start|>assistant\n").expect("the template's end");
    assert!(two.starts_with(begins), "{}", &two[..200]);
    let told = &two[begins.len()..];
    for word in [
        "The suite must run first.",
        "I run the tests.",
        "make test",
        "2 failed",
        "mcp__tracker__list_issues",
        "Delete File: a.rs",
        "Done.",
    ] {
        assert!(told.contains(word), "{word:?} in {told}");
    }
}

#[tokio::test]
async fn errors_have_the_shape_of_the_protocol_and_the_clients_field() {
    let exchange = Exchange::serving().await;
    let with = |field: &str, value: Value| {
        let mut body = json!({"model": "gpt-5", "input": "Hi"});
        body[field] = value;
        body
    };
    let strange = json!([{"role": "user", "content": "a"}, {"type": "computer_call"}]);
    let call = json!([{"type": "function_call", "call_id": "c", "name": "a b", "arguments": ""}]);
    for (body, field) in [
        (with("max_output_tokens", json!(0)), "max_output_tokens"),
        (with("temperature", json!(-1)), "temperature"),
        (with("input", json!([])), "input"),
        (with("input", strange), "input[1]"),
        (with("input", call), "input[0].name"),
        (with("previous_response_id", json!("resp_1")), "previous_response_id"),
        (with("no_such_field", json!(1)), "no_such_field"),
    ] {
        let reply = exchange.post(PATH, &body).await;
        assert_eq!(reply.status, StatusCode::BAD_REQUEST, "{}", reply.body);
        let error = &reply.json()["error"];
        assert_eq!(
            (&error["type"], &error["param"]),
            (&json!("invalid_request_error"), &json!(field))
        );
    }
}
