//! More than fits: requests wait in the queue, and are refused with their reason when that is over (I6, I11).

use paceline_proto::status::Reason;
use paceline_tests::prompts::{reference, same_but_near_ties};
use paceline_tests::{Answer, Live, Stack, chat, continue_ids, wait};
use tonic::{Code, Status};
use tonic_types::StatusExt as _;

/// Room for one sequence of the longest context (32 MiB of the demo model: 8 KiB a position) and for no second one.
const ONE_LONG: &str = "kv.budget_bytes = 34078720\nkv.tap_window = 0\n";

/// A request that holds nearly the whole budget, from its prompt on, until it is dropped.
fn hog(stack: &Stack) -> Live {
    let prompt: Vec<u32> = (0..2_100).map(|at| 100 + at * 7 % 3_000).collect();
    let mut live = stack.open(continue_ids(&prompt).exactly(1_900)).expect("served");
    live.read(2);
    live
}

fn queued(stack: &Stack) -> u32 {
    stack.snapshot().expect("a supervisor").requests.unwrap_or_default().queued
}

fn check(status: &Status, reason: Reason) {
    assert_eq!(Reason::of(status), Some(reason), "{status:?}");
    assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
    assert_eq!(status.get_details_retry_info().is_some(), reason.retryable(), "{status:?}");
    assert_eq!(status.metadata().contains_key("grpc-retry-pushback-ms"), reason.retryable(), "{status:?}");
}

#[test]
fn what_does_not_fit_now_waits_and_is_served() {
    let stack = Stack::ready(ONE_LONG);
    let first = hog(&stack);
    let status = stack.wait_status("memory held", |status| status["kv"]["held_bytes"].as_u64() > Some(0));
    assert_eq!(status["kv"]["budget_bytes"], 34_078_720);
    assert!(status["kv"]["pressure"].as_f64() > Some(0.0), "{status}");
    let second = stack.start(chat("List three fruits.").max_tokens(8));
    wait("the second request in the queue", || (queued(&stack) == 1).then_some(()));
    // Hanging up frees the memory, and the queue moves.
    drop(first);
    let answer = second.finish().expect("served after waiting");
    assert!(!answer.ids.is_empty());
    assert!(answer.end.timing.expect("timing").queue_ms > 0.0);
    wait("all memory free again", || (stack.held_bytes() == 0).then_some(()));
    stack.stop();
}

fn queue_ms(answer: &Answer) -> f64 {
    answer.end.timing.expect("timing").queue_ms
}

#[test]
fn limits_far_away_keep_nobody_waiting() {
    let stack = Stack::ready(ONE_LONG);
    // Each may become as long as the context, for which there is room once.
    let ask = |text| stack.start(chat(text));
    let three = ["List three fruits.", "List three birds.", "List three rivers."].map(ask);
    for pending in three {
        let answer = pending.finish().expect("served");
        assert_eq!(queue_ms(&answer), 0.0);
    }
    stack.stop();
}

#[test]
fn who_becomes_longer_than_was_likely_takes_room_of_the_youngest_and_both_end_as_alone() {
    // Room for one of 1,024 positions and one of 256; what is likely of either has 512.
    let stack = Stack::ready("kv.budget_bytes = 11010048\nkv.tap_window = 0\n");
    // Sampled: who begins again must draw at each token what it would have drawn there.
    let asks = ["Tell a long story.", "List three fruits."].map(|text| chat(text).exactly(700).sampled(0.9, 0.95, 17));
    let alone = asks.clone().map(|ask| stack.ask(reference(ask)).expect("served"));
    let mut near_ties = 0;
    let together = asks.map(|ask| stack.start(reference(ask)));
    for (alone, pending) in alone.iter().zip(together) {
        let answer = pending.finish().expect("served");
        assert_eq!((answer.ids.len(), queue_ms(&answer)), (700, 0.0));
        same_but_near_ties(alone, &answer, "beside another", &mut near_ties);
    }
    assert!(near_ties <= 1, "{near_ties} near-ties");
    wait("all memory free again", || (stack.held_bytes() == 0).then_some(()));
    stack.stop();
}

#[test]
fn waiting_has_an_end_and_the_queue_a_length() {
    let stack = Stack::ready(&format!("{ONE_LONG}limits.queue = 1\nlimits.queue_wait_s = 1\n"));
    let first = hog(&stack);
    let second = stack.start(chat("List three fruits.").max_tokens(8));
    wait("the second request in the queue", || (queued(&stack) == 1).then_some(()));
    let third = stack.ask(chat("List three birds.").max_tokens(8)).expect_err("the queue is full");
    check(&third, Reason::QueueFull);
    check(&second.finish().expect_err("its wait is over"), Reason::QueueWait);
    assert_eq!(queued(&stack), 0);
    drop(first);
    wait("all memory free again", || (stack.held_bytes() == 0).then_some(()));
    stack.ask(chat("List three fruits.").max_tokens(8)).expect("served");
    stack.stop();
}

#[test]
fn what_can_never_fit_is_refused_at_once() {
    // Three MiB: one short sequence (256 positions) fits.
    let stack = Stack::ready("kv.budget_bytes = 3145728\nkv.tap_window = 0\n");
    stack.ask(chat("List three fruits.").max_tokens(8)).expect("served");
    let refused = stack.ask(chat("Tell a long story.").max_tokens(2000)).expect_err("larger than the budget");
    check(&refused, Reason::KvExhausted);
    assert!(refused.message().contains("3145728") || refused.message().contains("3.0 MiB"), "{refused:?}");
    assert_eq!(stack.held_bytes(), 0);
    stack.stop();
}
