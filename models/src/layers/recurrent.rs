//! The gated delta rule of one layer (arXiv 2412.06464): a causal convolution over the rows before,
//! and for each value head a state that decays and learns from each row. Computed by the crate
//! `blas` where it can, else by operations of MLX, row by row.
//!
//! The second way is right and slow. A kernel for Metal shall take its place.

use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::ops::{broadcast_to, concatenate, exp, logaddexp, sigmoid, zeros_dtype};
use mlx_rs::{Array, Dtype};
use paceline_blas::{RecurrentSizes, SlotRows};

use super::delta_rule::{Advanced, DeltaRule, StatePass};
use super::host;
use crate::error::{ModelError, Result};

/// Added to the sum of squares of a query or a key before its root is taken. Source: Qwen3.5 in
/// transformers, `l2norm`.
const NORM_EPS: f32 = 1e-6;

impl DeltaRule {
    /// Advances states by `rows` `[rows, width]`. `by_host`: the crate `blas` may do it.
    pub(crate) fn advance(
        &self,
        pass: &StatePass<'_>,
        rows: &Array,
        by_host: bool,
    ) -> Result<Advanced> {
        if by_host && let Some(advanced) = host::advance(self, pass, rows)? {
            return Ok(advanced);
        }
        let inputs = rows.as_dtype(Dtype::Float32)?;
        let mut states = pass.states.to_vec();
        let (mut out, mut tape) = (vec![], vec![]);
        for slot in pass.slots.iter() {
            let mut state = SlotState::read(self.sizes, &states[slot.slot], slot)?;
            state.fold(self.sizes, pass.before, slot)?;
            let certain = slot.rows.end - slot.uncertain;
            let mut row = |state: &mut SlotState, at: usize| -> Result<Array> {
                let at = at as i32;
                let (y, tape_row) = state.step(self, &inputs.try_index((at..at + 1, ..))?)?;
                out.push(y);
                Ok(tape_row)
            };
            for at in slot.rows.start..certain {
                row(&mut state, at)?;
            }
            states[slot.slot] = state.numbers()?;
            for at in certain..slot.rows.end {
                tape.push(row(&mut state, at)?);
            }
        }
        Ok(Advanced {
            states,
            out: concatenate(&out, 0)?.as_dtype(rows.dtype())?,
            tape: if tape.is_empty() { None } else { Some(concatenate(&tape, 0)?) },
        })
    }
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
        let mut state = SlotState::read(sizes, &states[slot.slot], slot)?;
        state.fold(sizes, pass.before, slot)?;
        states[slot.slot] = state.numbers()?;
    }
    Ok(states)
}

/// Change of the states by one row: normed keys, differences, decays, and the convolution's input.
struct TapeRow {
    /// `[value_heads, key_dim]`.
    keys: Array,
    /// `[value_heads, value_dim]`.
    deltas: Array,
    /// `[value_heads, 1]`.
    decays: Array,
    /// `[1, channels]`.
    input: Array,
}

/// The numbers of one slot.
struct SlotState {
    /// `[value_heads, key_dim, value_dim]`.
    matrices: Array,
    /// `[taps - 1, channels]`.
    tail: Array,
}

impl SlotState {
    fn read(sizes: RecurrentSizes, states: &Array, slot: &SlotRows) -> Result<Self> {
        let numbers = match slot.begins {
            true => zeros_dtype(&[1, sizes.slot() as i32], Dtype::Float32)?,
            false => states.clone(),
        };
        let matrices = sizes.matrices() as i32;
        let shape = [sizes.value_heads, sizes.key_dim, sizes.value_dim].map(|size| size as i32);
        let tail = [sizes.taps as i32 - 1, sizes.channels() as i32];
        Ok(Self {
            matrices: numbers.try_index((.., ..matrices))?.reshape(&shape)?,
            tail: numbers.try_index((.., matrices..))?.reshape(&tail)?,
        })
    }

    /// `[1, numbers of a slot]`.
    fn numbers(&self) -> Result<Array> {
        let parts = [self.matrices.reshape(&[1, -1])?, self.tail.reshape(&[1, -1])?];
        Ok(concatenate(&parts, 1)?)
    }

    /// The accepted rows of the tape `before`.
    fn fold(
        &mut self,
        sizes: RecurrentSizes,
        before: Option<&Array>,
        slot: &SlotRows,
    ) -> Result<()> {
        let heads = sizes.value_heads as i32;
        for row in slot.accepted.clone() {
            let tape =
                before.ok_or_else(|| ModelError::Batch("there is no tape to fold".into()))?;
            let (mut from, row) = (0, row as i32);
            let mut next = |count: usize| {
                let columns = from..from + count as i32;
                from = columns.end;
                tape.try_index((row..row + 1, columns))
            };
            let keys = next(sizes.keys())?.reshape(&[-1, sizes.key_dim as i32])?;
            self.learn(&TapeRow {
                keys: for_value_heads(sizes, &keys)?,
                deltas: next(sizes.values())?.reshape(&[heads, -1])?,
                decays: next(sizes.value_heads)?.reshape(&[heads, 1])?,
                input: next(sizes.channels())?,
            })?;
        }
        Ok(())
    }

    /// S = g · S + k δᵀ, and the convolution's input moves on.
    fn learn(&mut self, row: &TapeRow) -> Result<()> {
        let learned = row.keys.expand_dims(2)?.multiply(row.deltas.expand_dims(1)?)?;
        self.matrices = self.matrices.multiply(row.decays.expand_dims(2)?)?.add(learned)?;
        let window = concatenate(&[&self.tail, &row.input], 0)?;
        self.tail = window.try_index((1.., ..))?;
        Ok(())
    }

    /// One row `[1, width]` → its values `[1, values]` and its row of a tape.
    fn step(&mut self, rule: &DeltaRule, row: &Array) -> Result<(Array, Array)> {
        let sizes = rule.sizes;
        let [heads, keys, values, channels] =
            [sizes.value_heads, sizes.keys(), sizes.values(), sizes.channels()].map(|n| n as i32);
        let input = row.try_index((.., ..channels))?;
        let window = concatenate(&[&self.tail, &input], 0)?;
        let sum = window.multiply(&rule.convolution)?.sum_axis(0, true)?;
        let mixed = sum.multiply(sigmoid(&sum)?)?;
        let normed = |from: i32, scale: f32| -> Result<Array> {
            let x = mixed.try_index((.., from..from + keys))?;
            let x = x.reshape(&[-1, sizes.key_dim as i32])?;
            let squares = x.square()?.sum_axis(-1, true)?.add(Array::from_f32(NORM_EPS))?;
            Ok(x.multiply(squares.rsqrt()?)?.multiply(Array::from_f32(scale))?)
        };
        let queries = for_value_heads(sizes, &normed(0, (sizes.key_dim as f32).sqrt().recip())?)?;
        let own_keys = normed(keys, 1.0)?;
        let keys_of_heads = for_value_heads(sizes, &own_keys)?;
        let value = mixed.try_index((.., 2 * keys..))?.reshape(&[heads, -1])?;
        let column = |from: i32| row.try_index((.., from..from + heads));
        let softplus = logaddexp(column(rule.decay)?.add(&rule.dt_bias)?, Array::from_f32(0.0))?;
        let decays = exp(rule.rates.multiply(softplus)?)?.reshape(&[heads, 1])?;
        let beta = sigmoid(column(rule.beta)?)?.reshape(&[heads, 1])?;
        let read = keys_of_heads.expand_dims(1)?.matmul(&self.matrices)?;
        let read = read.reshape(&[heads, -1])?.multiply(&decays)?;
        let deltas = value.subtract(read)?.multiply(beta)?;
        let tape = concatenate(
            &[
                own_keys.reshape(&[1, keys])?,
                deltas.reshape(&[1, values])?,
                decays.reshape(&[1, heads])?,
                input.clone(),
            ],
            1,
        )?;
        self.learn(&TapeRow { keys: keys_of_heads, deltas, decays, input })?;
        let y = queries.expand_dims(1)?.matmul(&self.matrices)?;
        Ok((y.reshape(&[1, values])?, tape))
    }
}

/// `[key_heads, dim]` → `[value_heads, dim]`: neighbouring value heads share a key head.
fn for_value_heads(sizes: RecurrentSizes, x: &Array) -> Result<Array> {
    let (key_heads, dim) = (sizes.key_heads as i32, sizes.key_dim as i32);
    let group = sizes.value_heads as i32 / key_heads;
    let spread = broadcast_to(x.expand_dims(1)?, &[key_heads, group, dim])?;
    Ok(spread.reshape(&[sizes.value_heads as i32, dim])?)
}
