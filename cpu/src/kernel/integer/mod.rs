//! Products of 8-bit integers by quantized weights.
//!
//! A row of inputs is rounded in blocks of 64 (of 32 or 16 where a group has as many): x ≈ d · p with whole p
//! from -127 to 127 and one float d for each block. With w = s · q + b and P = Σ p,
//!
//! ```text
//!  y = Σ over the blocks of k, in order, of d · (s · I + b · P),   I = Σ q · p
//! ```
//! I and P are exact, in any order. The rest is float32, block after block: s · I is rounded, b · P
//! added with one rounding, and d times that added to the sum with one rounding. So an element has
//! the same bits on every processor, whatever rows and columns stand beside it. A block with a
//! number that is not finite gives NaN.
//!
//! P sums the rounded inputs and not x: what the rounding of x changes is then Σ w · (x - d · p),
//! in which small weights have small parts. With Σ x it would be Σ s · q · (x - d · p) with all q
//! positive.
//!
//! Weights lie in tiles of [`TILE`] columns, and in these in units of 32 inputs: an element of a vector
//! is a column, and takes four inputs at a time ([`planes`]). So a vector of scales is one load, and
//! no vector is ever folded.

mod rounded;
mod simd;

use super::blocks::{BY_TILES, each};
use super::decode::Decode;
use super::simd::Simd;
use super::{Factors, Product, QuantizedWeight};
pub(super) use rounded::pack;
pub(crate) use rounded::packed_row;
use rounded::{BlockFactors, block_of, row_blocks};

pub(in crate::kernel) use simd::*;

/// Columns whose weights lie together.
pub(crate) const TILE: usize = 16;

/// Inputs of a unit.
pub(crate) const UNIT: usize = 32;

/// Inputs of the smallest group, of which a unit has two.
const HALF: usize = 16;

/// Bytes of a line of a unit: four inputs of each column.
pub(crate) const LINE: usize = 4 * TILE;

/// Inputs that an element takes at a time.
const STEPS: usize = UNIT / 4;

/// Steps of half a unit.
const HALVES: usize = STEPS / 2;

/// Bytes of weights that a tile of columns may have to stay in the second-level cache.
const CACHED: usize = 256 * 1024;

/// Bytes of weights between asking for some and using them: see [`super::quantized`].
const AHEAD: usize = 2048;

/// Some bits of all numbers of a unit, in lines of their own. Byte 4 · c + j of a line has, of
/// column c, input 4 · step + j of as many steps as fit, the first step's bits lowest.
#[derive(Clone, Copy)]
pub(crate) struct Plane {
    /// Bits of a number here: 1, 2, 4 or 8.
    pub(crate) width: usize,
    /// Where they stand in the number. Also the first line of the plane: as many lines as bits.
    pub(crate) shift: usize,
}

/// The planes of a unit of numbers of `bits` bits; the second may be empty.
pub(crate) const fn planes(bits: usize) -> [Plane; 2] {
    let first = match bits {
        3 => 2,
        5 | 6 => 4,
        _ => bits,
    };
    [Plane { width: first, shift: 0 }, Plane { width: bits - first, shift: first }]
}

impl Plane {
    /// The line that has a step's bits, and where in its bytes.
    pub(crate) const fn place(self, step: usize) -> (usize, usize) {
        (self.shift + step * self.width / 8, step * self.width % 8)
    }
}

/// Some bits of each byte, and where they are moved to.
#[derive(Clone, Copy)]
pub(in crate::kernel) struct Field {
    from: usize,
    /// How many, 4 at most.
    width: usize,
    to: usize,
}

impl Field {
    /// As many of the lowest bits.
    #[inline(always)]
    fn lowest(self) -> u8 {
        (1 << self.width) - 1
    }
}

/// A vector of bytes, four of each column.
pub(in crate::kernel) trait Bytes: Copy {
    /// # Safety
    /// As all here: the processor has the instructions. `from` has as many bytes.
    unsafe fn load(from: *const u8) -> Self;
    /// A field of each byte, the other bits zeros. Its numbers are known to the compiler.
    ///
    /// # Safety
    /// As all here.
    unsafe fn field(self, field: Field) -> Self;
    /// # Safety
    /// As all here.
    unsafe fn or(self, other: Self) -> Self;
}

/// Integers of an instruction set. Floats are those of its [`Simd`], an element a column.
pub(in crate::kernel) trait Integers {
    type Decode: Decode;
    /// Most rows of a block, 1, 2, 4 or 8.
    const ROWS: usize;
    type Bytes: Bytes;
    /// Sums that are not finished.
    type Dots: Copy;

    /// No sums yet.
    ///
    /// # Safety
    /// As all here.
    unsafe fn none() -> Self::Dots;
    /// The sums with the four products of each column more: numbers of BITS bits by the signed bytes
    /// at `x`. Steps of a unit come in order.
    ///
    /// # Safety
    /// As all here; `x` has four bytes.
    unsafe fn dot<const BITS: usize, const STEP: usize>(
        dots: Self::Dots,
        numbers: Self::Bytes,
        x: *const i8,
    ) -> Self::Dots;
    /// The sums as floats, exactly.
    ///
    /// # Safety
    /// As all here; whole units were summed.
    unsafe fn total<const BITS: usize>(dots: Self::Dots, correction: i32) -> Vector<Self>;
    /// a · b + c, rounded once, element by element.
    ///
    /// # Safety
    /// As all here.
    #[inline(always)]
    unsafe fn fused(a: Vector<Self>, b: Vector<Self>, c: Vector<Self>) -> Vector<Self> {
        // SAFETY: the caller's.
        unsafe { Floats::<Self>::fma(a, b, c) }
    }
}

type Floats<I> = <<I as Integers>::Decode as Decode>::Simd;
type Vector<I> = <Floats<I> as Simd>::Vector;

/// The numbers of a step of a unit.
///
/// # Safety
/// `unit` is a unit's first vector of some columns.
#[inline(always)]
unsafe fn numbers<I: Integers, const BITS: usize, const STEP: usize>(unit: *const u8) -> I::Bytes {
    let part = |plane: Plane| {
        let (line, from) = plane.place(STEP);
        // SAFETY: the caller's.
        unsafe {
            let bytes = I::Bytes::load(unit.add(line * LINE));
            match plane.width {
                8 => bytes,
                width => bytes.field(Field { from, width, to: plane.shift }),
            }
        }
    };
    let [first, second] = const { planes(BITS) };
    // SAFETY: the caller's.
    unsafe { if second.width == 0 { part(first) } else { part(first).or(part(second)) } }
}

/// A factor of each column.
///
/// # Safety
/// There are as many from `at` on.
#[inline(always)]
unsafe fn factor<I: Integers>(factors: Factors, at: usize) -> Vector<I> {
    // SAFETY: the caller's.
    unsafe {
        match factors {
            Factors::Float32(place) => Floats::<I>::load(place.add(at)),
            Factors::Float16(place) => I::Decode::halves(place.add(at)),
            Factors::Bfloat16(place) => I::Decode::brains(place.add(at)),
            Factors::Scaled { place, codes } => {
                let (group, column) = (at / TILE, at % TILE);
                // 8 or 16: a division would take longer than the products of a group.
                let (run, code) = (group >> codes.trailing_zeros(), group & (codes - 1));
                let run = place.add(run * (2 + codes) * TILE);
                let of_run = I::Decode::halves(run.cast::<u16>().add(column));
                let code = run.add((2 + code) * TILE + column);
                Floats::<I>::mul(of_run, I::Decode::signed(code))
            }
        }
    }
}

/// Adds the products of one half of a unit's steps, of all rows and of V vectors.
///
/// # Safety
/// That of [`block`].
#[inline(always)]
unsafe fn half_unit<I: Integers, const BITS: usize, const R: usize, const V: usize>(
    dots: &mut [[I::Dots; V]; R],
    unit: *const u8,
    x: *const i8,
    second: bool,
) {
    // SAFETY: the caller's.
    unsafe {
        each!(S < HALVES, {
            each!(P < V, {
                let from = unit.add(P * 4 * Floats::<I>::COUNT);
                if second {
                    let numbers = numbers::<I, BITS, { S + HALVES }>(from);
                    each!(J < R, {
                        let x = x.add(J * UNIT + 4 * (S + HALVES));
                        dots[J][P] = I::dot::<BITS, { S + HALVES }>(dots[J][P], numbers, x)
                    })
                } else {
                    let numbers = numbers::<I, BITS, S>(from);
                    each!(J < R, {
                        let x = x.add(J * UNIT + 4 * S);
                        dots[J][P] = I::dot::<BITS, S>(dots[J][P], numbers, x)
                    })
                }
            })
        });
    }
}

/// Sums of R rows, packed at `x`, and the columns of V vectors of a tile, `part` the first of them.
///
/// # Safety
/// The rows are packed together, the weight has the tile, `c` has room.
#[inline(always)]
pub(super) unsafe fn block<I: Integers, const BITS: usize, const R: usize, const V: usize>(
    product: &Product,
    weight: &QuantizedWeight,
    (tile, part): (usize, usize),
    mut x: *const i8,
    c: *mut f32,
) {
    let Product { k, ldc, .. } = *product;
    let length = block_of(weight.group);
    // SAFETY: the caller's.
    unsafe {
        let elements = Floats::<I>::COUNT;
        let mut unit = weight.packed.add(tile * (k / UNIT) * BITS * LINE + part * elements * 4);
        let mut factors = x.add(R * k).cast::<BlockFactors>();
        let mut sums = [[Floats::<I>::splat(0.0); V]; R];
        for at in 0..k / length {
            let mut dots = [[I::none(); V]; R];
            if const { BITS == 6 } && length == HALF {
                half_unit::<I, BITS, R, V>(&mut dots, unit, x, at % 2 == 1);
                if at % 2 == 1 {
                    each!(L < BITS, Floats::<I>::fetch(unit.wrapping_add(AHEAD + L * LINE).cast()));
                    unit = unit.add(BITS * LINE);
                    x = x.add(R * UNIT);
                }
            }
            for _ in 0..length / UNIT {
                each!(S < STEPS, {
                    each!(P < V, {
                        let numbers = numbers::<I, BITS, S>(unit.add(P * 4 * elements));
                        each!(J < R, {
                            let x = x.add(J * UNIT + 4 * S);
                            dots[J][P] = I::dot::<BITS, S>(dots[J][P], numbers, x)
                        })
                    })
                });
                // Asking for what is not there does no harm.
                each!(L < BITS, Floats::<I>::fetch(unit.wrapping_add(AHEAD + L * LINE).cast()));
                unit = unit.add(BITS * LINE);
                x = x.add(R * UNIT);
            }
            let group = (tile * (k / weight.group) + at * length / weight.group) * TILE;
            each!(P < V, {
                let group = group + (part + P) * elements;
                let (scale, bias) =
                    (factor::<I>(weight.scales, group), factor::<I>(weight.biases, group));
                each!(J < R, {
                    let BlockFactors { size, sum, correction } = *factors.add(J);
                    let dots = I::total::<BITS>(dots[J][P], correction);
                    let of = Floats::<I>::mul(dots, scale);
                    let of = I::fused(Floats::<I>::splat(sum), bias, of);
                    sums[J][P] = I::fused(Floats::<I>::splat(size), of, sums[J][P])
                })
            });
            factors = factors.add(R);
        }
        each!(J < R, {
            each!(P < V, Floats::<I>::store(c.add(J * ldc + P * elements), sums[J][P]))
        });
    }
}

/// Vectors of a tile that a block of `rows` rows takes at once. Few rows are bound by memory, which
/// should be read all the time: a second pass over a tile would read what the cache holds.
const fn vectors<I: Integers>(rows: usize) -> usize {
    let all = TILE / <Floats<I> as Simd>::COUNT;
    let fit = I::ROWS / rows;
    if fit < all { fit } else { all }
}

/// The blocks of an instruction set, as functions of their own: see [`super::quantized`].
pub(in crate::kernel) trait Blocks: Integers {
    /// # Safety
    /// [`block`]'s.
    unsafe fn block<const BITS: usize, const R: usize, const V: usize>(
        product: &Product,
        weight: &QuantizedWeight,
        place: (usize, usize),
        x: *const i8,
        c: *mut f32,
    );
}

/// Sums of R rows and all columns of a tile.
///
/// # Safety
/// [`block`]'s.
#[inline(always)]
unsafe fn of_tile<I: Blocks, const BITS: usize, const R: usize>(
    product: &Product,
    weight: &QuantizedWeight,
    tile: usize,
    x: *const i8,
    c: *mut f32,
) {
    let count = Floats::<I>::COUNT;
    // SAFETY: the caller's. Which arm is taken is known to the compiler.
    unsafe {
        for part in (0..TILE / count).step_by(const { vectors::<I>(R) }) {
            let (place, c) = ((tile, part), c.add(part * count));
            match const { vectors::<I>(R) } {
                4 => I::block::<BITS, R, 4>(product, weight, place, x, c),
                2 => I::block::<BITS, R, 2>(product, weight, place, x, c),
                _ => I::block::<BITS, R, 1>(product, weight, place, x, c),
            }
        }
    }
}

/// Columns `from..to`, whole tiles, of numbers of BITS bits.
///
/// # Safety
/// The product is prepared and the weight as large as it says.
#[inline(always)]
unsafe fn by_bits<I: Blocks, const BITS: usize>(
    product: &Product,
    weight: &QuantizedWeight,
    from: usize,
    to: usize,
) {
    let Product { m, k, packed, c, ldc, .. } = *product;
    debug_assert!(from.is_multiple_of(TILE) && to.is_multiple_of(TILE), "whole tiles");
    // Many rows take some tiles in turn, which stay in the cache.
    let tiles = if m > BY_TILES { (CACHED / (k * BITS * 2)).max(1) } else { 1 };
    for first in (from / TILE..to / TILE).step_by(tiles) {
        let last = (first + tiles).min(to / TILE);
        for (row, rows) in row_blocks(m, I::ROWS) {
            for tile in first..last {
                // SAFETY: the caller's.
                unsafe {
                    let x = packed.add(row * packed_row(k, weight.group)).cast::<i8>();
                    let c = c.add(row * ldc + tile * TILE);
                    match rows {
                        1 => of_tile::<I, BITS, 1>(product, weight, tile, x, c),
                        2 if const { I::ROWS > 1 } => {
                            of_tile::<I, BITS, 2>(product, weight, tile, x, c)
                        }
                        4 if const { I::ROWS > 2 } => {
                            of_tile::<I, BITS, 4>(product, weight, tile, x, c)
                        }
                        _ if const { I::ROWS > 4 } => {
                            of_tile::<I, BITS, 8>(product, weight, tile, x, c);
                        }
                        _ => {}
                    }
                }
            }
        }
    }
}

/// Columns `from..to`, whole tiles.
///
/// # Safety
/// [`by_bits`]'s.
#[inline(always)]
pub(super) unsafe fn columns<I: Blocks>(
    product: &Product,
    weight: &QuantizedWeight,
    from: usize,
    to: usize,
) {
    // SAFETY: the caller's.
    unsafe {
        match weight.bits {
            2 => by_bits::<I, 2>(product, weight, from, to),
            3 => by_bits::<I, 3>(product, weight, from, to),
            4 => by_bits::<I, 4>(product, weight, from, to),
            5 => by_bits::<I, 5>(product, weight, from, to),
            6 => by_bits::<I, 6>(product, weight, from, to),
            _ => by_bits::<I, 8>(product, weight, from, to),
        }
    }
}

/// The functions of an instruction set, with its instructions enabled.
macro_rules! kernels {
    ($(#[$attribute:meta])* $name:ident, $integers:ty) => {
        pub(in crate::kernel) mod $name {
            use super::{Blocks, Product, QuantizedWeight};

            /// # Safety
            /// [`super::block`].
            #[inline(never)]
            $(#[$attribute])*
            unsafe fn block<const BITS: usize, const R: usize, const V: usize>(
                product: &Product,
                weight: &QuantizedWeight,
                place: (usize, usize),
                x: *const i8,
                c: *mut f32,
            ) {
                // SAFETY: the caller's.
                unsafe { super::block::<$integers, BITS, R, V>(product, weight, place, x, c) }
            }

            impl Blocks for $integers {
                #[inline(always)]
                unsafe fn block<const BITS: usize, const R: usize, const V: usize>(
                    product: &Product,
                    weight: &QuantizedWeight,
                    place: (usize, usize),
                    x: *const i8,
                    c: *mut f32,
                ) {
                    // SAFETY: the caller's.
                    unsafe { self::block::<BITS, R, V>(product, weight, place, x, c) }
                }
            }

            /// # Safety
            /// [`super::pack`].
            $(#[$attribute])*
            pub(in crate::kernel) unsafe fn pack(product: &Product, weight: &QuantizedWeight, to: *mut f32) {
                // SAFETY: the caller's.
                unsafe { super::pack::<$integers>(product, weight, to) }
            }

            /// # Safety
            /// [`super::columns`].
            $(#[$attribute])*
            pub(in crate::kernel) unsafe fn columns(
                product: &Product,
                weight: &QuantizedWeight,
                from: usize,
                to: usize,
            ) {
                // SAFETY: the caller's.
                unsafe { super::columns::<$integers>(product, weight, from, to) }
            }
        }
    };
}

kernels!(portable, super::PortableIntegers);

#[cfg(target_arch = "x86_64")]
kernels!(
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c")]
    avx512_vnni,
    super::Avx512Vnni
);

#[cfg(target_arch = "x86_64")]
kernels!(
    #[target_feature(enable = "avxvnni,avx2,fma,f16c")]
    avx_vnni,
    super::AvxVnni
);

#[cfg(target_arch = "x86_64")]
kernels!(
    #[target_feature(enable = "avx2,fma,f16c")]
    avx2,
    super::Avx2Integers
);

#[cfg(target_arch = "aarch64")]
kernels!(
    #[target_feature(enable = "neon,dotprod")]
    neon_dot,
    super::NeonDot
);

#[cfg(target_arch = "aarch64")]
kernels!(neon, super::NeonIntegers);
