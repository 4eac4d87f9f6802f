//! How far the rows of a batch turn.

use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::{Array, Dtype};

use crate::error::Result;

/// cos and sin of a batch's rows, made once and used by every layer.
#[derive(Clone, Debug)]
pub(crate) struct RopeTables {
    /// `[rows, 1, R]`
    pub(super) cos: Array,
    /// `[rows, 1, R]`, the first half negated.
    pub(super) sin: Array,
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
        Ok(RopeTables { cos: table(self.cos)?, sin: table(self.sin)? })
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

    /// cos and sin `[rows, 1, R]`, sin with its first half negated.
    #[cfg(target_os = "linux")]
    pub(super) fn tables(&self) -> (&Array, &Array) {
        (&self.cos, &self.sin)
    }

    /// The tables of the last `rows` rows.
    pub(crate) fn last(&self, rows: i32) -> Result<Self> {
        let first = self.cos.dim(0) - rows;
        let cut = |table: &Array| {
            if first == 0 { Ok(table.clone()) } else { table.try_index((first.., .., ..)) }
        };
        Ok(Self { cos: cut(&self.cos)?, sin: cut(&self.sin)? })
    }
}
