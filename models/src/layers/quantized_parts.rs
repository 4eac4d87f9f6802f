//! Weights as checkpoints store them, for products of our own.

use mlx_rs::{Array, Dtype};

use crate::load::scaled_row;

/// Affine by groups of inputs: w = scale · q + bias.
#[cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "read by our own products"))]
#[derive(Clone, Copy, Debug)]
pub(crate) struct QuantizedParts<'a> {
    /// `[out, in · bits / 32]`, uint32, low bits first.
    pub(crate) packed: &'a Array,
    /// `[out, in / group]`; of scaled factors runs of bytes, two in each float16 (`are_scaled`).
    pub(crate) scales: &'a Array,
    /// As `scales`.
    pub(crate) biases: &'a Array,
    /// Inputs that share a scale and a bias.
    pub(crate) group: i32,
    /// Bits of a number.
    pub(crate) bits: i32,
    /// Whether all parts lie in tiles, for products of integers.
    pub(crate) tiles: bool,
}

impl QuantizedParts<'_> {
    /// Whether scales and biases are runs of a float16 and bytes, as K-quants of GGUF have them. No
    /// array of one number for each group is as long.
    pub(crate) fn are_scaled(&self) -> bool {
        let Some(words) = self.packed.shape().last() else { return false };
        let inputs = words * 32 / self.bits.max(1);
        let row = scaled_row(inputs, self.group);
        row.is_some()
            && [self.scales, self.biases]
                .iter()
                .all(|part| part.dtype() == Dtype::Float16 && part.shape().last() == row.as_ref())
    }
}

/// The weights of a layer's experts.
#[cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "read by our own products"))]
#[derive(Clone, Copy, Debug)]
pub(crate) enum ExpertParts<'a> {
    /// `[experts, out, in]`, float32.
    Floats(&'a Array),
    /// Each part with an axis of experts in front.
    Quantized(QuantizedParts<'a>),
}
