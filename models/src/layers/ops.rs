//! The operations that a layer is made of. A layer is described once, by the operations that it
//! calls. They become MLX's graph where a GPU computes, and a list of functions on the CPU
//! (`layers/program`).

use std::ops::Range;

use mlx_rs::Array;

use super::{
    DeltaRule, Embedding, ExpertMlp, Gate, GatedMlp, HeadNorm, Linear, RmsNorm, RopeTables,
    SharedExpertMlp,
};
use crate::error::Result;

/// Heads of a row that attend: where they lie, and how.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct AttentionHeads {
    /// Heads of queries among the rotated heads of a row.
    pub(crate) queries: Range<i32>,
    /// Heads of keys among the rotated heads of a row.
    pub(crate) keys: Range<i32>,
    /// Heads of values among the projected heads of a row.
    pub(crate) values: Range<i32>,
    /// Numbers of a head.
    pub(crate) dim: i32,
    /// Factor on products of queries and keys.
    pub(crate) scale: f32,
}

/// How the heads of a row are rotated by its position.
#[derive(Debug)]
pub(crate) enum HeadRotation {
    /// Normed before they are rotated.
    Normed(HeadNorm),
    /// Normed after they are rotated: the first heads, as many as the norm has.
    ThenNormed(HeadNorm),
    /// This many heads, from the first on.
    Plain(i32),
}

impl HeadRotation {
    /// The heads of `x` `[rows, at least that many, dim]`, rotated → `[rows, heads, dim]`.
    pub(crate) fn forward(&self, x: &Array, rope: &RopeTables) -> Result<Array> {
        match self {
            Self::Normed(norm) => norm.forward(x, rope),
            Self::ThenNormed(norm) => norm.of_rotated(&rope.apply_to(x, norm.count())?),
            Self::Plain(heads) => rope.apply_to(x, *heads),
        }
    }
}

/// Operations on rows `[R, width]`.
pub(crate) trait LayerOps {
    /// Rows of numbers, one for each token of a batch.
    type Rows: Clone;

    /// Rows of a table by the ids of the rows.
    fn embedded(&mut self, table: &Embedding) -> Result<Self::Rows>;

    /// The norm of each row.
    fn norm(&mut self, norm: &RmsNorm, x: &Self::Rows) -> Result<Self::Rows>;

    /// x · Wᵀ (+ b).
    fn product(&mut self, linear: &Linear, x: &Self::Rows) -> Result<Self::Rows>;

    /// x + y.
    fn add(&mut self, x: &Self::Rows, y: &Self::Rows) -> Result<Self::Rows>;

    /// x · factor.
    fn scale(&mut self, x: &Self::Rows, factor: f32) -> Result<Self::Rows>;

    /// act(gate) · up of rows with the gate first and as many numbers after it.
    fn gated(&mut self, both: &Self::Rows, gate: Gate) -> Result<Self::Rows>;

    /// act(x) · y, y the numbers of `all` from `column` on.
    fn gated_by(
        &mut self,
        x: &Self::Rows,
        gate: Gate,
        all: &Self::Rows,
        column: i32,
    ) -> Result<Self::Rows>;

    /// Rows as heads of `dim` numbers, as the operations on heads take them.
    fn heads(&mut self, x: &Self::Rows, dim: i32) -> Result<Self::Rows>;

    /// Heads of rows as rows again.
    fn joined_heads(&mut self, heads: &Self::Rows) -> Result<Self::Rows>;

    /// Heads of each row, rotated by the row's position. `rope`: the number of the model's rotation.
    fn rotate(
        &mut self,
        rotation: &HeadRotation,
        rope: usize,
        x: &Self::Rows,
        dim: i32,
    ) -> Result<Self::Rows>;

    /// These heads of each row, as long as the norm's weight, each normed → heads.
    fn norm_heads(
        &mut self,
        norm: &RmsNorm,
        heads: &Range<i32>,
        x: &Self::Rows,
    ) -> Result<Self::Rows>;

    /// Writes the keys and values of all rows and attends. `rotated` and `projected` are heads.
    fn attend(
        &mut self,
        layer: usize,
        heads: &AttentionHeads,
        rotated: &Self::Rows,
        projected: &Self::Rows,
    ) -> Result<Self::Rows>;

    /// Attends to the keys and values that an earlier layer, `of`, wrote. `heads`: of the queries.
    fn attend_shared(
        &mut self,
        of: usize,
        heads: &AttentionHeads,
        rotated: &Self::Rows,
    ) -> Result<Self::Rows>;

    /// x · sigmoid(gate); the gate of head h is head 2 · h + 1 of the heads `gates`.
    fn gate_heads(&mut self, x: &Self::Rows, gates: &Self::Rows, dim: i32) -> Result<Self::Rows>;

    /// Advances the layer's states by all rows.
    fn recur(&mut self, layer: usize, rule: &DeltaRule, x: &Self::Rows) -> Result<Self::Rows>;

    /// The norm of each head of `x`, times silu of its gate. `gates` has the gates of a row from
    /// `column` on.
    fn norm_gated(
        &mut self,
        norm: &RmsNorm,
        x: &Self::Rows,
        gates: &Self::Rows,
        column: i32,
    ) -> Result<Self::Rows>;

    /// Each row of `x` by some of many experts, which the router chooses by the row of `routed`.
    fn experts(
        &mut self,
        mlp: &ExpertMlp,
        routed: &Self::Rows,
        x: &Self::Rows,
    ) -> Result<Self::Rows>;

    /// Each row by some of many experts and by one that all rows share.
    fn shared_experts(&mut self, mlp: &SharedExpertMlp, x: &Self::Rows) -> Result<Self::Rows>;

    /// The output of a layer: it is kept for drafters that want it, and what images add to it is
    /// added.
    fn end_layer(&mut self, layer: usize, x: Self::Rows) -> Result<Self::Rows>;
}

/// A gated feed-forward block by its operations.
pub(crate) fn gated_mlp<O: LayerOps>(ops: &mut O, mlp: &GatedMlp, x: &O::Rows) -> Result<O::Rows> {
    let both = ops.product(&mlp.gate_up, x)?;
    let inner = ops.gated(&both, mlp.gate)?;
    ops.product(&mlp.down, &inner)
}
