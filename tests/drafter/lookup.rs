//! Prompt lookup: a drafter without weights, beside any target and in the place of another drafter.

use nix::sys::signal::Signal;
use paceline_tests::ask::Ask;
use paceline_tests::prompts::{Prompt, some_of_each};
use paceline_tests::{Stack, repository, signal};

use crate::support::{
    Compared, Drafted, MANY_RESTARTS, compare_with_plain, finish, per_cycle, plain_answers,
    references, short, start_eight, sum,
};

const LOOKUP: &str = "drafter.model = \"lookup\"\n";

fn check_identity(prompts: &[Prompt]) {
    let stack = Stack::drafting(LOOKUP);
    let drafter = stack.status().expect("it answers")["drafter"].clone();
    assert_eq!((&drafter["model"], &drafter["weight_bytes"]), (&"lookup".into(), &0.into()));
    let (mut counts, mut drafted) = (Compared::default(), vec![]);
    for sampled in [false, true] {
        let ask = |(at, prompt): (usize, &Prompt)| prompt.sampled(sampled.then_some(at as u64));
        let asks: Vec<Ask> = prompts.iter().enumerate().map(ask).collect();
        let plain = plain_answers(&stack, &asks);
        let what = format!("sampled {sampled}");
        let Drafted { alone, together } =
            compare_with_plain(&stack, &asks, &plain, &what, &mut counts);
        drafted.extend(alone.into_iter().chain(together));
    }
    let total = sum(&drafted);
    println!("{total:?}, {:.2} tokens a cycle", per_cycle(total));
    counts.check();
    // These answers repeat little of their prompts, and some of themselves.
    assert!(total.cycles > 0 && total.accepted > 0, "{total:?}");
    stack.stop();
}

#[test]
fn streams_with_prompt_lookup_equal_plain_streams() {
    check_identity(&some_of_each(1));
}

#[test]
#[ignore = "soak: minutes; run by `make soak`"]
fn all_streams_with_prompt_lookup_equal_plain_streams() {
    check_identity(&some_of_each(9));
}

/// Swaps, a kill and a stopped process while eight requests run, then the other drafter.
fn take_turns(rounds: usize) {
    let stack = Stack::drafting(MANY_RESTARTS);
    let prompts = short();
    let plain = references(&stack, &prompts);
    let target = stack.pid("target");
    let trained = repository().join("demo/drafter").display().to_string();
    let mut near_ties = 0;
    for round in 0..rounds {
        let running = start_eight(&stack, &prompts, round * 5 % 24);
        stack.drafter(&["swap", "--model", "lookup"]);
        // Its link may be suspect by now: on a busy machine drafts come late.
        let status = stack.status().expect("it answers");
        assert_eq!(status["drafter"]["model"], "lookup");
        match round % 3 {
            0 => {}
            1 => signal(stack.pid("drafter"), Signal::SIGKILL),
            _ => signal(stack.pid("drafter"), Signal::SIGSTOP),
        }
        finish(running, &plain, &format!("round {round}, lookup"), &mut near_ties);
        let running = start_eight(&stack, &prompts, round * 7 % 24);
        // A stopped drafter is replaced as well.
        stack.drafter(&["swap", "--model", &trained]);
        finish(running, &plain, &format!("round {round}, trained"), &mut near_ties);
    }
    println!("{rounds} rounds, {near_ties} near-ties");
    assert_eq!(stack.pid("target"), target);
    stack.wait_memory_back();
    stack.stop();
}

#[test]
fn lookup_and_a_trained_drafter_take_each_others_place_while_streams_run() {
    take_turns(3);
}

#[test]
#[ignore = "soak: minutes; run by `make soak`"]
fn lookup_and_a_trained_drafter_take_each_others_place_twenty_times() {
    take_turns(20);
}

#[test]
fn no_draft_is_longer_than_the_setting_allows() {
    for drafter in ["", LOOKUP] {
        let stack = Stack::drafting(&format!("drafter.max_tokens = 2\n{drafter}"));
        let asks: Vec<Ask> = some_of_each(1).iter().map(|prompt| prompt.sampled(None)).collect();
        let plain = plain_answers(&stack, &asks);
        let mut counts = Compared::default();
        let drafted = compare_with_plain(&stack, &asks, &plain, drafter, &mut counts);
        let drafted: Vec<_> = drafted.alone.iter().chain(&drafted.together).collect();
        for one in drafted.iter().map(|answer| answer.speculation()) {
            assert!(one.drafted <= 2 * one.cycles, "{drafter} {one:?}");
        }
        assert!(sum(drafted).accepted > 0);
        counts.check();
        stack.stop();
    }
}

#[test]
fn no_drafter_is_there_if_none_is_wanted() {
    let stack = Stack::ready("drafter.model = \"\"\n");
    assert_eq!(stack.status().expect("it answers")["drafter"]["state"], "absent");
    let answer = stack.ask(some_of_each(1)[0].ask.clone().max_tokens(4)).expect("served");
    assert_eq!(answer.speculation().cycles, 0);
    stack.stop();
}
