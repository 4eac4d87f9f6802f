//! The drafter as its users see it: real processes that come, go, hang, lie and die while streams
//! run. Tokens are those of the plain lane, no request fails, and nothing is left behind (I1, I2,
//! I3).

#![expect(clippy::print_stdout, reason = "figures of a run, beside what it asserts")]

use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::signal::Signal;
use paceline_process::Clock;
use paceline_proto::v1::{Lane, RouteReason, RouteWish, Speculation};
use paceline_tests::memory::memory;
use paceline_tests::prompts::{Dice, Prompt, reference, same_but_near_ties, some_of_each};
use paceline_tests::{Answer, Stack, repository, signal, usage, wait};

/// A budget that fault tests do not use up.
const OFTEN: &str = "supervisor.restarts = 100000\n";

/// Prompts of the tests that break things: short answers, so that there is time for many rounds.
fn short() -> Vec<Prompt> {
    some_of_each(4)
        .into_iter()
        .map(|prompt| Prompt { ask: prompt.ask.max_tokens(64), ..prompt })
        .collect()
}

/// What a service must not have more of after a round than before.
#[derive(Clone, Debug)]
struct Belongings {
    processes: usize,
    /// Of target and supervisor: descriptors, threads, shared segments.
    each: Vec<(usize, usize, usize)>,
}

impl Belongings {
    /// Less may be there: a thread that waits for work ends when there is none for a while.
    fn no_more_than(&self, before: &Self) -> bool {
        let within = |now: &(usize, usize, usize), before: &(usize, usize, usize)| {
            now.0 <= before.0 && now.1 <= before.1 && now.2 <= before.2
        };
        self.processes == before.processes
            && self.each.iter().zip(&before.each).all(|(now, before)| within(now, before))
    }
}

fn belongings(stack: &Stack) -> Belongings {
    // Elsewhere the segments of shared memory have no name by which they could be counted.
    let segments = |pid: u32| {
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
        maps.lines().filter(|line| line.contains("/memfd:")).count()
    };
    let of = |pid: u32| {
        (
            usage::descriptors(pid).unwrap_or_default(),
            usage::threads(pid).unwrap_or_default(),
            segments(pid),
        )
    };
    let status = stack.snapshot().expect("it answers");
    let pids = [status.target, status.supervisor].map(|process| process.unwrap_or_default().pid);
    Belongings { processes: stack.processes().len(), each: pids.into_iter().map(of).collect() }
}

/// Waits until there is no more than before.
fn back_to(stack: &Stack, before: &Belongings, what: &str) {
    let mut now = None;
    let looked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        wait("what there was before", || {
            let found = belongings(stack);
            let settled = found.no_more_than(before);
            now = Some(found);
            settled.then_some(())
        });
    }));
    assert!(looked.is_ok(), "{what}: before {before:?}, now {now:?}, {:?}", stack.processes());
}

/// The plain answers to prompts, greedy and sampled in turn.
fn references(stack: &Stack, prompts: &[Prompt]) -> Vec<Answer> {
    let ask = |(at, prompt): (usize, &Prompt)| {
        stack.ask(reference(prompt.sampled(seed(at)))).expect("served")
    };
    prompts.iter().enumerate().map(ask).collect()
}

/// Every second request is sampled.
fn seed(at: usize) -> Option<u64> {
    (at % 2 == 1).then_some(at as u64)
}

fn sum<'a>(answers: impl IntoIterator<Item = &'a Answer>) -> Speculation {
    answers.into_iter().map(Answer::speculation).fold(Speculation::default(), |all, one| {
        Speculation {
            cycles: all.cycles + one.cycles,
            drafted: all.drafted + one.drafted,
            accepted: all.accepted + one.accepted,
        }
    })
}

fn per_cycle(speculation: Speculation) -> f64 {
    (speculation.accepted + speculation.cycles) as f64 / speculation.cycles.max(1) as f64
}

/// Every prompt in both lanes, greedy and sampled: alone, and beside seven others.
fn identity(stack: &Stack, prompts: &[Prompt]) {
    let (mut tokens, mut near_ties) = (0, 0);
    for sampled in [false, true] {
        let ask = |(at, prompt): (usize, &Prompt)| prompt.sampled(sampled.then_some(at as u64));
        let asks: Vec<_> = prompts.iter().enumerate().map(ask).collect();
        let plain: Vec<Answer> =
            asks.iter().map(|ask| stack.ask(reference(ask.clone())).expect("served")).collect();
        let fast = |ask: &paceline_tests::ask::Ask| ask.clone().route(RouteWish::Speculative);
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
            assert_eq!(plain.route(), (Lane::Plain, RouteReason::Forced), "{what}");
            tokens += 2 * plain.ids.len();
        }
        let (alone, together) = (sum(&alone), sum(&together));
        println!(
            "sampled {sampled}: {:.2} tokens a cycle alone, {:.2} together",
            per_cycle(alone),
            per_cycle(together)
        );
        assert!(per_cycle(alone) > 2.5 && per_cycle(together) > 2.0, "{alone:?} {together:?}");
    }
    println!("{tokens} tokens compared, {near_ties} near-ties");
    // The aim is one in 100,000 tokens (I1); a few prompts have none.
    assert!(near_ties as usize <= 1 + tokens / 20_000, "{near_ties} near-ties in {tokens} tokens");
}

#[test]
fn streams_are_those_of_the_plain_lane() {
    let stack = Stack::drafting("");
    identity(&stack, &some_of_each(3));
    let answer =
        stack.ask(some_of_each(1)[0].ask.clone().route(RouteWish::Speculative)).expect("served");
    assert_eq!(answer.route().0, Lane::Speculative);
    let link = stack.status().expect("it answers")["link"].clone();
    assert!(link["cycles"].as_u64() > Some(0) && link["accepted"].as_u64() > Some(0), "{link}");
    stack.stop();
}

#[test]
#[ignore = "soak: minutes; run by `make soak`"]
fn all_streams_are_those_of_the_plain_lane() {
    let stack = Stack::drafting("");
    identity(&stack, &paceline_tests::prompts::prompts());
    stack.stop();
}

/// Starts eight requests that run while something happens to the drafter.
fn eight(
    stack: &Stack,
    prompts: &[Prompt],
    from: usize,
) -> Vec<(usize, paceline_tests::stack::Pending)> {
    let ask = |at: usize| prompts[at].sampled(seed(at)).route(RouteWish::Speculative);
    (0..8).map(|n| (from + n) % prompts.len()).map(|at| (at, stack.start(ask(at)))).collect()
}

fn finish(
    running: Vec<(usize, paceline_tests::stack::Pending)>,
    plain: &[Answer],
    what: &str,
    near_ties: &mut u32,
) -> Vec<Answer> {
    let mut answers = vec![];
    for (at, pending) in running {
        let answer = pending
            .finish()
            .unwrap_or_else(|status| panic!("{what}: request {at} failed: {status}"));
        same_but_near_ties(&plain[at], &answer, &format!("{what}, request {at}"), near_ties);
        answers.push(answer);
    }
    answers
}

/// The drafter is killed, or stopped like a hung one, at random moments under eight streams.
fn killed_and_frozen(rounds: u64) {
    let stack = Stack::drafting(&format!("{OFTEN}supervisor.hang_s = 3\n"));
    let prompts = short();
    let plain = references(&stack, &prompts);
    let (mut dice, mut near_ties, mut gaps) = (Dice(5), 0, vec![]);
    // Warm: what a service has once it has worked.
    let warm = finish(eight(&stack, &prompts, 0), &plain, "warm", &mut near_ties);
    let usual = warm.iter().map(Answer::longest_gap_ms).fold(0.0, f64::max);
    let before = belongings(&stack);
    let target = stack.pid("target");
    for round in 0..rounds {
        stack.wait_linked();
        let drafter = stack.pid("drafter");
        let running = eight(&stack, &prompts, dice.roll(24) as usize);
        std::thread::sleep(Duration::from_millis(dice.roll(400))); // the random moment, not a wait for anything
        let sent = if round % 4 == 3 { Signal::SIGSTOP } else { Signal::SIGKILL };
        signal(drafter, sent);
        let answers = finish(running, &plain, &format!("round {round}, {sent}"), &mut near_ties);
        gaps.extend(answers.iter().map(Answer::longest_gap_ms));
        wait("all memory to be given back", || (stack.held_bytes() == 0).then_some(()));
        stack.wait_status("another drafter", |status| {
            status["drafter"]["pid"].as_u64().is_some_and(|pid| pid != u64::from(drafter))
                && status["link"]["state"] == "up"
        });
        back_to(&stack, &before, &format!("round {round}, {sent}"));
        assert_eq!(stack.pid("target"), target);
    }
    gaps.sort_by(f64::total_cmp);
    let (median, longest) = (gaps[gaps.len() / 2], gaps[gaps.len() - 1]);
    println!(
        "{rounds} rounds, {near_ties} near-ties; longest pause of a stream {median:.0} ms, at most {longest:.0} ms; {usual:.0} ms undisturbed"
    );
    // The goal is 250 ms more than usual; a loose bound for a busy machine.
    assert!(longest < usual + 5_000.0, "a stream stood still for {longest} ms");
    stack.stop();
}

#[test]
fn a_drafter_that_is_killed_or_frozen_costs_no_token() {
    killed_and_frozen(8);
}

#[test]
#[ignore = "soak: minutes; run by `make soak`"]
fn a_drafter_that_is_killed_or_frozen_a_hundred_times_costs_no_token() {
    killed_and_frozen(100);
}

/// The scripted drafter that was built with this test.
fn fake_drafter() -> PathBuf {
    let path = paceline_tests::programs().join("examples/fake_drafter");
    assert!(path.is_file(), "expected {}, found nothing; `cargo test` builds it", path.display());
    path
}

/// A service with the scripted drafter, and the file that says what it does.
fn scripted(settings: &str) -> (Stack, PathBuf) {
    let mut stack = Stack::new(settings);
    let crime_file = stack.path("crime");
    stack.env("PACELINE_DRAFTER_BIN", &fake_drafter().display().to_string());
    stack.env("FAKE_DRAFTER_CRIME", &crime_file.display().to_string());
    stack.serve();
    stack.wait_ready();
    stack.wait_linked();
    (stack, crime_file)
}

/// Every rule broken in turn by a drafter process, at random rounds under eight streams.
fn lies(rounds: u64) {
    let (stack, crime_file) = scripted(&format!("{OFTEN}supervisor.hang_s = 3\n"));
    let prompts = short();
    let plain = references(&stack, &prompts);
    let (mut dice, mut near_ties) = (Dice(11), 0);
    finish(eight(&stack, &prompts, 0), &plain, "warm", &mut near_ties);
    let before = belongings(&stack);
    let target = stack.pid("target");
    let crimes = [
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
        let crime = crimes[round as usize % crimes.len()];
        let clock = Clock::start();
        std::fs::write(&crime_file, format!("{crime} {}", 1 + dice.roll(6))).expect("ours");
        // Crimes are read at each new link.
        let swapped = stack.paceline(&["drafter", "swap", "--timeout", "20"], "");
        let comes_up = !matches!(crime, "exit_in_the_handshake" | "wrong_hidden_size");
        assert_eq!(swapped.status.success(), comes_up, "{crime}: {swapped:?}");
        let running = eight(&stack, &prompts, dice.roll(24) as usize);
        finish(running, &plain, &format!("round {round}, {crime}"), &mut near_ties);
        wait("all memory to be given back", || (stack.held_bytes() == 0).then_some(()));
        // Honest from the next link on.
        std::fs::write(&crime_file, "none 0").expect("ours");
        stack.drafter(&["swap"]);
        stack.wait_linked();
        back_to(&stack, &before, &format!("round {round}, {crime}"));
        assert_eq!(stack.pid("target"), target, "{crime}");
        println!("round {round}, {crime}: {} ms", clock.now().0);
    }
    println!("{rounds} rounds, {near_ties} near-ties");
    stack.stop();
}

#[test]
fn a_drafter_that_lies_costs_no_token() {
    lies(18);
}

#[test]
#[ignore = "soak: minutes; run by `make soak`"]
fn a_drafter_that_lies_a_hundred_times_costs_no_token() {
    lies(100);
}

/// Asks for drafts of a drafter that does this at its third round; how long ago the request was
/// sent, and the drafter's id.
fn in_the_third_round(stack: &Stack, crime_file: &Path, crime: &str) -> (Clock, u32) {
    let ask = || some_of_each(1)[0].ask.clone().exactly(100);
    let plain = stack.ask(reference(ask())).expect("served");
    std::fs::write(crime_file, format!("{crime} 3")).expect("ours");
    // It is read at each new link.
    stack.drafter(&["swap"]);
    stack.wait_linked();
    let drafter = stack.pid("drafter");
    std::fs::write(crime_file, "none 0").expect("ours");
    let clock = Clock::start();
    let answer = stack.ask(ask().route(RouteWish::Speculative)).expect("it goes on");
    same_but_near_ties(&plain, &answer, crime, &mut 0);
    assert!(answer.speculation().cycles >= 2, "{crime}: {:?}", answer.speculation());
    (clock, drafter)
}

#[test]
fn a_drafter_that_beats_but_does_not_move_is_replaced_when_its_time_is_over() {
    let (stack, crime_file) = scripted("supervisor.hang_s = 3\n");
    let (clock, wedged) = in_the_third_round(&stack, &crime_file, "wedged");
    stack.wait_status("the wedged drafter to be given up", |status| {
        status["drafter"]["reason"]
            .as_str()
            .is_some_and(|reason| reason.contains("no progress in decoding for 3 s"))
    });
    let declared = clock.now().0;
    stack.wait_status("another drafter", |status| {
        status["drafter"]["pid"].as_u64().is_some_and(|pid| pid != u64::from(wedged))
            && status["link"]["state"] == "up"
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
fn a_drafter_whose_step_is_long_and_below_its_time_is_let_be() {
    // The step takes three seconds.
    let (stack, crime_file) = scripted("supervisor.hang_s = 6\n");
    let (_, slow) = in_the_third_round(&stack, &crime_file, "slow");
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

/// Start, stop and swap while requests run.
fn hot_plug(rounds: u64) {
    let stack = Stack::drafting(OFTEN);
    let prompts = short();
    let plain = references(&stack, &prompts);
    let mut near_ties = 0;
    // Of some 35 MB a few are gaps between the allocator's blocks in use, and how many is chance:
    // the most of three looks is what this traffic takes.
    let mut before = (0, 0);
    for from in 0..3 {
        finish(eight(&stack, &prompts, 8 * from), &plain, "warm", &mut near_ties);
        let (arrays, resident) = memory(&stack);
        before = (arrays, resident.max(before.1));
    }
    let status = stack.status().expect("it answers");
    let (target, loaded_at) = (stack.pid("target"), status["target"]["weights_loaded_at"].clone());
    let weights = status["target"]["weight_bytes"].as_u64().expect("known");
    let read_before = usage::bytes_read(target);
    let mut all = vec![];
    for round in 0..rounds {
        let running = eight(&stack, &prompts, (round * 5) as usize % 24);
        let words: &[&[&str]] = match round % 3 {
            0 => &[&["stop"], &["start"]],
            1 => &[&["swap"]],
            _ => &[&["swap"], &["stop"], &["start"]],
        };
        words.iter().for_each(|words| stack.drafter(words));
        let link = stack.status().expect("it answers")["link"]["state"].clone();
        // On a busy machine drafts may have come too late since.
        assert!(
            link == "up" || link == "suspect",
            "start and swap return when it is up, found {link}"
        );
        all.extend(finish(running, &plain, &format!("round {round}"), &mut near_ties));
    }
    let status = stack.status().expect("it answers");
    assert_eq!((stack.pid("target"), &status["target"]["weights_loaded_at"]), (target, &loaded_at));
    let read = usage::bytes_read(target) - read_before;
    let most = before.1 as f64 * 1.02;
    let mut after = memory(&stack);
    for from in 0..3 {
        if after.1 as f64 <= most {
            break;
        }
        // What leaked stays; other gaps come of other traffic.
        finish(eight(&stack, &prompts, 8 * from), &plain, "after all", &mut near_ties);
        after = memory(&stack);
    }
    println!(
        "{rounds} rounds, {near_ties} near-ties; {:?}; {read} bytes read; arrays and resident {before:?} -> {after:?}",
        sum(&all)
    );
    assert!(read < weights / 4, "the target read {read} bytes, its weights are {weights}");
    assert!(
        after.0 as f64 <= before.0 as f64 * 1.02,
        "arrays grew from {} to {}",
        before.0,
        after.0
    );
    assert!(after.1 as f64 <= most, "the target grew from {} to {}", before.1, after.1);
    assert!(sum(&all).cycles > 0);
    stack.stop();
}

#[test]
fn drafters_come_and_go_while_requests_run() {
    hot_plug(10);
}

#[test]
#[ignore = "soak: minutes; run by `make soak`"]
fn drafters_come_and_go_a_hundred_times_while_requests_run() {
    hot_plug(100);
}

#[test]
fn a_drafter_that_comes_in_the_middle_of_a_stream_soon_drafts_as_well_as_one_that_was_there() {
    // Structured answers that go on for a while. How long a drafter takes to start depends on the
    // machine, so the target stands still meanwhile; that is no reason to replace it here.
    let stack = Stack::drafting("supervisor.hang_s = 600\n");
    let prompts = paceline_tests::prompts::prompts();
    let long = prompts.iter().filter(|prompt| prompt.kind == "arithmetic").take(8);
    let asks: Vec<_> = long
        .map(|prompt| prompt.ask.clone().max_tokens(400).route(RouteWish::Speculative))
        .collect();
    let all = |stack: &Stack| -> Vec<paceline_tests::stack::Pending> {
        asks.iter().map(|ask| stack.start(ask.clone())).collect()
    };
    let ended = |running: Vec<paceline_tests::stack::Pending>| -> Vec<Answer> {
        running.into_iter().map(|pending| pending.finish().expect("served")).collect()
    };
    let cold = ended(all(&stack));
    stack.drafter(&["stop"]);
    let running = all(&stack);
    // A ninth says how far they are.
    stack.open(asks[0].clone()).expect("served").read(12);
    signal(stack.pid("target"), Signal::SIGSTOP);
    let starting = stack.begin(&["drafter", "start"]);
    stack.wait_status("the drafter to be there", |status| status["drafter"]["state"] == "ready");
    signal(stack.pid("target"), Signal::SIGCONT);
    let output = starting.wait_with_output().expect("it ends");
    assert!(output.status.success(), "drafter start: {output:?}");
    let hot = ended(running);
    for (cold, hot) in cold.iter().zip(&hot) {
        same_but_near_ties(cold, hot, "after a hot attach", &mut 0);
    }
    let (cold, hot) = (sum(&cold), sum(&hot));
    println!(
        "cold {:.2} tokens a cycle, after a hot attach {:.2}; {cold:?} {hot:?}",
        per_cycle(cold),
        per_cycle(hot)
    );
    assert!(
        hot.cycles >= 8 && hot.cycles < cold.cycles,
        "it came in the middle of them: {hot:?} of {cold:?}"
    );
    assert!(per_cycle(hot) >= 0.9 * per_cycle(cold), "{} and {}", per_cycle(cold), per_cycle(hot));
    stack.stop();
}

#[test]
fn after_a_kill_drafts_come_again_soon() {
    let stack = Stack::drafting(OFTEN);
    let ask = some_of_each(1)[0].ask.clone().route(RouteWish::Speculative);
    for _ in 0..3 {
        stack.wait_linked();
        let clock = Clock::start();
        signal(stack.pid("drafter"), Signal::SIGKILL);
        let took = wait("the next draft", || {
            let answer = stack.ask(ask.clone()).expect("served");
            (answer.speculation().cycles > 0).then(|| clock.now().0)
        });
        println!("drafts again {took} ms after the kill");
        // The goal is load time + 1.2 s; the demo drafter loads in some 10 ms. A loose bound for a
        // busy machine.
        assert!(took < 10_000, "{took} ms");
    }
    stack.stop();
}

#[test]
fn the_service_says_how_its_drafter_is() {
    let stack = Stack::drafting("");
    let ask = || some_of_each(1)[0].ask.clone();
    let status = stack.status().expect("it answers");
    assert!(status["drafter"]["model"].as_str().expect("text").ends_with("drafter"), "{status}");
    assert!(status["drafter"]["weight_bytes"].as_u64() > Some(1 << 20), "{status}");
    assert_eq!(stack.ask(ask()).expect("served").route().0, Lane::Speculative);
    assert_eq!(
        stack.ask(ask().route(RouteWish::Plain)).expect("served").route(),
        (Lane::Plain, RouteReason::Forced)
    );
    stack.drafter(&["stop"]);
    let status = stack.status().expect("it answers");
    assert_eq!(
        (&status["drafter"]["state"], &status["drafter"]["pid"]),
        (&"stopped".into(), &serde_json::Value::Null)
    );
    let plainly = stack.ask(ask().route(RouteWish::Speculative)).expect("served");
    assert_eq!(plainly.route(), (Lane::Plain, RouteReason::DrafterAbsent));
    // A drafter of another model is refused with the reason, and the service goes on.
    let other = repository().join("models/tests/golden/dflash-full");
    let refused =
        stack.paceline(&["drafter", "start", "--model", &other.display().to_string()], "");
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    let words = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(words.contains("hidden"), "the reason is said: {words}");
    let plainly = stack.ask(ask()).expect("served");
    assert_eq!(plainly.route(), (Lane::Plain, RouteReason::DrafterIncompatible));
    let nowhere = stack.paceline(&["drafter", "start", "--model", "/nowhere"], "");
    assert!(!nowhere.status.success());
    stack.drafter(&["start", "--model", &repository().join("demo/drafter").display().to_string()]);
    assert_eq!(stack.ask(ask()).expect("served").route().0, Lane::Speculative);
    stack.stop();
}

#[test]
fn a_lazy_drafter_starts_with_the_first_request_and_a_manual_one_when_told() {
    let lazy = Stack::ready("drafter.start = \"lazy\"\n");
    assert_eq!(lazy.status().expect("it answers")["drafter"]["state"], "stopped");
    lazy.ask(some_of_each(1)[0].ask.clone()).expect("served");
    lazy.wait_linked();
    assert_eq!(
        lazy.ask(some_of_each(1)[0].ask.clone()).expect("served").route().0,
        Lane::Speculative
    );
    lazy.stop();

    let manual = Stack::ready("drafter.start = \"manual\"\n");
    manual.ask(some_of_each(1)[0].ask.clone()).expect("served");
    assert_eq!(manual.status().expect("it answers")["drafter"]["state"], "stopped");
    manual.drafter(&["start"]);
    assert_eq!(
        manual.ask(some_of_each(1)[0].ask.clone()).expect("served").route().0,
        Lane::Speculative
    );
    manual.stop();
}

#[test]
fn health_says_whether_drafts_come_and_that_requests_are_served_without() {
    let stack = Stack::drafting(OFTEN);
    let becomes = |serves: bool, why: &str| {
        wait(why, || (stack.serves("worker.drafter") == serves).then_some(()));
        assert!(
            stack.healthy() && stack.serves("worker.target"),
            "{why}: a drafter is nobody's outage"
        );
    };
    becomes(true, "SERVING while it is linked");
    stack.drafter(&["stop"]);
    becomes(false, "NOT_SERVING after it was stopped");
    stack.drafter(&["start"]);
    becomes(true, "SERVING when it was started");
    let drafter = stack.pid("drafter");
    signal(drafter, Signal::SIGSTOP);
    becomes(false, "NOT_SERVING while it gives no sign of life");
    signal(drafter, Signal::SIGCONT);
    becomes(true, "SERVING again, this one or the next");
    stack.stop();
}
