//! How far the rows of a batch rotate: tables of cos and sin, or what MLX's fused rotation takes.
//!
//! The fused rotation is one kernel of a GPU; by tables it is five. It computes its angles in float32 from
//! the reciprocals of the frequencies. At position 131,072 its angles differ from the tables' by up to
//! 0.004 (base 500,000), and both are up to 0.006 from the true ones. That is half a step of bfloat16,
//! but more than float32 needs: there the tables stay.

use mlx_rs::ops::concatenate;
use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::{Array, Dtype, fast};

use crate::error::Result;

/// Rotations of a batch's rows, made once and used by every layer.
#[derive(Clone, Debug)]
pub(crate) struct RopeTables(RotationForm);

#[derive(Clone, Debug)]
enum RotationForm {
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
    pub(super) fn new(
        rows: usize,
        half: usize,
        rotation: impl Fn(usize, usize) -> (f32, f32),
    ) -> Self {
        let (mut cos, mut sin) = (vec![0f32; rows * 2 * half], vec![0f32; rows * 2 * half]);
        for row in 0..rows {
            let at = row * 2 * half;
            for i in 0..half {
                let (c, s) = rotation(row, i);
                (cos[at + i], cos[at + half + i]) = (c, c);
                (sin[at + i], sin[at + half + i]) = (-s, s);
            }
        }
        Self { cos, sin }
    }

    /// The tables of rows of `rotary_dim` numbers.
    pub(super) fn tables(self, rotary_dim: usize, dtype: Dtype) -> Result<RopeTables> {
        let shape = [(self.cos.len() / rotary_dim.max(1)) as i32, 1, rotary_dim as i32];
        let table = |values: Vec<f32>| Array::from_slice(&values, &shape).as_dtype(dtype);
        Ok(RopeTables(RotationForm::Tables { cos: table(self.cos)?, sin: table(self.sin)? }))
    }
}

impl RopeTables {
    /// From (cos, sin) of each row and each of `half` frequencies.
    pub(crate) fn new(
        rows: usize,
        half: usize,
        dtype: Dtype,
        rotation: impl Fn(usize, usize) -> (f32, f32),
    ) -> Result<Self> {
        RotationNumbers::new(rows, half, rotation).tables(2 * half, dtype)
    }

    /// MLX's fused rotation of rows at `positions`, by `frequencies` in radians a position.
    pub(super) fn fused(positions: &[i32], frequencies: &[f32]) -> Self {
        let periods: Vec<f32> = frequencies.iter().map(|frequency| 1.0 / frequency).collect();
        Self(RotationForm::Fused {
            positions: Array::from_slice(positions, &[positions.len() as i32]),
            periods: Array::from_slice(&periods, &[periods.len() as i32]),
        })
    }

    /// cos and sin `[rows, 1, R]`, sin with its first half negated, if there are tables.
    #[cfg(target_os = "linux")]
    pub(super) fn tables(&self) -> Option<(&Array, &Array)> {
        match &self.0 {
            RotationForm::Tables { cos, sin } => Some((cos, sin)),
            RotationForm::Fused { .. } => None,
        }
    }

    /// The rotations of the last `rows` rows.
    pub(crate) fn last(&self, rows: i32) -> Result<Self> {
        let cut = |array: &Array| match array.dim(0) - rows {
            0 => Ok(array.clone()),
            first => array.try_index(first..),
        };
        Ok(Self(match &self.0 {
            RotationForm::Tables { cos, sin } => {
                RotationForm::Tables { cos: cut(cos)?, sin: cut(sin)? }
            }
            RotationForm::Fused { positions, periods } => {
                RotationForm::Fused { positions: cut(positions)?, periods: periods.clone() }
            }
        }))
    }

    /// Rotates the first R numbers of each head of `x` `[rows, heads, R or more]`.
    pub(crate) fn apply(&self, x: &Array) -> Result<Array> {
        match &self.0 {
            RotationForm::Tables { cos, sin } => by_tables(x, cos, sin),
            RotationForm::Fused { positions, periods } => {
                // A row is a batch of its own, whose heads have one position.
                let (base, scale, rotary_dim) = (None, 1.0, 2 * periods.dim(0));
                let rows = x.expand_dims(2)?;
                let rotated =
                    fast::rope_dynamic(rows, rotary_dim, false, base, scale, positions, periods)?;
                Ok(rotated.reshape(x.shape())?)
            }
        }
    }
}

fn by_tables(x: &Array, cos: &Array, sin: &Array) -> Result<Array> {
    let rotary_dim = cos.dim(2);
    if rotary_dim < x.dim(2) {
        let rotated = by_tables(&x.try_index((.., .., ..rotary_dim))?, cos, sin)?;
        return Ok(concatenate(&[rotated, x.try_index((.., .., rotary_dim..))?], 2)?);
    }
    let half = rotary_dim / 2;
    let swapped =
        concatenate(&[x.try_index((.., .., half..))?, x.try_index((.., .., ..half))?], 2)?;
    Ok(x.multiply(cos)?.add(swapped.multiply(sin)?)?)
}
