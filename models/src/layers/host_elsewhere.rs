//! `host` where models compute on a GPU, or on a CPU for which MLX has vectors: nothing is
//! computed here.

use mlx_rs::Array;
use mlx_rs::error::Exception;
use paceline_checkpoint::RecurrentSizes;

use super::{
    Advanced, DeltaRule, ExpertParts, Gate, HeadRows, QuantizedParts, QueryRows, RopeTables,
    RotatedHeads, RowPlaces, StatePass, StoredHeads, VisibleKeys,
};
use crate::error::{ModelError, Result};

/// Whether these arrays' values are computed here: no.
pub(crate) fn computes(_: &[&Array]) -> bool {
    false
}

/// MLX does it.
pub(crate) fn gated(_: &Array, _: Gate) -> Result<Option<Array>> {
    Ok(None)
}

/// MLX does it.
pub(crate) fn norm(_: &Array, _: &Array, _: f32) -> Result<Option<Array>> {
    Ok(None)
}

/// MLX does it.
pub(crate) fn norm_rotate(
    _: &Array,
    _: &RotatedHeads,
    _: &Array,
    _: f32,
    _: &RopeTables,
) -> Result<Option<Array>> {
    Ok(None)
}

/// MLX does it.
pub(crate) fn norm_heads(_: &Array, _: &Array, _: f32) -> Result<Option<Array>> {
    Ok(None)
}

/// MLX does it.
pub(crate) fn rotate(_: &Array, _: i32, _: &RopeTables) -> Result<Option<Array>> {
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
pub(crate) fn largest(_: &Array, _: usize) -> Result<Option<Array>> {
    Ok(None)
}

/// MLX does it.
pub(crate) fn quantized_product(_: &Array, _: &QuantizedParts<'_>) -> Result<Option<Array>> {
    Ok(None)
}

/// No product of integers is computed here.
pub(crate) fn arrange(_: &QuantizedParts<'_>) -> Result<bool, Exception> {
    Ok(false)
}

/// Never called, because nothing is arranged.
///
/// # Errors
/// Always.
pub(crate) fn restored(_: &QuantizedParts<'_>) -> Result<[Array; 3], Exception> {
    Err(Exception::custom("expected no products of integers on this system"))
}

/// Never called, because nothing is arranged.
///
/// # Errors
/// Always.
pub(crate) fn rows_of(_: &Array, _: &QuantizedParts<'_>) -> Result<Array> {
    Err(not_here("products of integers"))
}

/// MLX does it.
pub(crate) fn expert_product(_: &Array, _: &Array, _: &ExpertParts<'_>) -> Result<Option<Array>> {
    Ok(None)
}

/// Never called, because [`computes`] returns false.
///
/// # Errors
/// Always.
pub(crate) fn attend_rows(
    _: &QueryRows<'_>,
    _: &StoredHeads<'_>,
    _: &VisibleKeys,
    _: f32,
) -> Result<Array> {
    Err(not_here("attention row by row"))
}

/// Never called, because [`computes`] returns false.
///
/// # Errors
/// Always.
pub(crate) fn write_rows(_: &Array, _: &HeadRows<'_>, _: &RowPlaces, _: i32) -> Result<Array> {
    Err(not_here("a write row by row"))
}

fn not_here(what: &str) -> ModelError {
    ModelError::Batch(format!("expected that MLX computes {what} on this system"))
}

/// MLX does it.
pub(crate) fn advance(_: &DeltaRule, _: &StatePass<'_>, _: &Array) -> Result<Option<Advanced>> {
    Ok(None)
}

/// MLX does it.
pub(crate) fn fold(_: RecurrentSizes, _: &StatePass<'_>) -> Result<Option<Vec<Array>>> {
    Ok(None)
}

/// MLX does it.
pub(crate) fn norm_gated(_: &Array, _: &Array, _: i32, _: &Array, _: f32) -> Result<Option<Array>> {
    Ok(None)
}

/// MLX does it.
pub(crate) fn gated_by_heads(_: &Array, _: &Array) -> Result<Option<Array>> {
    Ok(None)
}
