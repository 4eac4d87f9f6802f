//! What the controller learns from entropy, ends of answers and similar prompts.

use paceline_vocabulary::Millis;

use super::super::*;
use super::simulation::*;
use crate::{Chosen, Request, StepPart, Token};

#[test]
fn after_an_ignored_end_a_sequence_belongs_to_another_class() {
    let mut scheduler = Simulation::new(CPU, 1).scheduler;
    let mut add = |request: Request| scheduler.add(request).expect("room");
    let answer = add(request(ROUTED, 50));
    let asked_about = add(Request { prompt: vec![7, END, 7], ..request(ROUTED, 50) });
    let resumed = add(Request { continuation: vec![7, END], ..request(ROUTED, 50) });
    let of_another = add(Request { stop_ids: vec![], ignored_ids: vec![], ..request(ROUTED, 50) });
    let mut lives = |token: u32| {
        scheduler.start(|_| 0);
        let step = scheduler.next_step(Millis(0), |_| 0);
        let chosen = step
            .parts
            .iter()
            .map(|part| Chosen { key: part.key, tokens: vec![Token { id: token, margin: 1.0 }] });
        scheduler.on_step(&step.parts, chosen.collect(), 1000);
        let class = |key| {
            let speculation = &scheduler.speculation;
            speculation.classes[speculation.states[&key].class].0.clone()
        };
        [answer, asked_about, resumed, of_another].map(class)
    };
    assert_eq!(lives(1), ["default", "default", PAST_END_CLASS, "default"]);
    assert_eq!(lives(END), [PAST_END_CLASS, PAST_END_CLASS, PAST_END_CLASS, "default"]);
    assert_eq!(lives(END), [PAST_END_CLASS, PAST_END_CLASS, PAST_END_CLASS, "default"]);
}

#[test]
fn entropy_distinguishes_texts_of_one_class() {
    // Seconds of both kinds of text, and blocks in the poor one.
    let measure_one = |telling: bool, seed: u64| {
        let mut simulation = Simulation::new(CPU, seed);
        simulation.telling = telling;
        simulation.scheduler.speculation.set_linked(true);
        let (mut seconds, mut poor) = ([0.0; 2], 0);
        for round in 0..60 {
            for (at, text) in [(|_| JSON) as Text, |_| 0.3].into_iter().enumerate() {
                simulation.blocks.clear();
                let took = simulation.run(&[text], ROUTED, 1, 100);
                if round >= 20 {
                    seconds[at] += took;
                    poor += at * simulation.blocks.len();
                }
            }
        }
        (seconds, poor)
    };
    // Sums over a few seeds, because chance in a trial changes one run by some hundredths.
    let measure = |telling: bool| {
        let all = (31..37).map(|seed| measure_one(telling, seed));
        all.fold(([0.0; 2], 0), |sum, one| {
            ([sum.0[0] + one.0[0], sum.0[1] + one.0[1]], sum.1 + one.1)
        })
    };
    let (silent, telling) = (measure(false), measure(true));
    // Certain text drafts far from its first cycle on. Uncertain text pays for no more trials than
    // without entropy.
    assert!(telling.0[0] <= 0.995 * silent.0[0], "{telling:?} and {silent:?} without");
    assert!(
        telling.0[1] <= 1.01 * silent.0[1] && telling.1 <= silent.1,
        "{telling:?} and {silent:?} without"
    );
}

#[test]
fn low_entropy_ends_a_back_off_early() {
    // Tokens from the place where a text becomes predictable to its first draft there, as a mean
    // over many requests.
    let found = |telling: bool| {
        let mut simulation = Simulation::new(CPU, 31);
        simulation.telling = telling;
        simulation.scheduler.speculation.set_linked(true);
        for _ in 0..20 {
            simulation.run(&[|_| JSON], ROUTED, 1, 100);
            simulation.run(&[|_| 0.1], ROUTED, 1, 100);
        }
        let mut sum = 0;
        for _ in 0..20 {
            simulation.blocks.clear();
            simulation.run(&[|had| if had < 120 { 0.1 } else { JSON }], ROUTED, 1, 500);
            sum +=
                simulation.blocks.iter().map(|block| block.1).find(|at| *at >= 120).unwrap_or(500)
                    - 120;
        }
        sum / 20
    };
    let (silent, telling) = (found(false), found(true));
    assert!(4 * telling < 3 * silent, "{telling} tokens after it, {silent} without entropy");
}

/// A block of one sequence.
fn block(key: SequenceKey, start: usize, drafted: usize) -> StepPart {
    StepPart { key, start, rows: 1 + drafted, chooses: true, prefill: false, drafted }
}

/// Expected tokens of the first draft of a request in the scope `asks`, after requests with the
/// same prompt in the scope `taught`.
fn expected_after(taught: &str, asks: &str) -> f64 {
    let mut speculation = Speculation::default();
    let of = |scope: &str| Request { cache_scope: scope.into(), ..request(ROUTED, 100) };
    for key in (0..20).map(SequenceKey) {
        speculation.open(key, &of(taught));
        // None of its drafted tokens is ever accepted.
        (0..6).for_each(|_| speculation.verified(&block(key, 60, 8), 0));
        speculation.close(key);
    }
    let key = SequenceKey(99);
    speculation.open(key, &of(asks));
    let survival = &speculation.states[&key].survival;
    survival.iter().map(|alive| f64::from(*alive)).sum()
}

#[test]
fn a_request_learns_from_similar_prompts_of_its_own_cache_scope_alone() {
    let (own, other) = (expected_after("a", "a"), expected_after("a", "b"));
    assert!(
        own < 0.9 * other,
        "{own} after prompts of its own scope, {other} after another scope's"
    );
    // A request of another scope that runs at the same time teaches nothing either.
    let mut speculation = Speculation::default();
    for (key, scope) in [(0, "a"), (1, "b"), (2, "a")] {
        speculation
            .open(SequenceKey(key), &Request { cache_scope: scope.into(), ..request(ROUTED, 100) });
    }
    let near = |key: u64| {
        speculation.states[&SequenceKey(key)]
            .similar
            .iter()
            .map(|other| other.key.0)
            .collect::<Vec<_>>()
    };
    assert_eq!((near(0), near(1), near(2)), (vec![2], vec![], vec![0]));
}
