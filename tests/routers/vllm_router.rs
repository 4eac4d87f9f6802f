//! `vllm-router` over HTTP.

use paceline_tests::router::{Kind, Router};
use paceline_tests::{Stack, chat, continue_text, wait};
use serde_json::{Value, json};

use crate::crowd::{all_are_answered, served};
use crate::texts::{QUESTION, SEED, chat_body, object, streamed, streamed_answer, whole_text};

const KIND: Kind = Kind::VllmRouter;
/// Length of answers in tokens: past the first draft.
const TOKENS: u32 = 64;
/// Name of the embedded target.
const MODEL: &str = "demo-target";

#[test]
#[ignore = "more: a package of a registry"]
fn vllm_router_passes_on_the_text_of_our_own_client() {
    let Some(clients) = KIND.installed("vllm_router_passes_on_the_text") else { return };
    let stack = Stack::drafting("");
    let router = Router::start(KIND, &clients, &[&stack], &["--policy", "round_robin"]);

    let own = stack.ask(chat(QUESTION).max_tokens(TOKENS).sampled(0.8, 0.95, SEED)).expect("own");
    let body = chat_body(MODEL, QUESTION, TOKENS);
    let whole = router.json("/v1/chat/completions", &body);
    assert_eq!(whole_text(&whole), own.text);
    let pieces = streamed_answer(&router.json("/v1/chat/completions", &streamed(body)));
    assert_eq!(pieces.text, own.text);
    assert_eq!(pieces.usage["completion_tokens"], own.ids.len());

    let continued = stack.ask(continue_text("One, two,").max_tokens(16)).expect("own");
    let prompt = json!({"model": MODEL, "prompt": "One, two,", "max_tokens": 16, "temperature": 0});
    let completion = object(&router.json("/v1/completions", &prompt));
    assert_eq!(completion["choices"][0]["text"], continued.text.as_str());

    let own = stack.ask(chat(QUESTION).max_tokens(TOKENS)).expect("own");
    let question =
        json!({"model": MODEL, "input": QUESTION, "max_output_tokens": TOKENS, "temperature": 0});
    let response = object(&router.json("/v1/responses", &question));
    assert_eq!(response["output"][0]["content"][0]["text"], own.text.as_str());
    let question = json!({
        "model": MODEL, "max_tokens": TOKENS, "temperature": 0,
        "messages": [{"role": "user", "content": QUESTION}],
    });
    let message = object(&router.json("/v1/messages", &question));
    assert_eq!(message["content"][0]["text"], own.text.as_str());
    drop(router);
    stack.stop();
}

#[test]
#[ignore = "more: a package of a registry"]
fn vllm_router_names_the_model_and_knows_whether_it_is_served() {
    let Some(clients) = KIND.installed("vllm_router_names_the_model") else { return };
    let stack = Stack::ready("drafter.model = \"\"\n");
    let router = Router::start(KIND, &clients, &[&stack], &[]);
    let models = object(&router.ask("GET", "/v1/models", "").expect("an answer"));
    let own = stack.http_get("/v1/models").expect("an answer");
    let own: Value = serde_json::from_str(&own.body).expect("JSON");
    assert_eq!(models["data"][0]["id"], own["data"][0]["id"]);
    assert_eq!(router.ask("GET", "/health", "").expect("an answer").status(), 200);

    let drained = stack.paceline(&["drain"], "");
    assert!(drained.status.success(), "{drained:?}");
    wait("the router to find no worker", || router.ready_workers().is_none().then_some(()));
    let undrained = stack.paceline(&["drain", "--undo"], "");
    assert!(undrained.status.success(), "{undrained:?}");
    wait("the router to find its worker", || (router.ready_workers() == Some(1)).then_some(()));
    let answer = router.json("/v1/chat/completions", &chat_body(MODEL, QUESTION, 8));
    assert!(!whole_text(&answer).is_empty());
    drop(router);
    stack.stop();
}

#[test]
#[ignore = "more: a package of a registry"]
fn a_service_is_drained_behind_vllm_router_without_a_failed_request() {
    let Some(clients) = KIND.installed("a_service_is_drained_behind_vllm_router") else { return };
    let stacks = [Stack::ready("drafter.model = \"\"\n"), Stack::ready("drafter.model = \"\"\n")];
    let [first, second] = &stacks;
    let router = Router::start(KIND, &clients, &[first, second], &["--policy", "round_robin"]);
    let worker = KIND.worker(second);
    let order = |path: &str| {
        let answer = router.ask("POST", &format!("{path}?url={worker}"), "").expect("an answer");
        assert_eq!(answer.status(), 200, "{path}: {answer:?}");
    };
    let mut at_drain = 0;
    let body = chat_body(MODEL, QUESTION, 16);
    all_are_answered(&router, &body, |go_on| {
        go_on();
        // First at the router, then at the machine.
        order("/remove_worker");
        let drained = second.paceline(&["drain"], "");
        assert!(drained.status.success(), "{drained:?}");
        at_drain = served(second);
        go_on();
        assert_eq!(served(second), at_drain);
        let undrained = second.paceline(&["drain", "--undo"], "");
        assert!(undrained.status.success(), "{undrained:?}");
        order("/add_worker");
        go_on();
        go_on();
    });
    assert!(at_drain > 0 && served(second) > at_drain, "{at_drain}, {}", served(second));
    assert!(served(first) > 0);
    drop(router);
    stacks.into_iter().for_each(Stack::stop);
}
