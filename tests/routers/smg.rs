//! `smg` over gRPC: what our own client and the paths of HTTP serve, with the router's own template,
//! tokenizer and text.

use paceline_tests::http::Events;
use paceline_tests::router::{Kind, Router};
use paceline_tests::{Stack, chat, continue_text, wait};
use serde_json::{Value, json};

use crate::texts::{
    QUESTION, SEED, Streamed, chat_body, object, streamed, streamed_answer, whole_text,
};

pub(crate) const KIND: Kind = Kind::Smg;
pub(crate) const CHAT: &str = "/v1/chat/completions";
/// Name of the embedded target.
pub(crate) const MODEL: &str = "demo-target";
/// Length of answers in tokens: past the first draft.
const TOKENS: u32 = 64;

/// A service with these settings behind a router.
pub(crate) fn one(test: &str, settings: &str, words: &[&str]) -> Option<(Stack, Router)> {
    let clients = KIND.installed(test)?;
    let stack = if settings.contains("drafter.model = \"\"") {
        Stack::ready(settings)
    } else {
        Stack::drafting(settings)
    };
    let router = Router::start(KIND, &clients, &[&stack], words);
    Some((stack, router))
}

/// Ends both, and checks that no request is left in the service.
pub(crate) fn end(stack: Stack, router: Router) {
    nothing_runs(&stack);
    drop(router);
    stack.stop();
}

/// Waits until no request is in the service and none holds memory.
pub(crate) fn nothing_runs(stack: &Stack) {
    stack.wait_status("no request and no held memory", |status| {
        status["requests"]["active"] == 0 && status["kv"]["held_bytes"] == 0
    });
}

/// Adds events until the text has this many bytes, or to the end.
pub(crate) fn read(events: &mut Events, answer: &mut Streamed, bytes: usize) {
    while answer.text.len() < bytes && !answer.done {
        let Some(data) = events.next() else { return };
        answer.add(&data.expect("an event"));
    }
}

#[test]
#[ignore = "more: a package of a registry"]
fn smg_passes_on_the_text_of_our_own_client() {
    let Some((stack, router)) = one("smg_passes_on_the_text", "", &[]) else { return };
    let own = stack.ask(chat(QUESTION).max_tokens(TOKENS).sampled(0.8, 0.95, SEED)).expect("own");
    let body = chat_body(MODEL, QUESTION, TOKENS);
    let whole = router.json(CHAT, &body);
    assert_eq!(whole_text(&whole), own.text);
    let usage = &object(&whole)["usage"];
    assert_eq!(usage["completion_tokens"], own.ids.len());
    assert_eq!(usage["prompt_tokens"], own.usage().prompt_tokens);
    let pieces = streamed_answer(&router.json(CHAT, &streamed(body)));
    assert_eq!(pieces.text, own.text);
    assert_eq!(pieces.usage["completion_tokens"], own.ids.len());
    // Another seed is another answer: the seed arrives.
    let mut other = chat_body(MODEL, QUESTION, TOKENS);
    other["seed"] = (SEED + 1).into();
    let of_other = stack.ask(chat(QUESTION).max_tokens(TOKENS).sampled(0.8, 0.95, SEED + 1));
    assert_eq!(whole_text(&router.json(CHAT, &other)), of_other.expect("own").text);
    end(stack, router);
}

#[test]
#[ignore = "more: a package of a registry"]
fn smg_serves_every_protocol_with_the_same_text() {
    let Some((stack, router)) = one("smg_serves_every_protocol", "", &[]) else { return };
    let continued = stack.ask(continue_text("One, two,").max_tokens(16)).expect("own");
    let prompt = json!({"model": MODEL, "prompt": "One, two,", "max_tokens": 16, "temperature": 0});
    let completion = object(&router.json("/v1/completions", &prompt));
    assert_eq!(completion["choices"][0]["text"], continued.text.as_str());

    let own = stack.ask(chat(QUESTION).max_tokens(TOKENS)).expect("own");
    let question = json!({
        "model": MODEL, "input": QUESTION, "max_output_tokens": TOKENS, "temperature": 0,
    });
    let response = object(&router.json("/v1/responses", &question));
    let items = response["output"].as_array().expect("items");
    let message = items.iter().find(|item| item["type"] == "message").expect("a message");
    assert_eq!(message["content"][0]["text"], own.text.as_str(), "{response}");
    let question = json!({
        "model": MODEL, "max_tokens": TOKENS, "temperature": 0,
        "messages": [{"role": "user", "content": QUESTION}],
    });
    let message = object(&router.json("/v1/messages", &question));
    assert_eq!(message["content"][0]["text"], own.text.as_str(), "{message}");
    end(stack, router);
}

#[test]
#[ignore = "more: a package of a registry"]
fn smg_passes_on_stop_strings_schemas_samples_and_log_probabilities() {
    let settings = "drafter.model = \"\"\n";
    let Some((stack, router)) = one("smg_passes_on_stop_strings", settings, &[]) else { return };
    let own = stack.ask(chat(QUESTION).max_tokens(TOKENS)).expect("own");
    let with = |more: Value| {
        let mut body = chat_body(MODEL, QUESTION, TOKENS);
        body["temperature"] = 0.into();
        for (name, value) in more.as_object().expect("fields") {
            body[name] = value.clone();
        }
        object(&router.json(CHAT, &body))
    };

    // A word of the answer's own, so that it is found, and not at its beginning.
    let stop = own.text.split_whitespace().nth(2).expect("three words");
    let stopped = with(json!({"stop": [stop]}));
    let at = own.text.find(stop).expect("a word of it");
    let text = stopped["choices"][0]["message"]["content"].as_str();
    assert_eq!(text, Some(&own.text[..at]), "{stopped}");
    assert_eq!(stopped["choices"][0]["finish_reason"], "stop");

    let schema = json!({
        "type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"],
    });
    let format = json!({"type": "json_schema", "json_schema": {"name": "a", "schema": schema, "strict": true}});
    let held = with(json!({"response_format": format}));
    let text = held["choices"][0]["message"]["content"].as_str().expect("a text");
    let value: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"));
    assert!(value["ok"].is_boolean() && value.as_object().is_some_and(|all| all.len() == 1));

    let several = with(json!({"n": 2, "temperature": 0.8}));
    let choices = several["choices"].as_array().expect("choices");
    let mut indices: Vec<_> = choices.iter().filter_map(|one| one["index"].as_u64()).collect();
    indices.sort_unstable();
    assert_eq!(indices, [0, 1], "{several}");
    let texts = choices.iter().filter_map(|one| one["message"]["content"].as_str());
    assert!(texts.clone().count() == 2 && texts.clone().all(|text| !text.is_empty()), "{several}");

    let own = stack.ask(chat(QUESTION).max_tokens(4).with_logprobs(2)).expect("own");
    let reported = with(json!({"logprobs": true, "top_logprobs": 2, "max_tokens": 4}));
    let content = reported["choices"][0]["logprobs"]["content"].as_array().expect("a list");
    assert_eq!(content.len(), own.logprobs.len(), "{reported}");
    for (theirs, ours) in content.iter().zip(&own.logprobs) {
        let theirs = theirs["logprob"].as_f64().expect("a number");
        assert!((theirs - f64::from(ours.logprob)).abs() < 1e-3, "{theirs}, {}", ours.logprob);
    }
    end(stack, router);
}

#[test]
#[ignore = "more: a package of a registry"]
fn a_client_of_smg_that_hangs_up_frees_its_memory() {
    let settings = "drafter.model = \"\"\n";
    let Some((stack, router)) = one("a_client_of_smg_that_hangs_up", settings, &[]) else { return };
    let mut body = chat_body(MODEL, QUESTION, 4_000);
    body["ignore_eos"] = true.into();
    let mut events = router.events(CHAT, &streamed(body));
    let mut answer = Streamed::default();
    read(&mut events, &mut answer, 20);
    wait("memory to be held", || (stack.held_bytes() > 0).then_some(()));
    assert!(!answer.done);
    drop(events);
    nothing_runs(&stack);
    // It was ended, and did not come to its end.
    let figures = stack.http_get("/metrics").expect("an answer").body;
    let cancelled = figures.lines().find(|line| line.contains("status=\"CANCELLED\""));
    assert!(cancelled.is_some_and(|line| line.ends_with(" 1")), "{figures}");
    end(stack, router);
}

#[test]
#[ignore = "more: a package of a registry"]
fn smg_counts_accepted_tokens_with_a_drafter_and_none_without() {
    let settings = "routing.force = \"speculative\"\n";
    let Some((stack, router)) = one("smg_counts_accepted_tokens", settings, &[]) else { return };
    let mut body = chat_body(MODEL, QUESTION, TOKENS);
    body["temperature"] = 0.into();
    let accepted = || {
        let answer = object(&router.json(CHAT, &body));
        let details = &answer["usage"]["completion_tokens_details"];
        details["accepted_prediction_tokens"].as_u64().unwrap_or_default()
    };
    // On a busy machine all drafts of a short stream may be late.
    wait("accepted tokens", || (accepted() > 0).then_some(()));
    stack.drafter(&["stop"]);
    assert_eq!(accepted(), 0);
    end(stack, router);
}
