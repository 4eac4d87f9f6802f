//! The first requests after a restart.

use super::simulation::*;
use crate::CostCell;

/// Time of the first ten requests after a restart over that of ten later ones, as a geometric mean
/// over machines and texts. `restores`: the new process gets the saved cells.
pub(super) fn first_over_later(restores: bool) -> f64 {
    let (mut logs, mut cells) = (0.0f64, 0.0);
    for machine in [GPU, CPU, FEW_ROWS, VECTORS, MANY_ROWS] {
        for text in [(|_| JSON) as Text, |_| FACTS, |_| PROSE] {
            for seed in 50..54 {
                let mut before = Simulation::new(machine, seed);
                before.scheduler.speculation.set_linked(true, false);
                before.run(&[text], ROUTED, 30, 150);
                let steady = before.run(&[text], ROUTED, 10, 150);
                let mut after = Simulation::new(machine, seed + 100);
                after.scheduler.speculation.set_linked(true, false);
                if restores {
                    let (from, to) =
                        (&before.scheduler.speculation, &mut after.scheduler.speculation);
                    to.restore_steps(&from.step_cells());
                    to.change_drafter(&from.draft_cells());
                }
                let cold = after.run(&[text], ROUTED, 10, 150);
                (logs, cells) = (logs + (cold / steady).ln(), cells + 1.0);
            }
        }
    }
    (logs / cells).exp()
}

#[test]
fn with_saved_cells_the_first_ten_requests_take_at_most_3_percent_longer_than_later_ones() {
    let over = first_over_later(true);
    assert!(over <= 1.03, "{over:.4} times as long");
}

/// A process that begins with costs of this machine times these factors, and has served `requests`
/// requests of predictable text.
fn restarted(machine: Machine, steps: f64, drafts: f64, requests: usize) -> (Simulation, f64) {
    let mut before = Simulation::new(machine, 70);
    before.scheduler.speculation.set_linked(true, false);
    before.run(&[|_| JSON], ROUTED, 30, 150);
    let times = |cells: Vec<CostCell>, factor: f64| -> Vec<CostCell> {
        cells.into_iter().map(|cell| CostCell { us: cell.us * factor, ..cell }).collect()
    };
    let mut after = Simulation::new(machine, 71);
    let (from, to) = (&before.scheduler.speculation, &mut after.scheduler.speculation);
    to.set_linked(true, false);
    to.restore_steps(&times(from.step_cells(), steps));
    to.change_drafter(&times(from.draft_cells(), drafts));
    let seconds = after.run(&[|_| JSON], ROUTED, requests, 150);
    (after, seconds)
}

#[test]
fn saved_costs_of_drafts_that_are_too_high_are_measured_again() {
    for machine in [GPU, CPU, FEW_ROWS, VECTORS, MANY_ROWS] {
        let (good, seconds) = restarted(machine, 1.0, 1.0, 10);
        for (steps, drafts) in [(20.0, 20.0), (1.0, 20.0), (20.0, 1.0), (1.0, 1.9), (1.0, 300.0)] {
            let (healed, slower) = restarted(machine, steps, drafts, 10);
            let case = format!("{}: steps x{steps}, drafts x{drafts}", machine.name);
            assert!(2 * healed.blocks.len() > good.blocks.len(), "{case}: no drafts");
            assert!(
                slower < 1.15 * seconds,
                "{case}: {slower:.2} s, {seconds:.2} s with good cells"
            );
            // Cells that the first times do not contradict stay where no draft measures them.
            let most = if (1.4..2.0).contains(&drafts) { drafts } else { 1.4 };
            let us = |one: &Simulation| one.scheduler.speculation.costs.draft_us(9.0, 1.0);
            let share = us(&healed) / us(&good);
            assert!(
                (0.7..most).contains(&share),
                "{case}: a draft is believed {share:.2} times as dear"
            );
        }
    }
}

#[test]
fn good_saved_costs_of_a_drafter_that_does_not_pay_cost_a_few_drafts() {
    let dear = Machine { draft_us: |rows, _| 60_000.0 + 36.0 * rows, ..CPU };
    let (after, _) = restarted(dear, 1.0, 1.0, 30);
    assert!(after.blocks.len() <= 20, "{} drafts in 30 requests", after.blocks.len());
}
