//! The part of a choice that is in the graph, and what is made of it on the host: split so that a
//! step can be begun, and other things done before its choices are waited for.

use mlx_rs::Array;
use mlx_rs::transforms::{async_eval, eval};

use super::largest::{Largest, LargestOnHost, on_host};
use super::processors::LogitProcessors;
use super::{Block, DraftedIds, Logprobs, RowRule, TokenChoice, VerifiedBlock, logprobs, row};
use crate::error::{ModelError, Result};

/// Choice of tokens for blocks: the part that is in the graph. Lazy.
#[derive(Clone, Debug)]
pub struct TokenSelection {
    rows: usize,
    vocab: usize,
    /// The largest logit's id of every row, for blocks that want no more.
    best: Option<Largest>,
    /// All logits, for the others.
    host: Option<Array>,
    /// Ids below it may be chosen in the graph.
    limit: usize,
}

impl TokenSelection {
    /// Of `logits` `[rows, vocab]`, float32, the blocks' rows one after another.
    ///
    /// # Errors
    /// MLX's own.
    pub fn of(logits: &Array, blocks: &[Block<'_>]) -> Result<Self> {
        let (rows, vocab, limit) =
            (logits.dim(0) as usize, logits.dim(1) as usize, limit(logits.dim(1), blocks));
        let best = match limit {
            Some(limit) => Some(Largest::of(logits, limit)?),
            None => None,
        };
        let on_host = blocks.iter().any(|block| !block.rule.in_graph());
        let host = if on_host { Some(logits.contiguous()?) } else { None };
        Ok(Self { rows, vocab, best, host, limit: limit.unwrap_or(vocab) })
    }

    /// Whether all rows are chosen in the graph, so that a later token depends on nothing but
    /// [`TokenSelection::ids`].
    pub fn in_graph(&self) -> bool {
        self.best.is_some() && self.host.is_none()
    }

    /// The ids `[rows]` that were chosen, a part of the graph, where all are chosen there. The id
    /// of a row without a choice ([`VerifiedBlock::faulty`]) is any id of the vocabulary.
    ///
    /// # Errors
    /// MLX's own.
    pub fn ids(&self) -> Result<Option<Array>> {
        self.best.as_ref().filter(|_| self.in_graph()).map(Largest::ids).transpose()
    }

    /// Whether this selection has what such blocks need, one row each.
    pub fn serve(&self, blocks: &[Block<'_>]) -> bool {
        let on_host = blocks.iter().any(|block| !block.rule.in_graph());
        let has_logits = !on_host || self.host.is_some();
        let has_best = limit(self.vocab as i32, blocks)
            .is_none_or(|limit| self.best.is_some() && limit == self.limit);
        blocks.len() == self.rows && has_logits && has_best
    }

    /// The ids `[rows]` that the graph chooses, if it chooses for some blocks. For a row of another
    /// block it is an id below the vocabulary that means nothing.
    ///
    /// # Errors
    /// MLX's own.
    pub fn ids_of_graph(&self) -> Result<Option<Array>> {
        self.best.as_ref().map(Largest::ids).transpose()
    }

    /// Whether the graph chooses the tokens of such a block.
    pub fn chooses_in_graph(&self, block: &Block<'_>) -> bool {
        self.best.is_some() && block.rule.in_graph()
    }

    fn arrays(&self) -> impl Iterator<Item = &Array> {
        self.best.iter().flat_map(Largest::arrays).chain(&self.host)
    }

    /// Begins to compute, with `with`, and does not wait.
    ///
    /// # Errors
    /// MLX's own.
    pub fn begin(&self, with: &[&Array]) -> Result<()> {
        Ok(async_eval(self.arrays().chain(with.iter().copied()))?)
    }

    /// The choices: see [`super::verify`].
    ///
    /// # Errors
    /// As there.
    pub fn verdicts(
        &self,
        blocks: &[Block<'_>],
        drafts: &DraftedIds,
        with: &[&Array],
    ) -> Result<Vec<VerifiedBlock>> {
        let vocab = self.vocab;
        let (expected, drafted) = blocks
            .iter()
            .fold((0, 0), |(rows, all), block| (rows + 1 + block.drafted, all + block.drafted));
        if self.rows != expected || drafted != drafts.len() {
            let what = format!(
                "expected {expected} rows and {drafted} drafts, found {} and {}",
                self.rows,
                drafts.len()
            );
            return Err(ModelError::Batch(what));
        }
        eval(self.arrays().chain(drafts.in_graph()).chain(with.iter().copied()))?;
        let best = self.best.as_ref().map(Largest::read).transpose()?;
        let values: &[f32] = on_host(self.host.as_ref())?;
        let mut drafts = drafts.ids()?;
        let mut first_row = 0;
        let mut verdicts = Vec::with_capacity(blocks.len());
        for block in blocks {
            let (draft, rest) = drafts.split_at(block.drafted);
            let row =
                |at: usize| &values[(first_row + at) * vocab..][..block.rule.limit(vocab as i32)];
            let (chosen, logprobs) = match block.rule.in_graph() {
                true => (accept(draft, |at| chosen_in_graph(best, first_row + at)), vec![]),
                false => on_host_path(&block.rule, draft, vocab, row),
            };
            let AcceptedChoices { choices, faulty } = chosen;
            verdicts.push(VerifiedBlock { choices, faulty, logprobs });
            (first_row, drafts) = (first_row + 1 + block.drafted, rest);
        }
        Ok(verdicts)
    }
}

/// Choices of a block, see [`VerifiedBlock`].
#[derive(Debug)]
struct AcceptedChoices {
    choices: Vec<TokenChoice>,
    faulty: bool,
}

/// Choices up to the first that is not what was drafted, or up to a row that has none.
fn accept(draft: &[u32], mut choose: impl FnMut(usize) -> Option<TokenChoice>) -> AcceptedChoices {
    let mut choices = Vec::with_capacity(draft.len() + 1);
    loop {
        let at = choices.len();
        let Some(choice) = choose(at) else { return AcceptedChoices { choices, faulty: true } };
        choices.push(choice);
        if draft.get(at) != Some(&choice.token) {
            return AcceptedChoices { choices, faulty: false };
        }
    }
}

/// A row's choice by the graph; margins are not computed there.
fn chosen_in_graph(best: Option<LargestOnHost<'_>>, row: usize) -> Option<TokenChoice> {
    Some(TokenChoice { token: best?.id(row)?, margin: f32::INFINITY })
}

/// A block's choices on the host, and the log-probabilities of each; `row` gives the logits of its
/// rows.
fn on_host_path<'a>(
    rule: &RowRule<'_>,
    draft: &[u32],
    vocab: usize,
    row: impl Fn(usize) -> &'a [f32],
) -> (AcceptedChoices, Vec<Logprobs>) {
    let (mut processors, mut logprobs) = (LogitProcessors::new(rule, vocab), vec![]);
    let accepted = accept(draft, |at| {
        processors.extend(&draft[..at]);
        let rule = RowRule { position: rule.position + at as u32, ..*rule };
        // Before bans: a banned id with a NaN is a fault of the model like any other.
        let row = processors.apply(Some(row(at)).filter(|row| row::is_sound(row))?);
        let chosen = row::choose(row, &rule)?;
        logprobs.extend(
            rule.logprobs.map(|count| logprobs::of(row, &rule, chosen.token, count as usize)),
        );
        Some(chosen)
    });
    (accepted, logprobs)
}

/// Ids below which every rule of a block that is chosen in the graph allows all: one serves them,
/// as all ids are of one tokenizer. `None` where no block is.
fn limit(vocab: i32, blocks: &[Block<'_>]) -> Option<usize> {
    blocks
        .iter()
        .map(|block| &block.rule)
        .filter(|rule| rule.in_graph())
        .map(|rule| rule.limit(vocab))
        .min()
}
