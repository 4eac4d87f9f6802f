//! Prompt lookup: proposes the tokens that followed the longest earlier occurrence of the
//! sequence's end, the most recent one if it occurred several times. No model, no weights.
//!
//! [`LookupSession`] has the text of one sequence. `suffixes` finds the occurrence, `confidence`
//! knows how often such a proposal was right in this sequence, and [`ModelDrafts`] chooses between a
//! proposal and the draft of a model. A proposal ends where it is probably
//! wrong. If even its first token is, there is none.
//!
//! Source of the idea: prompt lookup decoding (github.com/apoorvumang/prompt-lookup-decoding). The
//! suffix structure follows Blumer et al., "The smallest automaton recognizing the subwords of a
//! text", 1985.

mod confidence;
mod model_drafts;
mod suffixes;
#[cfg(test)]
mod tests;

pub use model_drafts::ModelDrafts;

use confidence::Confidence;
use suffixes::{Occurrence, Suffixes};

/// Tokens of a proposal at most; with the bonus token a block of 16 rows. A match that goes on is
/// found again in the next cycle, so longer blocks would gain little.
pub const LONGEST_PROPOSAL: u32 = 15;

/// Most tokens of one sequence that are searched. They take about 100 bytes each. When there are as
/// many, the older half is forgotten, so that a token's cost stays constant on average.
const MOST_TOKENS: usize = 1 << 16;

/// Probability that a proposed token is accepted, below which it is not proposed whatever a row costs.
/// Chosen for a small model on a CPU, where a further row is expensive.
const LEAST_SURVIVAL: f32 = 0.25;

/// The text of one sequence, and what it proposes.
#[derive(Debug)]
pub struct LookupSession {
    /// Position of the text's first token.
    start: u32,
    text: Vec<u32>,
    suffixes: Suffixes,
    /// The longest earlier occurrence of the text's end.
    found: Occurrence,
    confidence: Confidence,
}

/// A proposal of [`LookupSession`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LookupProposal {
    /// Token ids; none if nothing is worth a proposal.
    pub ids: Vec<u32>,
    /// Natural logarithm of the probability that each is accepted, if those before it are.
    pub logprobs: Vec<f32>,
}

impl LookupProposal {
    /// Number of tokens that are accepted on average.
    pub fn expected(&self) -> f32 {
        let mut survival = 0.0;
        let accepted = self.logprobs.iter().map(|logprob| {
            survival += logprob;
            f32::exp(survival)
        });
        accepted.sum()
    }
}

impl LookupSession {
    /// An empty text whose first token will be at `position`.
    pub fn new(position: u32) -> Self {
        Self {
            start: position,
            text: vec![],
            suffixes: Suffixes::default(),
            found: Occurrence::default(),
            confidence: Confidence::default(),
        }
    }

    /// Position after the last token.
    pub fn end(&self) -> u32 {
        self.start + self.text.len() as u32
    }

    /// The tokens from `position` on; none if the text begins later.
    pub fn tokens_from(&self, position: u32) -> &[u32] {
        let from = position.checked_sub(self.start);
        from.and_then(|from| self.text.get(from as usize..)).unwrap_or_default()
    }

    /// Position of the text's first token, and the text's tokens at positions below `end`.
    pub fn beginning(&self, end: u32) -> (u32, &[u32]) {
        let length = end.saturating_sub(self.start).min(self.text.len() as u32);
        (self.start, &self.text[..length as usize])
    }

    /// Tokens that are searched. For tests and the benchmark.
    pub fn n_tokens(&self) -> usize {
        self.text.len()
    }

    /// Bytes that the text and its structure take, roughly.
    pub fn bytes(&self) -> u64 {
        (self.text.len() * size_of::<u32>()) as u64 + self.suffixes.bytes()
    }

    /// Appends tokens, the first of them at `position`. Tokens that the text has already are
    /// skipped: a bonus token comes once as such and once more when it is committed. Tokens that do
    /// not follow the text, or contradict it, begin a new text.
    pub fn append(&mut self, position: u32, ids: &[u32]) {
        let is_known = |(at, id): (u32, &u32)| {
            at.checked_sub(self.start).and_then(|at| self.text.get(at as usize)) == Some(id)
        };
        let known = (position..self.end()).zip(ids).take_while(|pair| is_known(*pair)).count();
        let new = &ids[known..];
        if new.is_empty() {
            return;
        }
        if position + known as u32 != self.end() {
            *self = Self::new(position + known as u32);
        }
        for id in new {
            self.push(*id);
        }
    }

    fn push(&mut self, id: u32) {
        if self.text.len() == MOST_TOKENS {
            self.forget_older_half();
        }
        if let Some(predicted) = self.predicted(0) {
            self.confidence.observe(self.found.length, predicted == id);
        }
        self.text.push(id);
        self.found = self.suffixes.push(id);
    }

    fn forget_older_half(&mut self) {
        let kept = self.text.split_off(self.text.len() / 2);
        self.start += self.text.len() as u32;
        self.suffixes = Suffixes::default();
        kept.iter().for_each(|id| self.found = self.suffixes.push(*id));
        self.text = kept;
    }

    /// The token that followed the earlier occurrence, `ahead` tokens on. An occurrence that reaches
    /// to the text's end goes on in itself: the text is periodic there.
    fn predicted(&self, ahead: usize) -> Option<u32> {
        let from = self.found.end as usize;
        let period = self.text.len().checked_sub(from).filter(|period| *period > 0)?;
        (self.found.length > 0).then(|| self.text[from + ahead % period])
    }

    /// Proposes at most `most` tokens after the text, as long as all of them are right with this
    /// probability at least.
    pub fn propose(&self, most: u32, least_survival: f32) -> LookupProposal {
        let least_survival = least_survival.max(LEAST_SURVIVAL);
        let mut proposal = LookupProposal::default();
        let mut survival = 1.0;
        for ahead in 0..most.min(LONGEST_PROPOSAL) {
            // A token that was proposed and is right makes the match one token longer.
            let probability = self.confidence.of(self.found.length + ahead);
            survival *= probability;
            let Some(id) = self.predicted(ahead as usize) else { break };
            if survival < least_survival {
                break;
            }
            proposal.ids.push(id);
            proposal.logprobs.push(probability.ln());
        }
        proposal
    }

    /// Position of the earliest token after the text after which there may be a proposal: with each
    /// token the match grows by one token at most.
    pub fn proposes_from(&self) -> u32 {
        let needed = self.confidence.shortest(LEAST_SURVIVAL);
        let tokens = needed.saturating_sub(self.found.length).max(1);
        self.end().saturating_sub(1) + tokens
    }
}
