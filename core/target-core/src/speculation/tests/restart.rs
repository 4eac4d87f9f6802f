//! The first requests after a restart.

use super::simulation::*;

/// Time of the first ten requests after a restart over that of ten later ones, as a geometric mean
/// over machines and texts. `restores`: the new process gets the saved cells.
pub(super) fn first_over_later(restores: bool) -> f64 {
    let (mut logs, mut cells) = (0.0f64, 0.0);
    for machine in [GPU, CPU, FEW_ROWS, VECTORS, MANY_ROWS] {
        for text in [(|_| JSON) as Text, |_| FACTS, |_| PROSE] {
            for seed in 50..54 {
                let mut before = Simulation::new(machine, seed);
                before.scheduler.speculation.set_linked(true);
                before.run(&[text], ROUTED, 30, 150);
                let steady = before.run(&[text], ROUTED, 10, 150);
                let mut after = Simulation::new(machine, seed + 100);
                after.scheduler.speculation.set_linked(true);
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
