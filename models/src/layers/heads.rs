//! Some heads of rows that have more of them.

use std::ops::Range;
use std::sync::Arc;

use mlx_rs::Array;
use mlx_rs::ops::indexing::TryIndexOp;

use crate::error::Result;

/// Neighbouring heads of `rows` `[R, H, D]`: a projection's queries, keys or values. They become an
/// array of their own only where an operation needs one.
#[derive(Clone, Debug)]
pub struct HeadRows<'a> {
    pub(crate) rows: &'a Array,
    pub(crate) heads: Range<i32>,
}

impl<'a> HeadRows<'a> {
    /// These heads of `rows` `[R, H, D]`.
    pub fn new(rows: &'a Array, heads: Range<i32>) -> Self {
        Self { rows, heads }
    }

    /// The heads `[R, count, D]` as an array.
    pub(crate) fn array(&self) -> Result<Array> {
        if self.heads == (0..self.rows.dim(1)) {
            return Ok(self.rows.clone());
        }
        Ok(self.rows.try_index((.., self.heads.clone(), ..))?)
    }

    /// How many heads.
    #[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "MLX computes there"))]
    pub(crate) fn count(&self) -> i32 {
        self.heads.len() as i32
    }
}

impl<'a> From<&'a Array> for HeadRows<'a> {
    /// All heads of `[R, H, D]`.
    fn from(rows: &'a Array) -> Self {
        Self { rows, heads: 0..rows.dim(1) }
    }
}

/// The heads of a row that are rotated, in the order in which they come out.
#[derive(Clone, Debug)]
pub(crate) enum RotatedHeads {
    /// This many heads, from the first on.
    First(i32),
    /// Those in these places.
    Places(Arc<[i32]>),
}

impl RotatedHeads {
    /// How many.
    pub(crate) fn count(&self) -> i32 {
        match self {
            Self::First(count) => *count,
            Self::Places(places) => places.len() as i32,
        }
    }

    /// The place of one of them among the heads of a row.
    #[cfg(target_os = "linux")]
    pub(crate) fn place(&self, head: usize) -> usize {
        match self {
            Self::First(_) => head,
            Self::Places(places) => places[head] as usize,
        }
    }

    /// These heads of `x` `[rows, heads, dim]`.
    pub(crate) fn of(&self, x: &Array) -> Result<Array> {
        match self {
            Self::First(count) if x.dim(1) == *count => Ok(x.clone()),
            Self::First(count) => Ok(x.try_index((.., ..*count, ..))?),
            Self::Places(places) => {
                Ok(x.take_axis(Array::from_slice(places, &[places.len() as i32]), 1)?)
            }
        }
    }
}

/// The last `count` rows of `x` `[R, …]`; all of them without a primitive.
pub(crate) fn last_rows(x: &Array, count: i32) -> Result<Array> {
    let first = x.dim(0) - count;
    Ok(if first == 0 { x.clone() } else { x.try_index(first..)? })
}
