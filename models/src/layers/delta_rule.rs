//! The gated delta rule as data: its weights, the states that a pass advances, and what it leaves.

use std::sync::Arc;

use mlx_rs::Array;
use paceline_checkpoint::RecurrentSizes;
use paceline_cpu::SlotRows;

/// The weights of the rule. A row of its input has, from column 0 on, queries, keys and values
/// before the convolution; the columns of the others are named here.
#[derive(Debug)]
pub(crate) struct DeltaRule {
    pub(crate) sizes: RecurrentSizes,
    /// `[taps, channels]`, float32; the last tap is the row's own.
    pub(crate) convolution: Array,
    /// −e^A_log `[value_heads]`, float32.
    pub(crate) rates: Array,
    /// `[value_heads]`, float32.
    pub(crate) dt_bias: Array,
    /// Column of the numbers that become β, one for each value head.
    pub(crate) beta: i32,
    /// Column of the numbers that become decays, one for each value head.
    pub(crate) decay: i32,
}

/// The states of one layer, and what a pass does to them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StatePass<'a> {
    /// `[1, numbers of a slot]` of each slot, float32.
    pub(crate) states: &'a [Array],
    /// The tape of the pass before `[rows, numbers of a tape row]`, float32.
    pub(crate) before: Option<&'a Array>,
    pub(crate) slots: &'a Arc<[SlotRows]>,
    /// Position in its sequence of each slot's first new row; empty if there are no new rows.
    pub(crate) starts: &'a [i32],
    /// Rows of the tape of this pass.
    #[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "MLX computes there"))]
    pub(crate) tape_rows: usize,
}

/// Results of a pass.
#[derive(Debug)]
pub(crate) struct Advanced {
    /// As [`StatePass::states`].
    pub(crate) states: Vec<Array>,
    /// `[rows, values]`.
    pub(crate) out: Array,
    /// As [`StatePass::before`], for the next pass.
    pub(crate) tape: Option<Array>,
}
