//! Quantized weights as they are stored, and their scales and biases as floats.

use super::decode::{Decode, brain, half};
use super::simd::Simd;

/// Bytes of a cache line.
pub(super) const LINE: usize = 64;

/// Scales or biases as they are stored, `[columns, groups]`.
#[derive(Clone, Copy)]
pub(crate) enum Factors {
    Float32(*const f32),
    Float16(*const u16),
    Bfloat16(*const u16),
    /// Runs of a float16 and a signed byte for each of the `codes` groups of 256 numbers: a factor is
    /// their product. In tiles a run has the 16 columns' floats, then for each group their bytes.
    Scaled {
        place: *const i8,
        codes: usize,
    },
}

/// Numbers of a run of scaled factors.
pub(crate) const RUN: usize = 256;

impl Factors {
    /// Scaled factor number `at`, of a matrix that does not lie in tiles.
    ///
    /// # Safety
    /// There is one.
    #[inline(always)]
    unsafe fn scaled(place: *const i8, codes: usize, at: usize) -> f32 {
        // SAFETY: the caller's.
        unsafe {
            let run = place.add(at / codes * (2 + codes));
            let of_run = half(run.cast::<u16>().read_unaligned());
            of_run * f32::from(*run.add(2 + at % codes))
        }
    }
}

/// A matrix `[columns, k]` in groups of k: w = scale · q + bias.
#[derive(Clone, Copy)]
pub(crate) struct QuantizedWeight {
    /// Rows of k · bits / 8 bytes, each one string of bits, low bits first.
    pub(crate) packed: *const u8,
    pub(crate) scales: Factors,
    pub(crate) biases: Factors,
    /// Numbers that share a scale and a bias: 16 or a larger power of two that divides k.
    pub(crate) group: usize,
    /// 2, 3, 4, 5, 6 or 8.
    pub(crate) bits: usize,
    /// Whether all parts lie in tiles of columns, for products of integers ([`super::integer`]).
    pub(crate) tiles: bool,
}

/// Scales and biases of some columns as floats.
#[derive(Clone, Copy)]
pub(super) struct GroupFactors {
    pub(super) scales: *const f32,
    pub(super) biases: *const f32,
    /// For each column.
    pub(super) groups: usize,
}

impl GroupFactors {
    /// Those of the group at `at` of all columns' groups.
    ///
    /// # Safety
    /// There are as many, and the processor has the instructions.
    #[inline(always)]
    pub(super) unsafe fn group<D: Decode, const BITS: usize>(self, at: usize) -> D::Group {
        // SAFETY: the caller's.
        unsafe { D::group::<BITS>(*self.scales.add(at), *self.biases.add(at)) }
    }

    /// Those from a column on.
    pub(super) fn from(self, column: usize) -> Self {
        let at = column * self.groups;
        let (scales, biases) = (self.scales.wrapping_add(at), self.biases.wrapping_add(at));
        Self { scales, biases, ..self }
    }
}

/// The place from which on factors will be needed next, and the bytes of one column's.
#[derive(Clone, Copy)]
pub(super) struct NextFactors {
    scales: *const u8,
    biases: *const u8,
    bytes: usize,
}

impl NextFactors {
    /// Those of `weight` from a column on, which may lie behind the last.
    pub(super) fn new(weight: &QuantizedWeight, groups: usize, column: usize) -> Self {
        let place = |factors: Factors| match factors {
            Factors::Float32(place) => {
                (place.wrapping_add(column * groups).cast::<u8>(), 4 * groups)
            }
            Factors::Float16(place) | Factors::Bfloat16(place) => {
                (place.wrapping_add(column * groups).cast::<u8>(), 2 * groups)
            }
            Factors::Scaled { place, codes } => {
                let bytes = groups / codes * (2 + codes);
                (place.wrapping_add(column * bytes).cast::<u8>(), bytes)
            }
        };
        let ((scales, bytes), (biases, _)) = (place(weight.scales), place(weight.biases));
        Self { scales, biases, bytes }
    }

    /// Asks for those of `count` columns, the one at `column` the first.
    ///
    /// # Safety
    /// As all here.
    #[inline(always)]
    pub(super) unsafe fn fetch<D: Decode>(self, column: usize, count: usize) {
        let at = column * self.bytes;
        for line in (at..at + count * self.bytes).step_by(LINE) {
            // SAFETY: asking for what is not there does no harm.
            unsafe {
                D::Simd::fetch(self.scales.wrapping_add(line).cast());
                D::Simd::fetch(self.biases.wrapping_add(line).cast());
            }
        }
    }
}

/// `count` factors from the one at `from` on, as floats.
///
/// # Safety
/// There are as many, and there is room for them.
#[inline(always)]
pub(super) unsafe fn convert<D: Decode>(factors: Factors, from: usize, count: usize, to: *mut f32) {
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
            Factors::Scaled { place, codes } => {
                for at in 0..count {
                    *to.add(at) = Factors::scaled(place, codes, from + at);
                }
            }
            Factors::Float16(place) => {
                let (place, elements) = (place.add(from), D::Simd::COUNT);
                let mut at = 0;
                while at < count {
                    if count < elements {
                        *to.add(at) = half(*place.add(at));
                        at += 1;
                        continue;
                    }
                    // The last vector begins within the one before.
                    let from = at.min(count - elements);
                    D::Simd::store(to.add(from), D::halves(place.add(from)));
                    at += elements;
                }
            }
        }
    }
}
