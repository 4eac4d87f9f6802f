//! How often a match of some length predicts the next token, learned from each token of the text.

/// Shortest match of each class. A longer match predicts better; from the last class on the length
/// makes no difference.
const CLASSES: [u32; 7] = [1, 2, 3, 4, 6, 10, 16];

/// Probability of each class before the first observation. Chosen, and compared afterwards with
/// 40,000 predictions in technical prose, in texts of 1,500 tokens by the tokenizer of `SmolLM2`:
/// 0.13, 0.30, 0.38, 0.51, 0.59, 0.72, 0.90 of them were right. In source code up to 0.13 more were.
const PRIOR: [f32; CLASSES.len()] = [0.1, 0.25, 0.4, 0.5, 0.6, 0.75, 0.9];

/// Observations that weigh as much as the prior.
const PRIOR_WEIGHT: f32 = 4.0;

/// Weight of an observation after the next one of its class. The last 20 or so count, because one
/// answer quotes in one part and not in another.
const DECAY: f32 = 0.95;

/// Counts of one sequence.
#[derive(Clone, Debug, Default)]
pub(super) struct Confidence {
    hits: [f32; CLASSES.len()],
    trials: [f32; CLASSES.len()],
}

impl Confidence {
    /// A match of `length` tokens predicted the next token, or did not.
    pub(super) fn observe(&mut self, length: u32, hit: bool) {
        let Some(class) = class_of(length) else { return };
        self.trials[class] = DECAY * self.trials[class] + 1.0;
        self.hits[class] = DECAY * self.hits[class] + f32::from(u8::from(hit));
    }

    /// Probability that a match of `length` tokens predicts the next one.
    pub(super) fn of(&self, length: u32) -> f32 {
        let Some(class) = class_of(length) else { return 0.0 };
        let hits = self.hits[class] + PRIOR_WEIGHT * PRIOR[class];
        hits / (self.trials[class] + PRIOR_WEIGHT)
    }

    /// The shortest match that predicts with at least this probability.
    pub(super) fn shortest(&self, probability: f32) -> u32 {
        let predicts = |length: &u32| self.of(*length) >= probability;
        CLASSES.into_iter().find(predicts).unwrap_or(CLASSES[CLASSES.len() - 1])
    }
}

/// The class of a match; `None` for no match.
fn class_of(length: u32) -> Option<usize> {
    CLASSES.iter().rposition(|shortest| length >= *shortest)
}
