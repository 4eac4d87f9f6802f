//! How far numbers may be from a reference: by the type that a model computes in, and by the graph.

use mlx_rs::{Array, Dtype};

use crate::device::TestGraph;

/// Share of the largest number by which others of bfloat16 may be off after a few layers. Three
/// layers of tiny random models lose up to half of it more; `tests/parity/model.rs` names those.
const BFLOAT16_SHARE: f32 = 3e-2;
/// The same of float16, whose numbers have three bits more: 1.7e-2 were seen (`qwen2-tiny-q8`), and
/// mlx-lm loses 1.4e-2.
const FLOAT16_SHARE: f32 = 2e-2;
/// The same of float32 for two graphs of one model, whose sums have other orders.
const FLOAT32_SHARE: f32 = 1e-4;

/// The largest size of a number, 0 of none.
pub fn largest(numbers: &[f32]) -> f32 {
    numbers.iter().fold(0.0, |most, number| most.max(number.abs()))
}

/// Whether a type has 16 bits, so that numbers are held to the largest of them.
pub fn is_half(dtype: Dtype) -> bool {
    dtype != Dtype::Float32
}

/// How far numbers beside `expected` may be off if the model computes in `dtype`: `in_float32` in
/// float32, else a share of the largest.
pub fn allowed(dtype: Dtype, expected: &[f32], in_float32: f32) -> f32 {
    match dtype {
        Dtype::Float32 => in_float32,
        Dtype::Float16 => FLOAT16_SHARE * largest(expected),
        _ => BFLOAT16_SHARE * largest(expected),
    }
}

/// The largest difference; infinite if one is no number.
///
/// # Panics
/// There are not as many of both.
pub fn worst(expected: &[f32], found: &[f32]) -> f32 {
    assert_eq!(expected.len(), found.len());
    let differences = expected.iter().zip(found).map(|(a, b)| (a - b).abs());
    differences.fold(0.0, |most, off| if off.is_nan() { f32::INFINITY } else { most.max(off) })
}

/// Holds numbers to those of a reference.
///
/// # Panics
/// One is off by more than `allowed`.
pub fn assert_within(what: &str, allowed: f32, expected: &[f32], found: &[f32]) {
    let off = worst(expected, found);
    let share = off / largest(expected);
    assert!(off <= allowed, "{what}: off by {off}, {share} of the largest, allowed {allowed}");
}

/// Holds numbers of a model that computes in `dtype` to those of a reference.
///
/// # Panics
/// One is off by more than [`allowed`].
pub fn assert_close(what: &str, dtype: Dtype, expected: &[f32], found: &[f32], in_float32: f32) {
    assert_within(what, allowed(dtype, expected, in_float32), expected, found);
}

/// Holds numbers of a model to those of the same model for the same ids: cut, batched or accepted in
/// another way. They are the same to the last bit in the graph of the CPU (I1). Else both may be off
/// by the type's bound.
///
/// # Panics
/// One differs by more.
pub fn assert_same(what: &str, dtype: Dtype, expected: &[f32], found: &[f32]) {
    if super::graph() == TestGraph::Own && cfg!(target_os = "linux") {
        let differs = |(a, b): (&f32, &f32)| a.to_bits() != b.to_bits();
        let place = expected.iter().zip(found).position(differs);
        assert_eq!(expected.len(), found.len(), "{what}");
        assert_eq!(place, None, "{what}: other bits");
    } else {
        let in_float32 = FLOAT32_SHARE / 2.0 * largest(expected).max(1.0);
        assert_within(what, 2.0 * allowed(dtype, expected, in_float32), expected, found);
    }
}

/// Holds a row of logits, each of which may be off by `allowed`, to the id that a reference chose.
/// Returns the id to go on with, the reference's.
///
/// # Panics
/// The reference's id is no id of the row, or another is better than the bounds of both allow.
pub fn follow(what: &str, allowed: f32, logits: &[f32], expected: u32) -> u32 {
    let best = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let behind = best - logits[expected as usize];
    let most = 2.0 * allowed;
    assert!(behind <= most, "{what}: id {expected} is {behind} behind the best, allowed {most}");
    expected
}

/// The numbers of an array of any float type, in the order of their indices.
///
/// # Panics
/// It cannot be evaluated.
pub fn floats(array: &Array) -> Vec<f32> {
    let array = array.as_dtype(Dtype::Float32).and_then(|array| array.contiguous());
    let array = array.expect("an array of numbers");
    array.eval().expect("evaluates");
    array.try_as_slice::<f32>().expect("floats").to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_are_held_to_the_largest_number_and_floats_to_a_difference() {
        let expected = [10.0, -20.0, 0.1];
        assert_eq!(allowed(Dtype::Float32, &expected, 1e-3), 1e-3);
        assert_eq!(allowed(Dtype::Bfloat16, &expected, 1e-3), 0.03 * 20.0);
        assert_eq!(allowed(Dtype::Float16, &expected, 1e-3), 0.02 * 20.0);
        assert_eq!(worst(&expected, &[10.0, -19.5, 0.1]), 0.5);
        assert_eq!(worst(&expected, &[10.0, f32::NAN, 0.1]), f32::INFINITY);
    }

    #[test]
    fn a_row_follows_a_reference_within_the_bounds_of_two_logits() {
        const LOGITS: [f32; 3] = [20.0, 19.0, 18.0];
        assert_eq!(follow("the best", 0.0, &LOGITS, 0), 0);
        assert_eq!(follow("near", 0.6, &LOGITS, 1), 1);
        let refused =
            |allowed, id| std::panic::catch_unwind(|| follow("far", allowed, &LOGITS, id)).is_err();
        assert!(refused(0.0, 1) && refused(0.6, 2));
    }
}
