//! Norms of rows: root mean square (arXiv 1910.07467), and with the mean taken off. Sums in
//! float32.

use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::ops::{broadcast_to, concatenate};
use mlx_rs::{Array, fast};

use super::{RopeTables, host};
use crate::error::Result;
use crate::load::{LoadError, Weights};

/// rms(x) · w over the last axis.
#[derive(Debug)]
pub(crate) struct RmsNorm {
    weight: Array,
    eps: f32,
}

impl RmsNorm {
    /// Reads `{name}.weight` `[size]`.
    pub(crate) fn load(
        weights: &mut Weights,
        name: &str,
        size: i32,
        eps: f32,
    ) -> Result<Self, LoadError> {
        Ok(Self { weight: weights.take(&format!("{name}.weight"), &[size])?, eps })
    }

    /// `x` `[…, size]` → the same shape.
    pub(crate) fn forward(&self, x: &Array) -> Result<Array> {
        match host::norm(x, &self.weight, self.eps)? {
            Some(normed) => Ok(normed),
            None => Ok(fast::rms_norm(x, Some(&self.weight), self.eps)?),
        }
    }
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

/// Norms of heads that are turned by their positions: each head's numbers normed, then rotated.
#[derive(Debug)]
pub(crate) struct HeadNorm {
    heads: i32,
    /// `[dim]`, or where heads have different ones `[heads, dim]`.
    weight: Array,
    eps: f32,
}

impl HeadNorm {
    /// Reads `{name}.weight` `[dim]` of each part, for so many heads each.
    pub(crate) fn load(
        weights: &mut Weights,
        parts: &[(&str, i32)],
        dim: i32,
        eps: f32,
    ) -> Result<Self, LoadError> {
        let mut each = Vec::with_capacity(parts.len());
        for (name, heads) in parts {
            each.push((weights.take(&format!("{name}.weight"), &[dim])?, *heads));
        }
        let heads = parts.iter().map(|(_, heads)| heads).sum();
        if let [(weight, _)] = each.as_slice() {
            return Ok(Self { heads, weight: weight.clone(), eps });
        }
        let spread = each.iter().map(|(weight, heads)| broadcast_to(weight, &[*heads, dim]));
        let weight = concatenate(&spread.collect::<Result<Vec<_>, _>>()?, 0)?;
        weight.eval()?;
        Ok(Self { heads, weight, eps })
    }

    /// The first heads of `x` `[rows, at least so many, dim]` → `[rows, heads, dim]`.
    pub(crate) fn forward(&self, x: &Array, rope: &RopeTables) -> Result<Array> {
        if let Some(turned) = host::norm_turn(x, self.heads, &self.weight, self.eps, rope)? {
            return Ok(turned);
        }
        let x =
            if x.dim(1) == self.heads { x.clone() } else { x.try_index((.., ..self.heads, ..))? };
        rope.apply(&match self.weight.ndim() {
            1 => fast::rms_norm(x, Some(&self.weight), self.eps)?,
            _ => fast::rms_norm(x, None, self.eps)?.multiply(&self.weight)?,
        })
    }
}
