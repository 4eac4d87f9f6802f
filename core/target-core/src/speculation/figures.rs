//! What the target reports of speculation: costs, acceptance by class, and the gain by number of
//! sequences and by length of context.

use paceline_vocabulary::ExponentialMean;
use paceline_vocabulary::report::{ClassFigures, SpeculationBucket, SpeculationFigures};

use super::Speculation;
use super::choose::{BatchLoad, gain_of_kind};
use super::costs::Costs;
use super::survival::{KINDS, LONGEST_DRAFT, TrafficClass};

/// Upper ends of the ranges by sequences. The last range also holds what is beyond it.
const SEQUENCES: [u32; 6] = [1, 2, 4, 8, 16, 32];
/// Upper ends of the ranges by positions of one sequence. The last range also holds what is beyond.
const CONTEXT: [u32; 9] = [512, 1024, 2048, 4096, 8192, 16_384, 32_768, 65_536, 131_072];
/// Weight of the newest step or cycle in a mean: about the last hundred count.
const NEWEST_WEIGHT: f64 = 0.01;
/// Longest draft whose gain is reported, in tokens.
const REPORTED_LENGTH: usize = 15;

/// Kinds of text in a range, as means over cycles.
type KindMeans = [ExponentialMean; KINDS];

/// Steps and cycles by range.
#[derive(Clone, Debug)]
pub(super) struct Ranges {
    by_sequences: [u64; SEQUENCES.len()],
    by_context: [u64; CONTEXT.len()],
    /// Kinds of text by length of context; without a value if no draft was verified there.
    kinds: [KindMeans; CONTEXT.len()],
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

fn range(ends: &[u32], amount: f64) -> usize {
    ends.partition_point(|end| f64::from(*end) < amount).min(ends.len() - 1)
}

impl Ranges {
    /// Counts a step with so many sequences in the engine, with `context` positions each.
    pub(super) fn count_step(&mut self, sequences: usize, context: f64) {
        self.by_sequences[range(&SEQUENCES, sequences as f64)] += 1;
        self.by_context[range(&CONTEXT, context)] += 1;
        self.context.add(context);
    }

    /// Counts a cycle of a sequence of so many positions, with these probabilities of its kinds.
    pub(super) fn count_cycle(&mut self, context: f64, kinds: &[f64; KINDS]) {
        let means = &mut self.kinds[range(&CONTEXT, context)];
        means.iter_mut().zip(kinds).for_each(|(mean, newest)| mean.add(*newest));
    }
}

/// Throughput with drafts over plain steps. For each kind of text the better of both lanes counts.
fn gain(costs: &Costs, load: BatchLoad, class: &TrafficClass, kinds: &[f64; KINDS]) -> f64 {
    let most = REPORTED_LENGTH.min(LONGEST_DRAFT);
    let of_kind = |survival| gain_of_kind(costs, load, load.sequences, survival, most).max(1.0);
    kinds.iter().zip(class.table()).map(|(share, survival)| share * of_kind(survival)).sum()
}

impl Speculation {
    /// Everything for a heartbeat.
    pub fn figures(&self) -> SpeculationFigures {
        let (costs, ranges) = (&self.costs, &self.ranges);
        let busiest =
            self.classes.iter().map(|(_, class)| class).max_by_key(|class| class.cycles());
        let class = busiest.expect("the default class is always there");
        let mixture = class.mixture();
        let mean_context = ranges.context.get().unwrap_or(0.0);
        let sequences = SEQUENCES.iter().zip(ranges.by_sequences).map(|(up_to, steps)| {
            let context = mean_context * f64::from(*up_to);
            let load = BatchLoad { sequences: *up_to as usize, context };
            SpeculationBucket { up_to: *up_to, steps, gain: gain(costs, load, class, &mixture) }
        });
        let context = CONTEXT.iter().zip(ranges.by_context).zip(&ranges.kinds).map(
            |((up_to, steps), means)| {
                let load = BatchLoad { sequences: 1, context: f64::from(*up_to) };
                let kinds = std::array::from_fn(|kind| means[kind].get().unwrap_or(mixture[kind]));
                SpeculationBucket { up_to: *up_to, steps, gain: gain(costs, load, class, &kinds) }
            },
        );
        let classes =
            self.classes.iter().filter(|(_, class)| class.cycles() > 0).map(|(name, class)| {
                ClassFigures {
                    class: name.clone(),
                    cycles: class.cycles(),
                    survival: class.measured(),
                }
            });
        SpeculationFigures {
            step: Some(costs.step.model()),
            draft: Some(costs.draft.model()),
            classes: classes.collect(),
            by_sequences: sequences.collect(),
            by_context: context.collect(),
        }
    }
}
