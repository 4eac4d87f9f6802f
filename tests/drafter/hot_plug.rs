//! Drafters that are started, stopped and swapped under running requests.

use nix::sys::signal::Signal;
use paceline_proto::v1::RouteWish;
use paceline_tests::memory::memory;
use paceline_tests::prompts::{Prompt, prompts, same_but_near_ties};
use paceline_tests::stack::Pending;
use paceline_tests::{Answer, Stack, is_linked, signal, usage};

use crate::support::{MANY_RESTARTS, finish, per_cycle, references, short, start_eight, sum};

/// Most growth of the target's arrays: 2 % of what the same traffic took before.
const ARRAY_GROWTH: f64 = 1.02;

/// Most growth of the target's resident memory, in bytes. The gaps between the allocator's blocks in
/// use change by up to 8 MB from one batch of the same traffic to the next; over a hundred rounds
/// this bounds a leak to 80 kB a round.
const RESIDENT_GROWTH: u64 = 8 << 20;

/// Most growth of the resident memory in a round of many, in bytes: half of the smallest leak that
/// was ever planted.
const GROWTH_A_ROUND: f64 = 400e3;

/// Rounds after which the gaps are what they will be.
const FIRST_ROUNDS: u64 = 5;
/// Rounds whose growth counts.
const LINE_ROUNDS: u64 = 15;
/// Rounds in a row of which the lowest memory counts: passing peaks of up to 70 MB only add.
const LOWEST_OF: usize = 3;

/// Growth in a round: of the lowest values of a few rounds in a row, the median of what each pair of
/// them grows by (Theil 1950, Sen 1968).
fn slope(of_rounds: &[f64]) -> f64 {
    let lowest = |rounds: &[f64]| rounds.iter().copied().fold(f64::INFINITY, f64::min);
    let values: Vec<f64> = of_rounds.chunks(LOWEST_OF).map(lowest).collect();
    let places = 0..values.len();
    let pairs = places.flat_map(|later| (0..later).map(move |earlier| (earlier, later)));
    let growth = |(earlier, later)| (values[later] - values[earlier]) / (later - earlier) as f64;
    let mut growths: Vec<f64> = pairs.map(growth).collect();
    growths.sort_by(f64::total_cmp);
    growths[growths.len() / 2] / LOWEST_OF as f64
}

/// Bytes of the target.
#[derive(Clone, Copy, Debug)]
struct TargetMemory {
    arrays: u64,
    resident: u64,
}

impl TargetMemory {
    fn of(stack: &Stack) -> Self {
        let (arrays, resident) = memory(stack);
        Self { arrays, resident }
    }

    fn resident_within(self, before: Self) -> bool {
        self.resident <= before.resident + RESIDENT_GROWTH
    }
}

/// Start, stop and swap while requests run.
struct HotPlug {
    stack: Stack,
    prompts: Vec<Prompt>,
    plain: Vec<Answer>,
    near_ties: u32,
}

impl HotPlug {
    fn new() -> Self {
        let stack = Stack::drafting(MANY_RESTARTS);
        let prompts = short();
        let plain = references(&stack, &prompts);
        Self { stack, prompts, plain, near_ties: 0 }
    }

    fn traffic(&mut self, first: usize, what: &str) {
        let running = start_eight(&self.stack, &self.prompts, first);
        finish(running, &self.plain, what, &mut self.near_ties);
    }

    /// The target's memory under this traffic: the greatest of three measurements, because the gaps
    /// are chance.
    fn usual_memory(&mut self) -> TargetMemory {
        let mut usual = TargetMemory { arrays: 0, resident: 0 };
        for batch in 0..3 {
            self.traffic(8 * batch, "warm");
            let TargetMemory { arrays, resident } = TargetMemory::of(&self.stack);
            usual = TargetMemory { arrays, resident: resident.max(usual.resident) };
        }
        usual
    }

    /// The target's memory after the rounds. A leak stays whatever follows; gaps change with the
    /// traffic, so more traffic gets a chance to close them.
    fn memory_after(&mut self, before: TargetMemory) -> TargetMemory {
        let mut after = TargetMemory::of(&self.stack);
        for batch in 0..3 {
            if after.resident_within(before) {
                break;
            }
            self.traffic(8 * batch, "after all");
            after = TargetMemory::of(&self.stack);
        }
        after
    }

    /// One round: eight requests, and orders to the drafter while they run.
    fn round(&mut self, round: u64) -> Vec<Answer> {
        let running = start_eight(&self.stack, &self.prompts, (round * 5) as usize % 24);
        let orders: &[&[&str]] = match round % 3 {
            0 => &[&["stop"], &["start"]],
            1 => &[&["swap"]],
            _ => &[&["swap"], &["stop"], &["start"]],
        };
        orders.iter().for_each(|words| self.stack.drafter(words));
        let status = self.stack.status().expect("it answers");
        let link = &status["link"];
        assert!(is_linked(&status), "start and swap return when the link is up, found {link}");
        finish(running, &self.plain, &format!("round {round}"), &mut self.near_ties)
    }
}

fn hot_plug(rounds: u64) {
    let mut test = HotPlug::new();
    let before = test.usual_memory();
    let status = test.stack.status().expect("it answers");
    let target = test.stack.pid("target");
    let loaded_at = status["target"]["weights_loaded_at"].clone();
    let weights = status["target"]["weight_bytes"].as_u64().expect("known");
    let read_before = usage::bytes_read(target);
    let answers: Vec<Answer> = (0..rounds).flat_map(|round| test.round(round)).collect();
    let status = test.stack.status().expect("it answers");
    assert_eq!(
        (test.stack.pid("target"), &status["target"]["weights_loaded_at"]),
        (target, &loaded_at)
    );
    let read = usage::bytes_read(target) - read_before;
    let after = test.memory_after(before);
    let (total, near_ties) = (sum(&answers), test.near_ties);
    println!(
        "{rounds} rounds, {near_ties} near-ties; {total:?}; {read} bytes read; {before:?} -> {after:?}"
    );
    assert!(read < weights / 4, "the target read {read} bytes, its weights are {weights}");
    assert!(
        after.arrays as f64 <= before.arrays as f64 * ARRAY_GROWTH,
        "arrays grew: {before:?} -> {after:?}"
    );
    assert!(after.resident_within(before), "the target grew: {before:?} -> {after:?}");
    assert!(total.cycles > 0);
    test.stack.stop();
}

#[test]
fn drafters_come_and_go_while_requests_run() {
    hot_plug(10);
}

#[test]
#[ignore = "more: twenty rounds"]
fn the_target_does_not_grow_with_the_rounds() {
    // What a leak of 0.8 MB a round looks like.
    let leak: Vec<f64> = (0..15).map(|at| 1e8 + 8e5 * f64::from(at)).collect();
    assert!((slope(&leak) - 8e5).abs() < 1.0);
    let mut test = HotPlug::new();
    test.usual_memory();
    (0..FIRST_ROUNDS).for_each(|round| drop(test.round(round)));
    let resident: Vec<f64> = (FIRST_ROUNDS..FIRST_ROUNDS + LINE_ROUNDS)
        .map(|round| {
            test.round(round);
            TargetMemory::of(&test.stack).resident as f64
        })
        .collect();
    let grown = slope(&resident);
    println!("{grown:.0} bytes a round: {resident:?}");
    assert!(grown <= GROWTH_A_ROUND, "{grown} bytes a round: {resident:?}");
    test.stack.stop();
}

#[test]
#[ignore = "soak: minutes; run by `make soak`"]
fn drafters_come_and_go_a_hundred_times_while_requests_run() {
    hot_plug(100);
}

#[test]
fn a_drafter_that_attaches_late_drafts_as_well_as_one_present_from_the_start() {
    // Structured answers that go on for a while. How long a drafter takes to start depends on the
    // machine, so the target stands still meanwhile; that is no reason to replace it here.
    let stack = Stack::drafting("supervisor.hang_s = 600\n");
    let prompts = prompts();
    let long = prompts.iter().filter(|prompt| prompt.kind == "arithmetic").take(8);
    let asks: Vec<_> = long
        .map(|prompt| prompt.ask.clone().max_tokens(400).route(RouteWish::Speculative))
        .collect();
    let all = |stack: &Stack| -> Vec<Pending> {
        asks.iter().map(|ask| stack.start(ask.clone())).collect()
    };
    let ended = |running: Vec<Pending>| -> Vec<Answer> {
        running.into_iter().map(|pending| pending.finish().expect("served")).collect()
    };
    let cold = ended(all(&stack));
    stack.drafter(&["stop"]);
    let running = all(&stack);
    // A ninth request shows how far they are.
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
