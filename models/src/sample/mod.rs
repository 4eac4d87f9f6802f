//! From logit rows to tokens. The contract, in full in `docs/sampling.md`:
//!
//! 1. Each row has a rule of its own: the history behind it, sampling, which ids are allowed.
//! 2. Order: mask → temperature → top-k → top-p → min-p → choice. (Penalties and biases will stand before temperature.)
//! 3. Temperature 0 takes the largest logit; above it the largest of logit / T + noise among the survivors (Gumbel-max: a
//!    draw from the softmax). Noise is a pure function of seed, sample index, position and id. Ties: the lowest id.
//!
//! The same function serves plain steps and verified blocks, so both lanes choose the same token (I1).

pub mod noise;
mod row;

use mlx_rs::Array;
use mlx_rs::ops::indexing::{TryIndexOp, argmax_axis};
use mlx_rs::transforms::eval;

use crate::error::{ModelError, Result};
use noise::NoiseKey;

/// How tokens of a request are chosen. Every field in range: the gateway checked it, [`Sampling::check`] says so.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// 0 is greedy.
    pub temperature: f32,
    /// 0 is off.
    pub top_k: u32,
    /// 1 is off.
    pub top_p: f32,
    /// 0 is off.
    pub min_p: f32,
}

impl Sampling {
    /// The most probable token, always.
    pub const GREEDY: Sampling = Sampling { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0 };

    /// Checks the ranges.
    ///
    /// # Errors
    /// The first field out of range, by name, with what was found.
    pub fn check(&self) -> Result<(), (&'static str, String)> {
        let refuse = |field, range: &str, found: f32| Err((field, format!("expected {range}, found {found}")));
        if !(0.0..=100.0).contains(&self.temperature) {
            return refuse("temperature", "a finite number from 0 to 100", self.temperature);
        }
        if !(self.top_p > 0.0 && self.top_p <= 1.0) {
            return refuse("top_p", "a number above 0, at most 1", self.top_p);
        }
        if !(0.0..=1.0).contains(&self.min_p) {
            return refuse("min_p", "a number from 0 to 1", self.min_p);
        }
        Ok(())
    }
}

/// The rule for one row.
#[derive(Clone, Copy, Debug)]
pub struct RowRule<'a> {
    /// Ids before the token to choose, prompt first: what penalties will count.
    pub history: &'a [u32],
    /// How it is chosen.
    pub sampling: Sampling,
    /// Which noise.
    pub noise: NoiseKey,
    /// Index of the token to choose in the sequence of ids.
    pub position: u32,
    /// Ids from here on are padding of the vocabulary.
    pub id_limit: u32,
    /// Bit per id, low bits first: which ids are allowed. `None` means all.
    pub mask: Option<&'a [u32]>,
    /// Compute the deciding margin.
    pub wants_margin: bool,
}

/// A chosen token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice {
    /// Its id.
    pub token: u32,
    /// How far from another outcome (I1); infinite if not asked for.
    pub margin: f32,
}

/// Chooses one token for each row of `logits` `[rows, vocab]`, float32. Evaluates: this is where a step's graph runs. Arrays
/// in `with` are evaluated in the same pass.
///
/// # Errors
/// Rows without a finite, allowed logit; MLX's own.
pub fn choose(logits: &Array, rules: &[RowRule<'_>], with: &[&Array]) -> Result<Vec<Choice>> {
    let (rows, vocab) = (logits.dim(0), logits.dim(1));
    if rows as usize != rules.len() {
        return Err(ModelError::Batch(format!("expected a rule for each of {rows} rows, found {}", rules.len())));
    }
    // Greedy rows are settled inside the graph; one limit serves them all, as all ids are of one tokenizer.
    let limit = rules.iter().map(|rule| rule.id_limit).min().unwrap_or(0).min(vocab as u32) as i32;
    let in_graph = |rule: &RowRule<'_>| {
        rule.sampling.temperature == 0.0
            && rule.mask.is_none()
            && !rule.wants_margin
            && rule.id_limit.min(vocab as u32) as i32 == limit
    };
    let best = match rules.iter().any(in_graph) {
        true if limit == vocab => Some(argmax_axis(logits, -1, false)?),
        true => Some(argmax_axis(logits.try_index((.., ..limit))?, -1, false)?),
        false => None,
    };
    let on_host = rules.iter().any(|rule| !in_graph(rule));
    let host = if on_host { Some(logits.contiguous()?) } else { None };
    eval(best.iter().chain(host.iter()).chain(with.iter().copied()))?;
    let best: &[u32] = match &best {
        Some(best) => best.try_as_slice().map_err(|error| ModelError::Batch(error.to_string()))?,
        None => &[],
    };
    let values: &[f32] = match &host {
        Some(host) => host.try_as_slice().map_err(|error| ModelError::Batch(error.to_string()))?,
        None => &[],
    };
    let choose_row = |(at, rule): (usize, &RowRule<'_>)| {
        if in_graph(rule) {
            return Ok(Choice { token: best[at], margin: f32::INFINITY });
        }
        let row = &values[at * vocab as usize..(at + 1) * vocab as usize];
        let chosen = row::choose(&row[..rule.id_limit.min(vocab as u32) as usize], rule);
        chosen.ok_or_else(|| ModelError::Batch("no token has a finite, allowed logit".into()))
    };
    rules.iter().enumerate().map(choose_row).collect()
}
