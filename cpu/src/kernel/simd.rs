//! Vectors of an instruction set, as the blocks and the functions of rows need them. Every function
//! is inlined into one that has the instructions enabled (`blocks`), so none is a call.

/// A vector of [`Simd::COUNT`] floats.
pub(super) trait Simd {
    type Vector: Copy;
    /// How many.
    const COUNT: usize;
    /// Most rows of a block. With four columns, sums and operands just fit the registers.
    const ROWS: usize;

    /// # Safety
    /// As all here: the processor has the instructions.
    unsafe fn splat(value: f32) -> Self::Vector;
    /// # Safety
    /// `from` has COUNT floats.
    unsafe fn load(from: *const f32) -> Self::Vector;
    /// The rest are zeros.
    ///
    /// # Safety
    /// `from` has `count` floats, fewer than COUNT.
    unsafe fn load_part(from: *const f32, count: usize) -> Self::Vector;
    /// # Safety
    /// `to` has room for COUNT floats.
    unsafe fn store(to: *mut f32, vector: Self::Vector);
    /// Asks for a cache line that will be read soon; of any address. Nothing where there is no such
    /// instruction.
    ///
    /// # Safety
    /// As all here.
    #[inline(always)]
    unsafe fn fetch(_at: *const f32) {}
    /// a · b + c, element by element.
    ///
    /// # Safety
    /// As all here.
    unsafe fn fma(a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector;
    /// a · b, element by element.
    ///
    /// # Safety
    /// As all here.
    unsafe fn mul(a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// a + b, element by element.
    ///
    /// # Safety
    /// As all here.
    unsafe fn add(a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// The sum of each, folded by halves.
    ///
    /// # Safety
    /// As all here.
    unsafe fn fold(four: [Self::Vector; 4]) -> [f32; 4];
    /// a / b, element by element.
    ///
    /// # Safety
    /// As all here.
    unsafe fn div(a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// The larger, element by element; b where one of them is no number.
    ///
    /// # Safety
    /// As all here.
    unsafe fn max(a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// The smaller, element by element; b where one of them is no number.
    ///
    /// # Safety
    /// As all here.
    unsafe fn min(a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// The nearest whole number, element by element, halves to the even one.
    ///
    /// # Safety
    /// As all here; of numbers between -1,000 and 1,000, or none.
    unsafe fn round(a: Self::Vector) -> Self::Vector;
    /// 2 to the power of whole numbers from -126 to 127, element by element; anything where an element is no
    /// number.
    ///
    /// # Safety
    /// As all here.
    unsafe fn power_of_two(a: Self::Vector) -> Self::Vector;
}

/// Eight elements of plain Rust; the compiler makes of them what every processor of the architecture
/// has.
pub(super) struct Portable;

impl Simd for Portable {
    type Vector = [f32; 8];
    const COUNT: usize = 8;
    const ROWS: usize = 2;

    #[inline(always)]
    unsafe fn splat(value: f32) -> [f32; 8] {
        [value; 8]
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> [f32; 8] {
        // SAFETY: the caller's; no alignment is asked for.
        unsafe { from.cast::<[f32; 8]>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn load_part(from: *const f32, count: usize) -> [f32; 8] {
        let mut vector = [0.0; 8];
        for (at, element) in vector.iter_mut().enumerate().take(count) {
            // SAFETY: at < count.
            *element = unsafe { *from.add(at) };
        }
        vector
    }

    #[inline(always)]
    unsafe fn store(to: *mut f32, vector: [f32; 8]) {
        // SAFETY: the caller's.
        unsafe { to.cast::<[f32; 8]>().write_unaligned(vector) }
    }

    #[inline(always)]
    unsafe fn fma(a: [f32; 8], b: [f32; 8], mut c: [f32; 8]) -> [f32; 8] {
        for element in 0..8 {
            // Not `mul_add`: where the processor has none it is a call of libm for each element.
            c[element] += a[element] * b[element];
        }
        c
    }

    #[inline(always)]
    unsafe fn mul(mut a: [f32; 8], b: [f32; 8]) -> [f32; 8] {
        for element in 0..8 {
            a[element] *= b[element];
        }
        a
    }

    #[inline(always)]
    unsafe fn add(mut a: [f32; 8], b: [f32; 8]) -> [f32; 8] {
        for element in 0..8 {
            a[element] += b[element];
        }
        a
    }

    #[inline(always)]
    unsafe fn fold(four: [[f32; 8]; 4]) -> [f32; 4] {
        let mut sums = [0.0; 4];
        for (sum, v) in sums.iter_mut().zip(four) {
            let quarter = |at: usize| v[at] + v[at + 4];
            *sum = (quarter(0) + quarter(2)) + (quarter(1) + quarter(3));
        }
        sums
    }

    #[inline(always)]
    unsafe fn div(a: [f32; 8], b: [f32; 8]) -> [f32; 8] {
        std::array::from_fn(|element| a[element] / b[element])
    }

    #[inline(always)]
    unsafe fn max(a: [f32; 8], b: [f32; 8]) -> [f32; 8] {
        std::array::from_fn(|element| if a[element] > b[element] { a[element] } else { b[element] })
    }

    #[inline(always)]
    unsafe fn min(a: [f32; 8], b: [f32; 8]) -> [f32; 8] {
        std::array::from_fn(|element| if a[element] < b[element] { a[element] } else { b[element] })
    }

    #[inline(always)]
    unsafe fn round(a: [f32; 8]) -> [f32; 8] {
        // Adding it leaves no room for a fraction; the sum is rounded as all sums are.
        const BIG: f32 = 12_582_912.0; // 1.5 * 2^23
        a.map(|value| (value + BIG) - BIG)
    }

    #[inline(always)]
    unsafe fn power_of_two(a: [f32; 8]) -> [f32; 8] {
        a.map(|value| f32::from_bits(((value as i32 + 127) as u32) << 23))
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) use x86::{Avx2, Avx512};

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::Simd;
    use std::arch::x86_64::*;

    /// AVX-512F: 32 registers of 16 elements.
    pub(in super::super) struct Avx512;

    impl Simd for Avx512 {
        type Vector = __m512;
        const COUNT: usize = 16;
        // 24 sums, 6 rows, 1 column.
        const ROWS: usize = 6;

        #[inline(always)]
        unsafe fn splat(value: f32) -> __m512 {
            // SAFETY: here and below: the instructions are there, and pointers are the caller's.
            unsafe { _mm512_set1_ps(value) }
        }

        #[inline(always)]
        unsafe fn load(from: *const f32) -> __m512 {
            // SAFETY: as above.
            unsafe { _mm512_loadu_ps(from) }
        }

        #[inline(always)]
        unsafe fn load_part(from: *const f32, count: usize) -> __m512 {
            // SAFETY: as above; elements that are masked out are not read.
            unsafe { _mm512_maskz_loadu_ps(((1u32 << count) - 1) as u16, from) }
        }

        #[inline(always)]
        unsafe fn store(to: *mut f32, vector: __m512) {
            // SAFETY: as above.
            unsafe { _mm512_storeu_ps(to, vector) }
        }

        #[inline(always)]
        unsafe fn fetch(at: *const f32) {
            // SAFETY: no address faults.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
        }

        #[inline(always)]
        unsafe fn fma(a: __m512, b: __m512, c: __m512) -> __m512 {
            // SAFETY: as above.
            unsafe { _mm512_fmadd_ps(a, b, c) }
        }

        #[inline(always)]
        unsafe fn mul(a: __m512, b: __m512) -> __m512 {
            // SAFETY: as above.
            unsafe { _mm512_mul_ps(a, b) }
        }

        #[inline(always)]
        unsafe fn add(a: __m512, b: __m512) -> __m512 {
            // SAFETY: as above.
            unsafe { _mm512_add_ps(a, b) }
        }

        #[inline(always)]
        unsafe fn fold([a, b, c, d]: [__m512; 4]) -> [f32; 4] {
            // SAFETY: as above.
            unsafe {
                // The 128-bit quarters of two vectors each: first and second half of both, then
                // sums of 8, 4 elements.
                let ab = _mm512_add_ps(
                    _mm512_shuffle_f32x4::<0x44>(a, b),
                    _mm512_shuffle_f32x4::<0xEE>(a, b),
                );
                let cd = _mm512_add_ps(
                    _mm512_shuffle_f32x4::<0x44>(c, d),
                    _mm512_shuffle_f32x4::<0xEE>(c, d),
                );
                let all = _mm512_add_ps(
                    _mm512_shuffle_f32x4::<0x88>(ab, cd),
                    _mm512_shuffle_f32x4::<0xDD>(ab, cd),
                );
                let all = _mm512_add_ps(all, _mm512_permute_ps::<0x4E>(all));
                let all = _mm512_add_ps(all, _mm512_permute_ps::<0xB1>(all));
                // Now each quarter's elements are all that vector's sum.
                let (ab, cd) = (
                    _mm512_castps512_ps256(all),
                    _mm512_extractf64x4_pd::<1>(_mm512_castps_pd(all)),
                );
                let cd = _mm256_castpd_ps(cd);
                let (b, d) = (_mm256_extractf128_ps::<1>(ab), _mm256_extractf128_ps::<1>(cd));
                let ab = _mm_unpacklo_ps(_mm256_castps256_ps128(ab), b);
                let cd = _mm_unpacklo_ps(_mm256_castps256_ps128(cd), d);
                let mut sums = [0.0; 4];
                _mm_storeu_ps(sums.as_mut_ptr(), _mm_movelh_ps(ab, cd));
                sums
            }
        }

        #[inline(always)]
        unsafe fn div(a: __m512, b: __m512) -> __m512 {
            // SAFETY: as above.
            unsafe { _mm512_div_ps(a, b) }
        }

        #[inline(always)]
        unsafe fn max(a: __m512, b: __m512) -> __m512 {
            // SAFETY: as above.
            unsafe { _mm512_max_ps(a, b) }
        }

        #[inline(always)]
        unsafe fn min(a: __m512, b: __m512) -> __m512 {
            // SAFETY: as above.
            unsafe { _mm512_min_ps(a, b) }
        }

        #[inline(always)]
        unsafe fn round(a: __m512) -> __m512 {
            // SAFETY: as above.
            unsafe { _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a) }
        }

        #[inline(always)]
        unsafe fn power_of_two(a: __m512) -> __m512 {
            // SAFETY: as above.
            unsafe { _mm512_scalef_ps(_mm512_set1_ps(1.0), a) }
        }
    }

    /// AVX2 and FMA: 16 registers of 8 elements.
    pub(in super::super) struct Avx2;

    impl Simd for Avx2 {
        type Vector = __m256;
        const COUNT: usize = 8;
        // 12 sums, 3 rows, 1 column.
        const ROWS: usize = 3;

        #[inline(always)]
        unsafe fn splat(value: f32) -> __m256 {
            // SAFETY: as above.
            unsafe { _mm256_set1_ps(value) }
        }

        #[inline(always)]
        unsafe fn load(from: *const f32) -> __m256 {
            // SAFETY: as above.
            unsafe { _mm256_loadu_ps(from) }
        }

        #[inline(always)]
        unsafe fn load_part(from: *const f32, count: usize) -> __m256 {
            /// Masks by window: the window that begins `count` before the middle has `count` elements
            /// set.
            static MASKS: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];
            // SAFETY: as above; count < 8, and elements that are masked out are not read.
            unsafe {
                let mask = _mm256_loadu_si256(MASKS.as_ptr().add(8 - count).cast());
                _mm256_maskload_ps(from, mask)
            }
        }

        #[inline(always)]
        unsafe fn store(to: *mut f32, vector: __m256) {
            // SAFETY: as above.
            unsafe { _mm256_storeu_ps(to, vector) }
        }

        #[inline(always)]
        unsafe fn fetch(at: *const f32) {
            // SAFETY: no address faults.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
        }

        #[inline(always)]
        unsafe fn fma(a: __m256, b: __m256, c: __m256) -> __m256 {
            // SAFETY: as above.
            unsafe { _mm256_fmadd_ps(a, b, c) }
        }

        #[inline(always)]
        unsafe fn mul(a: __m256, b: __m256) -> __m256 {
            // SAFETY: as above.
            unsafe { _mm256_mul_ps(a, b) }
        }

        #[inline(always)]
        unsafe fn add(a: __m256, b: __m256) -> __m256 {
            // SAFETY: as above.
            unsafe { _mm256_add_ps(a, b) }
        }

        #[inline(always)]
        unsafe fn fold([a, b, c, d]: [__m256; 4]) -> [f32; 4] {
            // SAFETY: as above.
            unsafe {
                let ab = _mm256_add_ps(
                    _mm256_permute2f128_ps::<0x20>(a, b),
                    _mm256_permute2f128_ps::<0x31>(a, b),
                );
                let cd = _mm256_add_ps(
                    _mm256_permute2f128_ps::<0x20>(c, d),
                    _mm256_permute2f128_ps::<0x31>(c, d),
                );
                let ab = _mm256_add_ps(ab, _mm256_permute_ps::<0x4E>(ab));
                let cd = _mm256_add_ps(cd, _mm256_permute_ps::<0x4E>(cd));
                let ab = _mm256_add_ps(ab, _mm256_permute_ps::<0xB1>(ab));
                let cd = _mm256_add_ps(cd, _mm256_permute_ps::<0xB1>(cd));
                let ab =
                    _mm_unpacklo_ps(_mm256_castps256_ps128(ab), _mm256_extractf128_ps::<1>(ab));
                let cd =
                    _mm_unpacklo_ps(_mm256_castps256_ps128(cd), _mm256_extractf128_ps::<1>(cd));
                let mut sums = [0.0; 4];
                _mm_storeu_ps(sums.as_mut_ptr(), _mm_movelh_ps(ab, cd));
                sums
            }
        }

        #[inline(always)]
        unsafe fn div(a: __m256, b: __m256) -> __m256 {
            // SAFETY: as above.
            unsafe { _mm256_div_ps(a, b) }
        }

        #[inline(always)]
        unsafe fn max(a: __m256, b: __m256) -> __m256 {
            // SAFETY: as above.
            unsafe { _mm256_max_ps(a, b) }
        }

        #[inline(always)]
        unsafe fn min(a: __m256, b: __m256) -> __m256 {
            // SAFETY: as above.
            unsafe { _mm256_min_ps(a, b) }
        }

        #[inline(always)]
        unsafe fn round(a: __m256) -> __m256 {
            // SAFETY: as above.
            unsafe { _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a) }
        }

        #[inline(always)]
        unsafe fn power_of_two(a: __m256) -> __m256 {
            // SAFETY: as above.
            unsafe {
                let exponent = _mm256_add_epi32(_mm256_cvtps_epi32(a), _mm256_set1_epi32(127));
                _mm256_castsi256_ps(_mm256_slli_epi32::<23>(exponent))
            }
        }
    }
}

#[cfg(target_arch = "aarch64")]
pub(super) use arm::Neon;

#[cfg(target_arch = "aarch64")]
mod arm {
    use super::Simd;
    use std::arch::aarch64::*;

    /// NEON: 32 registers of 4 elements.
    pub(in super::super) struct Neon;

    impl Simd for Neon {
        type Vector = float32x4_t;
        const COUNT: usize = 4;
        // 24 sums, 6 rows, 1 column.
        const ROWS: usize = 6;

        #[inline(always)]
        unsafe fn splat(value: f32) -> float32x4_t {
            // SAFETY: here and below: NEON is part of the architecture, and pointers are the
            // caller's.
            unsafe { vdupq_n_f32(value) }
        }

        #[inline(always)]
        unsafe fn load(from: *const f32) -> float32x4_t {
            // SAFETY: as above.
            unsafe { vld1q_f32(from) }
        }

        #[inline(always)]
        unsafe fn load_part(from: *const f32, count: usize) -> float32x4_t {
            let mut elements = [0.0; 4];
            // SAFETY: as above; count < 4.
            unsafe {
                std::ptr::copy_nonoverlapping(from, elements.as_mut_ptr(), count);
                vld1q_f32(elements.as_ptr())
            }
        }

        #[inline(always)]
        unsafe fn store(to: *mut f32, vector: float32x4_t) {
            // SAFETY: as above.
            unsafe { vst1q_f32(to, vector) }
        }

        #[inline(always)]
        unsafe fn fma(a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t {
            // SAFETY: as above.
            unsafe { vfmaq_f32(c, a, b) }
        }

        #[inline(always)]
        unsafe fn mul(a: float32x4_t, b: float32x4_t) -> float32x4_t {
            // SAFETY: as above.
            unsafe { vmulq_f32(a, b) }
        }

        #[inline(always)]
        unsafe fn add(a: float32x4_t, b: float32x4_t) -> float32x4_t {
            // SAFETY: as above.
            unsafe { vaddq_f32(a, b) }
        }

        #[inline(always)]
        unsafe fn fold(four: [float32x4_t; 4]) -> [f32; 4] {
            let mut sums = [0.0; 4];
            for at in 0..4 {
                // SAFETY: as above.
                let pair = unsafe { vadd_f32(vget_low_f32(four[at]), vget_high_f32(four[at])) };
                // SAFETY: as above.
                sums[at] = unsafe { vget_lane_f32::<0>(pair) + vget_lane_f32::<1>(pair) };
            }
            sums
        }

        #[inline(always)]
        unsafe fn div(a: float32x4_t, b: float32x4_t) -> float32x4_t {
            // SAFETY: as above.
            unsafe { vdivq_f32(a, b) }
        }

        #[inline(always)]
        unsafe fn max(a: float32x4_t, b: float32x4_t) -> float32x4_t {
            // SAFETY: as above. Not vmaxq: b where one is no number.
            unsafe { vbslq_f32(vcgtq_f32(a, b), a, b) }
        }

        #[inline(always)]
        unsafe fn min(a: float32x4_t, b: float32x4_t) -> float32x4_t {
            // SAFETY: as above.
            unsafe { vbslq_f32(vcltq_f32(a, b), a, b) }
        }

        #[inline(always)]
        unsafe fn round(a: float32x4_t) -> float32x4_t {
            // SAFETY: as above.
            unsafe { vrndnq_f32(a) }
        }

        #[inline(always)]
        unsafe fn power_of_two(a: float32x4_t) -> float32x4_t {
            // SAFETY: as above.
            unsafe {
                let exponent = vaddq_s32(vcvtq_s32_f32(a), vdupq_n_s32(127));
                vreinterpretq_f32_s32(vshlq_n_s32::<23>(exponent))
            }
        }
    }
}
