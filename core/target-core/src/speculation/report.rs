//! The target's report of speculation: costs, acceptance by class, and the gain by number of
//! sequences and by length of context.

use std::collections::BTreeSet;

use paceline_vocabulary::ExponentialMean;
use paceline_vocabulary::report::{ClassFigures, SpeculationBucket, SpeculationFigures, StepCost};

use super::acceptance::{KINDS, Offered, TrafficClass};
use super::controller::{Cycles, StepLoad};
use super::load::{SEQUENCES, range};
use super::step_cost::{Costs, Size};

/// Upper ends of the ranges by positions of one sequence. The last also holds what is beyond.
const CONTEXT: [u32; 9] = [512, 1024, 2048, 4096, 8192, 16_384, 32_768, 65_536, 131_072];
/// Weight of the newest step or cycle in a mean: about the last hundred count.
const NEWEST_WEIGHT: f64 = 0.01;
/// Longest draft whose gain is reported, in tokens.
const REPORTED_LENGTH: usize = 15;

/// Steps and cycles by range.
#[derive(Clone, Debug)]
pub(super) struct Ranges {
    by_sequences: [u64; SEQUENCES.len()],
    by_context: [u64; CONTEXT.len()],
    /// Kinds of text by length of context; without a value if no draft was verified there.
    kinds: [[ExponentialMean; KINDS]; CONTEXT.len()],
    /// Mean positions of a sequence.
    context: ExponentialMean,
}

impl Default for Ranges {
    fn default() -> Self {
        Self {
            by_sequences: [0; SEQUENCES.len()],
            by_context: [0; CONTEXT.len()],
            kinds: [[ExponentialMean::new(NEWEST_WEIGHT); KINDS]; CONTEXT.len()],
            context: ExponentialMean::starting_at(0.0, NEWEST_WEIGHT),
        }
    }
}

impl Ranges {
    /// Counts a step with `sequences` sequences in the engine, with `context` positions each.
    pub(super) fn count_step(&mut self, sequences: usize, context: f64) {
        self.by_sequences[range(&SEQUENCES, sequences as f64)] += 1;
        self.by_context[range(&CONTEXT, context)] += 1;
        self.context.add(context);
    }

    /// Counts a cycle of a sequence of `context` positions, with these probabilities of its kinds.
    pub(super) fn count_cycle(&mut self, context: usize, kinds: &[f64; KINDS]) {
        let means = &mut self.kinds[range(&CONTEXT, context as f64)];
        means.iter_mut().zip(kinds).for_each(|(mean, newest)| mean.add(*newest));
    }

    /// Everything for a heartbeat.
    pub(super) fn figures(
        &self,
        costs: &Costs,
        offered: &Offered,
        classes: &[(String, TrafficClass)],
    ) -> SpeculationFigures {
        let fresh = TrafficClass::default();
        let busiest = classes.iter().map(|(_, class)| class).max_by_key(|class| class.cycles);
        let class = busiest.unwrap_or(&fresh);
        let mixture = class.mixture();
        // For each kind of text the better of both lanes counts.
        let bucket = |up_to: u32, steps, load: StepLoad, kinds: [f64; KINDS]| {
            let cycles = Cycles::new(costs, load, offered);
            let gains = cycles.gains(load.sequences, &class.table, REPORTED_LENGTH);
            let gain = kinds.iter().zip(gains).map(|(share, gain)| share * gain.max(1.0)).sum();
            SpeculationBucket { up_to, steps, gain }
        };
        let mean_context = self.context.get().unwrap_or(0.0);
        let by_sequences = SEQUENCES.iter().zip(self.by_sequences).map(|(up_to, steps)| {
            let context = mean_context * f64::from(*up_to);
            bucket(*up_to, steps, StepLoad { sequences: *up_to as usize, context }, mixture)
        });
        let by_context =
            CONTEXT.iter().zip(self.by_context).zip(&self.kinds).map(|((up_to, steps), means)| {
                let kinds = std::array::from_fn(|kind| means[kind].get().unwrap_or(mixture[kind]));
                bucket(*up_to, steps, StepLoad { sequences: 1, context: f64::from(*up_to) }, kinds)
            });
        let classes = classes.iter().filter(|(_, class)| class.cycles > 0).map(|(name, class)| {
            ClassFigures { class: name.clone(), cycles: class.cycles, survival: class.measured() }
        });
        SpeculationFigures {
            step: Some(costs.step.model()),
            draft: Some(costs.draft.model()),
            classes: classes.collect(),
            by_sequences: by_sequences.collect(),
            by_context: by_context.collect(),
            step_costs: step_costs(costs, mean_context),
        }
    }
}

/// Costs of steps of one sequence of `context` positions, at the numbers of rows that were measured.
fn step_costs(costs: &Costs, context: f64) -> Vec<StepCost> {
    let cells = costs.step.cells();
    let single = cells.iter().map(|cell| cell.size).filter(|size| size.sequences < 1.5);
    let rows: BTreeSet<u32> = single.map(|size| size.rows.round() as u32).collect();
    let cost = |rows: u32| {
        let size = Size { rows: f64::from(rows), sequences: 1.0, context };
        // A draft of these rows after a cycle that committed one position.
        let drafts = rows > 1 && costs.draft.n_times > 0;
        let draft_us = if drafts { costs.draft_us(size.rows + 1.0, 1.0) } else { 0.0 };
        StepCost { rows, us: costs.step.us(size), draft_us }
    };
    rows.into_iter().map(cost).collect()
}
