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
    /// The query rows of each slot.
    pub(super) queries: Vec<SlotQueries>,
    /// The calls that layers have asked for so far.
    pub(super) calls: Vec<(QueryKind, Arc<[Call]>)>,
}

/// Query rows of one sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SlotQueries {
    /// Their positions, which end at the sequence's last new row.
    pub(super) positions: Range<i32>,
    /// Positions of the images among them, ascending.
    pub(super) images: Vec<Range<i32>>,
}

impl SlotQueries {
    /// Position after the last one that a row attends to.
    pub(super) fn visible_end(&self, position: i32, reach: Reach) -> i32 {
        let image = || self.images.iter().find(|image| image.contains(&position));
        match reach {
            Reach::Own => position + 1,
            Reach::Image => image().map_or(position + 1, |image| image.end),
            Reach::End => self.positions.end,
        }
    }

    /// Whether no row attends to rows after it.
    pub(super) fn is_causal(&self, reach: Reach) -> bool {
        match reach {
            Reach::Own => true,
            Reach::Image => self.images.is_empty(),
            Reach::End => false,
        }
    }
}

/// The last of its sequence's rows that a row attends to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    /// The row itself.
    Own,
    /// The last row of its image, or itself.
    Image,
    /// The last new row.
    End,
}

impl Reach {
    /// The reach in a layer with this window, in a batch with these images: rows of an image attend
    /// to one another both ways in layers with windows alone. Source: Gemma 4 in transformers.
    pub(super) fn in_image(window: Option<i32>, images: &[Range<i32>]) -> Self {
        if window.is_some() && !images.is_empty() { Self::Image } else { Self::Own }
    }
}

/// The keys that a layer's rows attend to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Causality {
    /// Most positions before a row that it attends to, its own included; `None` means all.
    pub(super) window: Option<i32>,
    pub(super) reach: Reach,
}

/// Queries of a layer, as far as its calls depend on them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct QueryKind {
    /// The keys that a row attends to.
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
