//! Positions of a batch's rows, as rotary embedding takes them.

/// Positions of all rows of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Positions {
    /// One number a row.
    One(Vec<i32>),
    /// Time, height and width of each row (multi-axis rotary embedding).
    Three([Vec<i32>; 3]),
}
