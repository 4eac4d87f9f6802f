//! The gated delta rule of one layer (arXiv 2412.06464): a causal convolution over the rows before,
//! and for each value head a state that decays and learns from each row. Computed by the crate
//! `cpu` where it can, else by operations of MLX.
//!
//! ```text
//!  accepted rows of a tape           folded into the states, one after another      rows
//!  certain rows, more than a few     chunks of 64 rows by matrix products           chunks, triangle
//!  a few certain rows                one after another                              rows
//!  rows that may be rejected         one after another, written on a tape           rows
//! ```

mod chunks;
mod rows;
mod triangle;

use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::ops::{concatenate, logaddexp, sigmoid};
use mlx_rs::{Array, Dtype};
use paceline_checkpoint::RecurrentSizes;

use super::delta_rule::{Advanced, DeltaRule, StatePass};
use super::host;
use crate::error::Result;
use chunks::Span;
use rows::SlotState;

/// Added to the sum of squares of a query or a key before its root is taken. Source: Qwen3.5 in
/// transformers, `l2norm`.
const NORM_EPS: f32 = 1e-6;

/// Most certain rows of a slot that are computed one after another. Each builds 69 primitives; rows
/// of one chunk together build 136, and each further chunk 10. A step of one row, beside drafts or
/// not, never goes by chunks.
const MOST_ROWS_ALONE: usize = 2;

impl DeltaRule {
    /// Advances states by `rows` `[rows, width]`. `by_host`: the crate `cpu` may do it.
    pub(crate) fn advance(
        &self,
        pass: &StatePass<'_>,
        rows: &Array,
        by_host: bool,
    ) -> Result<Advanced> {
        if by_host && let Some(advanced) = host::advance(self, pass, rows)? {
            return Ok(advanced);
        }
        self.advance_in_graph(pass, rows, MOST_ROWS_ALONE)
    }

    /// By operations of MLX. More certain rows of a slot than `most_alone` go by chunks.
    fn advance_in_graph(
        &self,
        pass: &StatePass<'_>,
        rows: &Array,
        most_alone: usize,
    ) -> Result<Advanced> {
        let inputs = rows.as_dtype(Dtype::Float32)?;
        let mut slots = vec![];
        for slot in pass.slots.iter() {
            slots.push(SlotState::after_tape(self.sizes, pass, slot)?);
        }
        let mut spans = vec![];
        for (slot, state) in pass.slots.iter().zip(&mut slots) {
            let certain = slot.rows.start..slot.rows.end - slot.uncertain;
            if certain.len() > most_alone {
                spans.push(Span::new(certain, pass.starts[slot.slot], state));
            }
        }
        let mut by_chunks = chunks::advance(self, &inputs, &mut spans)?.into_iter();
        let mut states = pass.states.to_vec();
        let (mut out, mut tape) = (vec![], vec![]);
        for (slot, mut state) in pass.slots.iter().zip(slots) {
            let certain = slot.rows.start..slot.rows.end - slot.uncertain;
            let uncertain = certain.end..slot.rows.end;
            if certain.len() > most_alone {
                out.extend(by_chunks.next());
            } else {
                for at in certain {
                    out.push(state.step(self, &inputs, at)?.0);
                }
            }
            states[slot.slot] = state.numbers()?;
            for at in uncertain {
                let (y, tape_row) = state.step(self, &inputs, at)?;
                out.push(y);
                tape.push(tape_row);
            }
        }
        Ok(Advanced {
            states,
            out: concatenate(&out, 0)?.as_dtype(rows.dtype())?,
            tape: if tape.is_empty() { None } else { Some(concatenate(&tape, 0)?) },
        })
    }

    /// β and the logarithms of decays of `rows` `[rows, width]`, each `[rows, value_heads]`.
    fn gates(&self, rows: &Array) -> Result<Gates> {
        let heads = self.sizes.value_heads as i32;
        let column = |from: i32| rows.try_index((.., from..from + heads));
        let softplus = logaddexp(column(self.decay)?.add(&self.dt_bias)?, Array::from_f32(0.0))?;
        let log_decays = self.rates.multiply(softplus)?;
        Ok(Gates { betas: sigmoid(column(self.beta)?)?, log_decays })
    }
}

/// Gates of rows, one for each value head.
struct Gates {
    /// How much of a difference is learned.
    betas: Array,
    /// Logarithms of the factors by which states decay, at most 0.
    log_decays: Array,
}

/// The states of `pass` after the accepted rows of the tape alone.
pub(crate) fn fold_accepted(
    sizes: RecurrentSizes,
    pass: &StatePass<'_>,
    by_host: bool,
) -> Result<Vec<Array>> {
    if by_host && let Some(states) = host::fold(sizes, pass)? {
        return Ok(states);
    }
    let mut states = pass.states.to_vec();
    for slot in pass.slots.iter() {
        states[slot.slot] = SlotState::after_tape(sizes, pass, slot)?.numbers()?;
    }
    Ok(states)
}

/// x · sigmoid(x).
fn silu(x: &Array) -> Result<Array> {
    Ok(x.multiply(sigmoid(x)?)?)
}

/// x / sqrt(Σx² + ε) over the last axis.
fn unit(x: &Array) -> Result<Array> {
    let squares = x.square()?.sum_axis(-1, true)?.add(Array::from_f32(NORM_EPS))?;
    Ok(x.multiply(squares.rsqrt()?)?)
}

#[cfg(test)]
mod tests;
