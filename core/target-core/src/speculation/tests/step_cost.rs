//! Estimated costs of steps and drafts.

use super::super::step_cost::*;

const ALONE: Beside = Beside { steps: 0, others: 0 };
const BESIDE: Beside = Beside { steps: 1, others: 3 };

fn size(rows: u32, sequences: u32, context: u32) -> Size {
    Size { rows: f64::from(rows), sequences: f64::from(sequences), context: f64::from(context) }
}

fn near(found: f64, expected: f64, share: f64) {
    assert!(
        (found - expected).abs() <= share * expected,
        "expected about {expected}, found {found}"
    );
}

#[test]
fn before_the_first_time_ratios_are_assumed_and_after_it_they_are_plausible() {
    let mut cost = Table::default();
    assert!(cost.us(size(16, 1, 0)) > cost.us(size(1, 1, 0)));
    cost.observe(size(1, 1, 50), 4000.0);
    near(cost.us(size(1, 1, 50)), 4000.0, 0.1);
    // Dearer with rows, and by no absurd factor.
    let block = cost.us(size(16, 1, 50));
    assert!(block > 4500.0 && block < 12_000.0, "{block}");
    assert!(cost.us(size(128, 8, 400)) > block);
}

#[test]
fn a_plain_step_is_measured_by_its_number_of_sequences_and_estimated_from_its_neighbours() {
    // A batch is not a line: the line through all is 20 % off at some.
    let truth = |n: u32| 700.0 + 400.0 * f64::from(n).sqrt();
    let mut cost = Table::default();
    for _ in 0..20 {
        for n in [1, 2, 4, 8, 16] {
            cost.observe(size(n, n, 100 * n), truth(n));
        }
    }
    for n in [1, 2, 4, 8, 16] {
        near(cost.us(size(n, n, 100 * n)), truth(n), 0.02);
    }
    for n in [3, 6, 12, 20] {
        near(cost.us(size(n, n, 100 * n)), truth(n), 0.15);
    }
}

#[test]
fn one_pause_among_the_first_times_hardly_counts() {
    let mut cost = Table::default();
    for us in [1_000.0, 9_000.0, 1_100.0] {
        cost.observe(size(4, 4, 0), us);
    }
    near(cost.us(size(4, 4, 0)), 1_100.0, 0.1);
}

#[test]
fn the_line_extrapolates_a_linear_cost() {
    let mut cost = Table::default();
    let truth =
        |s: Size| 3000.0 + 250.0 * s.rows + 100.0 * s.sequences + 400.0 * s.context / 1000.0;
    for round in 0..40 {
        for (rows, sequences) in [(1, 1), (2, 2), (4, 4), (8, 8), (16, 1), (32, 2), (6, 1)] {
            let size = size(rows, sequences, sequences * (100 + 20 * round));
            cost.observe(size, truth(size));
        }
    }
    for (rows, sequences, context) in [(16, 1, 500), (64, 4, 2000), (128, 8, 4000), (10, 1, 700)] {
        let size = size(rows, sequences, context);
        near(cost.us(size), truth(size), 0.15);
    }
    near(cost.model().row_us, 250.0, 0.15);
}

#[test]
fn a_bend_in_the_cost_is_kept_where_it_was_measured() {
    // As on a CPU: one row is cheap, the second costs a lot, further ones little.
    let truth = |rows: f64| if rows == 1.0 { 4000.0 } else { 6000.0 + 130.0 * rows };
    let mut cost = Table::default();
    for _ in 0..30 {
        for rows in [1, 3, 6, 16] {
            cost.observe(size(rows, 1, 100), truth(f64::from(rows)));
        }
    }
    for rows in [1, 3, 6, 16] {
        near(cost.us(size(rows, 1, 100)), truth(f64::from(rows)), 0.03);
    }
    // Between measured sizes more rows are hardly ever cheaper.
    let curve: Vec<f64> = (1..40).map(|rows| cost.us(size(rows, 1, 100))).collect();
    assert!(curve.windows(2).all(|pair| pair[1] >= 0.98 * pair[0]), "{curve:?}");
}

#[test]
fn pauses_hardly_move_the_cost_and_a_lasting_change_does() {
    let mut cost = Table::default();
    (0..50).for_each(|_| cost.observe(size(1, 1, 100), 4000.0));
    for at in 0..200 {
        cost.observe(size(1, 1, 100), if at % 20 == 0 { 90_000.0 } else { 4000.0 });
    }
    assert!(cost.us(size(1, 1, 100)) < 4600.0, "{}", cost.us(size(1, 1, 100)));
    (0..100).for_each(|_| cost.observe(size(1, 1, 100), 12_000.0));
    near(cost.us(size(1, 1, 100)), 12_000.0, 0.05);
}

/// Costs after many times of a machine of two cores.
fn cpu() -> Costs {
    let mut costs = Costs::default();
    for _ in 0..20 {
        for sequences in [1.0, 2.0, 4.0, 8.0, 16.0] {
            for length in [0.0, 2.0, 5.0, 8.0, 15.0] {
                let rows = sequences * (1.0 + length);
                let step = Size { rows, sequences, context: 0.0 };
                costs.observe_step(step, 3_000.0 + 320.0 * rows + 250.0 * sequences, false);
                let draft = Size { rows: rows + sequences, ..step };
                costs.observe_draft(draft, 1_500.0 + 90.0 * rows + 500.0 * sequences, ALONE);
            }
        }
    }
    costs
}

#[test]
fn a_draft_beside_steps_bounds_the_cost_of_a_draft_alone() {
    let (mut costs, draft) = (cpu(), Size { rows: 20.0, sequences: 1.0, context: 0.0 });
    let before = costs.draft_us(20.0, 1.0);
    costs.observe_draft(draft, 4.0 * before, BESIDE);
    assert_eq!(costs.draft_us(20.0, 1.0), before);
    (0..40).for_each(|_| costs.observe_draft(draft, 0.6 * before, BESIDE));
    assert!(costs.draft_us(20.0, 1.0) < 0.7 * before);
}

/// The machine is twice as slow for a while in which only plain steps are taken.
#[test]
fn a_slow_while_makes_no_size_dearer_than_another() {
    let (plain, block) = (size(1, 1, 50), size(8, 1, 50));
    let mut costs = Costs::default();
    for _ in 0..40 {
        costs.observe_step(plain, 1_000.0, false);
        costs.observe_step(block, 1_600.0, false);
    }
    for _ in 0..30 {
        costs.observe_step(plain, 2_000.0, false);
    }
    // Without the estimate of the machine's speed a block is cheaper than a plain step: 0.89.
    near(costs.step.us(block) / costs.step.us(plain), 1.6, 0.35);
    near(costs.counted_step_us(plain, 2_000.0, false), 1_000.0, 0.5);
}

#[test]
fn times_that_are_no_numbers_are_ignored() {
    let mut costs = cpu();
    let size = Size { rows: 4.0, sequences: 4.0, context: 0.0 };
    let before = ([costs.step.us(size), costs.draft_us(8.0, 4.0)], costs.beside(4));
    for us in [f64::NAN, f64::INFINITY, 0.0, -5.0] {
        costs.observe_step(size, us, false);
        costs.observe_step(size, us, true);
        costs.observe_draft(size, us, ALONE);
    }
    assert_eq!(([costs.step.us(size), costs.draft_us(8.0, 4.0)], costs.beside(4)), before);
}

#[test]
fn cells_are_bounded() {
    let mut cost = Table::default();
    for rows in 0..40 {
        for sequences in 0..20 {
            let sequences = 1.3f64.powi(sequences);
            let rows = sequences * 1.3f64.powi(rows);
            cost.observe(Size { rows, sequences, context: 0.0 }, 100.0 + rows);
        }
    }
    assert_eq!(cost.cells().len(), 256);
}

#[test]
fn saved_cells_give_the_same_costs_and_senseless_ones_are_left_out() {
    let costs = cpu();
    let mut saved = costs.step.cells();
    let good = saved[0];
    let bad = |size: Size, us: f64| CostCell { size, us, times: 9.0 };
    saved.extend([
        bad(good.size, f64::NAN),
        bad(good.size, -1.0),
        bad(Size { rows: f64::INFINITY, ..good.size }, 50.0),
        bad(Size { rows: 1.0, sequences: 4.0, context: 0.0 }, 50.0),
        bad(Size { context: -1.0, ..good.size }, 50.0),
    ]);
    let restored = Table::restored(&saved);
    assert_eq!(restored.cells().len(), costs.step.cells().len());
    for rows in [1.0, 3.0, 16.0] {
        let size = Size { rows, sequences: 1.0, context: 0.0 };
        near(restored.us(size), costs.step.us(size), 0.05);
    }
    assert_eq!(Table::restored(&[]).n_times, 0);
}

#[test]
fn saved_cells_that_are_contradicted_are_dropped() {
    let saved = cpu().step.cells();
    let size = Size { rows: 1.0, sequences: 1.0, context: 0.0 };
    let us = cpu().step.us(size);
    // One paused step of eight, or a machine that is busy, contradicts nothing.
    let mut kept = Table::restored(&saved);
    (0..8).for_each(|at| kept.observe(size, us * if at == 3 { 9.0 } else { 1.4 }));
    assert_eq!(kept.cells().len(), saved.len());
    // A machine of four times the speed does.
    let mut dropped = Table::restored(&saved);
    (0..8).for_each(|_| dropped.observe(size, us / 4.0));
    assert_eq!(dropped.cells().len(), 1);
    near(dropped.us(size), us / 4.0, 0.05);
}
