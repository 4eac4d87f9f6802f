//! Positions of a batch's rows, as rotary embedding takes them.

/// Positions of all rows of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Positions {
    /// One number a row.
    One(Vec<i32>),
    /// For each axis of the model, one number a row (multi-axis rotary embedding).
    Axes(Vec<Vec<i32>>),
}
