//! The sums of a product by a quantized weight, in the order of [`super::blocks`].
//!
//! A weight becomes the float scale · q + bias, rounded once, and takes the place in a SIMD vector that
//! it has in the float product. So an element of the product has the bits of the float product by the expanded weight, whatever
//! the number of rows, and each number of rows is computed in the way that is fastest for it:
//!
//! ```text
//!  few rows   Weights are decoded into registers and multiplied there, in the order of elements that is cheapest to decode.
//!             Inputs are packed in that order. The elements of the sums are put back before they are folded.
//!  more       Some columns are expanded into a buffer that the first cache holds, then multiplied by all rows.
//!  many       A tile of columns is expanded into a buffer that the second cache holds, then multiplied by all rows.
//! ```

use super::blocks::{BY_TILES, TILE, each, equal_blocks};
use super::decode::{Decode, UNIT};
use super::factors::{GroupFactors, LINE, NextFactors, QuantizedWeight, convert};
use super::simd::Simd;
use super::{Columns, Pack, PackBuffer, Product, packed_row};

/// Columns of a block: those of the float product, so that neither cuts the other's.
const WIDTH: usize = 4;

/// `$body` for each constant `$i` below `$n`, which is at most 4.
macro_rules! columns {
    ($i:ident < $n:ident, $body:expr) => {
        each!(@ $i $n $body, 0 1 2 3)
    };
}

/// Scales that are converted at a time: with the biases 8 KiB.
const FACTORS: usize = 1024;

/// Weights that are expanded at a time while rows are few: 16 KiB, of the first-level cache half.
const EXPANDED: usize = 4096;

/// Bytes of inputs of a block of rows, at most, where a column's weights are read for each.
const INPUTS: usize = 24 << 10;

/// Bytes of weights between asking for some and using them, at least. A block's columns lie one
/// after another, and are asked for in that order although a block reads all of its columns at
/// once: memory delivers one stream 1.5 times as fast as four (measured with 8 bits). So the last
/// column is used when the block has asked for a quarter more than the columns before it. More
/// would drive the inputs of long rows out of the first cache.
const AHEAD: usize = 2048;

/// Whether `m` rows are multiplied by weights in registers, which takes groups of whole units. More than one block of rows would decode
/// them once for each: expanding them costs less (measured on AVX-512: from 12 rows on, and 4 % more
/// with 9 to 11).
fn in_registers<D: Decode>(m: usize, weight: &QuantizedWeight) -> bool {
    m <= D::ROWS && weight.group >= UNIT
}

/// Most rows of a block: those whose inputs leave the weights room in the first cache, which are read
/// again for each column. More rows than these are several blocks, and decode a weight for each.
fn block_rows<D: Decode>(k: usize) -> usize {
    if D::REGISTERS > 16 || D::ROWS * k * size_of::<f32>() <= INPUTS {
        D::ROWS
    } else {
        D::ROWS / 2
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
            for at in (0..k).step_by(UNIT) {
                let first = number * factors.groups + at / weight.group;
                let mut group = factors.group::<D, BITS>(first);
                let (unit, to, steps) = (row.add(at / 8 * BITS), to.add(at), steps::<D>());
                each!(S < steps, {
                    if weight.group < UNIT && S * D::Simd::COUNT == weight.group {
                        group = factors.group::<D, BITS>(first + 1);
                    }
                    let weights = D::weights::<BITS, S>(unit, group);
                    D::Simd::store(to.add(S * D::Simd::COUNT), weights);
                });
            }
        }
    }
}

/// Vectors of a unit.
const fn steps<D: Decode>() -> usize {
    UNIT / D::Simd::COUNT
}

/// Puts the rows of A in the order in which [`block`] reads them, or as the float product needs
/// them. As `blocks::pack`: block by block of rows, in each a vector of every row for each step.
///
/// # Safety
/// A is as large as the product says, its elements lie side by side, `to` has room for m rows.
#[inline(always)]
unsafe fn pack<D: Decode>(product: &Product, to: *mut f32, floats: Pack) {
    let Product { m, k, a, a_row, .. } = *product;
    // SAFETY: the caller's; rows of such weights are whole vectors.
    unsafe {
        let Some(weight) = product.weight.as_ref().filter(|weight| in_registers::<D>(m, weight))
        else {
            return floats(product, to);
        };
        for (row, rows) in equal_blocks(m, block_rows::<D>(k)) {
            let mut to = to.add(row * packed_row(k));
            for at in (0..k).step_by(D::Simd::COUNT) {
                for row in row..row + rows {
                    let vector = D::Simd::load(a.add(row * a_row + at));
                    // Other widths have no order of their own.
                    let vector = if weight.bits == 4 { D::shuffle::<4>(vector) } else { vector };
                    D::Simd::store(to, vector);
                    to = to.add(D::Simd::COUNT);
                }
            }
        }
    }
}

/// Some rows and columns of a product by a quantized weight.
#[derive(Clone, Copy)]
struct Span<'a> {
    product: &'a Product,
    weight: &'a QuantizedWeight,
    /// The first column, of which `factors` are.
    from: usize,
    /// The column behind the last.
    to: usize,
    factors: GroupFactors,
    /// Factors that are asked for meanwhile: those of as many columns behind these.
    next: NextFactors,
    /// Bytes from a block's weights to those that are asked for meanwhile.
    ahead: usize,
}

/// The blocks of an instruction set. Functions of their own: inlined into one, they would spill one
/// another's sums.
trait Blocks: Decode {
    /// Sums of R rows and all columns of the span.
    ///
    /// # Safety
    /// [`span`]'s.
    unsafe fn span<const BITS: usize, const R: usize, const C: usize>(span: &Span<'_>);
}

/// Sums of the R rows and all columns of the span, C (1, 2 or 4) at a time.
///
/// # Safety
/// The product is prepared and has R rows, the columns and factors are the weight's.
#[inline(always)]
unsafe fn span<D: Decode, const BITS: usize, const R: usize, const C: usize>(span: &Span<'_>) {
    let Span { from, to, .. } = *span;
    let fits = to - from >= C;
    for column in (from..to).step_by(if fits { C } else { 1 }) {
        // The last block begins within the one before.
        let column = if fits { column.min(to - C) } else { column };
        // SAFETY: the caller's.
        unsafe { block::<D, BITS, R, C>(span, column, usize::from(fits)) }
    }
}

/// Sums of the R rows and C columns from `column` on, `step` apart: 1, or 0 for one column C times.
///
/// # Safety
/// [`span`]'s.
#[inline(always)]
unsafe fn block<D: Decode, const BITS: usize, const R: usize, const C: usize>(
    span: &Span<'_>,
    column: usize,
    step: usize,
) {
    let Span { product, weight, from, factors, .. } = *span;
    // SAFETY: the caller's; numbers of a row are read below k.
    unsafe {
        let (row_bytes, unit_bytes, steps) = (product.k / 8 * BITS, UNIT / 8 * BITS, steps::<D>());
        let mut packed = weight.packed.add(column * row_bytes);
        let factors = factors.from(column - from);
        let (next_row, next_factor) = (step * row_bytes, step * factors.groups);
        let mut x = product.packed;
        let zero = D::Simd::splat(0.0);
        let mut sums = [[zero; C]; R];
        // Those of the next tile, a block's share at a time.
        span.next.fetch::<D>(column - from, C);
        let mut ahead = packed.wrapping_add(span.ahead);
        // Sizes of groups are powers of two.
        let within = weight.group / UNIT - 1;
        let mut groups = [D::group::<BITS>(0.0, 0.0); C];
        let mut group = 0;
        for unit in 0..product.k / UNIT {
            if unit & within == 0 {
                columns!(J < C, groups[J] = factors.group::<D, BITS>(J * next_factor + group));
                group += 1;
            }
            // Asking for what is not there does no harm.
            D::Simd::fetch(ahead.cast());
            if C * unit_bytes > LINE {
                D::Simd::fetch(ahead.wrapping_add(LINE).cast());
            }
            ahead = ahead.wrapping_add(C * unit_bytes);
            // Not a loop over groups and one within: it would keep the sums twice in registers.
            each!(S < steps, {
                let mut weights = [zero; C];
                columns!(J < C, {
                    weights[J] = D::shuffled::<BITS, S>(packed.add(J * next_row), groups[J])
                });
                each!(I < R, {
                    let input = D::Simd::load(x.add(I * D::Simd::COUNT));
                    columns!(J < C, sums[I][J] = D::Simd::fma(input, weights[J], sums[I][J]))
                });
                x = x.add(R * D::Simd::COUNT);
            });
            packed = packed.add(unit_bytes);
        }
        let end = column + if step == 0 { 1 } else { C };
        put::<D, BITS, R, C>(product, sums, column, end);
    }
}

/// Folds the sums of a block into the elements of C from `column` on, those behind column `end` left out.
///
/// # Safety
/// [`span`]'s; the columns up to `end` are C's.
#[inline(always)]
unsafe fn put<D: Decode, const BITS: usize, const R: usize, const C: usize>(
    product: &Product,
    sums: [[<D::Simd as Simd>::Vector; C]; R],
    column: usize,
    end: usize,
) {
    // SAFETY: the caller's.
    unsafe {
        let zero = D::Simd::splat(0.0);
        if const { C == WIDTH } {
            each!(I < R, {
                let mut four = [zero; 4];
                columns!(J < C, four[J % 4] = D::restore::<BITS>(sums[I][J]));
                product.put(I, column, D::Simd::fold(four), end);
            });
            return;
        }
        // Sums of several rows are folded at a time. Most products have β = 0, and write whole blocks.
        let (fours, whole) =
            (const { (R * C).div_ceil(WIDTH) }, product.beta == 0.0 && column + C <= end);
        each!(F < fours, {
            let mut four = [zero; WIDTH];
            columns!(J < WIDTH, {
                let at = const { if WIDTH * F + J < R * C { WIDTH * F + J } else { 0 } };
                four[J] = D::restore::<BITS>(sums[at / C][at % C]);
            });
            let four = D::Simd::fold(four);
            columns!(J < WIDTH, {
                let (row, at) = const { ((WIDTH * F + J) / C, (WIDTH * F + J) % C) };
                if row < R && whole {
                    *product.c.add(row * product.ldc + column + at) = product.alpha * four[J];
                } else if row < R {
                    product.put(row, column + at, [four[J]; 4], end.min(column + at + 1));
                }
            });
        });
    }
}

/// Columns `from..to` with their weights in registers.
///
/// # Safety
/// [`span`]'s, for all rows.
#[inline(always)]
unsafe fn multiply<D: Blocks, const BITS: usize>(all: &Span<'_>) {
    /// Columns of a block of `rows` rows: as many as have room for their sums beside the decoder of the
    /// weights.
    const fn width(rows: usize, registers: usize) -> usize {
        match (rows, registers) {
            (1..=5, 17..) | (1, _) => 4,
            (_, 17..) | (2..=4, _) => 2,
            _ => 1,
        }
    }
    /// A span of `$rows` rows, a number that the compiler knows.
    macro_rules! spans {
        ($rows:expr, $span:expr, $($number:literal)*) => {
            match $rows {
                // Constants, so that functions that are never called are not compiled.
                $($number if const { $number <= D::ROWS } => {
                    match const { width($number, D::REGISTERS) } {
                        4 => D::span::<BITS, $number, 4>($span),
                        2 => D::span::<BITS, $number, 2>($span),
                        _ => D::span::<BITS, $number, 1>($span),
                    }
                })*
                _ => {}
            }
        };
    }
    // SAFETY: the caller's.
    unsafe {
        for (row, rows) in equal_blocks(all.product.m, block_rows::<D>(all.product.k)) {
            let product = &all.product.rows(row, row + rows);
            spans!(rows, &Span { product, ..*all }, 1 2 3 4 5 6 7 8)
        }
    }
}

/// Columns `from..to`. `floats`: the same for a weight of floats.
///
/// # Safety
/// The product is prepared, the weight is as large as it says, the bits are BITS.
#[inline(always)]
unsafe fn by_bits<D: Blocks, const BITS: usize>(
    product: &Product,
    weight: &QuantizedWeight,
    from: usize,
    to: usize,
    buffer: &mut PackBuffer,
    floats: Columns,
) {
    let Product { m, k, .. } = *product;
    let groups = k / weight.group;
    let whole = |numbers: usize| numbers.next_multiple_of(WIDTH).max(WIDTH);
    let in_registers = in_registers::<D>(m, weight);
    let tile = match m {
        _ if in_registers => whole(FACTORS / groups),
        ..=BY_TILES => whole(EXPANDED / k),
        _ => whole(TILE / k),
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
                let next = NextFactors::new(weight, groups, to);
                let block = WIDTH * (k / 8 * BITS);
                let ahead = block * (AHEAD + block / 4 * 3).div_ceil(block);
                multiply::<D, BITS>(&Span { product, weight, from, to, factors, next, ahead });
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
unsafe fn columns<D: Blocks>(
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

/// The functions of an instruction set, with its instructions enabled: everything above is inlined
/// into them.
macro_rules! kernels {
    ($(#[$attribute:meta])* $name:ident, $decode:ty) => {
        pub(super) mod $name {
            use super::{Blocks, PackBuffer, Product, QuantizedWeight, Span};
            use super::super::blocks::$name as floats;

            /// # Safety
            /// [`super::span`].
            #[inline(never)]
            $(#[$attribute])*
            unsafe fn span<const BITS: usize, const R: usize, const C: usize>(span: &Span<'_>) {
                // SAFETY: the caller's.
                unsafe { super::span::<$decode, BITS, R, C>(span) }
            }

            impl Blocks for $decode {
                #[inline(always)]
                unsafe fn span<const BITS: usize, const R: usize, const C: usize>(
                    span: &Span<'_>,
                ) {
                    // SAFETY: the caller's.
                    unsafe { self::span::<BITS, R, C>(span) }
                }
            }

            /// # Safety
            /// [`super::super::Kernels::prepare`].
            $(#[$attribute])*
            pub(in super::super) unsafe fn pack(product: &Product, to: *mut f32) {
                // SAFETY: the caller's.
                unsafe { super::pack::<$decode>(product, to, floats::pack) }
            }

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
                // SAFETY: the caller's.
                unsafe {
                    super::columns::<$decode>(product, weight, from, to, buffer, floats::columns)
                }
            }
        }
    };
}

kernels!(portable, super::super::decode::PortableDecode);

#[cfg(target_arch = "x86_64")]
kernels!(
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,fma,f16c")]
    avx512,
    super::super::decode::Avx512Decode
);

#[cfg(target_arch = "x86_64")]
kernels!(
    #[target_feature(enable = "avx2,fma,f16c")]
    avx2,
    super::super::decode::Avx2Decode
);

#[cfg(target_arch = "aarch64")]
kernels!(neon, super::super::decode::NeonDecode);
