//! Ranges of load, which is the number of sequences in the engine.

/// Number of ranges.
pub(super) const LOADS: usize = 6;
/// Upper ends of the ranges. The last range also holds what is beyond it.
pub(super) const SEQUENCES: [u32; LOADS] = [1, 2, 4, 8, 16, 32];

/// The range of an amount, by the upper ends of the ranges.
pub(super) fn range(ends: &[u32], amount: f64) -> usize {
    ends.partition_point(|end| f64::from(*end) < amount).min(ends.len() - 1)
}

/// The range of a load of `sequences` sequences.
pub(super) fn load_range(sequences: usize) -> usize {
    range(&SEQUENCES, sequences as f64)
}
