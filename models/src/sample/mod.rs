//! From logit rows to tokens. The contract, in full in `docs/sampling.md`:
//!
//! 1. Each row has a rule of its own: the history before it, sampling, which ids are allowed.
//! 2. Order: penalties → bias → bans (stop ids before `min_tokens`, ids that a constraint excludes)
//!    → temperature → top-k → top-p → min-p → choice. A row with a NaN, or without a finite maximum,
//!    gives no token and ends its sequence.
//! 3. Temperature 0 takes the largest logit; above it the largest of logit / T + noise among the
//!    survivors (Gumbel-max: a draw from the softmax). Noise is a pure function of seed, sample
//!    index, position and id. Ties: the lowest id.
//!
//! One function serves plain steps and verified blocks, so both lanes choose the same token (I1): a
//! block's rows are chosen in order, each with the drafted ids before it as history, up to the
//! first that is not what was drafted. How drafts themselves are chosen ([`propose`]) changes how
//! many are accepted, never which tokens come.

mod constraint;
mod largest;
mod logprobs;
pub mod noise;
mod processors;
mod propose;
mod row;
mod selection;

pub use constraint::{Constraint, IdSet};
pub use logprobs::Logprobs;
#[cfg(target_os = "linux")]
pub(crate) use propose::largest_on_host;
pub use propose::{DraftedIds, propose, softcap};
pub(crate) use propose::{are_greedy, draw, logprobs};
pub use selection::TokenSelection;

use mlx_rs::Array;

use crate::error::{ModelError, Result};
use noise::NoiseKey;
pub use paceline_vocabulary::SamplingRule;

/// Whether it matters how often an id was generated.
fn counts_ids(sampling: &SamplingRule) -> bool {
    sampling.presence_penalty != 0.0 || sampling.frequency_penalty != 0.0
}

/// The rule for one row.
#[derive(Clone, Copy, Debug)]
pub struct RowRule<'a> {
    /// Ids before the token to choose, prompt first: what penalties count.
    pub history: &'a [u32],
    /// How many of them are the prompt's; the others were generated.
    pub prompt_len: usize,
    /// How it is chosen.
    pub sampling: SamplingRule,
    /// Added to logits of single ids: (id, bias), ids ascending, each once.
    pub bias: &'a [(u32, f32)],
    /// Ids that are not chosen while fewer than `min_tokens` were generated.
    pub stop_ids: &'a [u32],
    /// See `stop_ids`; 0 is off.
    pub min_tokens: u32,
    /// Key of the noise.
    pub noise: NoiseKey,
    /// Index of the token to choose in the sequence of ids.
    pub position: u32,
    /// Ids from here on are padding of the vocabulary.
    pub id_limit: u32,
    /// Compute the deciding margin.
    pub wants_margin: bool,
    /// Compute log-probabilities, of the chosen token and of this many most probable ones:
    /// [`VerifiedBlock::logprobs`].
    pub logprobs: Option<u32>,
    /// Constraint of the sequence; `None` allows every id.
    pub constraint: Option<&'a dyn Constraint>,
}

/// A chosen token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenChoice {
    /// Id of the chosen token.
    pub token: u32,
    /// How far the row was from another outcome (I1); infinite if not wanted.
    pub margin: f32,
}

/// Rows of one sequence that are chosen together: one, or a block to be verified.
#[derive(Clone, Copy, Debug)]
pub struct Block<'a> {
    /// The rule of its first row; further rows have it with the drafted ids after the history, one
    /// position each.
    pub rule: RowRule<'a>,
    /// Number of drafted ids. The block has one row more.
    pub drafted: usize,
}

/// Outcome of a block.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct VerifiedBlock {
    /// Choices in order: those that equal their draft, and one more. The drafts accepted are one
    /// less. Of a faulty block only those that equal their draft, up to the faulty row.
    pub choices: Vec<TokenChoice>,
    /// No token can be chosen after these choices: the row has a NaN, its largest logit is not
    /// finite, or no id with a finite logit is allowed by bans and constraint. Other blocks of the
    /// same step have their own verdicts.
    pub faulty: bool,
    /// One for each choice; empty if not wanted.
    pub logprobs: Vec<Logprobs>,
}

impl<'a> RowRule<'a> {
    /// The rule of the largest logit after `history`, of which the first `prompt_len` are the
    /// prompt.
    pub fn greedy(history: &'a [u32], prompt_len: usize) -> Self {
        Self {
            history,
            prompt_len,
            sampling: SamplingRule::GREEDY,
            bias: &[],
            stop_ids: &[],
            min_tokens: 0,
            noise: NoiseKey { seed: 0, sample: 0 },
            position: history.len() as u32,
            id_limit: u32::MAX,
            wants_margin: false,
            logprobs: None,
            constraint: None,
        }
    }

    /// Whether only the largest logit is wanted: the graph alone then chooses.
    fn in_graph(&self) -> bool {
        let reports = self.wants_margin || self.logprobs.is_some();
        let waits = (self.generated().len() as u64) < u64::from(self.min_tokens)
            && !self.stop_ids.is_empty();
        let changed = self.sampling.repetition_penalty != 1.0
            || counts_ids(&self.sampling)
            || !self.bias.is_empty()
            || self.constraint.is_some()
            || waits;
        self.sampling.temperature == 0.0 && !changed && !reports
    }

    /// The ids after the prompt.
    fn generated(&self) -> &'a [u32] {
        self.history.get(self.prompt_len..).unwrap_or_default()
    }

    fn limit(&self, vocab: i32) -> usize {
        self.id_limit.min(vocab as u32) as usize
    }
}

/// Chooses one token for each row of `logits` `[rows, vocab]`, float32. Evaluates: this is where a
/// step's graph runs. Arrays in `with` are evaluated in the same pass.
///
/// # Errors
/// A row of which no token can be chosen (see [`VerifiedBlock::faulty`]); MLX's own.
pub fn choose(logits: &Array, rules: &[RowRule<'_>], with: &[&Array]) -> Result<Vec<TokenChoice>> {
    let blocks: Vec<Block<'_>> =
        rules.iter().map(|rule| Block { rule: *rule, drafted: 0 }).collect();
    let verdicts = verify(logits, &blocks, &DraftedIds::OnHost(vec![]), with)?;
    let none = |row| {
        ModelError::Batch(format!(
            "row {row}: expected a finite largest logit and no NaN, found another row"
        ))
    };
    let chosen = |(row, verdict): (usize, &VerifiedBlock)| {
        verdict.choices.first().copied().ok_or_else(|| none(row))
    };
    verdicts.iter().enumerate().map(chosen).collect()
}

/// Chooses the tokens of every block's rows in `logits` `[rows, vocab]`, float32, the blocks' rows
/// one after another, and holds them against `drafts`, the blocks' drafted ids one after another.
/// Evaluates, with `with` in the same pass. A row of which no token can be chosen ends its own
/// block alone: [`VerifiedBlock::faulty`].
///
/// # Errors
/// Another number of rows or drafts; MLX's own.
pub fn verify(
    logits: &Array,
    blocks: &[Block<'_>],
    drafts: &DraftedIds,
    with: &[&Array],
) -> Result<Vec<VerifiedBlock>> {
    TokenSelection::of(logits, blocks)?.verdicts(blocks, drafts, with)
}

#[cfg(test)]
mod tests;
