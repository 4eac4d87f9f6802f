use super::super::survival::{Belief, TrafficClass};
use super::*;

/// Costs after many measurements of a machine with these times, in microseconds, of a step and of
/// a draft.
fn machine(step: impl Fn(f64, f64) -> f64, draft: impl Fn(f64, f64) -> f64) -> Costs {
    let mut costs = Costs::default();
    for _ in 0..20 {
        for sequences in [1.0, 2.0, 4.0, 8.0, 16.0] {
            for length in [0.0, 2.0, 5.0, 8.0, 15.0] {
                let rows = sequences * (1.0 + length);
                costs.observe_step(Size { rows, sequences, context: 0.0 }, step(rows, sequences));
                costs.draft.observe(
                    Size { rows: rows + sequences, sequences, context: 0.0 },
                    draft(rows, sequences),
                );
            }
        }
    }
    costs
}

pub(in crate::speculation) fn gpu() -> Costs {
    machine(|rows, _| 10_000.0 + 20.0 * rows, |_, _| 2_000.0)
}

pub(in crate::speculation) fn cpu() -> Costs {
    machine(
        |rows, sequences| 3_000.0 + 320.0 * rows + 250.0 * sequences,
        |rows, sequences| 1_500.0 + 90.0 * rows + 500.0 * sequences,
    )
}

fn survival(accept: f32) -> Survival {
    let mut alive = 1.0;
    [0.0; LONGEST_DRAFT].map(|_: f32| {
        alive *= accept;
        alive
    })
}

/// Lengths for sequences with these rates of acceptance, and the gain over plain.
fn best(costs: &Costs, accepts: &[f32]) -> (Vec<usize>, f64) {
    let survivals: Vec<Survival> = accepts.iter().map(|accept| survival(*accept)).collect();
    let candidates: Vec<Candidate<'_>> =
        survivals.iter().map(|survival| Candidate { survival, most: 15, read_us: 0.0 }).collect();
    let load = BatchLoad { sequences: accepts.len(), context: 0.0 };
    let choice = best_cycle(costs, load, &candidates).expect("some can");
    assert_eq!(
        choice_of(costs, load, &candidates, &choice.lengths).throughput.us.round(),
        choice.throughput.us.round()
    );
    let gain = choice.throughput.rate() / load.plain(costs).rate();
    (choice.lengths, gain)
}

#[test]
fn good_text_drafts_long_and_poor_text_does_not_pay() {
    let (lengths, gain) = best(&gpu(), &[0.93]);
    assert!(lengths[0] >= 13 && gain > 5.0, "{lengths:?} {gain}");
    let (lengths, gain) = best(&cpu(), &[0.93]);
    assert!(lengths[0] >= 8 && gain > 1.8, "{lengths:?} {gain}");
    let (_, gain) = best(&cpu(), &[0.3]);
    assert!(gain < 1.0, "{gain}");
    // If a row is nearly free, even poor text gains.
    assert!(best(&gpu(), &[0.45]).1 > 1.2);
}

#[test]
fn in_a_batch_only_the_sequences_draft_that_gain() {
    let (lengths, gain) = best(&gpu(), &[0.9, 0.05, 0.92, 0.05]);
    assert!(lengths[0] > 5 && lengths[2] > 5 && lengths[1] + lengths[3] <= 4, "{lengths:?} {gain}");
    // On a CPU a batch shares its base already: drafts are shorter, and poor ones slow the others.
    assert!(best(&cpu(), &[0.5; 8]).1 < 1.0);
    let (alone, together) = (best(&cpu(), &[0.93]).0[0], best(&cpu(), &[0.93; 16]).0[0]);
    assert!(together <= alone, "{alone} alone, {together} among sixteen");
}

#[test]
fn the_time_of_reading_the_context_counts_against_drafting() {
    let (costs, survival) = (cpu(), survival(0.8));
    let load = BatchLoad { sequences: 1, context: 0.0 };
    let rate = |read_us| {
        let candidate = Candidate { survival: &survival, most: 15, read_us };
        best_cycle(&costs, load, &[candidate]).expect("it can").throughput.rate()
    };
    let (plain, free) = (load.plain(&costs).rate(), rate(0.0));
    assert!(free > plain && rate(5_000.0) < plain, "{free} {plain}");
}

#[test]
fn a_candidate_with_no_allowed_length_never_drafts() {
    let survival = survival(0.9);
    let none = Candidate { survival: &survival, most: 0, read_us: 0.0 };
    assert_eq!(best_cycle(&cpu(), BatchLoad { sequences: 1, context: 0.0 }, &[none]), None);
    assert_eq!(best_cycle(&cpu(), BatchLoad { sequences: 1, context: 0.0 }, &[]), None);
}

#[test]
fn assumed_costs_allow_drafting() {
    let costs = Costs::default();
    let class = TrafficClass::default();
    let open = Belief::new(class.mixture()).survival(&class);
    let candidate = Candidate { survival: &open, most: 15, read_us: costs.read_us(30) / 100.0 };
    let load = BatchLoad { sequences: 1, context: 0.0 };
    let choice = best_cycle(&costs, load, &[candidate]).expect("it can");
    assert!(choice.lengths[0] >= 1 && choice.throughput.rate() > 0.5 * load.plain(&costs).rate());
}
