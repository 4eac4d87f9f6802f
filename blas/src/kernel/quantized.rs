//! The sums of a product by a quantized weight, in the order of [`super::blocks`].
//!
//! A weight becomes the float scale · q + bias, rounded once, and takes the lane that it has in the
//! float product. So an element has the bits of the float product by the expanded weight, whatever
//! the number of rows, and each number of rows is computed in the way that is fastest for it:
//!
//! ```text
//!  few rows   weights are decoded into registers and multiplied there: the packed bits are all that memory delivers
//!  more       some columns are expanded into a buffer that the first cache holds, then multiplied by all rows
//!  many       the same with a tile of columns that the second cache holds
//! ```

use super::blocks::{BY_TILES, TILE, each};
use super::decode::{Decode, brain};
use super::lanes::Lanes;
use super::{Columns, PackBuffer, Product};

/// Scales or biases as they are stored, `[columns, groups]`.
#[derive(Clone, Copy)]
pub(crate) enum Factors {
    Float32(*const f32),
    Float16(*const u16),
    Bfloat16(*const u16),
}

/// A matrix `[columns, k]` in groups of k: w = scale · q + bias.
#[derive(Clone, Copy)]
pub(crate) struct QuantizedWeight {
    /// Rows of k · bits / 8 bytes, each one string of bits, low bits first.
    pub(crate) packed: *const u8,
    pub(crate) scales: Factors,
    pub(crate) biases: Factors,
    /// Numbers that share a scale and a bias: a multiple of 16 that divides k.
    pub(crate) group: usize,
    /// 2, 3, 4, 5, 6 or 8.
    pub(crate) bits: usize,
}

/// Columns of a block whose weights stay in registers.
const WIDTH: usize = 4;

/// Columns whose scales are converted at a time, and at most expanded at a time for few rows.
const FACTORS: usize = 64;

/// Columns that are expanded at a time while rows are few: the first cache holds them.
const EXPANDED: usize = 8;

/// Scales and biases of some columns as floats.
#[derive(Clone, Copy)]
struct GroupFactors {
    scales: *const f32,
    biases: *const f32,
    /// For each column.
    groups: usize,
}

impl GroupFactors {
    /// # Safety
    /// There are as many columns and groups, and the processor has the instructions.
    #[inline(always)]
    unsafe fn group<D: Decode, const BITS: usize>(self, column: usize, group: usize) -> D::Group {
        let at = column * self.groups + group;
        // SAFETY: the caller's.
        unsafe { D::group::<BITS>(*self.scales.add(at), *self.biases.add(at)) }
    }
}

/// `count` factors from the one at `from` on, as floats.
///
/// # Safety
/// There are as many, and there is room for them.
#[inline(always)]
unsafe fn convert<D: Decode>(factors: Factors, from: usize, count: usize, to: *mut f32) {
    // SAFETY: the caller's; every vector lies within.
    unsafe {
        match factors {
            Factors::Float32(place) => {
                std::ptr::copy_nonoverlapping(place.add(from), to, count);
            }
            Factors::Bfloat16(place) => {
                for at in 0..count {
                    *to.add(at) = brain(*place.add(from + at));
                }
            }
            Factors::Float16(place) => {
                let (place, lanes) = (place.add(from), D::Lanes::COUNT);
                let mut at = 0;
                while at < count {
                    if count < lanes {
                        *to.add(at) = super::decode::half(*place.add(at));
                        at += 1;
                        continue;
                    }
                    // The last vector begins within the one before.
                    let from = at.min(count - lanes);
                    D::Lanes::store(to.add(from), D::halves(place.add(from)));
                    at += lanes;
                }
            }
        }
    }
}

/// Writes `count` columns from `column` on as floats, k numbers each. `factors` begin at `column`.
///
/// # Safety
/// The columns are the weight's, and there is room.
#[inline(always)]
unsafe fn expand<D: Decode, const BITS: usize>(
    weight: &QuantizedWeight,
    k: usize,
    column: usize,
    count: usize,
    factors: GroupFactors,
    to: *mut f32,
) {
    for number in 0..count {
        // SAFETY: the caller's.
        unsafe {
            let row = weight.packed.add((column + number) * (k / 8 * BITS));
            let to = to.add(number * k);
            let mut at = 0;
            for group in 0..factors.groups {
                let end = at + weight.group;
                let group = factors.group::<D, BITS>(number, group);
                while at < end {
                    D::Lanes::store(to.add(at), D::weights::<BITS>(row, at, group));
                    at += D::Lanes::COUNT;
                }
            }
        }
    }
}

/// Sums of R rows, which are all, and C columns (at most 4) from `column` on. `at`: the first one's
/// place among the factors. Columns behind the last are computed as the last and not written.
///
/// # Safety
/// The product is prepared, the rows are its rows, columns up to `end` are the weight's.
#[inline(always)]
unsafe fn block<D: Decode, const BITS: usize, const R: usize, const C: usize>(
    product: &Product,
    weight: &QuantizedWeight,
    column: usize,
    end: usize,
    factors: GroupFactors,
    at: usize,
) {
    // SAFETY: the caller's; numbers of a row are read below k.
    unsafe {
        let row_bytes = product.k / 8 * BITS;
        let zero = D::Lanes::splat(0.0);
        let last = end - 1 - column;
        let mut rows = [weight.packed; C];
        each!(J < C, rows[J] = weight.packed.add((column + J.min(last)) * row_bytes));
        let mut x = product.packed;
        let mut sums = [[zero; C]; R];
        let mut number = 0;
        for group in 0..factors.groups {
            let mut groups = [factors.group::<D, BITS>(at, group); C];
            each!(J < C, groups[J] = factors.group::<D, BITS>(at + J.min(last), group));
            let end = number + weight.group;
            while number < end {
                let mut inputs = [zero; R];
                each!(I < R, inputs[I] = D::Lanes::load(x.add(I * D::Lanes::COUNT)));
                each!(J < C, {
                    let w = D::weights::<BITS>(rows[J], number, groups[J]);
                    each!(I < R, sums[I][J] = D::Lanes::fma(inputs[I], w, sums[I][J]))
                });
                number += D::Lanes::COUNT;
                x = x.add(R * D::Lanes::COUNT);
            }
        }
        each!(I < R, {
            let mut four = [zero; 4];
            each!(J < C, four[J % 4] = sums[I][J]);
            product.put(I, column, D::Lanes::fold(four), end.min(column + C));
        });
    }
}

/// Columns `from..to` with their weights in registers.
///
/// # Safety
/// [`block`]'s.
#[inline(always)]
unsafe fn in_registers<D: Decode, const BITS: usize>(
    product: &Product,
    weight: &QuantizedWeight,
    from: usize,
    to: usize,
    factors: GroupFactors,
) {
    /// A number of rows that the compiler knows.
    macro_rules! blocks {
        ($($rows:literal: $columns:literal),*) => {
            match product.m {
                $($rows if $rows <= D::Lanes::ROWS => {
                    for column in (from..to).step_by($columns) {
                        // SAFETY: the caller's.
                        unsafe {
                            block::<D, BITS, $rows, $columns>(
                                product, weight, column, to, factors, column - from,
                            )
                        }
                    }
                })*
                _ => {}
            }
        };
    }
    blocks!(1: 4, 2: 4, 3: 4, 4: 4, 5: 4, 6: 4)
}

/// Columns `from..to`. `floats`: the same for a weight of floats.
///
/// # Safety
/// The product is prepared, the weight is as large as it says, the bits are BITS.
#[inline(always)]
unsafe fn by_bits<D: Decode, const BITS: usize>(
    product: &Product,
    weight: &QuantizedWeight,
    from: usize,
    to: usize,
    buffer: &mut PackBuffer,
    floats: Columns,
) {
    let Product { m, k, .. } = *product;
    let groups = k / weight.group;
    // Other formats are rare, and this is most of the code.
    let in_registers = (BITS == 4 || BITS == 8) && m <= D::Lanes::ROWS;
    let fits = (TILE / k).next_multiple_of(WIDTH).max(WIDTH);
    let tile = match m {
        _ if in_registers => fits.min(FACTORS),
        ..=BY_TILES => fits.min(EXPANDED),
        _ => fits,
    };
    let scales = buffer.floats(tile * (2 * groups + k));
    // SAFETY: there is room for both, then for the expanded columns.
    let (biases, expanded) = unsafe { (scales.add(tile * groups), scales.add(tile * groups * 2)) };
    for from in (from..to).step_by(tile) {
        let to = (from + tile).min(to);
        // SAFETY: the caller's.
        unsafe {
            convert::<D>(weight.scales, from * groups, (to - from) * groups, scales);
            convert::<D>(weight.biases, from * groups, (to - from) * groups, biases);
            let factors = GroupFactors { scales, biases, groups };
            if in_registers {
                self::in_registers::<D, BITS>(product, weight, from, to, factors);
                continue;
            }
            expand::<D, BITS>(weight, k, from, to - from, factors, expanded);
            let part = Product { b: expanded, ldb: k, c: product.c.add(from), ..*product };
            floats(&part, 0, to - from);
        }
    }
}

/// Columns `from..to`.
///
/// # Safety
/// [`by_bits`]'s.
#[inline(always)]
unsafe fn columns<D: Decode>(
    product: &Product,
    weight: &QuantizedWeight,
    from: usize,
    to: usize,
    buffer: &mut PackBuffer,
    floats: Columns,
) {
    macro_rules! each_format {
        ($($bits:literal)*) => {
            match weight.bits {
                // SAFETY: the caller's.
                $($bits => unsafe { by_bits::<D, $bits>(product, weight, from, to, buffer, floats) },)*
                bits => unreachable!("a weight of {bits} bits was refused"),
            }
        };
    }
    each_format!(2 3 4 5 6 8);
}

/// The function of an instruction set, with its instructions enabled: everything above is inlined
/// into it.
macro_rules! kernels {
    ($(#[$attribute:meta])* $name:ident, $decode:ty, $floats:ident) => {
        pub(super) mod $name {
            use super::{PackBuffer, Product, QuantizedWeight};

            /// # Safety
            /// [`super::super::Kernels::columns`].
            $(#[$attribute])*
            pub(in super::super) unsafe fn columns(
                product: &Product,
                weight: &QuantizedWeight,
                from: usize,
                to: usize,
                buffer: &mut PackBuffer,
            ) {
                let floats = super::super::blocks::$floats::columns;
                // SAFETY: the caller's.
                unsafe { super::columns::<$decode>(product, weight, from, to, buffer, floats) }
            }
        }
    };
}

kernels!(portable, super::super::decode::PortableDecode, portable);

#[cfg(target_arch = "x86_64")]
kernels!(
    #[target_feature(enable = "avx512f,avx512vl,avx512vbmi,avx2,fma,f16c")]
    avx512vbmi,
    super::super::decode::Avx512VbmiDecode,
    avx512
);

#[cfg(target_arch = "x86_64")]
kernels!(
    #[target_feature(enable = "avx512f,avx512vl,avx2,fma,f16c")]
    avx512,
    super::super::decode::Avx512Decode,
    avx512
);

#[cfg(target_arch = "x86_64")]
kernels!(
    #[target_feature(enable = "avx2,fma,f16c")]
    avx2,
    super::super::decode::Avx2Decode,
    avx2
);

#[cfg(target_arch = "aarch64")]
kernels!(neon, super::super::decode::NeonDecode, neon);
