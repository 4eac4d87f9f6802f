//! Quantized products against sums in double precision and against float products.

use super::*;
use crate::kernel::{Kernels, available};

/// Numbers that look random, the same each time.
pub(super) fn words(seed: u32) -> impl FnMut() -> u32 {
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

    fn factors_mut(&mut self) -> FactorsMut<'_> {
        match self.stored {
            Stored::Float32 => FactorsMut::Words(&mut self.floats),
            Stored::Float16 | Stored::Bfloat16 => FactorsMut::Halves(&mut self.halves),
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
        self.compute_with(self.matrix(), kernels, x, step)
    }

    /// The product by this matrix, which is the sample's, arranged or not.
    fn compute_with(
        &self,
        matrix: QuantizedMatrix<'_>,
        kernels: Kernels,
        x: &[f32],
        step: usize,
    ) -> Vec<f32> {
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
        same_among_any_rows(bits_of, [75, 96], (1..=33).chain([48, 49, 64, 300]));
    }
    // Long rows, of which few fit the first cache.
    same_among_any_rows(4, [10, 800], 1..=9);
}

/// Products of as many rows as `counts` has are those of each row alone. `[outputs, inputs]`.
fn same_among_any_rows(
    bits_of: usize,
    [outputs, inputs]: [usize; 2],
    counts: impl Iterator<Item = usize> + Clone,
) {
    let format = QuantizedFormat { bits: bits_of, group: 32 };
    let sample = Sample::new(Stored::Float16, format, outputs, inputs);
    let most = counts.clone().max().expect("some");
    let x = floats(most * inputs, 5);
    for kernels in available() {
        let alone: Vec<u32> = x
            .chunks_exact(inputs)
            .flat_map(|row| bits(&sample.compute(kernels, row, outputs)))
            .collect();
        for rows in counts.clone() {
            for part in [outputs, 9] {
                let found = sample.compute(kernels, &x[..rows * inputs], part);
                assert!(
                    bits(&found) == alone[..rows * outputs],
                    "{} {bits_of} bits {rows} rows of {inputs} in parts of {part}",
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

/// A sample whose parts are arranged.
struct Arranged(Sample);

impl Arranged {
    fn new(mut sample: Sample) -> Self {
        let both = [sample.scales.factors_mut(), sample.biases.factors_mut()];
        arrange(&mut sample.packed, both, sample.format, sample.inputs);
        Self(sample)
    }

    fn compute(&self, kernels: Kernels, x: &[f32], step: usize) -> Vec<f32> {
        self.0.compute_with(self.0.matrix().of_tiles(), kernels, x, step)
    }
}

/// The product of integers by its definition ([`crate::kernel::integer`]).
fn by_integers(sample: &Sample, x: &[f32]) -> Vec<f32> {
    let (inputs, outputs) = (sample.inputs, sample.matrix().outputs());
    let block = sample.format.group.min(64);
    let mut out = vec![];
    for x in x.chunks_exact(inputs) {
        let rounded: Vec<(f32, Vec<i32>)> = x
            .chunks_exact(block)
            .map(|x| {
                let largest = x.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
                let factor = 127.0 / largest;
                (largest / 127.0, x.iter().map(|x| (x * factor).round_ties_even() as i32).collect())
            })
            .collect();
        for output in 0..outputs {
            let mut sum = 0.0;
            for (at, (size, numbers)) in rounded.iter().enumerate() {
                let first = output * inputs + at * block;
                let [scale, _, bias] = sample.parts(first);
                let products = numbers.iter().enumerate();
                let dot: i32 =
                    products.map(|(i, number)| number * sample.number(first + i) as i32).sum();
                let total = numbers.iter().sum::<i32>() as f32;
                sum = size.mul_add(total.mul_add(bias, dot as f32 * scale), sum);
            }
            out.push(sum);
        }
    }
    out
}

#[test]
fn every_product_of_integers_has_the_bits_of_its_definition() {
    for format in formats() {
        for stored in [Stored::Float32, Stored::Float16, Stored::Bfloat16] {
            let (outputs, inputs) = (48, 3 * format.group);
            let x = floats(61 * inputs, 3);
            let sample = || Sample::new(stored, format, outputs, inputs);
            let expected = bits(&by_integers(&sample(), &x));
            let arranged = Arranged::new(sample());
            for rows in [1, 2, 3, 4, 5, 8, 15, 61] {
                for kernels in available() {
                    for step in [outputs, 16] {
                        let found = arranged.compute(kernels, &x[..rows * inputs], step);
                        assert!(
                            bits(&found) == expected[..rows * outputs],
                            "{} {format:?} {stored:?} {rows} rows in steps of {step}",
                            kernels.name
                        );
                    }
                }
            }
        }
    }
}

/// The finalizer of MurmurHash3, as `golden/integers.py` has it.
fn mixed(seed: u32, count: usize) -> impl Iterator<Item = u32> {
    (0..count as u32).map(move |at| {
        let mut n = at.wrapping_add(seed * 1_000_003).wrapping_mul(0x9e37_79b9);
        for (shift, factor) in [(16, 0x85eb_ca6b), (13, 0xc2b2_ae35), (16, 1)] {
            n = (n ^ n >> shift).wrapping_mul(factor);
        }
        n
    })
}

/// The products that numpy computes from the definition: `golden/integers.py`.
#[test]
fn products_of_integers_have_the_bits_of_the_reference() {
    let (outputs, groups, rows) = (16, 3, 3);
    let floats = |seed, count| -> Vec<f32> {
        mixed(seed, count).map(|n| (n >> 8) as f32 / (1 << 23) as f32 - 1.0).collect()
    };
    let text = include_str!("golden/integers.txt");
    assert_eq!(text.lines().count(), formats().count());
    for (line, format) in text.lines().zip(formats()) {
        let inputs = groups * format.group;
        let factors = |seed| StoredFactors {
            stored: Stored::Float32,
            floats: floats(seed, outputs * groups),
            halves: vec![],
        };
        let arranged = Arranged::new(Sample {
            packed: mixed(1, outputs * inputs / 32 * format.bits).collect(),
            scales: factors(2),
            biases: factors(3),
            format,
            inputs,
        });
        let mut words = line.split(' ');
        let mut number = || words.next().expect("a number").parse::<usize>().expect("decimal");
        assert_eq!((number(), number()), (format.bits, format.group));
        let expected: Vec<u32> =
            words.map(|word| u32::from_str_radix(word, 16).expect("hexadecimal")).collect();
        for kernels in available() {
            let found = arranged.compute(kernels, &floats(4, rows * inputs), outputs);
            assert_eq!(bits(&found), expected, "{} {format:?}", kernels.name);
        }
    }
}

#[test]
fn a_matrix_is_restored_as_it_was_stored() {
    for format in formats() {
        for stored in [Stored::Float32, Stored::Float16] {
            let sample = || Sample::new(stored, format, 48, 3 * format.group);
            let (expected, mut found) = (sample(), Arranged::new(sample()).0);
            assert_ne!(found.packed, expected.packed, "{format:?}");
            let both = [found.scales.factors_mut(), found.biases.factors_mut()];
            restore(&mut found.packed, both, format, found.inputs);
            assert_eq!(found.packed, expected.packed, "{format:?}");
            for (found, expected) in
                [(found.scales, expected.scales), (found.biases, expected.biases)]
            {
                assert_eq!(found.halves, expected.halves, "{format:?}");
                assert_eq!(bits(&found.floats), bits(&expected.floats), "{format:?}");
            }
        }
    }
}

/// Sums of pairs in 16 bits must not overflow, nor those of a block in 24.
#[test]
fn the_largest_integers_do_not_overflow() {
    for format in formats() {
        for packed in [0, u32::MAX] {
            let mut sample = Sample::new(Stored::Float32, format, 16, 128);
            sample.packed.fill(packed);
            let rows: Vec<f32> = (0..3 * 128)
                .map(|at| match at / 128 {
                    0 => 1.0,
                    1 => -1.0,
                    _ => [1.0, -1.0][at % 2],
                })
                .collect();
            let expected = bits(&by_integers(&sample, &rows));
            let arranged = Arranged::new(sample);
            for kernels in available() {
                let found = arranged.compute(kernels, &rows, 16);
                assert!(bits(&found) == expected, "{} {format:?} {packed:x}", kernels.name);
            }
        }
    }
}

#[test]
fn what_is_no_number_gives_none_in_its_row_and_zeros_give_zeros() {
    let format = QuantizedFormat { bits: 4, group: 64 };
    let mut sample = Sample::new(Stored::Float16, format, 32, 128);
    sample.biases.halves.fill(0);
    let arranged = Arranged::new(sample);
    let mut x = floats(6 * 128, 3);
    x[128] = f32::NAN;
    x[2 * 128 + 70] = f32::INFINITY;
    x[3 * 128 + 127] = f32::NEG_INFINITY;
    x[4 * 128..5 * 128].fill(0.0);
    // 127 / 1e-40 is no finite number.
    x[5 * 128..].fill(1e-40);
    for kernels in available() {
        let found = arranged.compute(kernels, &x, 32);
        let mut rows = found.chunks_exact(32);
        let mut all = |check: fn(&f32) -> bool| rows.next().expect("a row").iter().all(check);
        assert!(all(|number| number.is_finite()), "{}", kernels.name);
        for _ in 0..3 {
            assert!(all(|number| number.is_nan()), "{}", kernels.name);
        }
        for _ in 0..2 {
            assert!(all(|number| *number == 0.0), "{}", kernels.name);
        }
    }
}

#[test]
fn rows_of_an_arranged_matrix_are_those_of_the_stored_one() {
    for format in formats() {
        let sample = || Sample::new(Stored::Bfloat16, format, 48, 2 * format.group);
        let (stored, arranged) = (sample(), Arranged::new(sample()));
        let (stored, arranged) = (stored.matrix(), arranged.0.matrix().of_tiles());
        let (mut expected, mut found) = (vec![0.0; stored.inputs()], vec![0.0; stored.inputs()]);
        for row in 0..48 {
            stored.expand_row(row, &mut expected);
            arranged.expand_row(row, &mut found);
            assert_eq!(bits(&found), bits(&expected), "{format:?} row {row}");
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
