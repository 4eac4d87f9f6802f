//! A request at which the target ends again and again.

use paceline_proto::status::{Reason, ReasonStatus as _};
use paceline_tests::{Stack, chat};
use tonic::Code;

use super::streams::{asks, completed, running, undisturbed};
use super::{MANY_LIVES, kill, replaced};

#[test]
fn a_request_at_which_the_target_ends_twice_is_refused_and_the_others_complete() {
    let stack = Stack::drafting(MANY_LIVES);
    let poison = chat("Tell a long story.").exactly(3_000);
    let mut stream = stack.open(poison.clone()).expect("served");
    for _ in 0..2 {
        let tokens = stream.so_far.ids.len();
        stream.read(tokens + 3);
        let before = stack.pid("target");
        kill(&stack, "target");
        replaced(&stack, before);
    }
    for outcome in [stream.finish().map(|_| ()), stack.ask(poison).map(|_| ())] {
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
