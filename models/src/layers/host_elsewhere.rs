//! host.rs where models compute on a GPU, or on a CPU for which MLX has vectors: nothing is
//! computed here.

use mlx_rs::Array;

use super::{ExpertParts, QuantizedParts, RopeTables, VisibleKeys};
use crate::error::{ModelError, Result};

/// Whether these arrays' values are computed here: no.
pub(crate) fn computes(_: &[&Array]) -> bool {
    false
}

/// MLX does it.
pub(crate) fn gated(_: &Array) -> Result<Option<Array>> {
    Ok(None)
}

/// MLX does it.
pub(crate) fn norm(_: &Array, _: &Array, _: f32) -> Result<Option<Array>> {
    Ok(None)
}

/// MLX does it.
pub(crate) fn norm_turn(
    _: &Array,
    _: i32,
    _: &Array,
    _: f32,
    _: &RopeTables,
) -> Result<Option<Array>> {
    Ok(None)
}

/// MLX does it.
pub(crate) fn turn(_: &Array, _: i32, _: &RopeTables) -> Result<Option<Array>> {
    Ok(None)
}

/// MLX does it.
pub(crate) fn layer_norm(_: &Array, _: &Array, _: &Array, _: f32) -> Result<Option<Array>> {
    Ok(None)
}

/// MLX does it.
pub(crate) fn gelu(_: &Array) -> Result<Option<Array>> {
    Ok(None)
}

/// MLX does it.
pub(crate) fn surprises(_: &Array, _: &[i32]) -> Result<Option<Array>> {
    Ok(None)
}

/// MLX does it.
pub(crate) fn largest(_: &Array, _: usize) -> Result<Option<Array>> {
    Ok(None)
}

/// No product by quantized weights is computed here.
pub(crate) fn multiplies(_: i32, _: i32) -> bool {
    false
}

/// MLX does it.
pub(crate) fn quantized_product(_: &Array, _: &QuantizedParts<'_>) -> Result<Option<Array>> {
    Ok(None)
}

/// MLX does it.
pub(crate) fn expert_product(_: &Array, _: &Array, _: &ExpertParts<'_>) -> Result<Option<Array>> {
    Ok(None)
}

/// Never called, because [`computes`] returns false.
///
/// # Errors
/// Always.
pub(crate) fn softmax(scores: Array, _: f32, _: &VisibleKeys) -> Result<Array> {
    let what = format!(
        "scores of shape {:?} came as ranges, and nothing is computed here on this system",
        scores.shape()
    );
    Err(ModelError::Batch(what))
}
