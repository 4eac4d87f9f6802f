//! Functions of a forward between products, row by row. A row's result has the same bits whatever
//! rows stand beside it: every sum runs in an order that only the row's length settles.

use super::simd::Simd;

/// Numbers in pieces of a vector: `$body` for each, with the place of its first and how many there
/// are.
macro_rules! pieces {
    ($L:ident, $length:expr, |$at:ident, $count:ident| $body:expr) => {
        let mut $at = 0;
        while $at < $length {
            let $count = $L::COUNT.min($length - $at);
            $body;
            $at += $count;
        }
    };
}

/// Loads `count` floats from `from`, with zeros after them.
#[inline(always)]
pub(super) unsafe fn load<L: Simd>(from: *const f32, count: usize) -> L::Vector {
    // SAFETY: the caller's.
    unsafe { if count == L::COUNT { L::load(from) } else { L::load_part(from, count) } }
}

/// Stores the first `count` floats of `vector` at `to`.
#[inline(always)]
pub(super) unsafe fn store<L: Simd>(to: *mut f32, vector: L::Vector, count: usize) {
    // SAFETY: the caller's; no vector is longer than the array.
    unsafe {
        if count == L::COUNT {
            return L::store(to, vector);
        }
        let mut elements = [0.0f32; 16];
        L::store(elements.as_mut_ptr(), vector);
        std::ptr::copy_nonoverlapping(elements.as_ptr(), to, count);
    }
}

/// The sum of a vector's elements.
#[inline(always)]
unsafe fn sum<L: Simd>(vector: L::Vector) -> f32 {
    // SAFETY: the caller's.
    unsafe { L::fold([vector, L::splat(0.0), L::splat(0.0), L::splat(0.0)])[0] }
}

/// e to the power of each element, within 2 units of the last place; below −87 the smallest normal
/// number or so, above 88 the largest; no number stays none. Reduction and polynomial after Cephes'
/// `expf` (netlib.org/cephes, single precision).
#[inline(always)]
pub(super) unsafe fn exp<L: Simd>(x: L::Vector) -> L::Vector {
    // ln 2 in two parts, the first with few bits, so that multiples of it are exact.
    const HIGH: f32 = 0.693_359_4;
    const LOW: f32 = -2.121_944_4e-4;
    // SAFETY: the caller's; n is between -126 and 127.
    unsafe {
        let x = L::min(L::splat(88.0), L::max(L::splat(-87.0), x));
        let n = L::round(L::mul(x, L::splat(std::f32::consts::LOG2_E)));
        let r = L::fma(n, L::splat(-HIGH), x);
        let r = L::fma(n, L::splat(-LOW), r);
        let mut p = L::splat(1.987_569_1e-4);
        for coefficient in [1.398_2e-3, 8.333_452e-3, 4.166_579_6e-2, 0.166_666_65, 0.5] {
            p = L::fma(p, r, L::splat(coefficient));
        }
        let p = L::fma(L::mul(r, r), p, L::add(r, L::splat(1.0)));
        L::mul(p, L::power_of_two(n))
    }
}

/// silu(gate) · up, silu(x) = x / (1 + e^−x).
#[inline(always)]
unsafe fn gated<L: Simd>(gate: &[f32], up: &[f32], out: &mut [f32]) {
    let length = out.len().min(gate.len()).min(up.len());
    // SAFETY: the pieces are of all three.
    unsafe {
        let one = L::splat(1.0);
        pieces!(L, length, |at, count| {
            let x = load::<L>(gate.as_ptr().add(at), count);
            let silu = L::div(x, L::add(one, exp::<L>(L::mul(x, L::splat(-1.0)))));
            let y = L::mul(silu, load::<L>(up.as_ptr().add(at), count));
            store::<L>(out.as_mut_ptr().add(at), y, count);
        });
    }
}

/// 1 / sqrt(mean of squares + ε).
#[inline(always)]
pub(super) unsafe fn inverse_rms<L: Simd>(x: &[f32], eps: f32) -> f32 {
    // SAFETY: the pieces are of x.
    unsafe {
        let mut squares = L::splat(0.0);
        pieces!(L, x.len(), |at, count| {
            let x = load::<L>(x.as_ptr().add(at), count);
            squares = L::fma(x, x, squares);
        });
        1.0 / (sum::<L>(squares) / x.len() as f32 + eps).sqrt()
    }
}

/// x / rms(x) · weight.
#[inline(always)]
unsafe fn norm<L: Simd>(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let length = out.len().min(x.len()).min(weight.len());
    // SAFETY: the pieces are of all three.
    unsafe {
        let factor = L::splat(inverse_rms::<L>(x, eps));
        pieces!(L, length, |at, count| {
            let y = L::mul(load::<L>(x.as_ptr().add(at), count), factor);
            store::<L>(
                out.as_mut_ptr().add(at),
                L::mul(y, load::<L>(weight.as_ptr().add(at), count)),
                count,
            );
        });
    }
}

/// A head, normed and rotated: n · cos + (n with its halves exchanged) · sin, n = x / rms(x) ·
/// weight. Numbers behind the end of the rotation's tables are normed only.
#[inline(always)]
unsafe fn norm_rotate<L: Simd>(
    x: &[f32],
    weight: &[f32],
    eps: f32,
    rotation: Rotation<'_>,
    out: &mut [f32],
) {
    let length = out.len().min(x.len()).min(weight.len());
    // SAFETY: the places are below the length.
    unsafe {
        let factor = L::splat(inverse_rms::<L>(x, eps));
        let normed = |at: usize, count: usize| {
            let y = L::mul(load::<L>(x.as_ptr().add(at), count), factor);
            L::mul(y, load::<L>(weight.as_ptr().add(at), count))
        };
        let rotary_dim = length.min(rotation.cos.len());
        rotated::<L>(normed, rotation, &mut out[..rotary_dim]);
        pieces!(L, length - rotary_dim, |at, count| {
            let at = rotary_dim + at;
            store::<L>(out.as_mut_ptr().add(at), normed(at, count), count);
        });
    }
}

/// A head rotated, x · cos + (x with its halves exchanged) · sin.
#[inline(always)]
unsafe fn rotate<L: Simd>(x: &[f32], rotation: Rotation<'_>, out: &mut [f32]) {
    let length = out.len().min(x.len());
    // SAFETY: the places are below the length.
    unsafe {
        rotated::<L>(|at, count| load::<L>(x.as_ptr().add(at), count), rotation, &mut out[..length])
    }
}

/// `value(at, count)` are the numbers of a head as long as `out`, from a place on.
#[inline(always)]
unsafe fn rotated<L: Simd>(
    value: impl Fn(usize, usize) -> L::Vector,
    rotation: Rotation<'_>,
    out: &mut [f32],
) {
    let half = out.len().min(rotation.cos.len()).min(rotation.sin.len()) / 2;
    // SAFETY: the pieces are of the first or the second half of each.
    unsafe {
        pieces!(L, half, |at, count| {
            let (low, high) = (value(at, count), value(half + at, count));
            for (at, own, other) in [(at, low, high), (half + at, high, low)] {
                let cos = load::<L>(rotation.cos.as_ptr().add(at), count);
                let sin = load::<L>(rotation.sin.as_ptr().add(at), count);
                store::<L>(out.as_mut_ptr().add(at), L::fma(other, sin, L::mul(own, cos)), count);
            }
        });
    }
}

/// (x − mean) / √(variance + ε) · weight + bias.
#[inline(always)]
unsafe fn layer_norm<L: Simd>(
    x: &[f32],
    Affine { weight, bias }: Affine<'_>,
    eps: f32,
    out: &mut [f32],
) {
    let length = out.len().min(x.len()).min(weight.len()).min(bias.len());
    let whole = length / L::COUNT * L::COUNT;
    // SAFETY: the pieces are of all four.
    unsafe {
        let (mut total, mut squares) = (L::splat(0.0), L::splat(0.0));
        pieces!(L, length, |at, count| total = L::add(total, load::<L>(x.as_ptr().add(at), count)));
        let mean = sum::<L>(total) / length as f32;
        let less = L::splat(-mean);
        pieces!(L, whole, |at, _count| {
            let off = L::add(L::load(x.as_ptr().add(at)), less);
            squares = L::fma(off, off, squares);
        });
        // Zeros behind the last number would be off by the mean.
        let rest: f32 = x[whole..length].iter().map(|x| (x - mean) * (x - mean)).sum();
        let factor = L::splat(1.0 / ((sum::<L>(squares) + rest) / length as f32 + eps).sqrt());
        pieces!(L, length, |at, count| {
            let y = L::mul(L::add(load::<L>(x.as_ptr().add(at), count), less), factor);
            let y = L::fma(
                y,
                load::<L>(weight.as_ptr().add(at), count),
                load::<L>(bias.as_ptr().add(at), count),
            );
            store::<L>(out.as_mut_ptr().add(at), y, count);
        });
    }
}

/// In place: x / 2 · (1 + tanh u) = x / (1 + e^−2u), u = √(2/π) · (x + 0.044715 · x³).
#[inline(always)]
unsafe fn gelu<L: Simd>(x: &mut [f32]) {
    const TWICE: f32 = -1.595_769; // −2 · √(2/π)
    let place = x.as_mut_ptr();
    // SAFETY: the pieces are of x.
    unsafe {
        let one = L::splat(1.0);
        pieces!(L, x.len(), |at, count| {
            let x = load::<L>(place.add(at), count);
            let inner = L::fma(L::mul(x, x), L::splat(TWICE * 0.044_715), L::splat(TWICE));
            let y = L::div(x, L::add(one, exp::<L>(L::mul(x, inner))));
            store::<L>(place.add(at), y, count);
        });
    }
}

/// In place: e^(scale · (x − most)) over the places `from..to` for the largest of them, 0 elsewhere.
/// Returns the largest and the sum; −∞ and 0 of no places. What is no number makes the sum none.
#[inline(always)]
unsafe fn powers<L: Simd>(x: &mut [f32], scale: f32, from: usize, to: usize) -> [f32; 2] {
    let to = to.min(x.len());
    let from = from.min(to);
    x[..from].fill(0.0);
    x[to..].fill(0.0);
    let seen = &mut x[from..to];
    if seen.is_empty() {
        return [f32::NEG_INFINITY, 0.0];
    }
    // SAFETY: the pieces are of what is seen.
    unsafe {
        let largest = largest::<L>(seen);
        let (scale, most) = (L::splat(scale), L::splat(-largest));
        let place = seen.as_mut_ptr();
        let mut total = L::splat(0.0);
        pieces!(L, seen.len(), |at, count| {
            let power = exp::<L>(L::mul(L::add(load::<L>(place.add(at), count), most), scale));
            store::<L>(place.add(at), power, count);
            // Of a part only what belongs to it.
            total = L::add(
                total,
                if count == L::COUNT { power } else { load::<L>(place.add(at), count) },
            );
        });
        [largest, sum::<L>(total)]
    }
}

/// The largest of the numbers.
#[inline(always)]
unsafe fn largest<L: Simd>(x: &[f32]) -> f32 {
    let whole = x.len() / L::COUNT * L::COUNT;
    // SAFETY: the pieces are of x.
    unsafe {
        let mut most = L::splat(f32::NEG_INFINITY);
        pieces!(L, whole, |at, _count| most = L::max(most, L::load(x.as_ptr().add(at))));
        let mut elements = [f32::NEG_INFINITY; 16];
        L::store(elements.as_mut_ptr(), most);
        elements.iter().chain(&x[whole..]).fold(f32::NEG_INFINITY, |most, value| most.max(*value))
    }
}

/// cos and sin of a row's position, one for each number of a head; sin of the first half negated.
#[derive(Clone, Copy, Debug)]
pub struct Rotation<'a> {
    /// cos.
    pub cos: &'a [f32],
    /// sin.
    pub sin: &'a [f32],
}

/// Factors and offsets of a layer norm, one of each for every number of a row.
#[derive(Clone, Copy, Debug)]
pub struct Affine<'a> {
    /// Factors.
    pub weight: &'a [f32],
    /// Added.
    pub bias: &'a [f32],
}

/// The functions of one instruction set.
#[derive(Clone, Copy)]
pub(crate) struct Functions {
    pub(crate) gated: unsafe fn(&[f32], &[f32], &mut [f32]),
    pub(crate) norm: unsafe fn(&[f32], &[f32], f32, &mut [f32]),
    pub(crate) norm_rotate: unsafe fn(&[f32], &[f32], f32, Rotation<'_>, &mut [f32]),
    pub(crate) rotate: unsafe fn(&[f32], Rotation<'_>, &mut [f32]),
    pub(crate) layer_norm: unsafe fn(&[f32], Affine<'_>, f32, &mut [f32]),
    pub(crate) gelu: unsafe fn(&mut [f32]),
    pub(crate) powers: unsafe fn(&mut [f32], f32, usize, usize) -> [f32; 2],
}

/// The functions with an instruction set enabled: everything above is inlined into them.
macro_rules! functions {
    ($(#[$attribute:meta])* $name:ident, $simd:ty) => {
        pub(super) mod $name {
            use super::{Affine, Functions, Rotation};

            $(#[$attribute])*
            unsafe fn gated(gate: &[f32], up: &[f32], out: &mut [f32]) {
                // SAFETY: the caller's: the processor has the instructions.
                unsafe { super::gated::<$simd>(gate, up, out) }
            }

            $(#[$attribute])*
            unsafe fn norm(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
                // SAFETY: as above.
                unsafe { super::norm::<$simd>(x, weight, eps, out) }
            }

            $(#[$attribute])*
            unsafe fn norm_rotate(x: &[f32], weight: &[f32], eps: f32, rotation: Rotation<'_>, out: &mut [f32]) {
                // SAFETY: as above.
                unsafe { super::norm_rotate::<$simd>(x, weight, eps, rotation, out) }
            }

            $(#[$attribute])*
            unsafe fn rotate(x: &[f32], rotation: Rotation<'_>, out: &mut [f32]) {
                // SAFETY: as above.
                unsafe { super::rotate::<$simd>(x, rotation, out) }
            }

            $(#[$attribute])*
            unsafe fn layer_norm(x: &[f32], affine: Affine<'_>, eps: f32, out: &mut [f32]) {
                // SAFETY: as above.
                unsafe { super::layer_norm::<$simd>(x, affine, eps, out) }
            }

            $(#[$attribute])*
            unsafe fn gelu(x: &mut [f32]) {
                // SAFETY: as above.
                unsafe { super::gelu::<$simd>(x) }
            }

            $(#[$attribute])*
            unsafe fn powers(x: &mut [f32], scale: f32, from: usize, to: usize) -> [f32; 2] {
                // SAFETY: as above.
                unsafe { super::powers::<$simd>(x, scale, from, to) }
            }

            pub(in super::super) const ALL: Functions = Functions { gated, norm, norm_rotate, rotate, layer_norm, gelu, powers };
        }
    };
}

functions!(portable, super::super::simd::Portable);

#[cfg(target_arch = "x86_64")]
functions!(
    #[target_feature(enable = "avx512f,avx512vl,avx2,fma")]
    avx512,
    super::super::simd::Avx512
);

#[cfg(target_arch = "x86_64")]
functions!(
    #[target_feature(enable = "avx2,fma")]
    avx2,
    super::super::simd::Avx2
);

#[cfg(target_arch = "aarch64")]
functions!(neon, super::super::simd::Neon);
