//! The inverse of I + L, where L `[…, 64, 64]` is strictly lower triangular, by products of whole
//! matrices: inverses of diagonal blocks of 1 row, then of 2, 4, … 64 rows.
//!
//! Two neighbouring blocks with the inverses P and Q, and B of L below the first and left of the
//! second, have the inverse [P 0; −Q B P, Q]. With T the inverses of all blocks of a size on the
//! diagonal, and Lₘ the part of L that joins neighbours, the next T is T − T Lₘ T.
//!
//! Each T holds true inverses, whose numbers stay near 1. The product of I + (−L)^(2^i) would need
//! no masks, but its powers do not: equal keys give 10^18 in L^32, and results that are wrong by
//! 10^11 (rows with similar keys: by 10^7). This form is as exact as forward substitution.

use mlx_rs::Array;
use mlx_rs::ops::addmm;

use crate::error::Result;

/// Rows of a chunk: those of Qwen3.5 in transformers and of its kernels on CUDA.
pub(super) const CHUNK: i32 = 64;

/// Masks of a chunk's matrix: 1 where its numbers count, else 0. Each `[1, 64, 64]`.
pub(super) struct Triangle {
    /// On the diagonal.
    diagonal: Array,
    /// Below the diagonal.
    pub(super) below: Array,
    /// Below the diagonal and on it.
    pub(super) lower: Array,
    /// In the lower left quarter of a block on the diagonal: of 2 rows, of 4, … of 64.
    joints: Vec<Array>,
}

impl Triangle {
    pub(super) fn new() -> Result<Self> {
        let joint = |width: i32| {
            move |row: i32, column: i32| {
                row / width == column / width + 1 && column / width % 2 == 0
            }
        };
        let mut masks: Vec<Box<dyn Fn(i32, i32) -> bool>> = vec![
            Box::new(|row, column| row == column),
            Box::new(|row, column| row > column),
            Box::new(|row, column| row >= column),
        ];
        let mut width = 1;
        while width < CHUNK {
            masks.push(Box::new(joint(width)));
            width *= 2;
        }
        let places = || (0..CHUNK).flat_map(|row| (0..CHUNK).map(move |column| (row, column)));
        let numbers: Vec<f32> = masks
            .iter()
            .flat_map(|mask| places().map(|(row, column)| f32::from(mask(row, column))))
            .collect();
        let count = masks.len() as i32;
        let masks = Array::from_slice(&numbers, &[count, CHUNK, CHUNK]).split_equal(count, 0)?;
        let mut masks = masks.into_iter();
        let mut next = || masks.next().expect("there are more than three");
        let (diagonal, below, lower) = (next(), next(), next());
        Ok(Self { diagonal, below, lower, joints: masks.collect() })
    }

    /// (I + L)⁻¹, where L is `matrices` `[…, 64, 64]` below the diagonal. What they hold elsewhere
    /// does not count.
    pub(super) fn inverse(&self, matrices: &Array) -> Result<Array> {
        // Blocks of one row are 1: the first joint needs no products.
        let mut inverse = self.diagonal.subtract(matrices.multiply(&self.joints[0])?)?;
        for joint in &self.joints[1..] {
            let joined = inverse.matmul(matrices.multiply(joint)?)?;
            inverse = addmm(&inverse, joined, &inverse, -1.0, 1.0)?;
        }
        Ok(inverse)
    }
}
