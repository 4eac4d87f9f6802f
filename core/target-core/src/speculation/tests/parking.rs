//! When a class is parked, what a parked step does, and what ends a pause.

use paceline_vocabulary::{Millis, Permit};

use super::super::load::load_range;
use super::super::parking::{Parking, Pause};
use super::super::*;
use super::recorded::sweep;
use super::simulation::*;
use crate::{Chosen, DraftPlan, DrafterReadiness, Parked, Scheduler, Token};

/// Settles a cycle of 8 sequences of these classes, with plain steps of 100 us.
fn cycle(parking: &mut Parking, classes: &[usize], tokens: usize, us: f64) -> Vec<Pause> {
    parking.begin(classes.to_vec(), 8, 100.0);
    parking.waited(us / 2.0);
    parking.stepped(8, tokens, us / 2.0);
    parking.settle()
}

/// Cycles that lose two plain steps each, until a pause begins.
fn lose(parking: &mut Parking, class: usize) -> (usize, Pause) {
    let pause = |count| Some((count, *cycle(parking, &[class], 8, 300.0).first()?));
    (1..100).find_map(pause).expect("losses park")
}

fn idle_steps(parking: &mut Parking, steps: u64) {
    (0..steps).for_each(|_| parking.stepped(8, 8, 100.0));
}

#[test]
fn losses_park_a_class_at_its_load_alone_and_the_pause_doubles_up_to_its_bound() {
    let mut parking = Parking::default();
    let (cycles, first) = lose(&mut parking, 1);
    // Four plain steps are on the account, and each cycle loses two. What it lacks of a trial then is
    // nearly four, and each step pays in a sixty-fourth.
    assert_eq!((cycles, first), (3, Pause { class: 1, sequences: 8, steps: 254 }));
    // Loads of 5 to 8 sequences are one.
    let found =
        [(1, 5), (1, 8), (1, 4), (1, 9), (0, 8)].map(|(class, n)| parking.is_parked(class, n));
    assert_eq!(found, [true, true, false, false, false]);
    let mut last = first.steps;
    for _ in 0..7 {
        // Steps of another load pay nothing in.
        (0..10_000).for_each(|_| parking.stepped(2, 2, 100.0));
        idle_steps(&mut parking, last - 1);
        assert!(parking.is_parked(1, 8));
        idle_steps(&mut parking, 1);
        assert!(!parking.is_parked(1, 8));
        let (cycles, next) = lose(&mut parking, 1);
        assert!(cycles <= 2, "a trial or two are enough after a pause: {cycles}");
        let times = next.steps as f64 / last as f64;
        assert!((1.4..=2.1).contains(&times) || last > 16_000, "{next:?} after {last}");
        last = next.steps;
    }
    // The least share is a 4,096th.
    assert!((16_000..17_000).contains(&last), "{last}");
}

#[test]
fn what_cycles_saved_pays_for_later_losses_and_shortens_the_next_pause() {
    let mut parking = Parking::default();
    let (cold, first) = lose(&mut parking, 0);
    idle_steps(&mut parking, first.steps);
    let (_, second) = lose(&mut parking, 0);
    assert!(second.steps > first.steps);
    idle_steps(&mut parking, second.steps);
    // Each saves three plain steps.
    (0..5).for_each(|_| assert_eq!(cycle(&mut parking, &[0], 40, 200.0), []));
    let (cycles, pause) = lose(&mut parking, 0);
    assert!(cycles >= cold + 5 && pause.steps <= first.steps, "{cycles} after {cold}, {pause:?}");
    // And savings without end pay for a bounded loss.
    idle_steps(&mut parking, pause.steps);
    (0..10_000).for_each(|_| assert_eq!(cycle(&mut parking, &[0], 40, 200.0), []));
    let (cycles, _) = lose(&mut parking, 0);
    assert!((64..=66).contains(&cycles), "128 plain steps, two a cycle: {cycles}");
}

#[test]
fn a_new_drafter_ends_all_pauses_and_a_prompt_makes_a_cycle_no_measure() {
    let mut parking = Parking::default();
    lose(&mut parking, 0);
    parking.end();
    assert!(!parking.is_parked(0, 8));
    for _ in 0..100 {
        parking.begin(vec![0], 8, 100.0);
        parking.stepped(8, 8, 900.0);
        parking.disturb();
        assert_eq!(parking.settle(), []);
    }
    // A draft that never came cost its time.
    parking.begin(vec![0], 8, 100.0);
    parking.waited(1_000.0);
    parking.settle();
    assert!((0..3).any(|_| !cycle(&mut parking, &[0], 8, 400.0).is_empty()));
}

/// Four sequences of a class that is parked at their load, in a scheduler with a drafter.
fn parked(permit: Permit) -> (Scheduler, Vec<SequenceKey>) {
    let mut scheduler = Simulation::new(CPU, 3).scheduler;
    scheduler.speculation.set_linked(true, false);
    let class = scheduler.speculation.class("default");
    let keys = (0..4).map(|_| scheduler.add(request(permit, 400)).expect("room")).collect();
    scheduler.start(|_| 0);
    let mut parks = || {
        scheduler.speculation.parking.begin(vec![class; 4], 4, 100.0);
        scheduler.speculation.parking.waited(400.0);
        !scheduler.speculation.parking.settle().is_empty()
    };
    assert!((0..100).any(|_| parks()), "cycles that lose park their class");
    (scheduler, keys)
}

fn step(scheduler: &mut Scheduler) {
    let step = scheduler.next_step(Millis(0), |_| 0);
    let token = Token { id: 1, margin: 1.0 };
    let chosen = step.parts.iter().filter(|part| part.chooses);
    let chosen = chosen.map(|part| Chosen { key: part.key, tokens: vec![token] }).collect();
    scheduler.on_step(&step.parts, chosen, 3_600);
}

fn plan(scheduler: &mut Scheduler) -> DraftPlan {
    scheduler.plan(false, |_, _| {
        Some(DrafterReadiness { can_draft: true, ..DrafterReadiness::default() })
    })
}

#[test]
fn a_parked_step_collects_no_hidden_state_requests_no_draft_and_tries_none() {
    let (mut scheduler, keys) = parked(ROUTED);
    let (mut collected, mut fed, mut asked) = (0, 0, 0);
    for _ in 0..200 {
        collected += keys.iter().filter(|key| scheduler.keeps_hidden_states(**key)).count();
        step(&mut scheduler);
        let plan = plan(&mut scheduler);
        (fed, asked) = (fed + plan.feed.len(), asked + plan.ask.len());
    }
    assert_eq!((collected, fed, asked), (0, 0, 0));
    assert_eq!(scheduler.speculation.log.take_events(), []);
    assert_eq!(scheduler.speculation.log.take_decision(), None);
    let sequence = scheduler.get(keys[0]).expect("there");
    assert_eq!(scheduler.speculation.route(keys[0], sequence).reason, RouteReason::NotWorth);
}

#[test]
fn cycles_that_lose_according_to_their_measured_times_park_their_class() {
    let mut scheduler = Simulation::new(CPU, 3).scheduler;
    let keys: Vec<_> = (0..2).map(|_| scheduler.add(request(ROUTED, 400)).expect("room")).collect();
    scheduler.start(|_| 0);
    (0..4).for_each(|_| step(&mut scheduler));
    scheduler.speculation.set_linked(true, false);
    let mut decisions = 0;
    for cycle in 0.. {
        if !scheduler.keeps_hidden_states(keys[0]) {
            break;
        }
        assert!(cycle < 100, "cycles that lose park the sequences");
        plan(&mut scheduler);
        let part = |(key, one): (SequenceKey, &Sequence)| {
            let start = one.committed;
            StepPart { key, start, rows: 1, chooses: true, prefill: false, drafted: 0 }
        };
        let parts: Vec<StepPart> = scheduler.iter().map(part).collect();
        scheduler.speculation.stepped(&parts, &[], 32_000.0, true);
        decisions += 1;
        assert!(decisions < 100, "cycles of nine plain steps that give one token each lose");
    }
    plan(&mut scheduler);
    let parked = scheduler.speculation.log.take_parked();
    assert!(matches!(&parked[..], [Parked { sequences: 2, steps: 128..256, .. }]), "{parked:?}");
}

#[test]
fn force_a_new_drafter_a_smaller_load_and_time_end_parking() {
    let collects = |scheduler: &Scheduler, key: &SequenceKey| scheduler.keeps_hidden_states(*key);
    let (mut scheduler, keys) = parked(FORCED);
    (0..3).for_each(|_| step(&mut scheduler));
    assert!(keys.iter().all(|key| collects(&scheduler, key)));
    assert_eq!(plan(&mut scheduler).ask.len(), 4);

    let (mut scheduler, keys) = parked(ROUTED);
    let force = Policy { epoch: 1, force: Force::Speculative, ..Policy::default() };
    assert!(scheduler.speculation.set_policy(force) && collects(&scheduler, &keys[0]));
    assert!(scheduler.speculation.set_policy(Policy { epoch: 2, ..Policy::default() }));
    assert!(!collects(&scheduler, &keys[0]));
    // Without a drafter one may come later, and needs the hidden states.
    scheduler.speculation.set_linked(false, false);
    assert!(collects(&scheduler, &keys[0]));
    scheduler.speculation.set_linked(true, false);
    scheduler.remove(keys[3]);
    assert!(!collects(&scheduler, &keys[0]), "three are the same load");
    scheduler.remove(keys[2]);
    assert!(collects(&scheduler, &keys[0]));

    let (mut scheduler, keys) = parked(ROUTED);
    scheduler.speculation.change_drafter(&[]);
    assert!(collects(&scheduler, &keys[0]));
    let (mut scheduler, keys) = parked(ROUTED);
    (0..260).for_each(|_| step(&mut scheduler));
    assert!(collects(&scheduler, &keys[0]));
}

#[test]
fn after_a_pause_a_sequence_drafts_once_some_hidden_states_were_collected() {
    let (mut scheduler, _) = parked(ROUTED);
    for _ in 0..100 {
        step(&mut scheduler);
        plan(&mut scheduler);
    }
    scheduler.speculation.parking.end();
    let mut steps = 0;
    while plan(&mut scheduler).ask.is_empty() {
        step(&mut scheduler);
        steps += 1;
        assert!(steps < 50, "it drafts again");
    }
    assert!(steps >= 16, "{steps}");
}

/// Sixteen requests of a text that never pays. After the first answers no hidden states are
/// collected, not even for a trial.
#[test]
fn a_sequence_for_which_no_trial_is_worth_its_cost_sleeps() {
    let mut simulation = Simulation::new(TWO_CORES, 5);
    simulation.scheduler.speculation.set_linked(true, false);
    simulation.run(&[(|_| 0.05) as Text; 16], ROUTED, 4, 100);
    // So that the class is not parked: parked sequences collect nothing either.
    simulation.scheduler.speculation.parking.end();
    (simulation.steps, simulation.collected) = (0, 0);
    simulation.run(&[(|_| 0.05) as Text; 16], ROUTED, 4, 100);
    let (steps, collected) = (simulation.steps, simulation.collected);
    assert!(20 * collected < steps, "of {steps} steps {collected} collected hidden states");
}

/// The prefix cache stores the hidden states of a prompt for later requests, whatever this one does.
#[test]
fn hidden_states_of_a_prompt_are_collected_although_its_sequence_sleeps() {
    let mut simulation = Simulation::new(TWO_CORES, 5);
    simulation.scheduler.speculation.set_linked(true, false);
    let key = simulation.scheduler.add(request(ROUTED, 100)).expect("room");
    let stream =
        Stream { text: |_| 0.05, trace: None, key: Some(key), requests: 0, read: 0, over: false };
    simulation.streams = vec![stream];
    let sleep = |simulation: &mut Simulation| {
        let state = simulation.scheduler.speculation.states.get_mut(&key).expect("it runs");
        (state.asleep_at, state.rests_until) = (Some(load_range(1)), Some(64));
    };
    sleep(&mut simulation);
    assert!(simulation.scheduler.keeps_hidden_states(key), "its prompt is not computed yet");
    while simulation.scheduler.get(key).expect("it runs").phase != Phase::Decoding {
        simulation.turn();
    }
    sleep(&mut simulation);
    assert!(!simulation.scheduler.keeps_hidden_states(key), "it decodes");
}

/// Sixteen requests of a text for which a draft pays at one request, and not at sixteen. The last of
/// them drafts soon after the others ended, however long it slept.
#[test]
fn a_sequence_that_sleeps_is_considered_again_at_another_load() {
    let mut simulation = Simulation::new(TWO_CORES, 5);
    simulation.scheduler.speculation.set_linked(true, false);
    let text: Text = |_| 0.75;
    simulation.run(&[text; 16], ROUTED, 3, 100);
    simulation.run(&[text], ROUTED, 6, 100);
    simulation.scheduler.speculation.parking.end();
    let keys: Vec<_> = [600u32; 16]
        .map(|tokens| simulation.scheduler.add(request(ROUTED, tokens)).expect("room"))
        .into();
    simulation.streams = keys
        .iter()
        .map(|key| Stream { text, trace: None, key: Some(*key), requests: 0, read: 0, over: false })
        .collect();
    let had =
        |simulation: &Simulation| simulation.scheduler.get(keys[0]).expect("it runs").generated();
    while had(&simulation) < 300 {
        simulation.turn();
    }
    for key in &keys[1..] {
        simulation.scheduler.remove(*key);
    }
    simulation.streams.truncate(1);
    simulation.rounds.clear();
    simulation.blocks.clear();
    let alone = had(&simulation);
    while simulation.blocks.is_empty() && simulation.scheduler.get(keys[0]).is_some() {
        simulation.turn();
    }
    let first = simulation.blocks.first().map(|block| block.1);
    assert!(first.is_some_and(|first| first < alone + 40), "alone from {alone} on: {first:?}");
}

/// Two virtual cores as measured, three seeds: 1.010 in the mean, at least 0.986 at each number of
/// requests, and the worst cell 0.913. Without parking four requests have 0.951 and a cell 0.897. If
/// hidden states of resting sequences are collected, sixteen requests have 0.952.
#[test]
fn on_two_cores_no_number_of_requests_loses_more_than_two_percent() {
    let (mut logs, mut lines, mut worst) = ([0.0f64; 5], String::new(), f64::INFINITY);
    for seed in 5..8 {
        for (at, (cell, [plain, forced, routed])) in
            sweep(TWO_CORES, 0.0, 7, seed).into_iter().enumerate()
        {
            let over = plain.min(forced) / routed;
            logs[at / 6] += over.ln() / 18.0;
            lines += &format!("{cell}: {over:.3}\n");
            worst = worst.min(over);
        }
    }
    let numbers = logs.map(f64::exp);
    let mean = (logs.iter().sum::<f64>() / 5.0).exp();
    let least = numbers.iter().copied().fold(f64::INFINITY, f64::min);
    assert!(
        least >= 0.98 && mean >= 1.005 && worst >= 0.9,
        "{numbers:.3?}, mean {mean:.4}, worst {worst:.3}\n{lines}"
    );
}
