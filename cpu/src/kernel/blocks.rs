//! Blocks of sums in registers, and how a product's columns are cut into them.

use super::simd::Simd;
use super::{Product, packed_row};

/// Columns of a block, or vectors of columns where B is not transposed.
const WIDTH: usize = 4;

/// Columns of a block of at most three rows where registers are many. Fewer would leave the
/// multipliers waiting for one another's results.
const FEW: usize = 8;

/// Rows above which columns are taken in tiles. Fewer are bound by memory.
pub(super) const BY_TILES: usize = 48;

/// Weights of a tile: 256 KiB, of the second-level caches of today's cores half at most.
pub(super) const TILE: usize = 64 * 1024;

/// `$body` for each constant `$i` below `$n`, which is at most 8. Not a loop: sums stay in
/// registers only where every index is a constant before the optimizer begins, and loops are
/// unrolled too late for that (measured: half of the blocks spilled).
macro_rules! each {
    ($i:ident < $n:ident, $body:expr) => {
        each!(@ $i $n $body, 0 1 2 3 4 5 6 7)
    };
    (@ $i:ident $n:ident $body:expr, $($at:literal)*) => {{
        $(if $at < $n {
            const $i: usize = $at;
            $body;
        })*
    }};
}

pub(super) use each;

/// Puts the rows of A in the order in which [`block_by_rows`] reads them: block by block of rows,
/// in each a vector of every row for each step of k, zeros behind k. One stream then instead of one
/// for each row: rows lie a power of two apart in most models, where they drive one another out of
/// the cache (measured with 16 rows and k = 1024: half the speed).
///
/// # Safety
/// A is as large as the product says, `to` has room for m rows of k, rounded up to whole vectors.
#[inline(always)]
unsafe fn pack<L: Simd>(product: &Product, to: *mut f32) {
    let Product { m, k, a, a_row, a_step, .. } = *product;
    for (row, rows) in row_blocks::<L>(m) {
        // SAFETY: there is as much room.
        let mut to = unsafe { to.add(row * packed_row(k)) };
        for step in (0..k).step_by(L::COUNT) {
            for row in row..row + rows {
                // SAFETY: the caller's.
                unsafe {
                    let (from, count) =
                        (a.add(row * a_row + step * a_step), L::COUNT.min(k - step));
                    let mut elements = [0.0f32; 16]; // no vector is longer
                    let vector = if a_step != 1 {
                        for (at, element) in elements.iter_mut().enumerate().take(count) {
                            *element = *from.add(at * a_step);
                        }
                        L::load(elements.as_ptr())
                    } else if count == L::COUNT {
                        L::load(from)
                    } else {
                        L::load_part(from, count)
                    };
                    L::store(to, vector);
                    to = to.add(L::COUNT);
                }
            }
        }
    }
}

/// Sums of R rows and C columns (4 or 8), B transposed. Columns behind the last are computed as the
/// last and not written, which is cheaper than blocks of their own. `x`: the rows, packed. `fetch`:
/// asks for the C columns behind these meanwhile.
#[inline(always)]
unsafe fn block_by_rows<L: Simd, const R: usize, const C: usize>(
    product: &Product,
    row: usize,
    column: usize,
    end: usize,
    fetch: bool,
) {
    let Product { k, packed, b, ldb, .. } = *product;
    // SAFETY: rows row..row + R are A's, columns up to end are B's, and `at` stays below k.
    unsafe {
        let zero = L::splat(0.0);
        let mut columns = [b; C];
        each!(J < C, columns[J] = b.add((column + J).min(end - 1) * ldb));
        let mut x = packed.add(row * packed_row(k));
        // Asking for what is not there does no harm.
        let ahead = if fetch { C * ldb } else { 0 };
        let mut sums = [[zero; C]; R];
        let whole = k - k % L::COUNT;
        let mut at = 0;
        while at < whole {
            let mut rows = [zero; R];
            each!(I < R, rows[I] = L::load(x.add(I * L::COUNT)));
            each!(J < C, {
                let from = columns[J].add(at);
                L::fetch(from.wrapping_add(ahead));
                let w = L::load(from);
                each!(I < R, sums[I][J] = L::fma(rows[I], w, sums[I][J]))
            });
            at += L::COUNT;
            x = x.add(R * L::COUNT);
        }
        if whole < k {
            let rest = k - whole;
            let mut rows = [zero; R];
            each!(I < R, rows[I] = L::load(x.add(I * L::COUNT)));
            each!(J < C, {
                let w = L::load_part(columns[J].add(whole), rest);
                each!(I < R, sums[I][J] = L::fma(rows[I], w, sums[I][J]))
            });
        }
        each!(I < R, {
            let four = L::fold([sums[I][0], sums[I][1], sums[I][2], sums[I][3]]);
            product.put(row + I, column, four, end);
            if C == 8 {
                let four =
                    L::fold([sums[I][C - 4], sums[I][C - 3], sums[I][C - 2], sums[I][C - 1]]);
                product.put(row + I, column + 4, four, end);
            }
        });
    }
}

/// Sums of R rows and V vectors of columns, B as it is.
#[inline(always)]
unsafe fn block_by_columns<L: Simd, const R: usize, const V: usize>(
    product: &Product,
    row: usize,
    column: usize,
) {
    let Product { k, a, a_row, a_step, b, ldb, .. } = *product;
    // SAFETY: rows row..row + R are A's, columns column..column + V · COUNT are B's.
    unsafe {
        let zero = L::splat(0.0);
        let mut rows = [a; R];
        each!(I < R, rows[I] = a.add((row + I) * a_row));
        let mut sums = [[zero; V]; R];
        let mut x = [zero; R];
        let mut from = b.add(column);
        for at in 0..k {
            each!(I < R, x[I] = L::splat(*rows[I].add(at * a_step)));
            each!(J < V, {
                let w = L::load(from.add(J * L::COUNT));
                each!(I < R, sums[I][J] = L::fma(x[I], w, sums[I][J]))
            });
            from = from.wrapping_add(ldb);
        }
        each!(I < R, {
            let place = product.c.add((row + I) * product.ldc + column);
            each!(J < V, {
                let place = place.add(J * L::COUNT);
                let before = if product.beta == 0.0 { zero } else { L::load(place) };
                L::store(place, scaled::<L>(product, sums[I][J], before))
            })
        });
    }
}

/// Sums of one row and the last columns, fewer than a vector has elements; each element as in a whole
/// one.
#[inline(always)]
unsafe fn block_of_rest<L: Simd>(product: &Product, row: usize, column: usize, count: usize) {
    let Product { k, a, a_row, a_step, b, ldb, .. } = *product;
    // SAFETY: the row is A's, columns column..column + count are B's.
    unsafe {
        let mut sum = L::splat(0.0);
        for at in 0..k {
            sum = L::fma(
                L::splat(*a.add(row * a_row + at * a_step)),
                L::load_part(b.add(at * ldb + column), count),
                sum,
            );
        }
        let place = product.c.add(row * product.ldc + column);
        let before = if product.beta == 0.0 { L::splat(0.0) } else { L::load_part(place, count) };
        // No vector is wider.
        let mut elements = [0.0f32; 16];
        L::store(elements.as_mut_ptr(), scaled::<L>(product, sum, before));
        std::ptr::copy_nonoverlapping(elements.as_ptr(), place, count);
    }
}

/// α · sum + β · before; without the second term where β = 0, or −0 would become 0.
#[inline(always)]
unsafe fn scaled<L: Simd>(product: &Product, sum: L::Vector, before: L::Vector) -> L::Vector {
    // SAFETY: the processor has the instructions.
    unsafe {
        let sum = L::mul(L::splat(product.alpha), sum);
        if product.beta == 0.0 { sum } else { L::add(sum, L::mul(L::splat(product.beta), before)) }
    }
}

/// Rows in blocks as equal as can be, of at most L::ROWS: one of a single row would wait for its
/// own results.
#[inline(always)]
fn row_blocks<L: Simd>(m: usize) -> impl Iterator<Item = (usize, usize)> {
    equal_blocks(m, L::ROWS)
}

/// The first row and the number of rows of blocks of at most `most`.
#[inline(always)]
pub(super) fn equal_blocks(m: usize, most: usize) -> impl Iterator<Item = (usize, usize)> {
    let blocks = m.div_ceil(most).max(1);
    (0..blocks).map(move |block| {
        let (from, to) = (block * m / blocks, (block + 1) * m / blocks);
        (from, to - from)
    })
}

/// A block of `$rows` rows, a number that the compiler knows. Row counts that an instruction set
/// never asks for are not compiled.
macro_rules! by_rows {
    ($rows:ident, $block:ident, $width:expr, $arguments:tt) => {
        by_rows!(@ $rows, $block, $width, $arguments, 1 2 3 4 5 6)
    };
    (@ $rows:ident, $block:ident, $width:expr, $arguments:tt, $($n:literal)*) => {
        match $rows {
            $($n if $n <= L::ROWS => $block::<L, $n, { $width }> $arguments,)*
            _ => {}
        }
    };
}

/// Columns `from..to`. Few rows: for each block of columns all rows, so that B comes from memory
/// once, evenly while they are multiplied. Many rows, which are more than a core's cache holds: a
/// tile of columns that it does hold, and in it for each block of rows all columns.
#[inline(always)]
unsafe fn columns<L: Simd, const FEW: usize>(product: &Product, from: usize, to: usize) {
    let m = product.m;
    // SAFETY: blocks lie within the product.
    unsafe {
        if product.transposed {
            if m <= L::ROWS.min(3) {
                for column in (from..to).step_by(FEW) {
                    match m {
                        1 => block_by_rows::<L, 1, FEW>(product, 0, column, to, true),
                        2 => block_by_rows::<L, 2, FEW>(product, 0, column, to, true),
                        _ => block_by_rows::<L, 3, FEW>(product, 0, column, to, true),
                    }
                }
                return;
            }
            if m > BY_TILES {
                let tile = (TILE / product.k).next_multiple_of(WIDTH).max(WIDTH);
                for from in (from..to).step_by(tile) {
                    let to = (from + tile).min(to);
                    for (row, rows) in row_blocks::<L>(m) {
                        for column in (from..to).step_by(WIDTH) {
                            by_rows!(
                                rows,
                                block_by_rows,
                                WIDTH,
                                (product, row, column, to, row == 0)
                            );
                        }
                    }
                }
                return;
            }
            for column in (from..to).step_by(WIDTH) {
                for (row, rows) in row_blocks::<L>(m) {
                    by_rows!(rows, block_by_rows, WIDTH, (product, row, column, to, row == 0));
                }
            }
            return;
        }
        let mut column = from;
        while column < to {
            let vectors = (to - column) / L::COUNT;
            if vectors == 0 {
                (0..m).for_each(|row| block_of_rest::<L>(product, row, column, to - column));
                return;
            }
            for (row, rows) in row_blocks::<L>(m) {
                if vectors < WIDTH {
                    by_rows!(rows, block_by_columns, 1, (product, row, column));
                } else {
                    by_rows!(rows, block_by_columns, WIDTH, (product, row, column));
                }
            }
            column += L::COUNT * if vectors < WIDTH { 1 } else { WIDTH };
        }
    }
}

/// The two functions of an instruction set, with its instructions enabled: everything above is
/// inlined into them.
macro_rules! kernels {
    ($(#[$attribute:meta])* $name:ident, $simd:ty, $few:expr) => {
        pub(super) mod $name {
            use super::Product;

            /// # Safety
            /// [`super::super::Kernels::prepare`].
            $(#[$attribute])*
            pub(in super::super) unsafe fn pack(product: &Product, to: *mut f32) {
                // SAFETY: the caller's.
                unsafe { super::pack::<$simd>(product, to) }
            }

            /// # Safety
            /// [`super::super::Kernels::columns`].
            $(#[$attribute])*
            pub(in super::super) unsafe fn columns(product: &Product, from: usize, to: usize) {
                // SAFETY: the caller's.
                unsafe { super::columns::<$simd, { $few }>(product, from, to) }
            }
        }
    };
}

kernels!(portable, super::super::simd::Portable, super::WIDTH);
#[cfg(test)]
kernels!(wide, super::super::simd::Portable, super::FEW);

// VL although nothing here calls it: without it what is folded must lie in the lower 16 registers,
// and sums are spilled.
#[cfg(target_arch = "x86_64")]
kernels!(
    #[target_feature(enable = "avx512f,avx512vl,avx2,fma")]
    avx512,
    super::super::simd::Avx512,
    super::FEW
);

#[cfg(target_arch = "x86_64")]
kernels!(
    #[target_feature(enable = "avx2,fma")]
    avx2,
    super::super::simd::Avx2,
    super::WIDTH
);

#[cfg(target_arch = "aarch64")]
kernels!(neon, super::super::simd::Neon, super::FEW);
