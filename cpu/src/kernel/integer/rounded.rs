//! Rows of inputs as 8-bit integers, in the order in which the products read them.

use super::{HALF, Integers, UNIT};
use crate::kernel::{Product, QuantizedWeight};

/// Inputs of a row that share a factor.
pub(super) const fn block_of(group: usize) -> usize {
    if group < 64 { group } else { 64 }
}

/// Factors of a block of inputs, for the kernels.
#[derive(Clone, Copy)]
#[repr(C, align(16))]
pub(super) struct BlockFactors {
    /// What 1 stands for among the rounded inputs: d.
    pub(super) size: f32,
    /// The sum of the rounded inputs: P.
    pub(super) sum: f32,
    /// 128 · P, for kernels that take numbers of 8 bits less 128.
    pub(super) correction: i32,
}

/// Floats from a packed row to the next: the integers, then the factors of the blocks.
pub(crate) const fn packed_row(k: usize, group: usize) -> usize {
    ((k + k / block_of(group) * size_of::<BlockFactors>()) / 4).next_multiple_of(16)
}

/// Rounds a block of inputs, `units` times LENGTH of them.
///
/// # Safety
/// `x` has as many inputs; there is room for each LENGTH of them `stride` bytes apart.
#[inline(always)]
unsafe fn round<const LENGTH: usize>(
    x: *const f32,
    units: usize,
    to: *mut i8,
    stride: usize,
) -> BlockFactors {
    // SAFETY: the caller's.
    unsafe {
        let unit = |at: usize| &*x.add(at * LENGTH).cast::<[f32; LENGTH]>();
        let mut largest = 0;
        for at in 0..units {
            let sizes = unit(at).map(|x| x.to_bits() & 0x7fff_ffff);
            largest = sizes.into_iter().fold(largest, u32::max);
        }
        let factor = 127.0 / f32::from_bits(largest);
        if largest >= f32::INFINITY.to_bits() || !factor.is_finite() {
            // Not a number somewhere, or all so small that they are nothing.
            let size = if largest >= f32::INFINITY.to_bits() { f32::NAN } else { 0.0 };
            (0..units).for_each(|at| to.add(at * stride).write_bytes(0, LENGTH));
            return BlockFactors { size, sum: 0.0, correction: 0 };
        }
        let mut sum = 0;
        for at in 0..units {
            // Adding 1.5 · 2^23 rounds to whole numbers, halves to the even one, and leaves them in
            // the low bits.
            const WHOLE: f32 = 12_582_912.0;
            let numbers = unit(at)
                .map(|x| (x * factor + WHOLE).to_bits().wrapping_sub(WHOLE.to_bits()) as i32);
            sum += numbers.iter().sum::<i32>();
            to.add(at * stride).cast::<[i8; LENGTH]>().write(numbers.map(|number| number as i8));
        }
        let size = f32::from_bits(largest) / 127.0;
        BlockFactors { size, sum: sum as f32, correction: 128 * sum }
    }
}

/// The row blocks of a product: the first row, and how many.
#[inline(always)]
pub(super) fn row_blocks(m: usize, most: usize) -> impl Iterator<Item = (usize, usize)> {
    let mut row = 0;
    std::iter::from_fn(move || {
        let rest = m - row;
        let rows = if rest >= most { most } else { rest.checked_ilog2().map(|log| 1 << log)? };
        row += rows;
        Some((row - rows, rows))
    })
}

/// Rounds the rows of A and puts them in the order in which [`block`](super::block) reads them: block by block of
/// rows, in each a unit of every row for each unit of k, then their factors likewise.
///
/// # Safety
/// A is as large as the product says, its elements lie side by side, `to` has room for m rows.
#[inline(always)]
pub(in crate::kernel) unsafe fn pack<I: Integers>(
    product: &Product,
    weight: &QuantizedWeight,
    to: *mut f32,
) {
    let Product { m, k, a, a_row, .. } = *product;
    let length = block_of(weight.group);
    for (first, rows) in row_blocks(m, I::ROWS) {
        // SAFETY: the caller's.
        unsafe {
            let to = to.add(first * packed_row(k, weight.group)).cast::<i8>();
            let factors = to.add(rows * k).cast::<BlockFactors>();
            for row in 0..rows {
                let x = a.add((first + row) * a_row);
                for block in 0..k / length {
                    let x = x.add(block * length);
                    let of = if length < UNIT {
                        let unit = to.add((block / 2 * rows + row) * UNIT);
                        round::<HALF>(x, 1, unit.add(block % 2 * HALF), 0)
                    } else {
                        let to = to.add((block * (length / UNIT) * rows + row) * UNIT);
                        round::<UNIT>(x, length / UNIT, to, rows * UNIT)
                    };
                    factors.add(block * rows + row).write(of);
                }
            }
        }
    }
}
