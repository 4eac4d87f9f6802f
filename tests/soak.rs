//! The long figures of `make soak`: every prompt alone and beside others, hundreds of hang-ups, thousands of requests of which
//! half hang up, processes killed at random moments. Seeded; a failing round prints its seed.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use paceline_proto::status::Reason;
use paceline_tests::ask::Ask;
use paceline_tests::memory::memory;
use paceline_tests::prompts::{Dice, reference, same_but_near_ties, some_of_each};
use paceline_tests::{Answer, Stack, wait};
use tonic::Code;

/// All embedded prompts with margins, in the plain lane: what these tests compare does not depend on a drafter.
fn prompts() -> Vec<Ask> {
    paceline_tests::prompts::prompts().into_iter().map(|prompt| reference(prompt.ask)).collect()
}

#[test]
#[ignore = "soak: minutes; run by `make soak`"]
fn every_prompt_alone_and_beside_seven_others() {
    let stack = Stack::ready("");
    let (mut tokens, mut near_ties) = (0, 0);
    for sampled in [false, true] {
        let asks: Vec<Ask> = prompts()
            .into_iter()
            .enumerate()
            .map(|(at, ask)| if sampled { ask.sampled(0.8, 0.95, at as u64) } else { ask })
            .collect();
        let alone: Vec<Answer> = asks.iter().map(|ask| stack.ask(ask.clone()).expect("served")).collect();
        for (group, alone) in asks.chunks(8).zip(alone.chunks(8)) {
            let running: Vec<_> = group.iter().map(|ask| stack.start(ask.clone())).collect();
            for (at, (pending, alone)) in running.into_iter().zip(alone).enumerate() {
                let together = pending.finish().expect("served");
                same_but_near_ties(alone, &together, &format!("sampled {sampled}, {at} of its group"), &mut near_ties);
                tokens += alone.ids.len();
            }
        }
    }
    println!("{tokens} tokens compared, {near_ties} near-ties");
    assert_eq!(stack.held_bytes(), 0);
    stack.stop();
}

/// Resident memory in bytes and open descriptors of a process.
fn footprint(pid: u32) -> (u64, usize) {
    let statm = std::fs::read_to_string(format!("/proc/{pid}/statm")).expect("it runs");
    let pages: u64 = statm.split_whitespace().nth(1).and_then(|field| field.parse().ok()).expect("a number");
    (pages * 4096, std::fs::read_dir(format!("/proc/{pid}/fd")).expect("ours").count())
}

#[test]
#[ignore = "soak: minutes; run by `make soak`; reads /proc"]
fn hang_ups_leave_nothing_behind() {
    // So little that the prefix cache is full before it is first looked: what it takes until then is no leak.
    let stack = Stack::ready("kv.budget_bytes = 33554432\n");
    let asks = prompts();
    let mut dice = Dice(1);
    let mut hang_up = |rounds: u64| {
        for _ in 0..rounds {
            let ask = asks[dice.roll(asks.len() as u64) as usize].clone().exactly(200);
            let mut live = stack.open(ask).expect("served");
            live.read(1 + dice.roll(20) as usize);
            drop(live);
        }
        wait("all memory to be given back", || (stack.held_bytes() == 0).then_some(()));
    };
    hang_up(200);
    let pids: Vec<u32> = ["gateway", "supervisor", "target"].iter().map(|process| stack.pid(process)).collect();
    let before: Vec<_> = pids.iter().map(|pid| footprint(*pid)).collect();
    hang_up(800);
    for (pid, (rss, descriptors)) in pids.iter().zip(before) {
        // A connection of the last look at the status may still be closing.
        wait("descriptors as before", || (footprint(*pid).1 <= descriptors).then_some(()));
        let rss_after = footprint(*pid).0;
        println!("process {pid}: {rss} -> {rss_after} bytes, {descriptors} descriptors");
        assert!(rss_after as f64 <= rss as f64 * 1.05 + 4e6, "process {pid} grew from {rss} to {rss_after} bytes");
    }
    stack.stop();
}

/// Eight requests at once, of which every second hangs up somewhere; what of them came to its end is held against the plain
/// answers. Drafted, as far as the target thinks it pays.
fn eight_of_which_four_hang_up(stack: &Stack, asks: &[Ask], plain: &[Answer], dice: &mut Dice, near_ties: &mut u32) {
    let chosen: Vec<usize> = (0..8).map(|_| dice.roll(asks.len() as u64) as usize).collect();
    let ask = |at: usize| asks[at].clone();
    let whole: Vec<_> = chosen[..4].iter().map(|at| (*at, stack.start(ask(*at)))).collect();
    for at in &chosen[4..] {
        let mut live = stack.open(ask(*at)).expect("served");
        live.read(1 + dice.roll(plain[*at].ids.len() as u64) as usize);
        drop(live);
    }
    for (at, pending) in whole {
        let answer = pending.finish().expect("served");
        same_but_near_ties(&plain[at], &answer, &format!("prompt {at} beside hang-ups"), near_ties);
    }
}

#[test]
#[ignore = "soak: minutes; run by `make soak`; reads /proc"]
fn two_thousand_requests_of_which_half_hang_up_leave_nothing_behind() {
    // So little that the prefix cache is full after the first rounds, and its pages come and go from then on.
    let stack = Stack::drafting("kv.budget_bytes = 67108864\n");
    let asks: Vec<Ask> = some_of_each(6)
        .into_iter()
        .enumerate()
        .map(|(at, prompt)| prompt.sampled((at % 2 == 1).then_some(at as u64)).max_tokens(64))
        .collect();
    let plain: Vec<Answer> = asks.iter().map(|ask| stack.ask(reference(ask.clone())).expect("served")).collect();
    let (mut dice, mut near_ties) = (Dice(11), 0);
    let pids =
        || -> Vec<u32> { ["gateway", "supervisor", "target", "drafter"].iter().map(|process| stack.pid(process)).collect() };
    let descriptors = || -> Vec<usize> { pids().into_iter().map(|pid| footprint(pid).1).collect() };
    let mut rounds = |count: u64| {
        for _ in 0..count {
            eight_of_which_four_hang_up(&stack, &asks, &plain, &mut dice, &mut near_ties);
        }
        let (arrays, resident) = memory(&stack);
        println!("{count} rounds of 8: arrays {arrays}, resident {resident} bytes");
        (arrays, resident)
    };
    // How large the gaps between blocks in use are is chance: the most of three looks is what this traffic takes.
    let looks: Vec<_> = (0..3).map(|_| rounds(20)).collect();
    let before = looks.iter().map(|(_, resident)| *resident).max().expect("three");
    let (who, had) = (pids(), descriptors());
    let mut after = rounds(250);
    for _ in 0..3 {
        if after.1 as f64 <= before as f64 * 1.05 {
            break;
        }
        // What leaked stays; other gaps come of other traffic.
        after = rounds(20);
    }
    assert!(after.1 as f64 <= before as f64 * 1.05, "the target grew from {before} to {} bytes", after.1);
    assert_eq!(pids(), who, "nobody was started again");
    let mut now = vec![];
    // A connection of the last look at the status may still be closing.
    let settled = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        wait("descriptors as before", || {
            now = descriptors();
            now.iter().zip(&had).all(|(now, had)| now <= had).then_some(())
        });
    }));
    assert!(settled.is_ok(), "descriptors of {who:?}: {had:?} before, {now:?} after");
    // Nothing is held; arrays are the weights and what is kept of prompts, and that is inside the budget.
    let status = stack.status().expect("it answers");
    let bytes = |section: &str, key: &str| status[section][key].as_u64().expect("a number");
    let (budget, held, prefix) = (bytes("kv", "budget_bytes"), bytes("kv", "held_bytes"), bytes("kv", "prefix_bytes"));
    println!(
        "{near_ties} near-ties; budget {budget}, held {held}, prefix {prefix}, arrays {}, descriptors {had:?} -> {now:?}",
        after.0
    );
    assert!(held == 0 && prefix > 0 && prefix <= budget, "{}", status["kv"]);
    assert!(
        after.0 <= bytes("target", "weight_bytes") + prefix + (1 << 20),
        "{} bytes in arrays beside {}",
        after.0,
        status["kv"]
    );
    stack.stop();
}

#[test]
#[ignore = "soak: minutes; run by `make soak`"]
fn killed_at_random_moments_no_client_sees_a_wrong_token() {
    let stack = Stack::ready("supervisor.restarts = 1000\n");
    let asks = prompts();
    let mut dice = Dice(7);
    let (mut whole, mut cut, mut compared, mut near_ties) = (0, 0, 0, 0);
    for round in 0..60 {
        let chosen: Vec<Ask> = (0..8).map(|_| asks[dice.roll(asks.len() as u64) as usize].clone()).collect();
        let alone: Vec<Answer> = chosen.iter().map(|ask| stack.ask(ask.clone()).expect("served")).collect();
        let running: Vec<_> = chosen.iter().map(|ask| stack.start(ask.clone())).collect();
        std::thread::sleep(std::time::Duration::from_millis(dice.roll(400)));
        let victim = ["target", "target", "supervisor", "gateway"][dice.roll(4) as usize];
        let pid = stack.pid(victim);
        kill(Pid::from_raw(pid as i32), Signal::SIGKILL).expect("it runs");
        for (pending, alone) in running.into_iter().zip(&alone) {
            let (seen, outcome) = pending.finish_seen();
            compared += seen.ids.len();
            // A cut stream is held against as much of the whole one as had come.
            let ids = if outcome.is_ok() { alone.ids.clone() } else { alone.ids.iter().copied().take(seen.ids.len()).collect() };
            let expected = Answer { ids, ..alone.clone() };
            same_but_near_ties(&expected, &seen, &format!("round {round}, {victim} killed"), &mut near_ties);
            match outcome {
                Ok(()) => whole += 1,
                Err(status) => {
                    // A gateway's own death reaches its client as a broken connection, which has no reason of ours.
                    let ours =
                        matches!(Reason::of(&status), Some(Reason::TargetGone | Reason::Restarting | Reason::TargetLoading));
                    let broken = victim == "gateway"
                        && matches!(status.code(), Code::Unavailable | Code::Unknown | Code::Internal | Code::Cancelled);
                    assert!(ours || broken, "round {round}, {victim} killed: {status:?}");
                    cut += 1;
                }
            }
        }
        stack.wait_status("another life", |status| status[victim]["pid"] != pid && status[victim]["state"] == "ready");
        stack.wait_ready();
        assert_eq!(stack.held_bytes(), 0, "round {round}");
        let processes = stack.processes();
        assert_eq!(processes.len(), 5, "round {round}: {processes:?}");
    }
    println!("60 kills under 8 streams: {whole} streams whole, {cut} cut, {compared} tokens compared, {near_ties} near-ties");
    stack.stop();
}
