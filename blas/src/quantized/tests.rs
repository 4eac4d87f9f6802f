//! Quantized products against sums in double precision and against float products.

use super::*;
use crate::kernel::{Kernels, available};

/// Numbers that look random, the same each time.
fn words(seed: u32) -> impl FnMut() -> u32 {
    let mut state = seed.wrapping_mul(0x9e37_79b9) | 1;
    move || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state
    }
}

fn floats(count: usize, seed: u32) -> Vec<f32> {
    let mut next = words(seed);
    (0..count).map(|_| next() as f32 / u32::MAX as f32 * 2.0 - 1.0).collect()
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Stored {
    Float32,
    Float16,
    Bfloat16,
}

/// Scales or biases and what they are as floats.
struct StoredFactors {
    stored: Stored,
    floats: Vec<f32>,
    halves: Vec<u16>,
}

impl StoredFactors {
    /// Between 0.01 and 0.1 in size, of either sign.
    fn new(stored: Stored, count: usize, seed: u32) -> Self {
        let mut next = words(seed);
        let halves: Vec<u16> = (0..count)
            .map(|_| {
                let bits = next();
                let (sign, rest) = ((bits >> 16) as u16 & 0x8000, bits as u16);
                match stored {
                    Stored::Float32 => 0,
                    // Exponents from 2^-7 to 2^-4.
                    Stored::Float16 => sign | (8 + rest % 4) << 10 | rest >> 6,
                    Stored::Bfloat16 => sign | (120 + rest % 4) << 7 | rest >> 9,
                }
            })
            .collect();
        let floats = match stored {
            Stored::Float32 => floats(count, seed).iter().map(|value| value * 0.1).collect(),
            Stored::Float16 => halves.iter().map(|bits| half(*bits)).collect(),
            Stored::Bfloat16 => {
                halves.iter().map(|bits| f32::from_bits(u32::from(*bits) << 16)).collect()
            }
        };
        Self { stored, floats, halves }
    }

    fn factors(&self) -> Factors<'_> {
        match self.stored {
            Stored::Float32 => Factors::Float32(&self.floats),
            Stored::Float16 => Factors::Float16(&self.halves),
            Stored::Bfloat16 => Factors::Bfloat16(&self.halves),
        }
    }
}

/// By the definition of the format, of normal numbers.
fn half(bits: u16) -> f32 {
    let sign = if bits >> 15 == 1 { -1.0 } else { 1.0 };
    let exponent = i32::from(bits >> 10 & 31) - 15;
    sign * (1.0 + f32::from(bits & 1023) / 1024.0) * 2.0f32.powi(exponent)
}

/// A matrix that owns its parts.
struct Sample {
    packed: Vec<u32>,
    scales: StoredFactors,
    biases: StoredFactors,
    format: QuantizedFormat,
    inputs: usize,
}

impl Sample {
    fn new(stored: Stored, format: QuantizedFormat, outputs: usize, inputs: usize) -> Self {
        let QuantizedFormat { bits, group } = format;
        let mut next = words(7);
        let groups = outputs * inputs / group;
        Self {
            packed: (0..outputs * inputs / 32 * bits).map(|_| next()).collect(),
            scales: StoredFactors::new(stored, groups, 8),
            biases: StoredFactors::new(stored, groups, 9),
            format,
            inputs,
        }
    }

    fn matrix(&self) -> QuantizedMatrix<'_> {
        let (scales, biases) = (self.scales.factors(), self.biases.factors());
        QuantizedMatrix::new(&self.packed, scales, biases, self.format, self.inputs)
            .expect("a matrix")
    }

    /// Number `at` of the whole matrix, bit by bit.
    fn number(&self, at: usize) -> u32 {
        let QuantizedFormat { bits, .. } = self.format;
        (0..bits)
            .map(|bit| {
                let bit_at = at * bits + bit;
                (self.packed[bit_at / 32] >> (bit_at % 32) & 1) << bit
            })
            .sum()
    }

    /// Scale, number and bias at `at` of the whole matrix.
    fn parts(&self, at: usize) -> [f32; 3] {
        let group = at / self.format.group;
        [self.scales.floats[group], self.number(at) as f32, self.biases.floats[group]]
    }

    /// The product on an instruction set, computed as a whole or in parts of columns.
    fn compute(&self, kernels: Kernels, x: &[f32], step: usize) -> Vec<f32> {
        let matrix = self.matrix();
        let (rows, outputs) = (x.len() / self.inputs, matrix.outputs());
        let mut out = vec![f32::NAN; rows * outputs];
        let weight = matrix.weight(0);
        let product = matrix.product(&weight, float_rows(x, self.inputs), &mut out);
        // SAFETY: the sample owns its parts, and `available` gives what the processor has.
        unsafe {
            let mut buffer = crate::kernel::PackBuffer::new();
            let prepared = kernels.prepare(&product, rows, &mut buffer);
            for from in (0..outputs).step_by(step) {
                kernels.columns(&prepared, from, (from + step).min(outputs));
            }
        }
        out
    }

    /// Asserts that `found` is the product, within 1e-5 of the size of what is summed.
    fn check(&self, x: &[f32], found: &[f32], what: &str) {
        let outputs = self.matrix().outputs();
        for (row, x) in x.chunks_exact(self.inputs).enumerate() {
            for output in 0..outputs {
                let (mut sum, mut size) = (0.0, 0.0);
                for (at, x) in x.iter().enumerate() {
                    let [scale, number, bias] =
                        self.parts(output * self.inputs + at).map(f64::from);
                    let term = f64::from(*x) * (scale * number + bias);
                    (sum, size) = (sum + term, size + term.abs());
                }
                let found = f64::from(found[row * outputs + output]);
                assert!(
                    (found - sum).abs() <= 1e-5 * size,
                    "{what}: row {row} output {output}: {found} for {sum}"
                );
            }
        }
    }
}

fn float_rows(numbers: &[f32], length: usize) -> FloatRows<'_> {
    FloatRows { numbers, count: numbers.len() / length, stride: length, length }
}

fn formats() -> impl Iterator<Item = QuantizedFormat> {
    [2, 3, 4, 5, 6, 8]
        .into_iter()
        .flat_map(|bits| [32, 64, 128].map(|group| QuantizedFormat { bits, group }))
}

fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|number| number.to_bits()).collect()
}

#[test]
fn every_format_is_as_a_sum_in_double_precision() {
    for format in formats() {
        for stored in [Stored::Float32, Stored::Float16, Stored::Bfloat16] {
            for groups in [1, 3] {
                let inputs = format.group * groups;
                for outputs in [1, 5, 19] {
                    let sample = Sample::new(stored, format, outputs, inputs);
                    for rows in [1, 2, 7, 50] {
                        let x = floats(rows * inputs, 3);
                        for kernels in available() {
                            let found = sample.compute(kernels, &x, outputs);
                            let what = format!(
                                "{} {format:?} {stored:?} {outputs}x{inputs} {rows} rows",
                                kernels.name
                            );
                            sample.check(&x, &found, &what);
                        }
                    }
                }
            }
        }
    }
}

/// So that a draft is verified, and a prompt read in chunks, with the numbers of plain decoding
/// (I1).
#[test]
fn a_row_has_the_same_bits_alone_and_among_any_number_of_rows() {
    for bits_of in [2, 3, 4, 5, 6, 8] {
        let format = QuantizedFormat { bits: bits_of, group: 32 };
        let (outputs, inputs) = (75, 96);
        let sample = Sample::new(Stored::Float16, format, outputs, inputs);
        let x = floats(300 * inputs, 5);
        for kernels in available() {
            let alone: Vec<u32> = x
                .chunks_exact(inputs)
                .flat_map(|row| bits(&sample.compute(kernels, row, outputs)))
                .collect();
            for rows in (1..=33).chain([48, 49, 64, 300]) {
                let found = sample.compute(kernels, &x[..rows * inputs], outputs);
                assert!(
                    bits(&found) == alone[..rows * outputs],
                    "{} {bits_of} bits {rows} rows",
                    kernels.name
                );
                let parts = sample.compute(kernels, &x[..rows * inputs], 9);
                assert!(
                    bits(&parts) == alone[..rows * outputs],
                    "{} {bits_of} bits {rows} rows in parts",
                    kernels.name
                );
            }
        }
    }
}

/// So that a weight may be kept packed or expanded, and the tokens are the same.
#[test]
fn a_product_has_the_bits_of_the_float_product_by_the_expanded_matrix() {
    for format in formats() {
        let (outputs, inputs) = (21, 2 * format.group);
        let sample = Sample::new(Stored::Bfloat16, format, outputs, inputs);
        for kernels in available() {
            let expanded: Vec<f32> = (0..outputs * inputs)
                .map(|at| {
                    let [scale, number, bias] = sample.parts(at);
                    if kernels.name.starts_with("portable") {
                        number * scale + bias
                    } else {
                        number.mul_add(scale, bias)
                    }
                })
                .collect();
            for rows in [1, 6, 9, 60] {
                let x = floats(rows * inputs, 11);
                let mut out = vec![f32::NAN; rows * outputs];
                let matrix = sample.matrix();
                let weight = matrix.weight(0);
                let product = matrix.product(&weight, float_rows(&x, inputs), &mut out);
                let product = Product {
                    weight: std::ptr::null(),
                    b: expanded.as_ptr(),
                    ldb: inputs,
                    ..product
                };
                // SAFETY: as above.
                unsafe { kernels.whole(&product) };
                let found = sample.compute(kernels, &x, outputs);
                assert!(bits(&found) == bits(&out), "{} {format:?} {rows} rows", kernels.name);
            }
        }
    }
}

#[test]
fn threads_and_strides_change_nothing() {
    let format = QuantizedFormat { bits: 4, group: 64 };
    let (outputs, inputs) = (700, 512);
    let sample = Sample::new(Stored::Float16, format, outputs, inputs);
    let kernels = *kernels();
    for rows in [1, 2, 5, 16, 32, 70, 300] {
        let x = floats(rows * inputs, 13);
        let alone = bits(&sample.compute(kernels, &x, outputs));
        let mut apart = vec![f32::NAN; rows * (inputs + 3)];
        for (to, from) in apart.chunks_exact_mut(inputs + 3).zip(x.chunks_exact(inputs)) {
            to[..inputs].copy_from_slice(from);
        }
        for threads in [1, 2, 3, 8] {
            crate::set_threads(threads);
            for (numbers, stride) in [(&x, inputs), (&apart, inputs + 3)] {
                let rows = FloatRows { numbers, count: rows, stride, length: inputs };
                let mut out = vec![f32::NAN; rows.count * outputs];
                product(rows, &sample.matrix(), &mut out);
                assert!(bits(&out) == alone, "{} rows, {threads} threads", rows.count);
            }
        }
    }
}

#[test]
fn every_half_is_converted_exactly() {
    // One column of one group for each.
    let format = QuantizedFormat { bits: 8, group: 32 };
    let halves: Vec<u16> = (0..=u16::MAX).collect();
    let zeros = vec![0; halves.len()];
    let packed = vec![0x0101_0101; halves.len() * 8];
    let mut x = [0.0; 32];
    x[0] = 1.0;
    for (scales, value) in [
        (Factors::Float16(&halves), (|bits| f64::from(half(bits))) as fn(u16) -> f64),
        (Factors::Bfloat16(&halves), |bits| f64::from(f32::from_bits(u32::from(bits) << 16))),
    ] {
        let matrix = QuantizedMatrix::new(&packed, scales, Factors::Float16(&zeros), format, 32)
            .expect("a matrix");
        for kernels in available() {
            let weight = matrix.weight(0);
            let mut out = vec![f32::NAN; halves.len()];
            // SAFETY: as above.
            unsafe { kernels.whole(&matrix.product(&weight, float_rows(&x, 32), &mut out)) };
            for (bits, found) in halves.iter().zip(out) {
                let expected = match (scales, bits >> 10 & 31) {
                    (Factors::Float16(_), 31) => {
                        assert!(!found.is_finite(), "{bits:#x}");
                        continue;
                    }
                    (Factors::Float16(_), 0) => {
                        let sign = if bits >> 15 == 1 { -1.0 } else { 1.0 };
                        sign * f64::from(bits & 1023) * 2.0f64.powi(-24)
                    }
                    _ => value(*bits),
                };
                // The other inputs of the group are 0, and 0 times what is no number is none.
                if expected.is_finite() {
                    assert_eq!(f64::from(found), expected, "{} {bits:#x}", kernels.name);
                }
            }
        }
    }
}

#[test]
fn a_matrix_of_other_sizes_is_refused() {
    let (words, scales) = (vec![0; 24], vec![0.0; 6]);
    let matrix = |bits, group, inputs, words: &[u32], scales: &[f32], biases: &[f32]| {
        let (scales, biases) = (Factors::Float32(scales), Factors::Float32(biases));
        let found =
            QuantizedMatrix::new(words, scales, biases, QuantizedFormat { bits, group }, inputs);
        found.map(|matrix| matrix.outputs())
    };
    assert_eq!(matrix(4, 32, 64, &words, &scales, &scales), Ok(3));
    assert_eq!(matrix(4, 32, 64, &[], &[], &[]), Ok(0));
    for (bits, group, inputs) in
        [(7, 32, 64), (1, 32, 64), (4, 16, 64), (4, 48, 96), (4, 64, 96), (4, 32, 0), (16, 32, 64)]
    {
        assert!(matrix(bits, group, inputs, &words, &scales, &scales).is_err());
    }
    let text = matrix(4, 32, 64, &words[1..], &scales, &scales).expect_err("too few words");
    assert_eq!(
        text.to_string(),
        "expected rows of 8 words and 2 scales and biases, found 23 words, 6 scales and 6 biases"
    );
    assert!(matrix(4, 32, 64, &words, &scales[1..], &scales).is_err());
    assert!(matrix(4, 32, 64, &words, &scales, &scales[2..]).is_err());
    assert!(matrix(4, 32, usize::MAX / 2 + 1, &words, &scales, &scales).is_err());
}
