//! The long figures of `make soak`: every prompt alone and beside others, hundreds of hang-ups, processes killed at random
//! moments. Seeded; a failing round prints its seed.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use paceline_proto::status::Reason;
use paceline_tests::ask::Ask;
use paceline_tests::prompts::{Dice, reference, same_but_near_ties};
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
    let stack = Stack::ready("");
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
