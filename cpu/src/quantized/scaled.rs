//! Matrices with scaled factors, as K-quants of GGUF have them, against sums computed here.

use super::tests::words;
use super::*;
use crate::kernel::available;

const INPUTS: usize = 512;
const OUTPUTS: usize = 48;
/// Most rows of a product.
const ROWS: usize = 9;
/// Q4_K, Q5_K and Q6_K.
const FORMATS: [QuantizedFormat; 3] = [
    QuantizedFormat { bits: 4, group: 32 },
    QuantizedFormat { bits: 5, group: 32 },
    QuantizedFormat { bits: 6, group: 16 },
];

/// A matrix in the order of its rows, and its factors as floats.
struct Stored {
    format: QuantizedFormat,
    packed: Vec<u32>,
    scales: Vec<u8>,
    biases: Vec<u8>,
}

/// Runs whose floats lie between 2^-9 and 2^-7, of either sign, with their factors.
fn runs(group: usize, seed: u32) -> Vec<u8> {
    let mut next = words(seed);
    let mut bytes = vec![];
    for _ in 0..OUTPUTS * INPUTS / 256 {
        let float = ((next() >> 16) as u16 & 0x8000) | (6 << 10) | (next() % 2048) as u16;
        bytes.extend(float.to_le_bytes());
        bytes.extend((0..256 / group).map(|_| (next() >> 24) as u8));
    }
    bytes
}

fn half(bytes: &[u8]) -> f32 {
    let bits = u16::from_le_bytes([bytes[0], bytes[1]]);
    let sign = if bits >> 15 == 1 { -1.0 } else { 1.0 };
    let exponent = i32::from(bits >> 10 & 31) - 25;
    sign * f32::from(bits & 1023 | 1024) * (exponent as f32).exp2()
}

impl Stored {
    fn new(format: QuantizedFormat) -> Self {
        let mut next = words(format.bits as u32);
        let packed = (0..OUTPUTS * INPUTS / 32 * format.bits).map(|_| next()).collect();
        let [scales, biases] = [3, 4].map(|seed| runs(format.group, seed));
        Self { format, packed, scales, biases }
    }

    fn matrix(&self) -> QuantizedMatrix<'_> {
        let factors = [&self.scales, &self.biases].map(|bytes| Factors::Scaled(bytes));
        QuantizedMatrix::new(&self.packed, factors[0], factors[1], self.format, INPUTS)
            .expect("a matrix")
    }

    /// Scale and bias of a group of a row.
    fn factors(&self, row: usize, group: usize) -> [f32; 2] {
        let (codes, length) = (256 / self.format.group, run_bytes(self.format.group));
        [&self.scales, &self.biases].map(|bytes| {
            let run = &bytes[(row * INPUTS / 256 + group / codes) * length..];
            half(run) * f32::from(run[2 + group % codes].cast_signed())
        })
    }

    /// Number `at` of a row before its scale.
    fn number(&self, row: usize, at: usize) -> u32 {
        let bits = self.format.bits;
        let bit = |bit: usize| self.packed[bit / 32] >> (bit % 32) & 1;
        let first = (row * INPUTS + at) * bits;
        (0..bits).map(|one| bit(first + one) << one).sum()
    }

    /// The element of a row of inputs and a row of the matrix by products of integers, in the order that
    /// `kernel::integer` describes.
    fn by_integers(&self, x: &[f32], row: usize) -> f32 {
        let group = self.format.group;
        let mut sum = 0.0f32;
        for (at, block) in x.chunks_exact(group).enumerate() {
            let largest = block.iter().fold(0.0f32, |largest, one| largest.max(one.abs()));
            let [scale, bias] = self.factors(row, at);
            let p: Vec<f32> =
                block.iter().map(|one| (one * (127.0 / largest)).round_ties_even()).collect();
            let numbers = (0..group).map(|one| self.number(row, at * group + one) as f32);
            let products: f32 = numbers.zip(&p).map(|(q, p)| q * p).sum();
            let of = p.iter().sum::<f32>().mul_add(bias, products * scale);
            sum = (largest / 127.0).mul_add(of, sum);
        }
        sum
    }
}

fn inputs() -> Vec<f32> {
    let mut next = words(9);
    (0..ROWS * INPUTS).map(|_| next() as f32 / u32::MAX as f32 * 2.0 - 1.0).collect()
}

/// The products of the first `count` rows by each kind of kernels that this processor has.
fn products(
    matrix: &QuantizedMatrix<'_>,
    x: &[f32],
    count: usize,
) -> Vec<(&'static str, Vec<f32>)> {
    let rows = FloatRows { numbers: x, count, stride: INPUTS, length: INPUTS };
    let each = |kernels: crate::kernel::Kernels| {
        let mut out = vec![0.0; count * OUTPUTS];
        let weight = matrix.weight(0);
        let product = matrix.product(&weight, rows, &mut out);
        // SAFETY: the sizes are those of the matrix, the kernels are of this processor.
        unsafe { pool::run(&kernels, &product) };
        (kernels.name, out)
    };
    available().map(each).collect()
}

#[test]
fn a_row_has_the_numbers_of_its_bits_and_factors_arranged_or_not() {
    for format in FORMATS {
        let mut stored = Stored::new(format);
        let expected: Vec<Vec<f32>> = (0..OUTPUTS)
            .map(|row| {
                let number = |at: usize| {
                    let [scale, bias] = stored.factors(row, at / format.group);
                    scale.mul_add(stored.number(row, at) as f32, bias)
                };
                (0..INPUTS).map(number).collect()
            })
            .collect();
        let rows = |matrix: QuantizedMatrix<'_>| -> Vec<Vec<f32>> {
            let row = |at| {
                let mut out = vec![0.0; INPUTS];
                matrix.expand_row(at, &mut out);
                out
            };
            (0..OUTPUTS).map(row).collect()
        };
        assert_eq!(rows(stored.matrix()), expected, "{format:?}");
        let before = (stored.packed.clone(), stored.scales.clone(), stored.biases.clone());
        let Stored { packed, scales, biases, .. } = &mut stored;
        let factors = [FactorsMut::Scaled(scales), FactorsMut::Scaled(biases)];
        arrange(packed, factors, format, INPUTS);
        assert_eq!(rows(stored.matrix().of_tiles()), expected, "{format:?} in tiles");
        let Stored { packed, scales, biases, .. } = &mut stored;
        let factors = [FactorsMut::Scaled(scales), FactorsMut::Scaled(biases)];
        restore(packed, factors, format, INPUTS);
        assert_eq!((stored.packed, stored.scales, stored.biases), before, "{format:?}");
    }
}

#[test]
fn float_products_are_those_of_the_expanded_rows_whatever_rows_stand_beside() {
    let x = inputs();
    for format in FORMATS {
        let stored = Stored::new(format);
        let alone = products(&stored.matrix(), &x, 1);
        for count in [2, 5, ROWS] {
            for ((name, out), (_, alone)) in
                products(&stored.matrix(), &x, count).iter().zip(&alone)
            {
                assert_eq!(out[..OUTPUTS], alone[..], "{format:?}, {name}, {count} rows");
                for (row, out) in out.chunks_exact(OUTPUTS).enumerate() {
                    for (column, found) in out.iter().enumerate() {
                        let term = |at: usize| {
                            let [scale, bias] = stored.factors(column, at / format.group);
                            let w = f64::from(scale) * f64::from(stored.number(column, at))
                                + f64::from(bias);
                            w * f64::from(x[row * INPUTS + at])
                        };
                        let expected: f64 = (0..INPUTS).map(term).sum();
                        let off = (f64::from(*found) - expected).abs();
                        assert!(off < 2e-3, "{format:?}, {name}: {found} and {expected}");
                    }
                }
            }
        }
    }
}

#[test]
fn integer_products_have_the_bits_of_the_described_order() {
    let x = inputs();
    for format in FORMATS {
        let mut stored = Stored::new(format);
        let expected: Vec<u32> = (0..ROWS * OUTPUTS)
            .map(|at| {
                let row = &x[at / OUTPUTS * INPUTS..][..INPUTS];
                stored.by_integers(row, at % OUTPUTS).to_bits()
            })
            .collect();
        let Stored { packed, scales, biases, .. } = &mut stored;
        let factors = [FactorsMut::Scaled(scales), FactorsMut::Scaled(biases)];
        arrange(packed, factors, format, INPUTS);
        for count in 1..=ROWS {
            for (name, out) in products(&stored.matrix().of_tiles(), &x, count) {
                let found: Vec<u32> = out.iter().map(|one| one.to_bits()).collect();
                assert_eq!(found, expected[..count * OUTPUTS], "{format:?}, {name}, {count} rows");
            }
        }
    }
}

#[test]
fn groups_of_sixteen_and_scaled_factors_go_together() {
    let stored = Stored::new(FORMATS[2]);
    let floats = vec![0.0; OUTPUTS * INPUTS / 16];
    let refused = |scales, biases, inputs| {
        QuantizedMatrix::new(&stored.packed, scales, biases, stored.format, inputs).is_err()
    };
    let (scales, biases) = (Factors::Scaled(&stored.scales), Factors::Scaled(&stored.biases));
    assert!(!refused(scales, biases, INPUTS));
    assert!(refused(Factors::Float32(&floats), Factors::Float32(&floats), INPUTS));
    assert!(refused(scales, Factors::Float32(&floats), INPUTS));
    assert!(refused(Factors::Scaled(&stored.scales[1..]), biases, INPUTS));
    assert!(refused(scales, biases, 128), "no whole runs");
}
