//! The gated delta rule by operations of MLX, one row after another.

use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::ops::{broadcast_to, concatenate, exp, zeros_dtype};
use mlx_rs::{Array, Dtype};
use paceline_checkpoint::RecurrentSizes;
use paceline_cpu::SlotRows;

use super::{DeltaRule, StatePass, silu, unit};
use crate::error::{ModelError, Result};

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
pub(super) struct SlotState {
    /// `[value_heads, key_dim, value_dim]`.
    pub(super) matrices: Array,
    /// The last rows of the convolution's input `[taps - 1, channels]`.
    pub(super) tail: Array,
}

impl SlotState {
    /// A slot of `pass` after the accepted rows of the tape.
    ///
    /// # Errors
    /// There is no tape.
    pub(super) fn after_tape(
        sizes: RecurrentSizes,
        pass: &StatePass<'_>,
        slot: &SlotRows,
    ) -> Result<Self> {
        let mut state = Self::read(sizes, &pass.states[slot.slot], slot)?;
        state.fold(sizes, pass.before, slot)?;
        Ok(state)
    }

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
    pub(super) fn numbers(&self) -> Result<Array> {
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

    /// Row `at` of `rows` `[rows, width]` → its values `[1, values]` and its row of a tape.
    pub(super) fn step(
        &mut self,
        rule: &DeltaRule,
        rows: &Array,
        at: usize,
    ) -> Result<(Array, Array)> {
        let (sizes, at) = (rule.sizes, at as i32);
        let row = &rows.try_index((at..at + 1, ..))?;
        let [heads, keys, values, channels] =
            [sizes.value_heads, sizes.keys(), sizes.values(), sizes.channels()].map(|n| n as i32);
        let input = row.try_index((.., ..channels))?;
        let window = concatenate(&[&self.tail, &input], 0)?;
        let sum = window.multiply(&rule.convolution)?.sum_axis(0, true)?;
        let mixed = silu(&sum)?;
        let normed = |from: i32| -> Result<Array> {
            let x = mixed.try_index((.., from..from + keys))?;
            unit(&x.reshape(&[-1, sizes.key_dim as i32])?)
        };
        let scale = Array::from_f32((sizes.key_dim as f32).sqrt().recip());
        let queries = for_value_heads(sizes, &normed(0)?.multiply(scale)?)?;
        let own_keys = normed(keys)?;
        let keys_of_heads = for_value_heads(sizes, &own_keys)?;
        let value = mixed.try_index((.., 2 * keys..))?.reshape(&[heads, -1])?;
        let gates = rule.gates(row)?;
        let decays = exp(gates.log_decays)?.reshape(&[heads, 1])?;
        let beta = gates.betas.reshape(&[heads, 1])?;
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
