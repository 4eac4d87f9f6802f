use super::*;

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
fn the_cost_is_zero_before_the_first_time_and_plausible_after_it() {
    let mut cost = Cost::default();
    assert_eq!((cost.us(size(1, 1, 0)), cost.is_known()), (0.0, false));
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
    let (mut step, mut plain) = (Cost::default(), PlainCost::default());
    for _ in 0..20 {
        for n in [1, 2, 4, 8, 16] {
            let size = size(n, n, 100 * n);
            step.observe(size, truth(n));
            plain.observe(size, truth(n), &step);
        }
    }
    for n in [1, 2, 4, 8, 16] {
        near(plain.us(size(n, n, 100 * n), &step), truth(n), 0.001);
    }
    for n in [3, 6, 12, 20] {
        near(plain.us(size(n, n, 100 * n), &step), truth(n), 0.15);
    }
    // More sequences than have a cell of their own, and a cost without times.
    assert!(plain.us(size(100, 100, 0), &step) > truth(16));
    near(PlainCost::default().us(size(4, 4, 400), &step), step.us(size(4, 4, 400)), 0.001);
    plain.observe(size(4, 4, 400), f64::NAN, &step);
    near(plain.us(size(4, 4, 400), &step), truth(4), 0.001);
}

#[test]
fn one_pause_among_the_first_times_does_not_count() {
    let mut cost = Cost::default();
    for us in [1_000.0, 9_000.0, 1_100.0] {
        cost.observe(size(4, 4, 0), us);
    }
    near(cost.us(size(4, 4, 0)), 1_100.0, 0.1);
}

#[test]
fn the_regression_extrapolates_a_linear_cost() {
    let mut cost = Cost::default();
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
    let mut cost = Cost::default();
    for _ in 0..30 {
        for rows in [1, 3, 6, 16] {
            cost.observe(size(rows, 1, 100), truth(f64::from(rows)));
        }
    }
    for rows in [1, 3, 6, 16] {
        near(cost.us(size(rows, 1, 100)), truth(f64::from(rows)), 0.03);
    }
    let curve: Vec<f64> = (1..40).map(|rows| cost.us(size(rows, 1, 100))).collect();
    assert!(curve.windows(2).all(|pair| pair[1] >= pair[0] - 1e-6), "{curve:?}");
}

#[test]
fn pauses_hardly_move_the_cost_and_a_lasting_change_does() {
    let mut cost = Cost::default();
    (0..50).for_each(|_| cost.observe(size(1, 1, 100), 4000.0));
    for at in 0..200 {
        cost.observe(size(1, 1, 100), if at % 20 == 0 { 90_000.0 } else { 4000.0 });
    }
    assert!(cost.us(size(1, 1, 100)) < 4600.0, "{}", cost.us(size(1, 1, 100)));
    (0..100).for_each(|_| cost.observe(size(1, 1, 100), 12_000.0));
    near(cost.us(size(1, 1, 100)), 12_000.0, 0.05);
    cost.observe(size(1, 1, 100), f64::NAN);
    near(cost.us(size(1, 1, 100)), 12_000.0, 0.05);
}

#[test]
fn an_amount_falls_in_the_cell_whose_upper_end_is_next() {
    let cells = [
        (0.0, 1),
        (1.0, 1),
        (1.01, 2),
        (2.0, 2),
        (4.5, 6),
        (6.0, 6),
        (384.5, 512),
        (512.0, 512),
        (513.0, 512),
        (1e30, 512),
    ];
    for (rows, end) in cells.into_iter().chain([(-3.0, 1), (f64::NAN, 1), (f64::INFINITY, 512)]) {
        assert_eq!(ROWS[cell_at(&ROW_CELLS, rows)], end, "{rows} rows");
    }
    for sequences in 1..40 {
        let end = SEQUENCES.into_iter().find(|end| *end >= sequences).unwrap_or(32);
        assert_eq!(
            SEQUENCES[cell_at(&SEQUENCE_CELLS, f64::from(sequences))],
            end,
            "{sequences} sequences"
        );
    }
}
