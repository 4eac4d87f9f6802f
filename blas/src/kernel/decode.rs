//! Vectors of weights from their packed bits, as [`super::quantized`] needs them. A weight is
//! scale · q + bias in one fused step, whatever the instruction set looks up or computes; portable
//! code rounds the product first.
//!
//! A row of a packed matrix is one string of bits: number j is at bits j · BITS and up, low bits
//! first. Eight numbers are BITS bytes.

use super::lanes::{Lanes, Portable};

/// How an instruction set makes weights of bits.
pub(super) trait Decode {
    type Lanes: Lanes;
    /// Vector registers, which settle how many sums a block has.
    const REGISTERS: usize;
    /// Most rows of a block; 0 where weights are always expanded.
    const ROWS: usize;
    /// Values that the weights of a group share, ready for [`Decode::weights`].
    type Group: Copy;

    /// # Safety
    /// As all here: the processor has the instructions.
    unsafe fn group<const BITS: usize>(scale: f32, bias: f32) -> Self::Group;
    /// [`Lanes::COUNT`] weights, from the one at `at` on, a multiple of COUNT.
    ///
    /// # Safety
    /// `row` has as many numbers of BITS bits, in whole eights; no more is read.
    unsafe fn weights<const BITS: usize>(
        row: *const u8,
        at: usize,
        group: Self::Group,
    ) -> <Self::Lanes as Lanes>::Vector;
    /// The weights of [`Decode::weights`] in the order of lanes that is cheapest.
    ///
    /// # Safety
    /// [`Decode::weights`]'s.
    #[inline(always)]
    unsafe fn shuffled<const BITS: usize>(
        row: *const u8,
        at: usize,
        group: Self::Group,
    ) -> <Self::Lanes as Lanes>::Vector {
        // SAFETY: the caller's.
        unsafe { Self::weights::<BITS>(row, at, group) }
    }
    /// Puts lanes into the order of [`Decode::shuffled`].
    ///
    /// # Safety
    /// As all here.
    #[inline(always)]
    unsafe fn shuffle<const BITS: usize>(
        vector: <Self::Lanes as Lanes>::Vector,
    ) -> <Self::Lanes as Lanes>::Vector {
        vector
    }
    /// Puts lanes back into their own order.
    ///
    /// # Safety
    /// As all here.
    #[inline(always)]
    unsafe fn restore<const BITS: usize>(
        vector: <Self::Lanes as Lanes>::Vector,
    ) -> <Self::Lanes as Lanes>::Vector {
        vector
    }
    /// [`Lanes::COUNT`] halves as floats.
    ///
    /// # Safety
    /// `from` has as many.
    #[inline(always)]
    unsafe fn halves(from: *const u16) -> <Self::Lanes as Lanes>::Vector {
        let mut lanes = [0.0; 16]; // no vector is longer
        // SAFETY: the caller's.
        unsafe {
            for (at, lane) in lanes.iter_mut().enumerate().take(Self::Lanes::COUNT) {
                *lane = half(from.add(at).read_unaligned());
            }
            Self::Lanes::load(lanes.as_ptr())
        }
    }
}

/// An IEEE half as a float, exactly.
#[inline(always)]
pub(super) fn half(bits: u16) -> f32 {
    let (sign, rest) = (u32::from(bits & 0x8000) << 16, u32::from(bits & 0x7fff));
    let size = match rest >> 10 {
        0 => (rest as f32 * 2.0f32.powi(-24)).to_bits(),
        31 => rest << 13 | 0x7f80_0000,
        _ => (rest << 13) + (112 << 23),
    };
    f32::from_bits(sign | size)
}

/// A bfloat16 as a float, exactly.
#[inline(always)]
pub(super) fn brain(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// Eight numbers of BITS bits.
///
/// # Safety
/// `from` has BITS bytes.
#[inline(always)]
unsafe fn eight<const BITS: usize>(from: *const u8) -> [f32; 8] {
    let mut bytes = [0u8; 8];
    // SAFETY: the caller's; BITS is at most 8.
    unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), BITS) };
    let word = u64::from_le_bytes(bytes);
    std::array::from_fn(|at| ((word >> (at * BITS)) & ((1 << BITS) - 1)) as i32 as f32)
}

/// COUNT numbers of BITS bits, from the one at `at` on, a multiple of COUNT.
///
/// # Safety
/// `row` has as many, in whole eights.
#[inline(always)]
unsafe fn numbers<L: Lanes, const BITS: usize>(row: *const u8, at: usize) -> L::Vector {
    // SAFETY: the caller's.
    unsafe {
        let from = row.add(at / 8 * BITS);
        let mut lanes = [[0.0; 8]; 2]; // no vector is longer
        lanes[0] = eight::<BITS>(from);
        if L::COUNT == 16 {
            lanes[1] = eight::<BITS>(from.add(BITS));
        }
        L::load(lanes.as_ptr().cast::<f32>().add(at % 8))
    }
}

/// The scale and the bias in every lane.
#[derive(Clone, Copy)]
pub(super) struct Affine<V> {
    scale: V,
    bias: V,
}

/// Decodes without vector instructions, on any processor.
pub(super) struct PortableDecode;

impl Decode for PortableDecode {
    type Lanes = Portable;
    const REGISTERS: usize = 16;
    const ROWS: usize = 0;
    type Group = Affine<[f32; 8]>;

    #[inline(always)]
    unsafe fn group<const BITS: usize>(scale: f32, bias: f32) -> Self::Group {
        Affine { scale: [scale; 8], bias: [bias; 8] }
    }

    #[inline(always)]
    unsafe fn weights<const BITS: usize>(
        row: *const u8,
        at: usize,
        group: Self::Group,
    ) -> [f32; 8] {
        // SAFETY: the caller's.
        unsafe { Portable::fma(numbers::<Portable, BITS>(row, at), group.scale, group.bias) }
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) use x86::{Avx2Decode, Avx512Decode};

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::super::lanes::{Avx2, Avx512, Lanes};
    use super::{Affine, Decode, numbers};
    use std::arch::x86_64::*;

    /// AVX-512F. Of 4 bits a group's weights are a table of 16: the index into it is the lowest 4
    /// bits of a lane, whatever is above them.
    pub(in super::super) struct Avx512Decode;

    impl Decode for Avx512Decode {
        type Lanes = Avx512;
        const REGISTERS: usize = 32;
        const ROWS: usize = 8;
        /// Of 4 bits, the scale is the table.
        type Group = Affine<__m512>;

        #[inline(always)]
        unsafe fn group<const BITS: usize>(scale: f32, bias: f32) -> Self::Group {
            // SAFETY: here and below: the instructions are there, and pointers are the caller's.
            unsafe {
                let (scale, bias) = (_mm512_set1_ps(scale), _mm512_set1_ps(bias));
                if BITS != 4 {
                    return Affine { scale, bias };
                }
                let numbers = _mm512_setr_ps(
                    0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0,
                    15.0,
                );
                Affine { scale: _mm512_fmadd_ps(numbers, scale, bias), bias }
            }
        }

        #[inline(always)]
        unsafe fn weights<const BITS: usize>(
            row: *const u8,
            at: usize,
            group: Self::Group,
        ) -> __m512 {
            // SAFETY: as above.
            unsafe {
                let numbers = match BITS {
                    4 => return Self::restore::<4>(Self::shuffled::<4>(row, at, group)),
                    8 => {
                        let bytes = _mm_loadu_si128(row.add(at).cast());
                        _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes))
                    }
                    _ => numbers::<Avx512, BITS>(row, at),
                };
                Avx512::fma(numbers, group.scale, group.bias)
            }
        }

        /// Of 4 bits: the two words in turn, a number of each, which takes no instruction more than
        /// to shift them.
        #[inline(always)]
        unsafe fn shuffled<const BITS: usize>(
            row: *const u8,
            at: usize,
            group: Self::Group,
        ) -> __m512 {
            // SAFETY: as above.
            unsafe {
                if BITS != 4 {
                    return Self::weights::<BITS>(row, at, group);
                }
                let words = _mm512_set1_epi64(row.add(at / 2).cast::<i64>().read_unaligned());
                let shifts =
                    _mm512_setr_epi32(0, 0, 4, 4, 8, 8, 12, 12, 16, 16, 20, 20, 24, 24, 28, 28);
                _mm512_permutexvar_ps(_mm512_srlv_epi32(words, shifts), group.scale)
            }
        }

        #[inline(always)]
        unsafe fn shuffle<const BITS: usize>(vector: __m512) -> __m512 {
            // SAFETY: as above.
            unsafe {
                if BITS != 4 {
                    return vector;
                }
                let from = _mm512_setr_epi32(0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15);
                _mm512_permutexvar_ps(from, vector)
            }
        }

        #[inline(always)]
        unsafe fn restore<const BITS: usize>(vector: __m512) -> __m512 {
            // SAFETY: as above.
            unsafe {
                if BITS != 4 {
                    return vector;
                }
                let from = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
                _mm512_permutexvar_ps(from, vector)
            }
        }

        #[inline(always)]
        unsafe fn halves(from: *const u16) -> __m512 {
            // SAFETY: as above.
            unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) }
        }
    }

    /// AVX2, FMA and F16C.
    pub(in super::super) struct Avx2Decode;

    impl Decode for Avx2Decode {
        type Lanes = Avx2;
        const REGISTERS: usize = 16;
        const ROWS: usize = 4;
        type Group = Affine<__m256>;

        #[inline(always)]
        unsafe fn group<const BITS: usize>(scale: f32, bias: f32) -> Self::Group {
            // SAFETY: as above.
            unsafe { Affine { scale: Avx2::splat(scale), bias: Avx2::splat(bias) } }
        }

        #[inline(always)]
        unsafe fn weights<const BITS: usize>(
            row: *const u8,
            at: usize,
            group: Self::Group,
        ) -> __m256 {
            // SAFETY: as above.
            unsafe {
                let from = row.add(at / 8 * BITS);
                let numbers = match BITS {
                    4 => {
                        let word = _mm256_set1_epi32(from.cast::<i32>().read_unaligned());
                        let shifts = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28);
                        let lowest = _mm256_set1_epi32(15);
                        let numbers = _mm256_and_si256(_mm256_srlv_epi32(word, shifts), lowest);
                        _mm256_cvtepi32_ps(numbers)
                    }
                    8 => {
                        let bytes = _mm_loadl_epi64(from.cast());
                        _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes))
                    }
                    _ => numbers::<Avx2, BITS>(row, at),
                };
                Avx2::fma(numbers, group.scale, group.bias)
            }
        }

        #[inline(always)]
        unsafe fn halves(from: *const u16) -> __m256 {
            // SAFETY: as above.
            unsafe { _mm256_cvtph_ps(_mm_loadu_si128(from.cast())) }
        }
    }
}

#[cfg(target_arch = "aarch64")]
pub(super) use arm::NeonDecode;

#[cfg(target_arch = "aarch64")]
mod arm {
    use super::super::lanes::{Lanes, Neon};
    use super::{Affine, Decode, numbers};
    use std::arch::aarch64::*;

    pub(in super::super) struct NeonDecode;

    impl Decode for NeonDecode {
        type Lanes = Neon;
        const REGISTERS: usize = 32;
        const ROWS: usize = 8;
        type Group = Affine<float32x4_t>;

        #[inline(always)]
        unsafe fn group<const BITS: usize>(scale: f32, bias: f32) -> Self::Group {
            // SAFETY: NEON belongs to the architecture.
            unsafe { Affine { scale: Neon::splat(scale), bias: Neon::splat(bias) } }
        }

        #[inline(always)]
        unsafe fn weights<const BITS: usize>(
            row: *const u8,
            at: usize,
            group: Self::Group,
        ) -> float32x4_t {
            /// Shift of each lane in bits; a negative one shifts to the right.
            static SHIFTS: [i32; 8] = [0, -4, -8, -12, 0, -8, -16, -24];
            // SAFETY: as above; the caller's. Four numbers are 2 or 4 bytes.
            unsafe {
                let from = row.add(at * BITS / 8);
                let (word, shifts, lowest) = match BITS {
                    4 => (u32::from(from.cast::<u16>().read_unaligned()), 0, 15),
                    8 => (from.cast::<u32>().read_unaligned(), 4, 255),
                    _ => {
                        let numbers = numbers::<Neon, BITS>(row, at);
                        return Neon::fma(numbers, group.scale, group.bias);
                    }
                };
                let shifts = vld1q_s32(SHIFTS.as_ptr().add(shifts));
                let numbers = vandq_u32(vshlq_u32(vdupq_n_u32(word), shifts), vdupq_n_u32(lowest));
                Neon::fma(vcvtq_f32_u32(numbers), group.scale, group.bias)
            }
        }
    }
}
