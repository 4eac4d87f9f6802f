//! A drafter that breaks the protocol, hangs, or is slow.

use std::path::{Path, PathBuf};

use paceline_proto::v1::RouteWish;
use paceline_system::Clock;
use paceline_tests::prompts::{Dice, Prompt, reference, same_but_near_ties, some_of_each};
use paceline_tests::{Stack, is_linked, wait};

use crate::support::{
    MANY_RESTARTS, finish, references, resources, short, start_eight, wait_for_resources,
};

/// The scripted drafter that was built with this test.
fn fake_drafter() -> PathBuf {
    let path = paceline_tests::programs().join("examples/fake_drafter");
    assert!(path.is_file(), "expected {}, found nothing; `cargo test` builds it", path.display());
    path
}

/// A service with the scripted drafter, and the file that the drafter takes its fault from.
fn scripted(settings: &str) -> (Stack, PathBuf) {
    let mut stack = Stack::new(settings);
    let fault_file = stack.path("fault");
    stack.env("PACELINE_DRAFTER_BIN", &fake_drafter().display().to_string());
    stack.env("FAKE_DRAFTER_FAULT", &fault_file.display().to_string());
    stack.serve();
    stack.wait_ready();
    stack.wait_linked();
    (stack, fault_file)
}

/// Prompts whose answers have at most `tokens` tokens.
fn within(prompts: Vec<Prompt>, tokens: u32) -> Vec<Prompt> {
    let shorter = |Prompt { kind, ask }| Prompt { kind, ask: ask.max_tokens(tokens) };
    prompts.into_iter().map(shorter).collect()
}

/// The scripted drafter breaks each rule in turn, at a random round of eight streams.
fn breaks_the_protocol(rounds: u64) {
    let (stack, fault_file) = scripted(&format!("{MANY_RESTARTS}supervisor.hang_s = 3\n"));
    let prompts = within(short(), 40);
    let plain = references(&stack, &prompts);
    let (mut dice, mut near_ties) = (Dice(11), 0);
    finish(start_eight(&stack, &prompts, 0), &plain, "warm", &mut near_ties);
    let before = resources(&stack);
    let target = stack.pid("target");
    let faults = [
        "exit_in_the_handshake",
        "garbage",
        "huge_frame",
        "wrong_shape",
        "offset_out_of_range",
        "offset_in_the_other_half",
        "session_out_of_range",
        "ids_out_of_range",
        "replay",
        "flood",
        "nan",
        "late",
        "silent",
        "close",
        "hang",
        "abort",
        "close_descriptors",
        "wrong_hidden_size",
    ];
    for round in 0..rounds {
        let fault = faults[round as usize % faults.len()];
        let clock = Clock::start();
        std::fs::write(&fault_file, format!("{fault} {}", 1 + dice.roll(6))).expect("ours");
        // The drafter reads the file at each new link.
        let swapped = stack.paceline(&["drafter", "swap", "--timeout", "20"], "");
        let comes_up = !matches!(fault, "exit_in_the_handshake" | "wrong_hidden_size");
        assert_eq!(swapped.status.success(), comes_up, "{fault}: {swapped:?}");
        let running = start_eight(&stack, &prompts, dice.roll(24) as usize);
        finish(running, &plain, &format!("round {round}, {fault}"), &mut near_ties);
        stack.wait_memory_back();
        // Without fault from the next link on.
        std::fs::write(&fault_file, "none 0").expect("ours");
        stack.drafter(&["swap"]);
        stack.wait_linked();
        wait_for_resources(&stack, &before, &format!("round {round}, {fault}"));
        assert_eq!(stack.pid("target"), target, "{fault}");
        println!("round {round}, {fault}: {} ms", clock.now().0);
    }
    println!("{rounds} rounds, {near_ties} near-ties");
    stack.stop();
}

#[test]
fn a_drafter_that_breaks_the_protocol_costs_no_token() {
    breaks_the_protocol(18);
}

#[test]
#[ignore = "soak: minutes; run by `make soak`"]
fn a_drafter_that_breaks_the_protocol_a_hundred_times_costs_no_token() {
    breaks_the_protocol(100);
}

/// Sends a request to a drafter that has this fault at its third round. Returns a clock that
/// started with the request, and the drafter's process id.
fn in_the_third_round(stack: &Stack, fault_file: &Path, fault: &str) -> (Clock, u32) {
    let ask = || some_of_each(1)[0].ask.clone().exactly(100);
    let plain = stack.ask(reference(ask())).expect("served");
    std::fs::write(fault_file, format!("{fault} 3")).expect("ours");
    // The drafter reads the file at each new link.
    stack.drafter(&["swap"]);
    stack.wait_linked();
    let drafter = stack.pid("drafter");
    std::fs::write(fault_file, "none 0").expect("ours");
    let clock = Clock::start();
    let answer = stack.ask(ask().route(RouteWish::Speculative)).expect("it goes on");
    same_but_near_ties(&plain, &answer, fault, &mut 0);
    assert!(answer.speculation().cycles >= 2, "{fault}: {:?}", answer.speculation());
    (clock, drafter)
}

#[test]
fn a_drafter_with_heartbeats_but_no_progress_is_replaced_after_hang_s() {
    let (stack, fault_file) = scripted("supervisor.hang_s = 3\n");
    let (clock, wedged) = in_the_third_round(&stack, &fault_file, "wedged");
    stack.wait_status("the wedged drafter to be given up", |status| {
        status["drafter"]["reason"]
            .as_str()
            .is_some_and(|reason| reason.contains("no progress in decoding for 3 s"))
    });
    let declared = clock.now().0;
    stack.wait_status("another drafter", |status| {
        status["drafter"]["pid"].as_u64().is_some_and(|pid| pid != u64::from(wedged))
            && is_linked(status)
    });
    println!("given up after {declared} ms, replaced after {} ms", clock.now().0);
    // The aim is half a second after its time. The bound is loose, for a busy machine.
    assert!((3_000..6_000).contains(&declared), "given up after {declared} ms");
    assert!(
        stack
            .ask(some_of_each(1)[0].ask.clone().route(RouteWish::Speculative))
            .expect("served")
            .speculation()
            .cycles
            > 0
    );
    stack.stop();
}

#[test]
fn a_drafter_whose_step_is_shorter_than_hang_s_stays() {
    // The step takes three seconds.
    let (stack, fault_file) = scripted("supervisor.hang_s = 6\n");
    let (_, slow) = in_the_third_round(&stack, &fault_file, "slow");
    wait("its drafts to come again", || {
        let answer = stack
            .ask(some_of_each(1)[0].ask.clone().route(RouteWish::Speculative))
            .expect("served");
        (answer.speculation().cycles > 0).then_some(())
    });
    let status = stack.status().expect("it answers");
    assert_eq!(
        (&status["drafter"]["pid"], &status["drafter"]["restarts"]),
        (&slow.into(), &0.into()),
        "{status}"
    );
    stack.stop();
}
