//! Which widths a decision takes.

use paceline_vocabulary::Millis;

use super::super::acceptance::{KINDS, LONGEST_DRAFT};
use super::super::controller::{Cycles, StepLoad};
use super::super::*;
use super::simulation::*;
use super::table::METAL;
use crate::{Chosen, DrafterReadiness, Token};

/// Mean width of the late blocks of a text on a machine.
fn width(machine: Machine, text: Text) -> f64 {
    let mut simulation = Simulation::new(machine, 7);
    simulation.scheduler.speculation.set_linked(true, false);
    simulation.run(&[text], ROUTED, 6, 150);
    let late = &simulation.blocks[simulation.blocks.len() / 2..];
    late.iter().map(|block| block.2 as f64).sum::<f64>() / late.len() as f64
}

#[test]
fn the_first_width_is_three_rows_and_wider_ones_follow_measured_ones() {
    let mut simulation = Simulation::new(GPU, 7);
    simulation.scheduler.speculation.set_linked(true, false);
    simulation.run(&[|_| JSON], ROUTED, 1, 150);
    let mut widest = 0;
    for (.., drafted, _) in &simulation.blocks {
        assert!(*drafted <= (2 * widest + 1).max(2), "{:?}", simulation.blocks);
        widest = widest.max(*drafted);
    }
    assert!(simulation.blocks[0].2 == 2 && widest > 10, "{:?}", simulation.blocks);
}

#[test]
fn a_machine_on_which_wide_blocks_lose_keeps_narrow_ones() {
    let (narrow, wide) = (width(METAL, |_| FACTS), width(GPU, |_| FACTS));
    assert!(narrow <= 6.0 && wide > 2.0 * narrow, "{narrow} and {wide} tokens");
}

#[test]
fn in_a_batch_only_the_sequences_draft_that_gain() {
    let mut simulation = Simulation::new(VECTORS, 7);
    simulation.scheduler.speculation.set_linked(true, false);
    let noise: Text = |_| 0.05;
    simulation.run(&[|_| 0.97, noise, |_| 0.97, noise], ROUTED, 6, 150);
    let blocks = &simulation.blocks[simulation.blocks.len() / 2..];
    let drafted: usize = blocks.iter().map(|block| block.2).sum();
    let accepted: usize = blocks.iter().map(|block| block.3).sum();
    assert!(5 * accepted > 3 * drafted, "{accepted} of {drafted} accepted");
}

/// A step of n sequences and m rows takes 8 + 2 · m ms here.
#[test]
fn a_draft_has_to_be_the_surer_the_dearer_its_row_is() {
    let mut scheduler = Simulation::new(CPU, 3).scheduler;
    scheduler.speculation.set_linked(true, false);
    let costs = Arc::make_mut(&mut scheduler.speculation.costs);
    for _ in 0..40 {
        for (rows, sequences) in [(1.0, 1.0), (2.0, 1.0), (4.0, 4.0), (8.0, 4.0)] {
            let size = Size { rows, sequences, context: 0.0 };
            costs.observe_step(size, 8_000.0 + 2_000.0 * rows, false);
        }
    }
    let ready = |_: SequenceKey, _: &Sequence| {
        Some(DrafterReadiness { can_draft: true, ..Default::default() })
    };
    let mut least = |sequences: usize| {
        let keys: Vec<SequenceKey> = (scheduler.len()..sequences)
            .map(|_| scheduler.add(request(FORCED, 200)).expect("room"))
            .collect();
        scheduler.start(|_| 0);
        let step = scheduler.next_step(Millis(0), |_| 0);
        let token = Token { id: 1, margin: 1.0 };
        let chosen = |part: &StepPart| Chosen { key: part.key, tokens: vec![token] };
        scheduler.on_step(&step.parts, step.parts.iter().map(chosen).collect(), 10_000);
        assert!(!keys.is_empty());
        let plan = scheduler.plan(false, ready);
        assert_eq!(plan.ask.len(), sequences);
        plan.least_survival
    };
    // 2 ms are a fifth of a token of one sequence, and a half of four's, whose step takes 16 ms.
    let [one, four] = [least(1), least(4)];
    assert!((0.2..0.25).contains(&one) && (0.4..0.6).contains(&four), "{one} and {four}");
}

/// Drafts that are left out because they are probably wrong cost no row, so that a long draft of a
/// text of which little is accepted pays.
#[test]
fn drafts_that_are_left_out_cost_no_rows() {
    let (costs, mut offered) = (Costs::default(), Offered::default());
    let gain = |offered: &Offered| {
        let load = StepLoad { sequences: 4, context: 0.0 };
        let table = [std::array::from_fn(|at| 0.5f32.powi(at as i32 + 1)); KINDS];
        Cycles::new(&costs, load, offered).gains(4, &table, 8)[0]
    };
    let before = gain(&offered);
    for _ in 0..200 {
        offered.observe(4, DraftResult { asked: 3, offered: 1, accepted: 1 });
    }
    let shares = offered.shares(4);
    assert!(shares[0] == 1.0 && shares[1] < 0.01 && shares[30] < 0.01, "{shares:?}");
    assert_eq!(offered.shares(16), [1.0; LONGEST_DRAFT], "at another load");
    assert!(gain(&offered) > before, "{} and {before}", gain(&offered));
}

/// A sequence for which the drafter has nothing neither rests nor draws attention to itself, and is
/// asked for at once when the drafter has something.
#[test]
fn a_drafter_that_has_nothing_causes_no_back_off() {
    let mut scheduler = Simulation::new(CPU, 3).scheduler;
    scheduler.speculation.set_linked(true, false);
    let key = scheduler.add(request(ROUTED, 200)).expect("room");
    let ready = |can_draft| {
        move |_: SequenceKey, _: &Sequence| {
            Some(DrafterReadiness { can_draft, has_nothing: true, ..Default::default() })
        }
    };
    for _ in 0..40 {
        scheduler.start(|_| 0);
        let step = scheduler.next_step(Millis(0), |_| 0);
        let token = Token { id: 1, margin: 1.0 };
        scheduler.on_step(&step.parts, vec![Chosen { key, tokens: vec![token] }], 3_600);
        let plan = scheduler.plan(false, ready(false));
        assert_eq!((plan.feed, plan.ask.len()), (vec![key], 0));
    }
    assert_eq!(scheduler.speculation.log.take_events(), []);
    assert_eq!(scheduler.plan(false, ready(true)).ask.len(), 1);
}

#[test]
fn a_decision_reports_its_inputs_ranking_and_choice() {
    let mut simulation = Simulation::new(GPU, 7);
    simulation.scheduler.speculation.set_linked(true, false);
    simulation.run(&[|_| JSON, |_| JSON], ROUTED, 3, 60);
    let decision = simulation.scheduler.speculation.log.take_decision().expect("one was made");
    assert!((1..=2).contains(&decision.sequences) && decision.plain_rate > 0.0, "{decision:?}");
    assert!(decision.ranking.windows(2).all(|pair| pair[0].rate <= pair[1].rate), "{decision:?}");
    assert_eq!(simulation.scheduler.speculation.log.take_decision(), None);
}
