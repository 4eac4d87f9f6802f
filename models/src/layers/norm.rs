//! Norms of rows: root mean square (arXiv 1910.07467), and with the mean taken off. Sums in
//! float32.

use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::ops::{broadcast_to, concatenate, ones, sigmoid};
use mlx_rs::{Array, Dtype, fast};

use super::{RopeTables, RotatedHeads, host};
use crate::error::Result;
use crate::load::{LoadError, Weights};

/// How a checkpoint stores the weight of a norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NormWeight {
    /// As it is multiplied by.
    Whole,
    /// Less 1, so that a weight of zeros changes nothing.
    LessOne,
}

impl NormWeight {
    /// Reads `{name}.weight` `[size]`, as it is multiplied by.
    fn take(self, weights: &mut Weights, name: &str, size: i32) -> Result<Array, LoadError> {
        let stored = weights.take(&format!("{name}.weight"), &[size])?;
        if self == Self::Whole {
            return Ok(stored);
        }
        let whole = stored.as_dtype(Dtype::Float32)?.add(Array::from_f32(1.0))?;
        let whole = whole.as_dtype(stored.dtype())?;
        whole.eval()?;
        Ok(whole)
    }
}

/// rms(x) · w over the last axis.
#[derive(Debug)]
pub(crate) struct RmsNorm {
    pub(super) weight: Array,
    pub(super) eps: f32,
}

impl RmsNorm {
    /// Reads `{name}.weight` `[size]`.
    pub(crate) fn load(
        weights: &mut Weights,
        name: &str,
        size: i32,
        eps: f32,
    ) -> Result<Self, LoadError> {
        Self::load_stored(weights, name, size, eps, NormWeight::Whole)
    }

    /// Reads `{name}.weight` `[size]` from the form `stored`.
    pub(crate) fn load_stored(
        weights: &mut Weights,
        name: &str,
        size: i32,
        eps: f32,
        stored: NormWeight,
    ) -> Result<Self, LoadError> {
        Ok(Self { weight: stored.take(weights, name, size)?, eps })
    }

    /// The norm by this weight.
    pub(crate) fn of(weight: Array, eps: f32) -> Self {
        Self { weight, eps }
    }

    /// rms(x) alone, for rows or heads of `size` numbers.
    pub(crate) fn without_weight(size: i32, eps: f32) -> Result<Self, LoadError> {
        let weight = ones::<f32>(&[size])?;
        weight.eval()?;
        Ok(Self { weight, eps })
    }

    /// The norm with all numbers times `factor`.
    pub(crate) fn times(self, factor: f32) -> Result<Self, LoadError> {
        let weight = self.weight.as_dtype(Dtype::Float32)?.multiply(Array::from_f32(factor))?;
        weight.eval()?;
        Ok(Self { weight, ..self })
    }

    /// Numbers of a row or head.
    pub(crate) fn size(&self) -> i32 {
        self.weight.dim(0)
    }

    /// rms(x) · w · silu(gate) of each head of `x` `[rows, width]`. `gates` `[rows, …]` has the
    /// gates from a column on → the same shape as `x`.
    pub(crate) fn gated(&self, x: &Array, gates: &Array, column: i32) -> Result<Array> {
        if let Some(gated) = host::norm_gated(x, gates, column, &self.weight, self.eps)? {
            return Ok(gated);
        }
        let (width, dim) = (x.dim(1), self.weight.dim(0));
        let gate = gates.try_index((.., column..column + width))?;
        let heads = x.reshape(&[-1, dim])?;
        let normed = weighted(&heads, &self.weight, self.eps)?.reshape(&[-1, width])?;
        Ok(normed.multiply(gate.multiply(sigmoid(&gate)?)?)?)
    }

    /// `x` `[…, size]` → the same shape.
    pub(crate) fn forward(&self, x: &Array) -> Result<Array> {
        match host::norm(x, &self.weight, self.eps)? {
            Some(normed) => Ok(normed),
            None => weighted(x, &self.weight, self.eps),
        }
    }
}

/// By MLX, in the type of `x`: some checkpoints in 16 bits store weights of norms in float32, and MLX
/// answers in the wider type, which every layer after it would then have.
fn weighted(x: &Array, weight: &Array, eps: f32) -> Result<Array> {
    Ok(fast::rms_norm(x, Some(weight), eps)?.as_dtype(x.dtype())?)
}

/// (x − mean) / √(variance + eps) · w + b over the last axis (arXiv 1607.06450).
#[derive(Debug)]
pub(crate) struct LayerNorm {
    weight: Array,
    bias: Array,
    eps: f32,
}

impl LayerNorm {
    /// Reads `{name}.weight` and `{name}.bias` `[size]`.
    pub(crate) fn load(
        weights: &mut Weights,
        name: &str,
        size: i32,
        eps: f32,
    ) -> Result<Self, LoadError> {
        let mut take = |part: &str| weights.take(&format!("{name}.{part}"), &[size]);
        Ok(Self { weight: take("weight")?, bias: take("bias")?, eps })
    }

    /// `x` `[…, size]` → the same shape.
    pub(crate) fn forward(&self, x: &Array) -> Result<Array> {
        match host::layer_norm(x, &self.weight, &self.bias, self.eps)? {
            Some(normed) => Ok(normed),
            None => Ok(fast::layer_norm(x, &self.weight, &self.bias, self.eps)?),
        }
    }
}

/// Norms of heads that are rotated by their positions: each head's numbers normed, then rotated.
#[derive(Debug)]
pub(crate) struct HeadNorm {
    pub(super) heads: RotatedHeads,
    /// `[dim]`, or where heads have different ones `[heads, dim]`.
    pub(super) weight: Array,
    pub(super) eps: f32,
}

impl HeadNorm {
    /// Reads `{name}.weight` `[dim]` of each part, for the part's number of heads.
    pub(crate) fn load(
        weights: &mut Weights,
        parts: &[(&str, i32)],
        dim: i32,
        eps: f32,
    ) -> Result<Self, LoadError> {
        Self::load_stored(weights, parts, dim, eps, NormWeight::Whole)
    }

    /// Reads the weights as [`HeadNorm::load`] does, from the form `stored`.
    pub(crate) fn load_stored(
        weights: &mut Weights,
        parts: &[(&str, i32)],
        dim: i32,
        eps: f32,
        stored: NormWeight,
    ) -> Result<Self, LoadError> {
        let mut each = Vec::with_capacity(parts.len());
        for (name, heads) in parts {
            each.push((stored.take(weights, name, dim)?, *heads));
        }
        let heads = RotatedHeads::First(parts.iter().map(|(_, heads)| heads).sum());
        if let [(weight, _)] = each.as_slice() {
            return Ok(Self { heads, weight: weight.clone(), eps });
        }
        let spread = each.iter().map(|(weight, heads)| broadcast_to(weight, &[*heads, dim]));
        let weight = concatenate(&spread.collect::<Result<Vec<_>, _>>()?, 0)?;
        weight.eval()?;
        Ok(Self { heads, weight, eps })
    }

    /// The norm for as many heads that lie elsewhere in a row.
    pub(crate) fn of_heads(self, heads: RotatedHeads) -> Self {
        Self { heads, ..self }
    }

    /// The heads of `x` `[rows, at least that many, dim]`, by default the first ones → `[rows,
    /// heads, dim]`.
    pub(crate) fn forward(&self, x: &Array, rope: &RopeTables) -> Result<Array> {
        if let Some(rotated) = host::norm_rotate(x, &self.heads, &self.weight, self.eps, rope)? {
            return Ok(rotated);
        }
        // Tables of a tower are float32.
        Ok(rope.apply(&self.normed(&self.heads.of(x)?)?)?.as_dtype(x.dtype())?)
    }

    /// Number of heads.
    pub(crate) fn count(&self) -> i32 {
        self.heads.count()
    }

    /// The heads of `x` `[rows, heads, dim]`, which are rotated already, each normed → the same shape.
    pub(crate) fn of_rotated(&self, x: &Array) -> Result<Array> {
        match host::norm_heads(x, &self.weight, self.eps)? {
            Some(normed) => Ok(normed),
            None => self.normed(x),
        }
    }

    /// By MLX. `x` `[rows, heads, dim]` → the same shape.
    fn normed(&self, x: &Array) -> Result<Array> {
        match self.weight.ndim() {
            1 => weighted(x, &self.weight, self.eps),
            _ => Ok(fast::rms_norm(x, None, self.eps)?
                .multiply(&self.weight)?
                .as_dtype(x.dtype())?),
        }
    }
}
