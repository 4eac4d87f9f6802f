//! Vectors of weights from their packed bits, as [`super::quantized`] needs them. A weight is
//! scale · q + bias in one fused step, whatever the instruction set looks up or computes; portable
//! code rounds the product first.
//!
//! A row of a packed matrix is one string of bits: number j is at bits j · BITS and up, low bits
//! first. It is decoded in units of 32 numbers, which are 4 · BITS bytes. A vector of a unit is one
//! load that lies wholly within the unit, so that nothing behind the weights is read:
//!
//! ```text
//!  its numbers fit 32 bits    the word in every element ─ shift each element
//!  they do not                up to 16 bytes in every 128 bits ─ move the bytes of a number into its element ─ shift
//! ```
//! The instruction sets add the shortcuts that they have for 4 and 8 bits.

use super::simd::{Portable, Simd};

/// Numbers that are decoded with one look at their group, of which no group has fewer.
pub(super) const UNIT: usize = 32;

/// Where the numbers of a vector lie in their unit.
struct Place {
    /// Bytes from the begin of the unit to the begin of the load.
    load: usize,
    /// The bytes of the load that belong into each byte of the elements; 128 for none.
    bytes: [u8; 64],
    /// Bits by which each element is shifted to the right, after its bytes are in place.
    shifts: [u32; 16],
}

impl Place {
    /// The place of vector `step` of `count` numbers of `bits` bits, of which `width` bytes are
    /// loaded. Of 4 bytes all are in each element.
    const fn new(bits: usize, step: usize, count: usize, width: usize) -> Self {
        let (begin, last) = (step * count * bits, UNIT / 8 * bits - width);
        let load = if begin / 8 < last { begin / 8 } else { last };
        let (mut bytes, mut shifts) = ([128; 64], [0; 16]);
        let mut element = 0;
        while element < count {
            let bit = begin + element * bits - 8 * load;
            if width == 4 {
                shifts[element] = bit as u32;
            } else {
                shifts[element] = (bit % 8) as u32;
                bytes[4 * element] = (bit / 8) as u8;
                if bit % 8 + bits > 8 {
                    bytes[4 * element + 1] = (bit / 8 + 1) as u8;
                }
            }
            element += 1;
        }
        Self { load, bytes, shifts }
    }
}

/// How an instruction set makes weights of bits.
pub(super) trait Decode {
    type Simd: Simd;
    /// Vector registers, which settle how many sums a block has.
    const REGISTERS: usize;
    /// Most rows of a block; 0 where weights are always expanded.
    const ROWS: usize;
    /// Values that the weights of a group share, ready for [`Decode::weights`].
    type Group: Copy;

    /// # Safety
    /// As all here: the processor has the instructions.
    unsafe fn group<const BITS: usize>(scale: f32, bias: f32) -> Self::Group;
    /// Vector number STEP of the weights of a unit.
    ///
    /// # Safety
    /// `unit` has as many numbers of BITS bits; no more is read. It has more vectors than STEP.
    unsafe fn weights<const BITS: usize, const STEP: usize>(
        unit: *const u8,
        group: Self::Group,
    ) -> <Self::Simd as Simd>::Vector;
    /// The weights of [`Decode::weights`] in the order of elements that is cheapest.
    ///
    /// # Safety
    /// [`Decode::weights`]'s.
    #[inline(always)]
    unsafe fn shuffled<const BITS: usize, const STEP: usize>(
        unit: *const u8,
        group: Self::Group,
    ) -> <Self::Simd as Simd>::Vector {
        // SAFETY: the caller's.
        unsafe { Self::weights::<BITS, STEP>(unit, group) }
    }
    /// Puts elements into the order of [`Decode::shuffled`].
    ///
    /// # Safety
    /// As all here.
    #[inline(always)]
    unsafe fn shuffle<const BITS: usize>(
        vector: <Self::Simd as Simd>::Vector,
    ) -> <Self::Simd as Simd>::Vector {
        vector
    }
    /// Puts elements back into their own order.
    ///
    /// # Safety
    /// As all here.
    #[inline(always)]
    unsafe fn restore<const BITS: usize>(
        vector: <Self::Simd as Simd>::Vector,
    ) -> <Self::Simd as Simd>::Vector {
        vector
    }
    /// [`Simd::COUNT`] halves as floats.
    ///
    /// # Safety
    /// `from` has as many.
    #[inline(always)]
    unsafe fn halves(from: *const u16) -> <Self::Simd as Simd>::Vector {
        let mut elements = [0.0; 16]; // no vector is longer
        // SAFETY: the caller's.
        unsafe {
            for (at, element) in elements.iter_mut().enumerate().take(Self::Simd::COUNT) {
                *element = half(from.add(at).read_unaligned());
            }
            Self::Simd::load(elements.as_ptr())
        }
    }

    /// [`Simd::COUNT`] bfloat16 numbers as floats.
    ///
    /// # Safety
    /// `from` has as many.
    #[inline(always)]
    unsafe fn brains(from: *const u16) -> <Self::Simd as Simd>::Vector {
        let mut elements = [0.0; 16]; // no vector is longer
        // SAFETY: the caller's.
        unsafe {
            for (at, element) in elements.iter_mut().enumerate().take(Self::Simd::COUNT) {
                *element = brain(from.add(at).read_unaligned());
            }
            Self::Simd::load(elements.as_ptr())
        }
    }

    /// [`Simd::COUNT`] signed bytes as floats.
    ///
    /// # Safety
    /// `from` has as many.
    #[inline(always)]
    unsafe fn signed(from: *const i8) -> <Self::Simd as Simd>::Vector {
        let mut elements = [0.0; 16]; // no vector is longer
        // SAFETY: the caller's.
        unsafe {
            for (at, element) in elements.iter_mut().enumerate().take(Self::Simd::COUNT) {
                *element = f32::from(*from.add(at));
            }
            Self::Simd::load(elements.as_ptr())
        }
    }
}

/// An IEEE half as a float, exactly.
#[inline(always)]
pub(crate) fn half(bits: u16) -> f32 {
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
pub(crate) fn brain(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// The scale and the bias in every element.
#[derive(Clone, Copy)]
pub(super) struct Affine<V> {
    scale: V,
    bias: V,
}

/// Decodes without vector instructions, on any processor.
pub(super) struct PortableDecode;

impl Decode for PortableDecode {
    type Simd = Portable;
    const REGISTERS: usize = 16;
    const ROWS: usize = 0;
    type Group = Affine<[f32; 8]>;

    #[inline(always)]
    unsafe fn group<const BITS: usize>(scale: f32, bias: f32) -> Self::Group {
        Affine { scale: [scale; 8], bias: [bias; 8] }
    }

    #[inline(always)]
    unsafe fn weights<const BITS: usize, const STEP: usize>(
        unit: *const u8,
        group: Self::Group,
    ) -> [f32; 8] {
        let mut bytes = [0u8; 8];
        // SAFETY: the caller's; eight numbers are BITS bytes, and BITS is at most 8.
        unsafe {
            let from = unit.add(STEP * BITS);
            std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), BITS);
        }
        let word = u64::from_le_bytes(bytes);
        let number = |at: usize| ((word >> (at * BITS)) & ((1 << BITS) - 1)) as i32 as f32;
        // SAFETY: portable code needs no instructions.
        unsafe { Portable::fma(std::array::from_fn(number), group.scale, group.bias) }
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) use x86::{Avx2Decode, Avx512Decode};

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::super::simd::{Avx2, Avx512, Simd};
    use super::{Affine, Decode, Place};
    use std::arch::x86_64::*;

    /// AVX-512F and BW. Of up to 4 bits a group's weights are a table of 16: the index into it is
    /// the lowest 4 bits of an element, whatever is above them.
    pub(in super::super) struct Avx512Decode;

    /// Bytes that are loaded for 16 numbers.
    const fn width(bits: usize) -> usize {
        match bits {
            2 => 4,
            3 => 8,
            _ => 16,
        }
    }

    /// Bytes that are loaded for 8 numbers.
    const fn narrow(bits: usize) -> usize {
        if bits > 4 { 8 } else { 4 }
    }

    /// Shifts as vectors that the compiler knows. If it reads them from memory, it guards every
    /// shift against counts above 31, which costs an instruction each.
    impl Place {
        const fn sixteen_shifts(self) -> __m512i {
            // SAFETY: any bits are a vector of as many.
            unsafe { std::mem::transmute::<[u32; 16], __m512i>(self.shifts) }
        }

        const fn eight_shifts(self) -> __m256i {
            // SAFETY: as above.
            unsafe { std::mem::transmute::<[u32; 16], [__m256i; 2]>(self.shifts)[0] }
        }
    }

    /// Vector STEP of a unit: its numbers in the low bits of the elements, other bits above.
    ///
    /// # Safety
    /// [`Decode::weights`]'s.
    #[inline(always)]
    unsafe fn sixteen<const BITS: usize, const STEP: usize>(unit: *const u8) -> __m512i {
        let place = const { &Place::new(BITS, STEP, 16, width(BITS)) };
        // SAFETY: the caller's; the load lies within the unit.
        unsafe {
            let from = unit.add(place.load);
            let shifts = const { Place::new(BITS, STEP, 16, width(BITS)).sixteen_shifts() };
            let bytes = match width(BITS) {
                4 => _mm512_set1_epi32(from.cast::<i32>().read_unaligned()),
                8 => _mm512_set1_epi64(from.cast::<i64>().read_unaligned()),
                _ => _mm512_broadcast_i32x4(_mm_loadu_si128(from.cast())),
            };
            if width(BITS) == 4 {
                return _mm512_srlv_epi32(bytes, shifts);
            }
            let places = _mm512_loadu_si512(place.bytes.as_ptr().cast());
            _mm512_srlv_epi32(_mm512_shuffle_epi8(bytes, places), shifts)
        }
    }

    impl Decode for Avx512Decode {
        type Simd = Avx512;
        const REGISTERS: usize = 32;
        const ROWS: usize = 8;
        /// Of up to 4 bits, the scale is the table.
        type Group = Affine<__m512>;

        #[inline(always)]
        unsafe fn group<const BITS: usize>(scale: f32, bias: f32) -> Self::Group {
            // SAFETY: here and below: the instructions are there, and pointers are the caller's.
            unsafe {
                let (scale, bias) = (_mm512_set1_ps(scale), _mm512_set1_ps(bias));
                if BITS > 4 {
                    return Affine { scale, bias };
                }
                // Indices have 4 bits; what is above BITS is another number's.
                let numbers: [f32; 16] = const {
                    let mut numbers = [0.0; 16];
                    let mut at = 0;
                    while at < 16 {
                        numbers[at] = (at % (1 << BITS)) as f32;
                        at += 1;
                    }
                    numbers
                };
                let numbers = _mm512_loadu_ps(numbers.as_ptr());
                Affine { scale: _mm512_fmadd_ps(numbers, scale, bias), bias }
            }
        }

        #[inline(always)]
        unsafe fn weights<const BITS: usize, const STEP: usize>(
            unit: *const u8,
            group: Self::Group,
        ) -> __m512 {
            // SAFETY: as above.
            unsafe {
                let numbers = match BITS {
                    2 | 3 => {
                        return _mm512_permutexvar_ps(sixteen::<BITS, STEP>(unit), group.scale);
                    }
                    4 => return Self::restore::<4>(Self::shuffled::<4, STEP>(unit, group)),
                    8 => _mm512_cvtepu8_epi32(_mm_loadu_si128(unit.add(STEP * 16).cast())),
                    _ => {
                        let lowest = _mm512_set1_epi32((1 << BITS) - 1);
                        _mm512_and_si512(sixteen::<BITS, STEP>(unit), lowest)
                    }
                };
                Avx512::fma(_mm512_cvtepi32_ps(numbers), group.scale, group.bias)
            }
        }

        /// Of 4 bits: the two words in turn, a number of each, which takes no instruction more than
        /// to shift them.
        #[inline(always)]
        unsafe fn shuffled<const BITS: usize, const STEP: usize>(
            unit: *const u8,
            group: Self::Group,
        ) -> __m512 {
            // SAFETY: as above.
            unsafe {
                if BITS != 4 {
                    return Self::weights::<BITS, STEP>(unit, group);
                }
                let words = unit.add(STEP * 8).cast::<i64>().read_unaligned();
                let shifts =
                    _mm512_setr_epi32(0, 0, 4, 4, 8, 8, 12, 12, 16, 16, 20, 20, 24, 24, 28, 28);
                let numbers = _mm512_srlv_epi32(_mm512_set1_epi64(words), shifts);
                _mm512_permutexvar_ps(numbers, group.scale)
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

        #[inline(always)]
        unsafe fn brains(from: *const u16) -> __m512 {
            // SAFETY: as above.
            unsafe {
                let words = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()));
                _mm512_castsi512_ps(_mm512_slli_epi32::<16>(words))
            }
        }

        #[inline(always)]
        unsafe fn signed(from: *const i8) -> __m512 {
            // SAFETY: as above.
            unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(from.cast()))) }
        }
    }

    /// AVX2, FMA and F16C.
    pub(in super::super) struct Avx2Decode;

    impl Decode for Avx2Decode {
        type Simd = Avx2;
        const REGISTERS: usize = 16;
        const ROWS: usize = 8;
        type Group = Affine<__m256>;

        #[inline(always)]
        unsafe fn group<const BITS: usize>(scale: f32, bias: f32) -> Self::Group {
            // SAFETY: as above.
            unsafe { Affine { scale: Avx2::splat(scale), bias: Avx2::splat(bias) } }
        }

        #[inline(always)]
        unsafe fn weights<const BITS: usize, const STEP: usize>(
            unit: *const u8,
            group: Self::Group,
        ) -> __m256 {
            let place = const { &Place::new(BITS, STEP, 8, narrow(BITS)) };
            // SAFETY: as above; the load lies within the unit.
            unsafe {
                let from = unit.add(place.load);
                let numbers = if BITS == 8 {
                    _mm256_cvtepu8_epi32(_mm_loadl_epi64(from.cast()))
                } else {
                    let bytes = if BITS > 4 {
                        let bytes = _mm256_set1_epi64x(from.cast::<i64>().read_unaligned());
                        let places = _mm256_loadu_si256(place.bytes.as_ptr().cast());
                        _mm256_shuffle_epi8(bytes, places)
                    } else {
                        _mm256_set1_epi32(from.cast::<i32>().read_unaligned())
                    };
                    let shifts = const { Place::new(BITS, STEP, 8, narrow(BITS)).eight_shifts() };
                    let lowest = _mm256_set1_epi32((1 << BITS) - 1);
                    _mm256_and_si256(_mm256_srlv_epi32(bytes, shifts), lowest)
                };
                Avx2::fma(_mm256_cvtepi32_ps(numbers), group.scale, group.bias)
            }
        }

        #[inline(always)]
        unsafe fn halves(from: *const u16) -> __m256 {
            // SAFETY: as above.
            unsafe { _mm256_cvtph_ps(_mm_loadu_si128(from.cast())) }
        }

        #[inline(always)]
        unsafe fn brains(from: *const u16) -> __m256 {
            // SAFETY: as above.
            unsafe {
                let words = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()));
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(words))
            }
        }

        #[inline(always)]
        unsafe fn signed(from: *const i8) -> __m256 {
            // SAFETY: as above.
            unsafe { _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(from.cast()))) }
        }
    }
}

#[cfg(target_arch = "aarch64")]
pub(super) use arm::NeonDecode;

#[cfg(target_arch = "aarch64")]
mod arm {
    use super::super::simd::{Neon, Simd};
    use super::{Affine, Decode, Place};
    use std::arch::aarch64::*;

    /// NEON. Four numbers of any width fit a word.
    pub(in super::super) struct NeonDecode;

    impl Decode for NeonDecode {
        type Simd = Neon;
        const REGISTERS: usize = 32;
        const ROWS: usize = 8;
        type Group = Affine<float32x4_t>;

        #[inline(always)]
        unsafe fn group<const BITS: usize>(scale: f32, bias: f32) -> Self::Group {
            // SAFETY: NEON belongs to the architecture.
            unsafe { Affine { scale: Neon::splat(scale), bias: Neon::splat(bias) } }
        }

        #[inline(always)]
        unsafe fn weights<const BITS: usize, const STEP: usize>(
            unit: *const u8,
            group: Self::Group,
        ) -> float32x4_t {
            let place = const { &Place::new(BITS, STEP, 4, 4) };
            // SAFETY: as above; the load lies within the unit.
            unsafe {
                let word = vdupq_n_u32(unit.add(place.load).cast::<u32>().read_unaligned());
                // Negative shifts are to the right.
                let shifts = vnegq_s32(vld1q_s32(place.shifts.as_ptr().cast()));
                let lowest = vdupq_n_u32((1 << BITS) - 1);
                let numbers = vandq_u32(vshlq_u32(word, shifts), lowest);
                Neon::fma(vcvtq_f32_u32(numbers), group.scale, group.bias)
            }
        }
    }
}
