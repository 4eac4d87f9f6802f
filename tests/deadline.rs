//! Deadlines: a request whose time is over ends DEADLINE_EXCEEDED, wherever it is, and what it held
//! is free soon after.
//!
//! The client here is tonic's over hyper's own transport. tonic's transport has a timer on
//! `grpc-timeout` that ends requests as CANCELLED in the client, before the service's answer
//! arrives.

use std::time::Duration;

use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use paceline_proto::status::{Reason, ReasonStatus as _};
use paceline_proto::v1::generate_request::Prompt;
use paceline_proto::v1::inference_client::InferenceClient;
use paceline_proto::v1::{GenerateRequest, Limits, TokenIds};
use paceline_system::clock::monotonic_ns;
use paceline_tests::{Live, Stack, chat, continue_ids, wait};
use tonic::body::Body;
use tonic::{Code, Request, Status};
use tonic_types::StatusExt as _;

/// Room for one sequence of the longest context (32 MiB of the demo model: 8 KiB a position) and
/// for no second one.
const ONE_LONG: &str = "kv.budget_bytes = 34078720\nkv.hidden_window = 0\n";

/// Tokens of a prompt that takes a second or two to read.
const LONG: u32 = 2_400;

/// Ids that no other request begins with.
fn ids(count: u32, salt: u32) -> Vec<u32> {
    (0..count).map(|at| 100 + (at * 7 + salt * 131) % 3_000).collect()
}

/// Sends a request with a deadline: how many tokens came, how it ended, and after how many
/// milliseconds.
fn send(
    stack: &Stack,
    prompt: Vec<u32>,
    max_tokens: u32,
    timeout_ms: u64,
) -> (usize, Result<(), Status>, i64) {
    let message = GenerateRequest {
        prompt: Some(Prompt::TokenIds(TokenIds { ids: prompt })),
        limits: Some(Limits {
            max_tokens: Some(max_tokens),
            ignore_eos: true,
            ..Default::default()
        }),
        ..Default::default()
    };
    let mut request = Request::new(message);
    request
        .metadata_mut()
        .insert("grpc-timeout", format!("{timeout_ms}m").parse().expect("well formed"));
    let origin = format!("http://{}", stack.address()).parse().expect("well formed");
    stack.block_on(async {
        let transport: Client<HttpConnector, Body> =
            Client::builder(TokioExecutor::new()).http2_only(true).build_http();
        let mut client = InferenceClient::with_origin(transport, origin);
        let begun = monotonic_ns();
        let mut got = 0;
        let served = async {
            let mut stream = client.generate(request).await?.into_inner();
            while let Some(message) = stream.message().await? {
                got += message.token_ids.len();
            }
            Ok(())
        };
        let outcome =
            tokio::time::timeout(Duration::from_secs(60), served).await.expect("not hung");
        (got, outcome, (monotonic_ns() - begun) / 1_000_000)
    })
}

/// Bound for an end that takes some milliseconds on an idle machine. A request whose deadline has no
/// effect is served, and a test fails by that.
const BOUND_MS: i64 = 30_000;

#[track_caller]
fn passed(status: &Status, got: usize, reason: Reason) {
    assert_eq!(
        (status.code(), Reason::of(status)),
        (Code::DeadlineExceeded, Some(reason)),
        "{status:?}"
    );
    let facts = status.get_details_error_info().expect("facts").metadata;
    assert_eq!(facts["completion_tokens"], got.to_string(), "tokens so far");
}

fn all_free(stack: &Stack) {
    wait("all memory free again", || {
        let requests = stack.snapshot().expect("a supervisor").requests.unwrap_or_default();
        (requests.active == 0 && requests.queued == 0 && stack.held_bytes() == 0).then_some(())
    });
}

/// Holds nearly the whole budget until it is dropped.
fn hog(stack: &Stack) -> Live {
    let mut live = stack.open(continue_ids(&ids(2_100, 0)).exactly(1_900)).expect("served");
    live.read(2);
    live
}

#[test]
fn a_stream_at_its_deadline_ends_with_the_tokens_so_far() {
    let stack = Stack::ready("");
    stack.ask(chat("Hi").max_tokens(4)).expect("served");
    for _ in 0..3 {
        let (got, outcome, ms) = send(&stack, ids(20, 1), 4_000, 300);
        passed(&outcome.expect_err("it would take seconds"), got, Reason::DeadlinePassed);
        // A bound for a busy machine. The soak test measures the difference.
        assert!((300..BOUND_MS).contains(&ms), "{ms} ms");
        all_free(&stack);
    }
    // A distant deadline has no effect.
    let (got, outcome, _) = send(&stack, ids(20, 1), 40, 60_000);
    outcome.expect("in time");
    assert_eq!(got, 40);
    stack.stop();
}

#[test]
#[ignore = "soak: a timed figure; run by `make soak`"]
fn a_deadline_is_kept_to_fifty_milliseconds() {
    let stack = Stack::ready("");
    stack.ask(chat("Hi").max_tokens(4)).expect("served");
    for _ in 0..20 {
        let (got, outcome, ms) = send(&stack, ids(20, 1), 4_000, 300);
        passed(&outcome.expect_err("it would take seconds"), got, Reason::DeadlinePassed);
        assert!((300..=350).contains(&ms), "{ms} ms");
    }
    stack.stop();
}

#[test]
fn a_deadline_in_the_queue_ends_the_wait() {
    let stack = Stack::ready(ONE_LONG);
    let first = hog(&stack);
    let (got, outcome, ms) = send(&stack, ids(20, 1), 100, 300);
    passed(&outcome.expect_err("there is no room"), got, Reason::DeadlinePassed);
    assert!(got == 0 && (300..BOUND_MS).contains(&ms), "{ms} ms");
    let requests = stack.snapshot().expect("a supervisor").requests.unwrap_or_default();
    assert_eq!((requests.active, requests.queued), (1, 0));
    drop(first);
    all_free(&stack);
    stack.stop();
}

#[test]
fn a_deadline_ends_prefill_and_an_impossible_one_is_refused() {
    let stack = Stack::ready("kv.prefix_cache = false\nrouting.force = \"plain\"\n");
    // Duration of these prompts on this machine.
    let mut fastest_ms = f64::INFINITY;
    for salt in 0..3 {
        let answer = stack.ask(continue_ids(&ids(LONG, salt)).exactly(1)).expect("served");
        fastest_ms = fastest_ms.min(answer.end.timing.expect("timing").ttft_ms);
    }
    // Too little was measured to refuse anything: it is begun, and ended on its way.
    let time_ms = (fastest_ms / 3.0) as u64;
    let (got, outcome, _) = send(&stack, ids(LONG, 10), 100, time_ms);
    passed(
        &outcome.expect_err("the prompt takes three times as long"),
        got,
        Reason::DeadlinePassed,
    );
    assert_eq!(got, 0);
    all_free(&stack);
    // Now it is known. A few are admitted all the same, as probes, and pass their deadline.
    for salt in 3..9 {
        stack.ask(continue_ids(&ids(LONG, salt)).exactly(1)).expect("served");
    }
    let mut reasons = vec![];
    for salt in 11..14 {
        let (got, outcome, _) = send(&stack, ids(LONG, salt), 100, time_ms);
        let status = outcome.expect_err("it cannot be met");
        assert_eq!((status.code(), got), (Code::DeadlineExceeded, 0), "{status:?}");
        reasons.extend(Reason::of(&status));
    }
    assert_eq!(reasons, [Reason::DeadlineInfeasible; 3]);
    // A request with enough time is served.
    let (_, outcome, _) = send(&stack, ids(LONG, 20), 1, 60_000);
    outcome.expect("in time");
    stack.stop();
}
