//! The speculative lane gives the tokens of the plain lane.

use paceline_proto::v1::{Lane, RouteReason, RouteWish};
use paceline_tests::ask::Ask;
use paceline_tests::prompts::{Prompt, prompts, some_of_each};
use paceline_tests::{Answer, Stack};

use crate::support::{Compared, Drafted, compare_with_plain, per_cycle, plain_answers, sum};

/// Every prompt in both lanes, greedy and sampled: alone, and beside seven others.
fn check_identity(stack: &Stack, prompts: &[Prompt]) {
    let mut counts = Compared::default();
    for sampled in [false, true] {
        let ask = |(at, prompt): (usize, &Prompt)| prompt.sampled(sampled.then_some(at as u64));
        let asks: Vec<Ask> = prompts.iter().enumerate().map(ask).collect();
        let plain = plain_answers(stack, &asks);
        let routes = plain.iter().map(Answer::route);
        assert!(routes.into_iter().all(|route| route == (Lane::Plain, RouteReason::Forced)));
        let what = format!("sampled {sampled}");
        let Drafted { alone, together } =
            compare_with_plain(stack, &asks, &plain, &what, &mut counts);
        let (alone, together) = (sum(&alone), sum(&together));
        println!(
            "{what}: {:.2} tokens a cycle alone, {:.2} together",
            per_cycle(alone),
            per_cycle(together)
        );
        assert!(per_cycle(alone) > 2.5 && per_cycle(together) > 2.0, "{alone:?} {together:?}");
    }
    counts.check();
}

#[test]
fn speculative_streams_equal_plain_streams() {
    let stack = Stack::drafting("");
    check_identity(&stack, &some_of_each(2));
    let answer =
        stack.ask(some_of_each(1)[0].ask.clone().route(RouteWish::Speculative)).expect("served");
    assert_eq!(answer.route().0, Lane::Speculative);
    let link = stack.status().expect("it answers")["link"].clone();
    assert!(link["cycles"].as_u64() > Some(0) && link["accepted"].as_u64() > Some(0), "{link}");
    stack.stop();
}

#[test]
#[ignore = "soak: minutes; run by `make soak`"]
fn all_speculative_streams_equal_plain_streams() {
    let stack = Stack::drafting("");
    check_identity(&stack, &prompts());
    stack.stop();
}
