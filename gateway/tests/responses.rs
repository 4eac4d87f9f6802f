//! The Responses protocol over HTTP, and the requests of Codex CLI.

use axum::http::StatusCode;
use serde_json::{Value, json};

use crate::stage::exchange::{Answer, CONTEXT, Exchange, fixture};

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
    let strange = json!([{"role": "user", "content": "a"}, {"type": "no_such_item"}]);
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

/// A request whose tool waits for the client's search, with these items after its question.
fn searching(items: Vec<Value>) -> Value {
    let weather = json!({"type": "function", "name": "get_weather", "defer_loading": true});
    let search = json!({"type": "tool_search", "execution": "client", "description": "Finds tools.",
        "parameters": {"type": "object", "properties": {"goal": {"type": "string"}}}});
    let mut input = vec![json!({"role": "user", "content": "Is it cold?"})];
    input.extend(items);
    json!({"input": input, "tools": [weather, search]})
}

#[tokio::test]
async fn a_client_searches_for_tools_and_gets_the_one_that_it_found() {
    let mut exchange = Exchange::serving().await;
    let call = "<tool_call>\n{\"name\": \"tool_search\", \"arguments\": {\"goal\": \"cold\"}}\n</tool_call>";
    let answer = Answer { text: call, cached: 0 };
    let first = searching(vec![]);
    let served = exchange.answered(PATH, &first, &answer).await;
    let prompt = exchange.text(&served.prompt);
    assert!(prompt.contains("Finds tools.") && !prompt.contains("get_weather"), "{prompt}");
    let output = served.reply.json()["output"].as_array().expect("items").clone();
    let [item] = &output[..] else { panic!("one item: {output:?}") };
    assert_eq!(item["type"], "tool_search_call");
    assert_eq!((&item["execution"], &item["status"]), (&json!("client"), &json!("completed")));
    assert_eq!(item["arguments"], json!({"goal": "cold"}));

    let mut streamed = first;
    streamed["stream"] = true.into();
    let events = exchange.answered(PATH, &streamed, &answer).await.reply.events();
    let names: Vec<_> = events.iter().filter_map(|event| event.name.as_deref()).collect();
    let (item_added, item_done) = ("response.output_item.added", "response.output_item.done");
    assert_eq!(names[2..], [item_added, item_done, "response.completed"], "{names:?}");
    assert_eq!(events[3].data["item"]["arguments"], json!({"goal": "cold"}));

    let found = json!({"type": "function", "name": "get_weather", "description": "Degrees.",
        "defer_loading": true});
    let result = json!({"type": "tool_search_output", "call_id": item["call_id"],
        "execution": "client", "status": "completed", "tools": [found]});
    let next = searching(vec![item.clone(), result]);
    let served = exchange.answered(PATH, &next, &Answer { text: "Yes.", cached: 0 }).await;
    assert_eq!(served.reply.status, StatusCode::OK, "{}", served.reply.body);
    let prompt = exchange.text(&served.prompt);
    for words in ["Degrees.", "\"goal\": \"cold\"", "The tool get_weather is offered now."] {
        assert!(prompt.contains(words), "{words}: {prompt}");
    }
}

#[tokio::test]
async fn a_search_of_the_client_is_offered_where_it_is_allowed() {
    let mut exchange = Exchange::serving().await;
    let mut body = searching(vec![]);
    let tools = body["tools"].as_array_mut().expect("a list");
    tools.push(json!({"type": "function", "name": "get_time"}));
    let time = json!({"type": "function", "name": "get_time"});
    for (allowed, is_offered) in
        [(json!([time, {"type": "tool_search"}]), true), (json!([time]), false)]
    {
        body["tool_choice"] = json!({"type": "allowed_tools", "mode": "auto", "tools": allowed});
        let served = exchange.answered(PATH, &body, &Answer { text: "No.", cached: 0 }).await;
        assert_eq!(served.reply.status, StatusCode::OK, "{}", served.reply.body);
        assert_eq!(served.reply.json()["tool_choice"], body["tool_choice"]);
        let prompt = exchange.text(&served.prompt);
        assert!(prompt.contains("get_time"), "{prompt}");
        assert_eq!(prompt.contains("tool_search"), is_offered, "{prompt}");
    }
}

#[tokio::test]
async fn tools_for_a_search_by_the_provider_are_offered_at_once() {
    let mut exchange = Exchange::serving().await;
    let weather = json!({"type": "function", "name": "get_weather", "defer_loading": true});
    // What OpenAI's service answered earlier in the conversation.
    let call = json!({"type": "tool_search_call", "id": "t1", "call_id": null, "status": "completed",
        "execution": "server", "arguments": {"paths": ["get_weather"]}});
    let output = json!({"type": "tool_search_output", "id": "t2", "call_id": null,
        "execution": "server", "status": "completed", "tools": [weather]});
    let question = json!({"role": "user", "content": "Is it cold?"});
    for items in [vec![question.clone()], vec![question, call, output]] {
        let body = json!({"input": items, "tools": [weather, {"type": "tool_search"}]});
        let served = exchange.answered(PATH, &body, &Answer { text: "No.", cached: 0 }).await;
        assert_eq!(served.reply.status, StatusCode::OK, "{}", served.reply.body);
        let prompt = exchange.text(&served.prompt);
        assert!(prompt.contains("get_weather") && !prompt.contains("tool_search"), "{prompt}");
        assert!(!prompt.contains("offered now"), "{prompt}");
    }
}

#[tokio::test]
async fn a_search_that_the_limit_cuts_can_be_sent_back() {
    let mut exchange = Exchange::serving().await;
    let item = json!({"type": "tool_search_call", "id": "t", "call_id": "c1", "status": "incomplete",
        "execution": "client", "arguments": "{\"goal\": \"co"});
    let next = searching(vec![item, json!({"role": "user", "content": "Go on."})]);
    let served = exchange.answered(PATH, &next, &Answer { text: "Yes.", cached: 0 }).await;
    assert_eq!(served.reply.status, StatusCode::OK, "{}", served.reply.body);
    let prompt = exchange.text(&served.prompt);
    assert!(prompt.contains("\"arguments\": {\"goal\": \"co}"), "{prompt}");
}

/// A conversation of an agent that does not fit the context of 32,768 tokens: questions and answers,
/// then a tool call and the tool's answer.
fn overlong(truncation: &str) -> Value {
    let words = "Nothing new about the sea and the shore today. ".repeat(400);
    let mut input = vec![];
    for turn in 0..12 {
        let question = format!("Question {turn}. {words}");
        input.push(json!({"role": "user", "content": question}));
        input.push(json!({"role": "assistant", "content": format!("Answer {turn}.")}));
    }
    input.extend([
        json!({"role": "user", "content": "Last question."}),
        json!({"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"}),
        json!({"type": "function_call_output", "call_id": "c", "output": "Fog."}),
    ]);
    json!({"instructions": "Be brief.", "input": input, "max_output_tokens": 2_000,
        "truncation": truncation, "tools": [{"type": "function", "name": "look"}]})
}

#[tokio::test]
async fn the_oldest_items_of_a_conversation_that_does_not_fit_are_left_out_if_asked() {
    let mut exchange = Exchange::serving().await;
    let refused = exchange.post(PATH, &overlong("disabled")).await;
    assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{}", refused.body);
    assert_eq!(refused.json()["error"]["code"], "context_length_exceeded");

    let answer = Answer { text: "Fog.", cached: 0 };
    let served = exchange.answered(PATH, &overlong("auto"), &answer).await;
    assert_eq!(served.reply.status, StatusCode::OK, "{}", served.reply.body);
    assert_eq!(served.reply.json()["truncation"], "auto");
    assert!(served.max_tokens == 2_000, "the answer has room: {}", served.max_tokens);
    let prompt = exchange.text(&served.prompt);
    let turn = |number: u32| prompt.contains(&format!("Question {number}. "));
    let kept: Vec<u32> = (0..12).filter(|number| turn(*number)).collect();
    let first = kept.first().copied().expect("some stay");
    assert!(first > 0 && kept == (first..12).collect::<Vec<_>>(), "{kept:?}");
    assert!(!prompt.contains(&format!("Answer {}.", first - 1)), "a whole turn is left out");
    for words in ["Be brief.", "Last question.", "look", "Fog."] {
        assert!(prompt.contains(words), "{words}");
    }
    // One turn more would not have fitted.
    let turn = served.prompt.len() / (kept.len() + 1);
    assert!(served.prompt.len() + 2 * turn + 2_000 > CONTEXT as usize, "{kept:?}");

    // A single question that does not fit is refused.
    let alone = json!({"input": "The sea. ".repeat(40_000), "truncation": "auto"});
    let refused = exchange.post(PATH, &alone).await;
    assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{}", refused.body);
    let other = exchange.post(PATH, &json!({"input": "a", "truncation": "most"})).await;
    assert_eq!(other.json()["error"]["param"], "truncation");
}
