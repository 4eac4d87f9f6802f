//! Expert products against each row's own float product.

use super::*;
use crate::quantized::{Factors, QuantizedFormat};

fn floats(count: usize, step: f32) -> Vec<f32> {
    (0..count).map(|at| (at as f32 * step).sin()).collect()
}

fn float_rows(numbers: &[f32], length: usize) -> FloatRows<'_> {
    FloatRows { numbers, count: numbers.len() / length, stride: length, length }
}

fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|number| number.to_bits()).collect()
}

const SIZES: ExpertSizes = ExpertSizes { experts: 7, outputs: 75, inputs: 64 };

/// The matrices as floats, and as 4 and 8 bits in groups of 32 with these parts.
struct Sample {
    floats: Vec<f32>,
    packed: Vec<u32>,
    scales: Vec<f32>,
}

impl Sample {
    fn new() -> Self {
        let count = SIZES.experts * SIZES.outputs * SIZES.inputs;
        Self {
            floats: floats(count, 0.37),
            packed: (0..count as u32 / 4).map(|at| at.wrapping_mul(0x9e37_79b9)).collect(),
            scales: floats(count / 32, 0.11),
        }
    }

    fn all(&self) -> [ExpertMatrices<'_>; 3] {
        let quantized = |bits| {
            let words = &self.packed[..self.floats.len() / 32 * bits];
            let factors = Factors::Float32(&self.scales);
            let format = QuantizedFormat { bits, group: 32 };
            let matrix = QuantizedMatrix::new(words, factors, factors, format, SIZES.inputs);
            ExpertMatrices::Quantized(matrix.expect("a matrix"))
        };
        [ExpertMatrices::Floats(&self.floats), quantized(4), quantized(8)]
    }

    /// A row's product by one expert.
    fn alone(&self, matrices: &ExpertMatrices<'_>, x: &[f32], id: u32) -> Vec<u32> {
        let mut out = vec![f32::NAN; SIZES.outputs];
        product(float_rows(x, SIZES.inputs), &[id], matrices, SIZES, &mut out);
        bits(&out)
    }
}

/// As a router would choose: some experts often, some never, a row never one twice.
fn chosen(rows: usize, each: usize) -> Vec<u32> {
    (0..rows * each).map(|at| ((at / each * at / each) % 5 + at % each * 2) as u32 % 6).collect()
}

#[test]
fn a_row_has_the_same_bits_alone_and_whatever_the_others_chose() {
    let sample = Sample::new();
    for matrices in &sample.all() {
        for (rows, each) in [(1, 1), (1, 2), (3, 2), (32, 2), (33, 1), (400, 2)] {
            let (x, ids) = (floats(rows * SIZES.inputs, 0.19), chosen(rows, each));
            for threads in [1, 2, 5] {
                crate::set_threads(threads);
                let mut out = vec![f32::NAN; ids.len() * SIZES.outputs];
                product(float_rows(&x, SIZES.inputs), &ids, matrices, SIZES, &mut out);
                for (slot, out) in out.chunks_exact(SIZES.outputs).enumerate() {
                    let row = &x[slot / each * SIZES.inputs..][..SIZES.inputs];
                    let alone = sample.alone(matrices, row, ids[slot]);
                    assert!(bits(out) == alone, "{rows} rows, {threads} threads, slot {slot}");
                }
            }
        }
    }
}

#[test]
fn an_expert_multiplies_by_its_own_matrix() {
    let sample = Sample::new();
    let size = SIZES.outputs * SIZES.inputs;
    let x = floats(SIZES.inputs, 0.19);
    for id in 0..SIZES.experts {
        let mut out = vec![f32::NAN; SIZES.outputs];
        let matrices = ExpertMatrices::Floats(&sample.floats);
        product(float_rows(&x, SIZES.inputs), &[id as u32], &matrices, SIZES, &mut out);
        for (row, found) in sample.floats[id * size..][..size].chunks_exact(SIZES.inputs).zip(&out)
        {
            let terms = row.iter().zip(&x).map(|(w, x)| f64::from(*w) * f64::from(*x));
            assert!((f64::from(*found) - terms.sum::<f64>()).abs() < 1e-4, "expert {id}");
        }
    }
}

#[test]
fn an_id_of_no_expert_gives_no_number_and_disturbs_no_other() {
    let sample = Sample::new();
    let x = floats(3 * SIZES.inputs, 0.19);
    let ids = [2, 7, u32::MAX, 0, 2, 6];
    for matrices in &sample.all() {
        let mut out = vec![0.0; ids.len() * SIZES.outputs];
        product(float_rows(&x, SIZES.inputs), &ids, matrices, SIZES, &mut out);
        for (slot, out) in out.chunks_exact(SIZES.outputs).enumerate() {
            if ids[slot] < 7 {
                let row = &x[slot / 2 * SIZES.inputs..][..SIZES.inputs];
                assert!(bits(out) == sample.alone(matrices, row, ids[slot]), "slot {slot}");
            } else {
                assert!(out.iter().all(|number| number.is_nan()), "slot {slot}");
            }
        }
    }
    // Nobody's.
    let mut out = vec![0.0; SIZES.outputs];
    let matrices = ExpertMatrices::Floats(&sample.floats);
    product(float_rows(&x[..SIZES.inputs], SIZES.inputs), &[9], &matrices, SIZES, &mut out);
    assert!(out.iter().all(|number| number.is_nan()));
}

#[test]
#[should_panic(expected = "expected 7 matrices of 75 x 64, found 33599 numbers")]
fn matrices_of_another_size_are_refused() {
    let sample = Sample::new();
    let x = floats(SIZES.inputs, 0.19);
    let matrices = ExpertMatrices::Floats(&sample.floats[1..]);
    let mut out = vec![0.0; SIZES.outputs];
    product(float_rows(&x, SIZES.inputs), &[0], &matrices, SIZES, &mut out);
}
