//! Prompt lookup: a drafter without weights, beside any target and in the place of another drafter.

use nix::sys::signal::Signal;
use paceline_proto::v1::RouteWish;
use paceline_tests::ask::Ask;
use paceline_tests::prompts::{Prompt, reference, same_but_near_ties, some_of_each};
use paceline_tests::{Answer, Stack, repository, signal};

use crate::support::{MANY_RESTARTS, finish, per_cycle, references, short, start_eight, sum};

const LOOKUP: &str = "drafter.model = \"lookup\"\n";

fn check_identity(prompts: &[Prompt]) {
    let stack = Stack::drafting(LOOKUP);
    let drafter = stack.status().expect("it answers")["drafter"].clone();
    assert_eq!((&drafter["model"], &drafter["weight_bytes"]), (&"lookup".into(), &0.into()));
    let (mut tokens, mut near_ties, mut drafted) = (0, 0, vec![]);
    for sampled in [false, true] {
        let ask = |(at, prompt): (usize, &Prompt)| prompt.sampled(sampled.then_some(at as u64));
        let asks: Vec<_> = prompts.iter().enumerate().map(ask).collect();
        let plain: Vec<Answer> =
            asks.iter().map(|ask| stack.ask(reference(ask.clone())).expect("served")).collect();
        let fast = |ask: &Ask| ask.clone().route(RouteWish::Speculative);
        let alone: Vec<Answer> =
            asks.iter().map(|ask| stack.ask(fast(ask)).expect("served")).collect();
        let together: Vec<Answer> = asks
            .chunks(8)
            .flat_map(|asks| asks.iter().map(|ask| stack.start(fast(ask))).collect::<Vec<_>>())
            .map(|pending| pending.finish().expect("served"))
            .collect();
        for (at, plain) in plain.iter().enumerate() {
            let what = format!("{} {at}, sampled {sampled}", prompts[at].kind);
            same_but_near_ties(plain, &alone[at], &format!("{what}, alone"), &mut near_ties);
            same_but_near_ties(plain, &together[at], &format!("{what}, together"), &mut near_ties);
            tokens += 2 * plain.ids.len();
        }
        drafted.extend(alone);
        drafted.extend(together);
    }
    let total = sum(&drafted);
    println!(
        "{tokens} tokens compared, {near_ties} near-ties; {total:?}, {:.2} tokens a cycle",
        per_cycle(total)
    );
    assert!(near_ties as usize <= 1 + tokens / 20_000, "{near_ties} near-ties in {tokens} tokens");
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
        let state = stack.wait_linked();
        assert_eq!(state["drafter"]["model"], "lookup");
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
    assert_eq!(stack.held_bytes(), 0);
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
fn no_drafter_is_there_if_none_is_wanted() {
    let stack = Stack::ready("drafter.model = \"\"\n");
    assert_eq!(stack.status().expect("it answers")["drafter"]["state"], "absent");
    let answer = stack.ask(some_of_each(1)[0].ask.clone().max_tokens(4)).expect("served");
    assert_eq!(answer.speculation().cycles, 0);
    stack.stop();
}
