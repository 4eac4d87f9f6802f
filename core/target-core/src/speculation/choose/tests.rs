use super::super::survival::{Belief, Class};
use super::*;

/// Costs of a machine as measured many times: microseconds of a step and of a draft.
fn machine(step: impl Fn(f64, f64) -> f64, draft: impl Fn(f64, f64) -> f64) -> Costs {
    let mut costs = Costs::default();
    for _ in 0..20 {
        for sequences in [1.0, 2.0, 4.0, 8.0, 16.0] {
            for length in [0.0, 2.0, 5.0, 8.0, 15.0] {
                let rows = sequences * (1.0 + length);
                costs.stepped(Size { rows, sequences, context: 0.0 }, step(rows, sequences));
                costs.draft.observe(
                    Size { rows: rows + sequences, sequences, context: 0.0 },
                    draft(rows, sequences),
                );
            }
        }
    }
    costs
}

fn gpu() -> Costs {
    machine(|rows, _| 10_000.0 + 20.0 * rows, |_, _| 2_000.0)
}

fn cpu() -> Costs {
    machine(
        |rows, sequences| 3_000.0 + 320.0 * rows + 250.0 * sequences,
        |rows, sequences| 1_500.0 + 90.0 * rows + 500.0 * sequences,
    )
}

fn survival(accept: f32) -> Survival {
    let mut alive = 1.0;
    [0.0; MOST].map(|_: f32| {
        alive *= accept;
        alive
    })
}

/// Lengths for sequences with these rates of acceptance, and the gain over plain.
fn best(costs: &Costs, accepts: &[f32]) -> (Vec<usize>, f64) {
    let survivals: Vec<Survival> = accepts.iter().map(|accept| survival(*accept)).collect();
    let candidates: Vec<Candidate<'_>> =
        survivals.iter().map(|survival| Candidate { survival, most: 15, read_us: 0.0 }).collect();
    let load = Load { sequences: accepts.len(), context: 0.0 };
    let choice = best_cycle(costs, load, &candidates).expect("some can");
    assert_eq!(
        choice_of(costs, load, &candidates, &choice.lengths).pace.us.round(),
        choice.pace.us.round()
    );
    let gain = choice.pace.rate() / load.plain(costs).rate();
    (choice.lengths, gain)
}

#[test]
fn one_sequence_drafts_long_where_it_pays_and_a_poor_one_does_not_pay() {
    let (lengths, gain) = best(&gpu(), &[0.93]);
    assert!(lengths[0] >= 13 && gain > 5.0, "{lengths:?} {gain}");
    let (lengths, gain) = best(&cpu(), &[0.93]);
    assert!(lengths[0] >= 8 && gain > 1.8, "{lengths:?} {gain}");
    let (_, gain) = best(&cpu(), &[0.3]);
    assert!(gain < 1.0, "{gain}");
    // What hardly costs pays with little.
    assert!(best(&gpu(), &[0.45]).1 > 1.2);
}

#[test]
fn among_many_those_draft_for_whom_it_pays() {
    let (lengths, gain) = best(&gpu(), &[0.9, 0.05, 0.92, 0.05]);
    assert!(lengths[0] > 5 && lengths[2] > 5 && lengths[1] + lengths[3] <= 4, "{lengths:?} {gain}");
    // On a CPU a batch shares its base already: drafts are shorter, and poor ones slow the others.
    assert!(best(&cpu(), &[0.5; 8]).1 < 1.0);
    let (alone, together) = (best(&cpu(), &[0.93]).0[0], best(&cpu(), &[0.93; 16]).0[0]);
    assert!(together <= alone, "{alone} alone, {together} among sixteen");
}

#[test]
fn reading_the_drafter_in_counts() {
    let (costs, survival) = (cpu(), survival(0.8));
    let load = Load { sequences: 1, context: 0.0 };
    let rate = |read_us| {
        let candidate = Candidate { survival: &survival, most: 15, read_us };
        best_cycle(&costs, load, &[candidate]).expect("it can").pace.rate()
    };
    let (plain, free) = (load.plain(&costs).rate(), rate(0.0));
    assert!(free > plain && rate(5_000.0) < plain, "{free} {plain}");
}

#[test]
fn nobody_drafts_who_may_not() {
    let survival = survival(0.9);
    let none = Candidate { survival: &survival, most: 0, read_us: 0.0 };
    assert_eq!(best_cycle(&cpu(), Load { sequences: 1, context: 0.0 }, &[none]), None);
    assert_eq!(best_cycle(&cpu(), Load { sequences: 1, context: 0.0 }, &[]), None);
}

#[test]
fn a_trial_is_worth_it_while_there_is_much_to_win() {
    let (costs, class) = (cpu(), Class::default());
    let load = Load { sequences: 1, context: 0.0 };
    let unknown = *Belief::new(class.mixture()).kinds();
    let ask = |kinds: &[f64; KINDS], left, read| {
        trial(&costs, load, (1, 1), kinds, class.table(), 15, (left, read)).expect("it can")
    };
    let open = ask(&unknown, 200.0, 0.0);
    assert!(open.value_us > 2.0 * open.cost_us, "{open:?}");
    // Nothing is left to win for the last tokens, nor by one that is known not to pay.
    let late = ask(&unknown, 1.0, 10_000.0);
    assert!(late.value_us < late.cost_us, "{late:?}");
    let mut poor = [0.001; KINDS];
    poor[0] = 1.0 - 0.001 * (KINDS as f64 - 1.0);
    let known = ask(&poor, 100.0, 0.0);
    assert!(known.value_us < 2.0 * known.cost_us, "{known:?}");
}

#[test]
fn a_pause_in_the_first_figures_is_not_believed_for_ever() {
    let mut costs = Costs::default();
    let size = Size { rows: 20.0, sequences: 1.0, context: 0.0 };
    for _ in 0..9 {
        costs.stepped(Size { rows: 1.0, sequences: 1.0, context: 0.0 }, 1_000.0);
    }
    costs.drafted(size, 8_000.0, 0);
    let believed = |costs: &Costs| costs.draft_us(20.0, 1.0);
    assert!(
        believed(&costs) <= costs.step_us(20.0, 1.0, 0.0),
        "a drafter is smaller than its target"
    );
    (1..FEW_DRAFTS).for_each(|_| costs.drafted(size, 8_000.0, 0));
    assert!(believed(&costs) > 6_000.0);
    // Nothing is drafted at that price, so nothing would ever correct it.
    (0..4).for_each(|_| costs.nothing_drafted());
    assert!(believed(&costs) < 2_000.0, "{}", believed(&costs));
    costs.drafted(size, 1_500.0, 0);
    assert!((believed(&costs) - 1_500.0).abs() < 200.0, "{}", believed(&costs));
    // What is dear is dear again once it was tried.
    (0..4).for_each(|_| costs.nothing_drafted());
    costs.drafted(size, 1_500.0, 0);
    assert!((believed(&costs) - 1_500.0).abs() < 200.0, "{}", believed(&costs));
}

#[test]
fn a_draft_beside_others_says_what_it_costs_at_most() {
    let mut costs = Costs::default();
    let size = Size { rows: 20.0, sequences: 1.0, context: 0.0 };
    (0..3).for_each(|_| costs.drafted(size, 4_000.0, 0));
    (0..40).for_each(|_| costs.drafted(size, 2_000.0, 1));
    assert!(costs.draft_us(20.0, 1.0) < 2_300.0, "{}", costs.draft_us(20.0, 1.0));
}

#[test]
fn before_anything_is_measured_it_is_sane() {
    let costs = Costs::default();
    let class = Class::default();
    let open = Belief::new(class.mixture()).survival(&class);
    let candidate = Candidate { survival: &open, most: 15, read_us: costs.read_us(30) / 100.0 };
    let load = Load { sequences: 1, context: 0.0 };
    let choice = best_cycle(&costs, load, &[candidate]).expect("it can");
    assert!(choice.lengths[0] >= 1 && choice.pace.rate() > 0.5 * load.plain(&costs).rate());
}

#[test]
fn a_machine_that_others_slow_makes_all_work_dearer_and_not_what_is_done_alone() {
    let mut costs = cpu();
    let block = Size { rows: 16.0, sequences: 1.0, context: 0.0 };
    let prices = |costs: &Costs| {
        [costs.plain_us(1.0, 0.0), costs.step_us(16.0, 1.0, 0.0), costs.draft_us(32.0, 1.0)]
    };
    let before = prices(&costs);
    // Only blocks are verified meanwhile.
    (0..40).for_each(|_| costs.stepped(block, 2.0 * before[1]));
    for (before, after) in before.iter().zip(prices(&costs)) {
        assert!((1.5..=2.1).contains(&(after / before)), "{before} {after}");
    }
    (0..40).for_each(|_| costs.stepped(block, before[1]));
    for (before, after) in before.iter().zip(prices(&costs)) {
        assert!((0.8..=1.2).contains(&(after / before)), "{before} {after}");
    }
    // One pause says little.
    costs.stepped(block, 50.0 * before[1]);
    assert!(prices(&costs)[0] < 1.3 * before[0]);
}

#[test]
fn blocks_that_are_dearer_than_believed_are_told_from_a_machine_that_is_slower() {
    let mut costs = cpu();
    let (block, plain) = (
        Size { rows: 16.0, sequences: 1.0, context: 0.0 },
        Size { rows: 1.0, sequences: 1.0, context: 0.0 },
    );
    let before = [costs.plain_us(1.0, 0.0), costs.step_us(16.0, 1.0, 0.0)];
    // A long time of blocks alone, which could be either, and a few plain steps, by which it is
    // known.
    (0..200).for_each(|_| costs.stepped(block, 1.3 * before[1]));
    (0..10).for_each(|_| costs.stepped(plain, before[0]));
    let after = [costs.plain_us(1.0, 0.0) / before[0], costs.step_us(16.0, 1.0, 0.0) / before[1]];
    // (With one factor for all work it was 1.04 and 1.14.)
    assert!((0.97..=1.03).contains(&after[0]) && (1.18..=1.35).contains(&after[1]), "{after:?}");
}

#[test]
fn what_is_seldom_measured_does_not_become_dear_by_what_was_wrong_elsewhere() {
    let mut costs = cpu();
    let plain = |sequences: f64| Size { rows: sequences, sequences, context: 0.0 };
    let [eight, seven] = [8.0, 7.0].map(|count| costs.plain_us(count, 0.0));
    (0..20).for_each(|_| costs.stepped(plain(7.0), seven));
    // Blocks of each size take longer than was believed when they are first met, between plain
    // steps of eight.
    for round in 0..20 {
        let rows = 12.0 + 12.0 * f64::from(round);
        let block = Size { rows, sequences: 8.0, context: 0.0 };
        let us = 1.6 * costs.step.us(block);
        (0..30).for_each(|_| costs.stepped(block, us));
        (0..30).for_each(|_| costs.stepped(plain(8.0), eight));
    }
    let found = [costs.plain_us(8.0, 0.0) / eight, costs.plain_us(7.0, 0.0) / seven];
    assert!(found.iter().all(|times| (0.9..=1.1).contains(times)), "{found:?} {:?}", costs.slower);
}

#[test]
fn a_block_is_never_cheaper_than_the_plain_step_without_it() {
    let mut costs = cpu();
    let block = Size { rows: 8.0, sequences: 7.0, context: 0.0 };
    (0..20).for_each(|_| costs.stepped(block, 3_000.0));
    (0..20).for_each(|_| costs.stepped(Size { rows: 7.0, ..block }, 6_000.0));
    assert!(
        costs.step_us(8.0, 7.0, 0.0) >= costs.plain_us(7.0, 0.0),
        "{} {}",
        costs.step_us(8.0, 7.0, 0.0),
        costs.plain_us(7.0, 0.0)
    );
}
