//! Scaled dot-product attention over grouped heads (arXiv 2305.13245).

use std::sync::Arc;

use mlx_rs::{Array, fast, ops};
pub(crate) use paceline_cpu::RowKeys;

use super::HeadRows;
use crate::device::on_gpu;
use crate::error::Result;

/// For each query row the keys that it attends to.
pub(crate) type VisibleKeys = Arc<[RowKeys]>;

/// Where a new row goes in its class.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "MLX computes there"))]
pub(crate) struct RowWrite {
    /// Index among the new rows.
    pub(crate) row: usize,
    /// The slot of its sequence.
    pub(crate) slot: usize,
    /// The row's position in its sequence.
    pub(crate) position: usize,
}

/// Where new rows go.
pub(crate) type RowPlaces = Arc<[RowWrite]>;

/// Query heads of rows from one on.
#[derive(Clone, Debug)]
#[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "MLX computes there"))]
pub(crate) struct QueryRows<'a> {
    pub(crate) heads: HeadRows<'a>,
    /// The first row that attends.
    pub(crate) first: i32,
}

/// Stored keys and values of slots, `[slots · KV heads · capacity, dim]` each.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "MLX computes there"))]
pub(crate) struct StoredHeads<'a> {
    pub(crate) keys: &'a Array,
    pub(crate) values: &'a Array,
    pub(crate) kv_heads: i32,
    /// Positions that a slot keeps: position p at place p modulo their number.
    pub(crate) capacity: i32,
}

/// The keys that rows of an attention do not attend to.
#[derive(Clone, Debug)]
pub(crate) enum HiddenKeys {
    /// None.
    Nothing,
    /// Those after each row's own, the last key being the last row's.
    Later,
    /// By numbers that are added to the scores, `[N, 1 or heads, T, L]` in the queries' type. Of
    /// all heads only for MLX's fused attention.
    Masked(Array),
}

impl HiddenKeys {
    /// Whether MLX's fused attention alone takes this form.
    fn is_fused(&self) -> bool {
        match self {
            Self::Nothing => false,
            Self::Later => true,
            Self::Masked(mask) => mask.dim(1) > 1,
        }
    }
}

/// By MLX. N sequences · T query rows each · L keys · Hq query heads in Hkv groups · D head_dim.
///
/// `q` `[N·T, Hq, D]`, `k` and `v` `[N, Hkv, L, D]` → `[N·T, Hq·Dv]`.
pub(crate) fn attention(
    q: &Array,
    k: &Array,
    v: &Array,
    scale: f32,
    hidden: &HiddenKeys,
) -> Result<Array> {
    let (n, kv_heads, keys) = (k.dim(0), k.dim(1), k.dim(2));
    let (heads, dim, value_dim) = (q.dim(1), q.dim(2), v.dim(3));
    let (rows, group) = (q.dim(0) / n, heads / kv_heads);
    if on_gpu() || hidden.is_fused() {
        let mask = match hidden {
            HiddenKeys::Nothing => None,
            HiddenKeys::Later => Some(fast::ScaledDotProductAttentionMask::Causal),
            HiddenKeys::Masked(mask) => Some(fast::ScaledDotProductAttentionMask::Array(mask)),
        };
        let q = match rows {
            1 => q.reshape(&[n, heads, 1, dim])?,
            _ => q.reshape(&[n, rows, heads, dim])?.transpose_axes(&[0, 2, 1, 3])?,
        };
        let out = fast::scaled_dot_product_attention(&q, k, v, scale, mask, None)?;
        let out = if rows == 1 { out } else { out.transpose_axes(&[0, 2, 1, 3])? };
        return Ok(out.reshape(&[n * rows, heads * value_dim])?);
    }
    // On the CPU one product a KV head: a group's heads and rows are folded into its rows, so that
    // the keys are read once and nothing is broadcast.
    let q = q.multiply(Array::from_f32(scale).as_dtype(q.dtype())?)?;
    let q = if rows == 1 {
        q.reshape(&[n, kv_heads, group, dim])?
    } else {
        let split =
            q.reshape(&[n, rows, kv_heads, group, dim])?.transpose_axes(&[0, 2, 3, 1, 4])?;
        split.reshape(&[n, kv_heads, group * rows, dim])?
    };
    let scores = q.matmul(k.transpose_axes(&[0, 1, 3, 2])?)?;
    let shares = match hidden {
        HiddenKeys::Nothing | HiddenKeys::Later => ops::softmax_axis(&scores, -1, true)?,
        HiddenKeys::Masked(mask) => {
            let spread =
                scores.reshape(&[n, kv_heads, group, rows, keys])?.add(mask.expand_dims(1)?)?;
            ops::softmax_axis(spread.reshape(&[n, kv_heads, group * rows, keys])?, -1, true)?
        }
    };
    let out = shares.matmul(v)?;
    if rows == 1 {
        return Ok(out.reshape(&[n, heads * value_dim])?);
    }
    let rows_first =
        out.reshape(&[n, kv_heads, group, rows, value_dim])?.transpose_axes(&[0, 3, 1, 2, 4])?;
    Ok(rows_first.reshape(&[n * rows, heads * value_dim])?)
}
