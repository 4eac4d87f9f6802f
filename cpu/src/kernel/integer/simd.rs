//! Integers of each instruction set.

use super::{Bytes, Field, Integers};
use crate::kernel::decode::PortableDecode;

/// Plain Rust, eight columns.
pub(in crate::kernel) struct PortableIntegers;

impl Bytes for [u8; 32] {
    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: the caller's.
        unsafe { from.cast::<[u8; 32]>().read() }
    }

    #[inline(always)]
    unsafe fn field(self, field: Field) -> Self {
        self.map(|byte| (byte >> field.from & field.lowest()) << field.to)
    }

    #[inline(always)]
    unsafe fn or(self, other: Self) -> Self {
        std::array::from_fn(|at| self[at] | other[at])
    }
}

impl Integers for PortableIntegers {
    type Decode = PortableDecode;
    // Code of more rows would be large, and no faster.
    const ROWS: usize = 1;
    type Bytes = [u8; 32];
    type Dots = [i32; 8];

    #[inline(always)]
    unsafe fn none() -> [i32; 8] {
        [0; 8]
    }

    #[inline(always)]
    unsafe fn dot<const BITS: usize, const STEP: usize>(
        mut dots: [i32; 8],
        numbers: [u8; 32],
        x: *const i8,
    ) -> [i32; 8] {
        // SAFETY: the caller's.
        let x = unsafe { x.cast::<[i8; 4]>().read() };
        for (at, number) in numbers.into_iter().enumerate() {
            dots[at / 4] += i32::from(number) * i32::from(x[at % 4]);
        }
        dots
    }

    #[inline(always)]
    unsafe fn total<const BITS: usize>(dots: [i32; 8], _: i32) -> [f32; 8] {
        dots.map(|dot| dot as f32)
    }

    /// [`Portable`](crate::kernel::simd::Portable) rounds twice, which is faster.
    #[inline(always)]
    unsafe fn fused(a: [f32; 8], b: [f32; 8], c: [f32; 8]) -> [f32; 8] {
        std::array::from_fn(|at| a[at].mul_add(b[at], c[at]))
    }
}

#[cfg(target_arch = "x86_64")]
pub(in crate::kernel) use x86::{Avx2Integers, Avx512Vnni, AvxVnni};

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Bytes, Field, Integers};
    use crate::kernel::decode::{Avx2Decode, Avx512Decode};
    use std::arch::x86_64::*;

    /// Four signed bytes.
    ///
    /// # Safety
    /// `x` has as many.
    #[inline(always)]
    unsafe fn four(x: *const i8) -> i32 {
        // SAFETY: the caller's.
        unsafe { x.cast::<i32>().read_unaligned() }
    }

    /// The functions of vectors of bytes.
    macro_rules! bytes {
        ($vector:ty, $load:ident, $right:ident, $left:ident, $and:ident, $splat:ident, $or:ident) => {
            impl Bytes for $vector {
                #[inline(always)]
                unsafe fn load(from: *const u8) -> Self {
                    // SAFETY: here and below: the instructions are there, and pointers are the
                    // caller's.
                    unsafe { $load(from.cast()) }
                }

                #[inline(always)]
                unsafe fn field(self, field: Field) -> Self {
                    let Field { from, to, .. } = field;
                    // SAFETY: as above. Bits of the neighbouring byte are cleared.
                    unsafe {
                        let moved = if from > to {
                            $right(self, _mm_cvtsi32_si128((from - to) as i32))
                        } else if from < to {
                            $left(self, _mm_cvtsi32_si128((to - from) as i32))
                        } else {
                            self
                        };
                        $and(moved, $splat((field.lowest() << to) as i8))
                    }
                }

                #[inline(always)]
                unsafe fn or(self, other: Self) -> Self {
                    // SAFETY: as above.
                    unsafe { $or(self, other) }
                }
            }
        };
    }

    bytes!(
        __m512i,
        _mm512_loadu_si512,
        _mm512_srl_epi16,
        _mm512_sll_epi16,
        _mm512_and_si512,
        _mm512_set1_epi8,
        _mm512_or_si512
    );
    bytes!(
        __m256i,
        _mm256_loadu_si256,
        _mm256_srl_epi16,
        _mm256_sll_epi16,
        _mm256_and_si256,
        _mm256_set1_epi8,
        _mm256_or_si256
    );

    /// AVX-512 with VNNI.
    pub(in crate::kernel) struct Avx512Vnni;

    impl Integers for Avx512Vnni {
        type Decode = Avx512Decode;
        const ROWS: usize = 8;
        type Bytes = __m512i;
        type Dots = __m512i;

        #[inline(always)]
        unsafe fn none() -> __m512i {
            // SAFETY: as above.
            unsafe { _mm512_setzero_si512() }
        }

        #[inline(always)]
        unsafe fn dot<const BITS: usize, const STEP: usize>(
            dots: __m512i,
            numbers: __m512i,
            x: *const i8,
        ) -> __m512i {
            // SAFETY: as above.
            unsafe { _mm512_dpbusd_epi32(dots, numbers, _mm512_set1_epi32(four(x))) }
        }

        #[inline(always)]
        unsafe fn total<const BITS: usize>(dots: __m512i, _: i32) -> __m512 {
            // SAFETY: as above.
            unsafe { _mm512_cvtepi32_ps(dots) }
        }
    }

    /// AVX-VNNI: the instruction of [`Avx512Vnni`] on shorter vectors.
    pub(in crate::kernel) struct AvxVnni;

    impl Integers for AvxVnni {
        type Decode = Avx2Decode;
        const ROWS: usize = 4;
        type Bytes = __m256i;
        type Dots = __m256i;

        #[inline(always)]
        unsafe fn none() -> __m256i {
            // SAFETY: as above.
            unsafe { _mm256_setzero_si256() }
        }

        #[inline(always)]
        unsafe fn dot<const BITS: usize, const STEP: usize>(
            dots: __m256i,
            numbers: __m256i,
            x: *const i8,
        ) -> __m256i {
            // SAFETY: as above.
            unsafe { _mm256_dpbusd_avx_epi32(dots, numbers, _mm256_set1_epi32(four(x))) }
        }

        #[inline(always)]
        unsafe fn total<const BITS: usize>(dots: __m256i, _: i32) -> __m256 {
            // SAFETY: as above.
            unsafe { _mm256_cvtepi32_ps(dots) }
        }
    }

    /// AVX2: two products are added in 16 bits, and these sums in 16 bits for as many steps as fit.
    pub(in crate::kernel) struct Avx2Integers;

    /// Steps whose sums fit 16 bits: 2 · 127 · the largest number each. Numbers of 8 bits are taken
    /// less 128.
    const fn steps(bits: usize) -> usize {
        match bits {
            2..=4 => 8,
            5 => 4,
            6 => 2,
            _ => 1,
        }
    }

    /// Sums of two in 16 bits, and of four in 32.
    #[derive(Clone, Copy)]
    pub(in crate::kernel) struct Pairs {
        two: __m256i,
        four: __m256i,
    }

    impl Integers for Avx2Integers {
        type Decode = Avx2Decode;
        const ROWS: usize = 4;
        type Bytes = __m256i;
        type Dots = Pairs;

        #[inline(always)]
        unsafe fn none() -> Pairs {
            // SAFETY: as above.
            unsafe { Pairs { two: _mm256_setzero_si256(), four: _mm256_setzero_si256() } }
        }

        #[inline(always)]
        unsafe fn dot<const BITS: usize, const STEP: usize>(
            Pairs { two, four: sums }: Pairs,
            numbers: __m256i,
            x: *const i8,
        ) -> Pairs {
            // SAFETY: as above.
            unsafe {
                let x = _mm256_set1_epi32(four(x));
                let products = if BITS == 8 {
                    let less = _mm256_xor_si256(numbers, _mm256_set1_epi8(-128));
                    _mm256_maddubs_epi16(_mm256_abs_epi8(less), _mm256_sign_epi8(x, less))
                } else {
                    _mm256_maddubs_epi16(numbers, x)
                };
                let two = if STEP.is_multiple_of(const { steps(BITS) }) {
                    products
                } else {
                    _mm256_add_epi16(two, products)
                };
                let four = if (STEP + 1).is_multiple_of(const { steps(BITS) }) {
                    _mm256_add_epi32(sums, _mm256_madd_epi16(two, _mm256_set1_epi16(1)))
                } else {
                    sums
                };
                Pairs { two, four }
            }
        }

        #[inline(always)]
        unsafe fn total<const BITS: usize>(dots: Pairs, correction: i32) -> __m256 {
            // SAFETY: as above.
            unsafe {
                let sums = if BITS == 8 {
                    _mm256_add_epi32(dots.four, _mm256_set1_epi32(correction))
                } else {
                    dots.four
                };
                _mm256_cvtepi32_ps(sums)
            }
        }
    }
}

#[cfg(target_arch = "aarch64")]
pub(in crate::kernel) use arm::{NeonDot, NeonIntegers};

#[cfg(target_arch = "aarch64")]
mod arm {
    use super::{Bytes, Field, Integers};
    use crate::kernel::decode::NeonDecode;
    use std::arch::aarch64::*;
    use std::arch::asm;

    /// NEON. Numbers of 8 bits are taken less 128, so that all are signed.
    pub(in crate::kernel) struct NeonIntegers;

    /// NEON with the instruction that adds four products.
    pub(in crate::kernel) struct NeonDot;

    impl Bytes for uint8x16_t {
        #[inline(always)]
        unsafe fn load(from: *const u8) -> Self {
            // SAFETY: here and below: NEON is there, and pointers are the caller's.
            unsafe { vld1q_u8(from) }
        }

        #[inline(always)]
        unsafe fn field(self, field: Field) -> Self {
            // SAFETY: as above. Negative shifts are to the right.
            unsafe {
                let moved = vshlq_u8(self, vdupq_n_s8(field.to as i8 - field.from as i8));
                vandq_u8(moved, vdupq_n_u8(field.lowest() << field.to))
            }
        }

        #[inline(always)]
        unsafe fn or(self, other: Self) -> Self {
            // SAFETY: as above.
            unsafe { vorrq_u8(self, other) }
        }
    }

    /// As signed numbers.
    ///
    /// # Safety
    /// NEON belongs to the architecture.
    #[inline(always)]
    unsafe fn signed<const BITS: usize>(numbers: uint8x16_t) -> int8x16_t {
        // SAFETY: the caller's.
        unsafe {
            let numbers = if BITS == 8 { veorq_u8(numbers, vdupq_n_u8(128)) } else { numbers };
            vreinterpretq_s8_u8(numbers)
        }
    }

    macro_rules! neon {
        ($name:ident, $dot:expr) => {
            impl Integers for $name {
                type Decode = NeonDecode;
                const ROWS: usize = 8;
                type Bytes = uint8x16_t;
                type Dots = int32x4_t;

                #[inline(always)]
                unsafe fn none() -> int32x4_t {
                    // SAFETY: as above.
                    unsafe { vdupq_n_s32(0) }
                }

                #[inline(always)]
                unsafe fn dot<const BITS: usize, const STEP: usize>(
                    dots: int32x4_t,
                    numbers: uint8x16_t,
                    x: *const i8,
                ) -> int32x4_t {
                    // SAFETY: as above.
                    unsafe {
                        let x = vdupq_n_s32(x.cast::<i32>().read_unaligned());
                        $dot(dots, signed::<BITS>(numbers), vreinterpretq_s8_s32(x))
                    }
                }

                #[inline(always)]
                unsafe fn total<const BITS: usize>(
                    dots: int32x4_t,
                    correction: i32,
                ) -> float32x4_t {
                    // SAFETY: as above.
                    unsafe {
                        let more = if BITS == 8 { correction } else { 0 };
                        vcvtq_f32_s32(vaddq_s32(dots, vdupq_n_s32(more)))
                    }
                }
            }
        };
    }

    neon!(NeonIntegers, |dots, numbers, x| {
        let low = vpaddlq_s16(vmull_s8(vget_low_s8(numbers), vget_low_s8(x)));
        let high = vpaddlq_s16(vmull_high_s8(numbers, x));
        vaddq_s32(dots, vpaddq_s32(low, high))
    });

    neon!(NeonDot, |mut dots: int32x4_t, numbers: int8x16_t, x: int8x16_t| {
        // The compiler has no stable function for it.
        asm!(
            "sdot {dots:v}.4s, {numbers:v}.16b, {x:v}.16b",
            dots = inout(vreg) dots,
            numbers = in(vreg) numbers,
            x = in(vreg) x,
            options(pure, nomem, nostack, preserves_flags),
        );
        dots
    });
}
