//! When plain steps are measured.

use super::super::*;
use super::simulation::*;
use crate::{Request, StepPart};

#[test]
fn the_first_plain_step_after_a_block_is_not_measured() {
    let mut speculation = Speculation::default();
    speculation.set_linked(true, false);
    let part = |drafted| StepPart {
        key: SequenceKey(0),
        start: 100,
        rows: 1 + drafted,
        chooses: true,
        prefill: false,
        drafted,
    };
    let mut stepped = |drafted, us| speculation.stepped(&[part(drafted)], &[], us, false);
    (0..20).for_each(|_| stepped(0, 1_000.0));
    for _ in 0..20 {
        stepped(7, 3_000.0);
        stepped(0, 1_400.0);
    }
    let plain_us = speculation.costs.plain_us(1.0, 100.0);
    assert!((950.0..=1_050.0).contains(&plain_us), "{plain_us}");
}

/// The CPU above while something else has half of it.
const HALF_A_CPU: Machine = Machine {
    name: "half a cpu",
    step_us: |rows, sequences| 2.0 * (CPU.step_us)(rows, sequences),
    draft_us: |rows, sequences| 2.0 * (CPU.draft_us)(rows, sequences),
    ..CPU
};

/// While all steps are blocks, a machine that recovers looks like blocks that became cheaper. The
/// cells of plain steps keep what was measured, so their estimate stays near.
#[test]
fn after_many_blocks_plain_steps_are_not_estimated_far_too_high() {
    let text: Text = |_| FACTS;
    let (mut before, mut decided) = (0.0f64, 0.0f64);
    for seed in 40..72 {
        let mut simulation = Simulation::new(CPU, seed);
        simulation.scheduler.speculation.set_linked(true, false);
        simulation.run(&[text; 8], FORCED, 2, 100);
        simulation.run(&[text; 8], PLAIN, 1, 60);
        simulation.machine = HALF_A_CPU;
        simulation.run(&[text; 8], PLAIN, 1, 20);
        simulation.machine = CPU;
        simulation.run(&[text; 8], FORCED, 1, 150);
        let over = |simulation: &Simulation| {
            simulation.scheduler.speculation.costs.plain_us(8.0, 8.0 * 70.0)
                / (CPU.step_us)(8.0, 8.0)
        };
        before += over(&simulation) / 32.0;
        for at in 0..8 {
            let prompt = vec![1_000 + at; 60];
            let key =
                simulation.scheduler.add(Request { prompt, ..request(ROUTED, 60) }).expect("room");
            simulation.streams.push(Stream {
                text,
                trace: None,
                key: Some(key),
                requests: 0,
                read: 0,
                over: false,
            });
        }
        simulation.streams.drain(..8);
        simulation.blocks.clear();
        while simulation.blocks.is_empty() && !simulation.scheduler.is_empty() {
            simulation.turn();
        }
        decided += over(&simulation) / 32.0;
    }
    assert!(
        before < 1.4 && decided < 1.4,
        "plain steps are estimated at {decided:.2} times what they take, {before:.2} before"
    );
}
