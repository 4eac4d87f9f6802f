//! What the supervisor is told: what work costs, what drafts are worth, and what speculation gains
//! by load and by length.

use paceline_vocabulary::report::{ClassFigures, SpeculationBucket, SpeculationFigures};

use super::choose::{Costs, Load};
use super::survival::{Class, KINDS, MOST};
use super::{Speculation, gain_of_kind};

/// Upper ends of the ranges: sequences at once, and positions of a sequence. The last holds what is
/// beyond it too.
const SEQUENCES: [u32; 6] = [1, 2, 4, 8, 16, 32];
const CONTEXT: [u32; 9] = [512, 1024, 2048, 4096, 8192, 16_384, 32_768, 65_536, 131_072];
/// Weight of the newest cycle in a range's mixture of kinds.
const NEWEST: f64 = 0.01;
/// Length of the drafts that are thought of.
const LENGTH: usize = 15;

/// What was seen by range.
#[derive(Clone, Debug, Default)]
pub(super) struct Ranges {
    by_sequences: [u64; SEQUENCES.len()],
    by_context: [u64; CONTEXT.len()],
    /// Which kinds of text were met at that length; `None`: no draft was verified there.
    kinds: [Option<[f64; KINDS]>; CONTEXT.len()],
    /// Positions of a sequence, as a running mean.
    context: f64,
}

fn place(ends: &[u32], amount: f64) -> usize {
    ends.partition_point(|end| f64::from(*end) < amount).min(ends.len() - 1)
}

impl Ranges {
    /// A step with so many sequences in the engine, of so many positions each.
    pub(super) fn stepped(&mut self, sequences: usize, context: f64) {
        self.by_sequences[place(&SEQUENCES, sequences as f64)] += 1;
        self.by_context[place(&CONTEXT, context)] += 1;
        self.context += NEWEST * (context - self.context);
    }

    /// A cycle of a sequence of so many positions, which is believed to be of these kinds.
    pub(super) fn saw(&mut self, context: f64, kinds: &[f64; KINDS]) {
        let range = self.kinds[place(&CONTEXT, context)].get_or_insert(*kinds);
        range.iter_mut().zip(kinds).for_each(|(old, new)| *old += NEWEST * (new - *old));
    }
}

/// Tokens per second as it is decided, over plain steps: kind by kind the better of the two.
fn gain(costs: &Costs, load: Load, class: &Class, kinds: &[f64; KINDS]) -> f64 {
    let of_kind =
        |survival| gain_of_kind(costs, load, load.sequences, survival, LENGTH.min(MOST)).0.max(1.0);
    kinds.iter().zip(class.table()).map(|(share, survival)| share * of_kind(survival)).sum()
}

impl Speculation {
    /// Everything for a heartbeat.
    pub fn figures(&self) -> SpeculationFigures {
        let (costs, ranges) = (&self.costs, &self.ranges);
        let busiest =
            self.classes.iter().map(|(_, class)| class).max_by_key(|class| class.cycles());
        let class = busiest.expect("the first class is always there");
        let mixture = class.mixture();
        let sequences = SEQUENCES.iter().zip(ranges.by_sequences).map(|(up_to, steps)| {
            let load =
                Load { sequences: *up_to as usize, context: ranges.context * f64::from(*up_to) };
            SpeculationBucket { up_to: *up_to, steps, gain: gain(costs, load, class, &mixture) }
        });
        let context = CONTEXT.iter().zip(ranges.by_context).zip(&ranges.kinds).map(
            |((up_to, steps), kinds)| {
                let load = Load { sequences: 1, context: f64::from(*up_to) };
                SpeculationBucket {
                    up_to: *up_to,
                    steps,
                    gain: gain(costs, load, class, kinds.as_ref().unwrap_or(&mixture)),
                }
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
