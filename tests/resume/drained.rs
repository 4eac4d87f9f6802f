//! Streams of a service that an operator drains.

use paceline_proto::status::{Reason, ReasonStatus as _};
use paceline_tests::{Stack, chat, wait};

use super::{MANY_LIVES, kill};

#[test]
fn a_stream_of_a_drained_service_goes_on_after_the_target_has_died() {
    let stack = Stack::ready(&format!("drafter.model = \"\"\n{MANY_LIVES}"));
    let ask = chat("Tell a long story.").exactly(1_000);
    let expected = stack.ask(ask.clone()).expect("served");
    let stream = stack.start(ask.clone());
    wait("tokens", || (stream.tokens() >= 3).then_some(()));
    let draining = stack.begin(&["drain"]);
    wait("the drain", || (!stack.healthy()).then_some(()));
    kill(&stack, "target");
    let answer = stream.finish().expect("it goes on");
    assert_eq!(answer.ids, expected.ids);
    assert!(answer.end.resumed >= 1, "it was over before the target died");
    let drained = draining.wait_with_output().expect("a child");
    assert_eq!(drained.status.code(), Some(0), "{drained:?}");
    let refused = stack.ask(ask).map(|_| ()).expect_err("drained");
    assert_eq!(Reason::of(&refused), Some(Reason::Draining), "{refused:?}");
    stack.stop();
}
