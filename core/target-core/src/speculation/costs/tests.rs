use super::super::choose::tests::cpu;
use super::*;

fn size(rows: f64, sequences: f64) -> Size {
    Size { rows, sequences, context: 0.0 }
}

#[test]
fn a_pause_among_the_first_drafts_is_corrected_after_doubts() {
    let mut costs = Costs::default();
    let draft = size(20.0, 1.0);
    for _ in 0..9 {
        costs.observe_step(Size { rows: 1.0, sequences: 1.0, context: 0.0 }, 1_000.0);
    }
    costs.observe_draft(draft, 8_000.0, 0);
    let believed = |costs: &Costs| costs.draft_us(20.0, 1.0);
    assert!(
        believed(&costs) <= costs.step_us(size(20.0, 1.0)),
        "a drafter is smaller than its target"
    );
    (1..FEW_DRAFTS).for_each(|_| costs.observe_draft(draft, 8_000.0, 0));
    assert!(believed(&costs) > 6_000.0);
    // At that cost no sequence drafts, so only a doubt can correct it.
    (0..4).for_each(|_| costs.doubt_draft_cost());
    assert!(believed(&costs) < 2_000.0, "{}", believed(&costs));
    costs.observe_draft(draft, 1_500.0, 0);
    assert!((believed(&costs) - 1_500.0).abs() < 200.0, "{}", believed(&costs));
    // After a try the measured cost counts again.
    (0..4).for_each(|_| costs.doubt_draft_cost());
    costs.observe_draft(draft, 1_500.0, 0);
    assert!((believed(&costs) - 1_500.0).abs() < 200.0, "{}", believed(&costs));
}

#[test]
fn a_draft_beside_steps_bounds_the_cost_of_a_draft_alone() {
    let mut costs = Costs::default();
    let draft = size(20.0, 1.0);
    (0..3).for_each(|_| costs.observe_draft(draft, 4_000.0, 0));
    (0..40).for_each(|_| costs.observe_draft(draft, 2_000.0, 1));
    assert!(costs.draft_us(20.0, 1.0) < 2_300.0, "{}", costs.draft_us(20.0, 1.0));
}

#[test]
fn a_slower_machine_raises_all_costs_and_not_only_those_of_the_measured_work() {
    let mut costs = cpu();
    let block = Size { rows: 16.0, sequences: 1.0, context: 0.0 };
    let prices = |costs: &Costs| {
        [costs.plain_us(1.0, 0.0), costs.step_us(size(16.0, 1.0)), costs.draft_us(32.0, 1.0)]
    };
    let before = prices(&costs);
    // Only blocks are verified meanwhile.
    (0..40).for_each(|_| costs.observe_step(block, 2.0 * before[1]));
    for (before, after) in before.iter().zip(prices(&costs)) {
        assert!((1.5..=2.1).contains(&(after / before)), "{before} {after}");
    }
    (0..40).for_each(|_| costs.observe_step(block, before[1]));
    for (before, after) in before.iter().zip(prices(&costs)) {
        assert!((0.8..=1.2).contains(&(after / before)), "{before} {after}");
    }
    // One pause changes little.
    costs.observe_step(block, 50.0 * before[1]);
    assert!(prices(&costs)[0] < 1.3 * before[0]);
}

#[test]
fn dearer_blocks_are_distinguished_from_a_slower_machine() {
    let mut costs = cpu();
    let (block, plain) = (
        Size { rows: 16.0, sequences: 1.0, context: 0.0 },
        Size { rows: 1.0, sequences: 1.0, context: 0.0 },
    );
    let before = [costs.plain_us(1.0, 0.0), costs.step_us(size(16.0, 1.0))];
    // After many blocks alone both causes are possible. A few plain steps decide.
    (0..200).for_each(|_| costs.observe_step(block, 1.3 * before[1]));
    (0..10).for_each(|_| costs.observe_step(plain, before[0]));
    let after = [costs.plain_us(1.0, 0.0) / before[0], costs.step_us(size(16.0, 1.0)) / before[1]];
    // With one factor for all work it was 1.04 and 1.14.
    assert!((0.97..=1.03).contains(&after[0]) && (1.18..=1.35).contains(&after[1]), "{after:?}");
}

#[test]
fn errors_of_other_sizes_do_not_raise_the_cost_of_a_seldom_size() {
    let mut costs = cpu();
    let plain = |sequences: f64| Size { rows: sequences, sequences, context: 0.0 };
    let [eight, seven] = [8.0, 7.0].map(|count| costs.plain_us(count, 0.0));
    (0..20).for_each(|_| costs.observe_step(plain(7.0), seven));
    // The first blocks of each size take longer than expected, between plain steps of eight.
    for round in 0..20 {
        let rows = 12.0 + 12.0 * f64::from(round);
        let block = Size { rows, sequences: 8.0, context: 0.0 };
        let us = 1.6 * costs.step.us(block);
        (0..30).for_each(|_| costs.observe_step(block, us));
        (0..30).for_each(|_| costs.observe_step(plain(8.0), eight));
    }
    let found = [costs.plain_us(8.0, 0.0) / eight, costs.plain_us(7.0, 0.0) / seven];
    assert!(found.iter().all(|times| (0.9..=1.1).contains(times)), "{found:?} {:?}", costs.speed);
}

#[test]
fn a_block_is_never_cheaper_than_a_plain_step() {
    let mut costs = cpu();
    let block = Size { rows: 8.0, sequences: 7.0, context: 0.0 };
    (0..20).for_each(|_| costs.observe_step(block, 3_000.0));
    (0..20).for_each(|_| costs.observe_step(Size { rows: 7.0, ..block }, 6_000.0));
    assert!(
        costs.step_us(size(8.0, 7.0)) >= costs.plain_us(7.0, 0.0),
        "{} {}",
        costs.step_us(size(8.0, 7.0)),
        costs.plain_us(7.0, 0.0)
    );
}
