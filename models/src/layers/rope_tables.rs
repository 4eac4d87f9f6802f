//! How far the rows of a batch turn: tables of cos and sin, or what MLX's fused turn takes.
//!
//! The fused turn is one kernel of a GPU; by tables it is five. It computes its angles in float32 from
//! the reciprocals of the frequencies. At position 131,072 its angles differ from the tables' by up to
//! 0.004 (base 500,000), and both are up to 0.006 from the true ones. That is half a step of bfloat16,
//! but more than float32 needs: there the tables stay.

use mlx_rs::ops::concatenate;
use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::{Array, Dtype, fast};

use crate::error::Result;

/// Turns of a batch's rows, made once and used by every layer.
#[derive(Clone, Debug)]
pub(crate) struct RopeTables(Turn);

#[derive(Clone, Debug)]
enum Turn {
    Tables {
        /// `[rows, 1, R]`
        cos: Array,
        /// `[rows, 1, R]`, the first half negated.
        sin: Array,
    },
    Fused {
        /// `[rows]`, int32.
        positions: Array,
        /// `[R/2]`, float32: positions until an angle is 1.
        periods: Array,
    },
}

/// The numbers of such tables, row after row.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RotationNumbers {
    pub(crate) cos: Vec<f32>,
    /// The first half of each row negated.
    pub(crate) sin: Vec<f32>,
}

impl RotationNumbers {
    /// From (cos, sin) of each row and each of `half` frequencies.
    pub(super) fn new(rows: usize, half: usize, turn: impl Fn(usize, usize) -> (f32, f32)) -> Self {
        let (mut cos, mut sin) = (vec![0f32; rows * 2 * half], vec![0f32; rows * 2 * half]);
        for row in 0..rows {
            let at = row * 2 * half;
            for i in 0..half {
                let (c, s) = turn(row, i);
                (cos[at + i], cos[at + half + i]) = (c, c);
                (sin[at + i], sin[at + half + i]) = (-s, s);
            }
        }
        Self { cos, sin }
    }

    /// The tables of rows of `turning` numbers.
    pub(super) fn tables(self, turning: usize, dtype: Dtype) -> Result<RopeTables> {
        let shape = [(self.cos.len() / turning.max(1)) as i32, 1, turning as i32];
        let table = |values: Vec<f32>| Array::from_slice(&values, &shape).as_dtype(dtype);
        Ok(RopeTables(Turn::Tables { cos: table(self.cos)?, sin: table(self.sin)? }))
    }
}

impl RopeTables {
    /// From (cos, sin) of each row and each of `half` frequencies.
    pub(crate) fn new(
        rows: usize,
        half: usize,
        dtype: Dtype,
        turn: impl Fn(usize, usize) -> (f32, f32),
    ) -> Result<Self> {
        RotationNumbers::new(rows, half, turn).tables(2 * half, dtype)
    }

    /// MLX's fused turn of rows at `positions`, by `frequencies` in radians a position.
    pub(super) fn fused(positions: &[i32], frequencies: &[f32]) -> Self {
        let periods: Vec<f32> = frequencies.iter().map(|frequency| 1.0 / frequency).collect();
        Self(Turn::Fused {
            positions: Array::from_slice(positions, &[positions.len() as i32]),
            periods: Array::from_slice(&periods, &[periods.len() as i32]),
        })
    }

    /// cos and sin `[rows, 1, R]`, sin with its first half negated, if there are tables.
    #[cfg(target_os = "linux")]
    pub(super) fn tables(&self) -> Option<(&Array, &Array)> {
        match &self.0 {
            Turn::Tables { cos, sin } => Some((cos, sin)),
            Turn::Fused { .. } => None,
        }
    }

    /// The turns of the last `rows` rows.
    pub(crate) fn last(&self, rows: i32) -> Result<Self> {
        let cut = |array: &Array| match array.dim(0) - rows {
            0 => Ok(array.clone()),
            first => array.try_index(first..),
        };
        Ok(Self(match &self.0 {
            Turn::Tables { cos, sin } => Turn::Tables { cos: cut(cos)?, sin: cut(sin)? },
            Turn::Fused { positions, periods } => {
                Turn::Fused { positions: cut(positions)?, periods: periods.clone() }
            }
        }))
    }

    /// Turns the first R numbers of each head of `x` `[rows, heads, R or more]`.
    pub(crate) fn apply(&self, x: &Array) -> Result<Array> {
        match &self.0 {
            Turn::Tables { cos, sin } => by_tables(x, cos, sin),
            Turn::Fused { positions, periods } => {
                // A row is a batch of its own, whose heads have one position.
                let (base, scale, turning) = (None, 1.0, 2 * periods.dim(0));
                let rows = x.expand_dims(2)?;
                let turned =
                    fast::rope_dynamic(rows, turning, false, base, scale, positions, periods)?;
                Ok(turned.reshape(x.shape())?)
            }
        }
    }
}

fn by_tables(x: &Array, cos: &Array, sin: &Array) -> Result<Array> {
    let turning = cos.dim(2);
    if turning < x.dim(2) {
        let turned = by_tables(&x.try_index((.., .., ..turning))?, cos, sin)?;
        return Ok(concatenate(&[turned, x.try_index((.., .., turning..))?], 2)?);
    }
    let half = turning / 2;
    let swapped =
        concatenate(&[x.try_index((.., .., half..))?, x.try_index((.., .., ..half))?], 2)?;
    Ok(x.multiply(cos)?.add(swapped.multiply(sin)?)?)
}
