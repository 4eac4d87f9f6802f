//! The gated delta rule on the state of one head, and the functions around it: a convolution over
//! the rows before, and two gates. A row's result has the same bits whatever rows stand beside it.
//!
//! Per row, with the state S `[keys, values]`: r = kᵀS; δ = β · (v − g · r); S = g · S + k δᵀ; y =
//! Sᵀ q. Every sum runs over the keys in order, one fused step each, one element per value.

use super::functions::{exp, inverse_rms, load, store};
use super::simd::Simd;

/// One row of one head.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeltaRow<'a> {
    pub(crate) query: &'a [f32],
    pub(crate) key: &'a [f32],
    pub(crate) value: &'a [f32],
    /// g, by which the state decays.
    pub(crate) decay: f32,
    /// β, how much of the difference is learned.
    pub(crate) beta: f32,
}

/// Where a row's step writes.
#[derive(Clone, Copy)]
struct StepPlaces {
    state: *mut f32,
    out: *mut f32,
    delta: *mut f32,
}

/// Vectors of a block of columns: a state of 128 keys then stays in the first-level cache between
/// the two passes over it.
const BLOCK: usize = 4;

/// N vectors of columns from `at` on; the last vector has `count` elements.
///
/// # Safety
/// The state has a row of `row.value.len()` numbers for each key; the columns are below that, and
/// `out` and `delta` have as many numbers.
#[inline(always)]
unsafe fn columns<L: Simd, const N: usize>(
    places: StepPlaces,
    row: DeltaRow<'_>,
    at: usize,
    count: usize,
) {
    let width = row.value.len();
    let elements = |vector: usize| if vector + 1 == N { count } else { L::COUNT };
    let column = |vector: usize| at + vector * L::COUNT;
    // SAFETY: the caller's.
    unsafe {
        let mut read = [L::splat(0.0); N];
        for (line, key) in row.key.iter().enumerate() {
            let key = L::splat(*key);
            for (vector, sum) in read.iter_mut().enumerate() {
                let place = places.state.add(line * width + column(vector));
                *sum = L::fma(key, load::<L>(place, elements(vector)), *sum);
            }
        }
        let (decay, beta) = (L::splat(row.decay), L::splat(row.beta));
        let mut delta = read;
        for (vector, delta) in delta.iter_mut().enumerate() {
            let value = load::<L>(row.value.as_ptr().add(column(vector)), elements(vector));
            *delta = L::mul(beta, L::fma(L::splat(-row.decay), *delta, value));
            store::<L>(places.delta.add(column(vector)), *delta, elements(vector));
        }
        let mut out = [L::splat(0.0); N];
        for (line, (key, query)) in row.key.iter().zip(row.query).enumerate() {
            let (key, query) = (L::splat(*key), L::splat(*query));
            for vector in 0..N {
                let place = places.state.add(line * width + column(vector));
                let old = L::mul(decay, load::<L>(place, elements(vector)));
                let new = L::fma(key, delta[vector], old);
                store::<L>(place, new, elements(vector));
                out[vector] = L::fma(query, new, out[vector]);
            }
        }
        for (vector, out) in out.into_iter().enumerate() {
            store::<L>(places.out.add(column(vector)), out, elements(vector));
        }
    }
}

/// One row: the state goes on, `out` gets y and `delta` gets δ.
#[inline(always)]
unsafe fn step<L: Simd>(state: &mut [f32], row: DeltaRow<'_>, out: &mut [f32], delta: &mut [f32]) {
    let width = row.value.len();
    assert!(
        state.len() == row.key.len() * width
            && row.query.len() == row.key.len()
            && out.len() == width
            && delta.len() == width,
        "expected a state of {} keys and {width} values, found {} numbers",
        row.key.len(),
        state.len()
    );
    let (out, delta) = (out.as_mut_ptr(), delta.as_mut_ptr());
    let places = StepPlaces { state: state.as_mut_ptr(), out, delta };
    let mut at = 0;
    // SAFETY: the sizes were compared.
    unsafe {
        while at + BLOCK * L::COUNT <= width {
            columns::<L, BLOCK>(places, row, at, L::COUNT);
            at += BLOCK * L::COUNT;
        }
        while at < width {
            let count = L::COUNT.min(width - at);
            columns::<L, 1>(places, row, at, count);
            at += count;
        }
    }
}

/// One row of a tape: the state goes on as by [`step`], to the last bit.
#[inline(always)]
unsafe fn fold<L: Simd>(state: &mut [f32], key: &[f32], delta: &[f32], decay: f32) {
    let width = delta.len();
    assert!(state.len() == key.len() * width, "expected a state of {} keys", key.len());
    // SAFETY: the sizes were compared.
    unsafe {
        let decay = L::splat(decay);
        for (line, key) in state.chunks_exact_mut(width.max(1)).zip(key) {
            let key = L::splat(*key);
            let mut at = 0;
            while at < width {
                let count = L::COUNT.min(width - at);
                let place = line.as_mut_ptr().add(at);
                let old = L::mul(decay, load::<L>(place, count));
                let delta = load::<L>(delta.as_ptr().add(at), count);
                store::<L>(place, L::fma(key, delta, old), count);
                at += count;
            }
        }
    }
}

/// silu of the weighted sum of rows, number by number.
#[inline(always)]
unsafe fn convolve<L: Simd>(rows: &[&[f32]], weights: &[&[f32]], out: &mut [f32]) {
    let length = rows.iter().chain(weights).fold(out.len(), |length, row| length.min(row.len()));
    let mut at = 0;
    // SAFETY: the pieces are of all of them.
    unsafe {
        let one = L::splat(1.0);
        while at < length {
            let count = L::COUNT.min(length - at);
            let mut sum = L::splat(0.0);
            for (row, weight) in rows.iter().zip(weights) {
                let weight = load::<L>(weight.as_ptr().add(at), count);
                sum = L::fma(weight, load::<L>(row.as_ptr().add(at), count), sum);
            }
            let silu = L::div(sum, L::add(one, exp::<L>(L::mul(sum, L::splat(-1.0)))));
            store::<L>(out.as_mut_ptr().add(at), silu, count);
            at += count;
        }
    }
}

/// x / rms(x) · weight · silu(gate).
#[inline(always)]
unsafe fn norm_gated<L: Simd>(x: &[f32], gate: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let length = out.len().min(x.len()).min(gate.len()).min(weight.len());
    let mut at = 0;
    // SAFETY: the pieces are of all four.
    unsafe {
        let (factor, one) = (L::splat(inverse_rms::<L>(x, eps)), L::splat(1.0));
        while at < length {
            let count = L::COUNT.min(length - at);
            let normed = L::mul(load::<L>(x.as_ptr().add(at), count), factor);
            let normed = L::mul(normed, load::<L>(weight.as_ptr().add(at), count));
            let gate = load::<L>(gate.as_ptr().add(at), count);
            let silu = L::div(gate, L::add(one, exp::<L>(L::mul(gate, L::splat(-1.0)))));
            store::<L>(out.as_mut_ptr().add(at), L::mul(normed, silu), count);
            at += count;
        }
    }
}

/// x · sigmoid(gate).
#[inline(always)]
unsafe fn sigmoid_gated<L: Simd>(x: &[f32], gate: &[f32], out: &mut [f32]) {
    let length = out.len().min(x.len()).min(gate.len());
    let mut at = 0;
    // SAFETY: the pieces are of all three.
    unsafe {
        let one = L::splat(1.0);
        while at < length {
            let count = L::COUNT.min(length - at);
            let gate = load::<L>(gate.as_ptr().add(at), count);
            let below = L::add(one, exp::<L>(L::mul(gate, L::splat(-1.0))));
            let y = L::div(load::<L>(x.as_ptr().add(at), count), below);
            store::<L>(out.as_mut_ptr().add(at), y, count);
            at += count;
        }
    }
}

/// State, row, then what is written: y and δ.
type Step = unsafe fn(&mut [f32], DeltaRow<'_>, &mut [f32], &mut [f32]);
/// Rows, their weights, then what is written.
type Convolve = unsafe fn(&[&[f32]], &[&[f32]], &mut [f32]);
/// Numbers, their gates, a weight and ε, then what is written.
type NormGated = unsafe fn(&[f32], &[f32], &[f32], f32, &mut [f32]);

/// The functions of one instruction set.
#[derive(Clone, Copy)]
pub(crate) struct DeltaFunctions {
    pub(crate) step: Step,
    pub(crate) fold: unsafe fn(&mut [f32], &[f32], &[f32], f32),
    pub(crate) convolve: Convolve,
    pub(crate) norm_gated: NormGated,
    pub(crate) sigmoid_gated: unsafe fn(&[f32], &[f32], &mut [f32]),
}

/// The functions with an instruction set enabled: everything above is inlined into them.
macro_rules! delta_functions {
    ($(#[$attribute:meta])* $name:ident, $simd:ty) => {
        pub(super) mod $name {
            use super::{DeltaFunctions, DeltaRow};

            $(#[$attribute])*
            unsafe fn step(state: &mut [f32], row: DeltaRow<'_>, out: &mut [f32], delta: &mut [f32]) {
                // SAFETY: the caller's: the processor has the instructions.
                unsafe { super::step::<$simd>(state, row, out, delta) }
            }

            $(#[$attribute])*
            unsafe fn fold(state: &mut [f32], key: &[f32], delta: &[f32], decay: f32) {
                // SAFETY: as above.
                unsafe { super::fold::<$simd>(state, key, delta, decay) }
            }

            $(#[$attribute])*
            unsafe fn convolve(rows: &[&[f32]], weights: &[&[f32]], out: &mut [f32]) {
                // SAFETY: as above.
                unsafe { super::convolve::<$simd>(rows, weights, out) }
            }

            $(#[$attribute])*
            unsafe fn norm_gated(x: &[f32], gate: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
                // SAFETY: as above.
                unsafe { super::norm_gated::<$simd>(x, gate, weight, eps, out) }
            }

            $(#[$attribute])*
            unsafe fn sigmoid_gated(x: &[f32], gate: &[f32], out: &mut [f32]) {
                // SAFETY: as above.
                unsafe { super::sigmoid_gated::<$simd>(x, gate, out) }
            }

            pub(in super::super) const ALL: DeltaFunctions = DeltaFunctions { step, fold, convolve, norm_gated, sigmoid_gated };
        }
    };
}

delta_functions!(portable, super::super::simd::Portable);

#[cfg(target_arch = "x86_64")]
delta_functions!(
    #[target_feature(enable = "avx512f,avx512vl,avx2,fma")]
    avx512,
    super::super::simd::Avx512
);

#[cfg(target_arch = "x86_64")]
delta_functions!(
    #[target_feature(enable = "avx2,fma")]
    avx2,
    super::super::simd::Avx2
);

#[cfg(target_arch = "aarch64")]
delta_functions!(neon, super::super::simd::Neon);
