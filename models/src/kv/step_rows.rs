//! The rows that one step writes and reads, by capacity class.

use std::ops::Range;
use std::sync::Arc;

use mlx_rs::{Array, Dtype};

use crate::layers::{HiddenKeys, RowWrite};

/// New rows of neighbouring segments that lie in one class: one scatter.
#[derive(Debug)]
pub(super) struct ClassWrite {
    pub(super) class: usize,
    /// Rows of the new keys and values.
    pub(super) rows: Range<i32>,
    /// Where each row goes.
    pub(super) places: Vec<RowWrite>,
    /// Flat indices, by KV heads and kept positions of a layer.
    pub(super) indices: Vec<((i32, i32), Array)>,
}

/// Neighbouring slots of one class with the same number of query rows: one attention.
#[derive(Debug)]
pub(super) struct ClassRead {
    pub(super) class: usize,
    pub(super) slots: Range<usize>,
    /// Rows of the queries.
    pub(super) rows: Range<i32>,
    /// For each slot, the positions of its query rows. They end at the sequence's last new row.
    pub(super) queries: Vec<Range<i32>>,
    /// The calls that layers have asked for so far.
    pub(super) calls: Vec<(QueryKind, Arc<[Call]>)>,
}

/// Which keys a layer's rows attend to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Causality {
    /// Most positions a row attends to, its own included; `None` means all.
    pub(super) window: Option<i32>,
    /// Whether rows also attend to the new rows after them.
    pub(super) both_ways: bool,
}

/// Queries of a layer, as far as its calls depend on them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct QueryKind {
    /// Which keys a row attends to.
    pub(super) causality: Causality,
    /// Positions that a slot keeps.
    pub(super) kept: i32,
    /// Query heads of a row.
    pub(super) heads: i32,
    pub(super) dtype: Dtype,
}

/// One call of MLX's attention.
#[derive(Clone, Debug)]
pub(super) struct Call {
    pub(super) slots: Range<usize>,
    /// Rows of the queries, as many for each slot.
    pub(super) rows: Range<i32>,
    /// Places of the slots: positions, unless these are more than a slot keeps.
    pub(super) keys: Range<i32>,
    pub(super) hidden: HiddenKeys,
}
