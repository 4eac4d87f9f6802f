//! Activations between two products (arXiv 1606.08415), and gates of heads.

use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::{Array, ops};

use super::{Gate, host};
use crate::error::Result;

/// x · Φ(x), Φ the normal distribution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gelu {
    /// By the error function.
    Exact,
    /// By tanh(√(2/π) · (x + 0.044715 · x³)), which differs by up to 5e-4.
    Tanh,
    /// x · sigmoid(1.702 · x), which differs by up to 2e-2.
    Quick,
}

impl Gelu {
    /// `x` → the same shape.
    pub(crate) fn forward(self, x: &Array) -> Result<Array> {
        if self == Self::Tanh
            && let Some(done) = host::gelu(x)?
        {
            return Ok(done);
        }
        let number = |value: f32| Array::from_f32(value).as_dtype(x.dtype());
        let half_way = match self {
            Self::Quick => {
                return Ok(x.multiply(ops::sigmoid(x.multiply(number(1.702)?)?)?)?);
            }
            Self::Exact => ops::erf(x.multiply(number(std::f32::consts::FRAC_1_SQRT_2)?)?)?,
            Self::Tanh => {
                let root = (2.0 / std::f32::consts::PI).sqrt();
                // x · (√(2/π) + √(2/π) · 0.044715 · x²)
                let inner = x.square()?.multiply(number(root * 0.044_715)?)?.add(number(root)?)?;
                ops::tanh(x.multiply(inner)?)?
            }
        };
        Ok(x.multiply(half_way.add(number(1.0)?)?.multiply(number(0.5)?)?)?)
    }
}

/// A gate before it is multiplied: `x` → the same shape. By MLX.
pub(crate) fn activated(gate: Gate, x: &Array) -> Result<Array> {
    match gate {
        Gate::Silu => Ok(x.multiply(ops::sigmoid(x)?)?),
        Gate::Gelu => Gelu::Tanh.forward(x),
    }
}

/// x · sigmoid(gate) for `x` `[rows, heads · dim]`. The gate of head h is head 2 · h + 1 of `gates`
/// `[rows, at least 2 · heads, dim]` → the same shape as `x`.
pub(crate) fn gate_heads(x: &Array, gates: &Array) -> Result<Array> {
    if let Some(gated) = host::gated_by_heads(x, gates)? {
        return Ok(gated);
    }
    let (rows, width, dim) = (x.dim(0), x.dim(1), gates.dim(2));
    let pairs = gates.try_index((.., ..2 * (width / dim), ..))?.reshape(&[rows, -1, 2 * dim])?;
    let gate = pairs.try_index((.., .., dim..))?.reshape(&[rows, width])?;
    Ok(x.multiply(ops::sigmoid(gate)?)?)
}
