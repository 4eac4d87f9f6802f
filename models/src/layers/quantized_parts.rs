//! Weights as checkpoints store them, for products of our own.

use mlx_rs::Array;

/// Affine by groups of inputs: w = scale · q + bias.
#[cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "read by our own products"))]
#[derive(Clone, Copy, Debug)]
pub(crate) struct QuantizedParts<'a> {
    /// `[out, in · bits / 32]`, uint32, low bits first.
    pub(crate) packed: &'a Array,
    /// `[out, in / group]`.
    pub(crate) scales: &'a Array,
    /// `[out, in / group]`.
    pub(crate) biases: &'a Array,
    /// Inputs that share a scale and a bias.
    pub(crate) group: i32,
    /// Bits of a number.
    pub(crate) bits: i32,
    /// Whether all parts lie in tiles, for products of integers.
    pub(crate) tiles: bool,
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
