//! Root-mean-square norm (arXiv 1910.07467), sums in float32.

use mlx_rs::{Array, fast};

use crate::error::{LoadError, Result};
use crate::load::Weights;

/// rms(x) · w over the last axis.
#[derive(Debug)]
pub(crate) struct RmsNorm {
    weight: Array,
    eps: f32,
}

impl RmsNorm {
    /// Reads `{name}.weight` `[size]`.
    pub(crate) fn load(weights: &mut Weights, name: &str, size: i32, eps: f32) -> Result<Self, LoadError> {
        Ok(Self { weight: weights.take(&format!("{name}.weight"), &[size])?, eps })
    }

    /// `x` `[…, size]` → the same shape.
    pub(crate) fn forward(&self, x: &Array) -> Result<Array> {
        Ok(fast::rms_norm(x, Some(&self.weight), self.eps)?)
    }
}

/// x / sqrt(mean(x²) + eps) over the last axis, without a weight.
pub(crate) fn rms(x: &Array, eps: f32) -> Result<Array> {
    Ok(fast::rms_norm(x, None, eps)?)
}
