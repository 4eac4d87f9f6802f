//! Requests under which the target ends again and again, with and without new tokens between.

use paceline_proto::status::{Reason, ReasonStatus as _};
use paceline_tests::{Stack, chat, continue_ids};
use tonic::Code;

use super::streams::{asks, completed, running, undisturbed};
use super::{MANY_LIVES, kill, replaced};

/// A prompt that the target works on for a good part of a second before the first token.
const LONG_PROMPT_TOKENS: usize = 3_900;

#[test]
fn a_request_at_which_the_target_ends_twice_without_a_token_is_refused_and_the_others_complete() {
    let stack = Stack::drafting(MANY_LIVES);
    let ids: Vec<u32> = (0..LONG_PROMPT_TOKENS as u32).map(|at| 300 + at % 3_000).collect();
    let poison = continue_ids(&ids).exactly(3);
    let stream = stack.start(poison.clone());
    for _ in 0..2 {
        let status = stack.wait_status("the request to run", |status| {
            status["target"]["state"] == "ready" && status["requests"]["active"] == 1
        });
        kill(&stack, "target");
        let before = status["target"]["pid"].as_u64().expect("a pid");
        replaced(&stack, u32::try_from(before).expect("a pid"));
    }
    let (answer, outcome) = stream.finish_partial();
    assert_eq!(answer.ids.len(), 0, "the target was killed after the first token");
    for outcome in [outcome, stack.ask(poison).map(|_| ())] {
        let status = outcome.expect_err("it may be what ends the target");
        assert_eq!(
            (status.code(), Reason::of(&status)),
            (Code::Internal, Some(Reason::PoisonSuspect)),
            "{status:?}"
        );
    }
    let asks = asks();
    let expected = undisturbed(&stack, &asks);
    let streams = running(&stack, &asks);
    kill(&stack, "target");
    let outcome = completed(streams, &expected, "after a suspect");
    assert!(outcome.resumed > 0, "no stream ran when the target was killed");
    stack.stop();
}

#[test]
fn a_lone_request_with_new_tokens_between_the_ends_of_the_target_is_no_suspect() {
    let stack = Stack::drafting(MANY_LIVES);
    let ask = chat("Tell a long story.").exactly(600);
    let expected = stack.ask(ask.clone()).expect("served");
    let mut stream = stack.open(ask.clone()).expect("served");
    for _ in 0..3 {
        let tokens = stream.so_far.ids.len();
        stream.read(tokens + 3);
        let before = stack.pid("target");
        kill(&stack, "target");
        replaced(&stack, before);
    }
    let answer = stream.finish().expect("no token was missing between two ends");
    assert_eq!(answer.ids, expected.ids);
    let resumed = answer.end.resumed;
    assert!(resumed >= 2, "resumed {resumed} times");
    stack.ask(ask).expect("its text is not refused");
    stack.stop();
}
