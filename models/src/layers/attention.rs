//! Scaled dot-product attention over grouped heads (arXiv 2305.13245).

use std::ops::Range;
use std::sync::Arc;

use mlx_rs::{Array, fast, ops};

use super::host;
use crate::device::on_gpu;
use crate::error::Result;

/// For each query row the keys that it attends to, counted from the first key given.
pub(crate) type VisibleKeys = Arc<[Range<usize>]>;

/// Which keys each of N · T rows attends to. [`host::computes`] decides on the form.
#[derive(Clone, Copy, Debug)]
pub(crate) enum AttentionMask<'a> {
    /// Added to the scores, `[N, 1, T, L]`; `None` where every row attends to every key.
    Additive(Option<&'a Array>),
    /// A range of keys for each row.
    Ranges(&'a VisibleKeys),
}

/// N sequences · T query rows each · L keys · Hq query heads in Hkv groups · D head_dim.
///
/// `q` `[N·T, Hq, D]`, `k` and `v` `[N, Hkv, L, D]` → `[N·T, Hq·Dv]`.
pub(crate) fn attention(
    q: &Array,
    k: &Array,
    v: &Array,
    scale: f32,
    mask: AttentionMask<'_>,
) -> Result<Array> {
    let (n, kv_heads, keys) = (k.dim(0), k.dim(1), k.dim(2));
    let (heads, dim, value_dim) = (q.dim(1), q.dim(2), v.dim(3));
    let (rows, group) = (q.dim(0) / n, heads / kv_heads);
    if let AttentionMask::Additive(mask) = mask
        && on_gpu()
    {
        let q = q.reshape(&[n, rows, heads, dim])?.transpose_axes(&[0, 2, 1, 3])?;
        let out = fast::scaled_dot_product_attention(
            &q,
            k,
            v,
            scale,
            mask.map(fast::ScaledDotProductAttentionMask::Array),
            None,
        )?;
        return Ok(out.transpose_axes(&[0, 2, 1, 3])?.reshape(&[n * rows, heads * value_dim])?);
    }
    // On the CPU one product a KV head: a group's heads and rows are folded into its rows, so that
    // the keys are read once and nothing is broadcast.
    let q = match mask {
        AttentionMask::Ranges(_) => q.clone(),
        AttentionMask::Additive(_) => q.multiply(Array::from_f32(scale).as_dtype(q.dtype())?)?,
    };
    let q = if rows == 1 {
        q.reshape(&[n, kv_heads, group, dim])?
    } else {
        let split =
            q.reshape(&[n, rows, kv_heads, group, dim])?.transpose_axes(&[0, 2, 3, 1, 4])?;
        split.reshape(&[n, kv_heads, group * rows, dim])?
    };
    let scores = q.matmul(k.transpose_axes(&[0, 1, 3, 2])?)?;
    let shares = match mask {
        AttentionMask::Ranges(visible) => host::softmax(scores, scale, visible)?,
        AttentionMask::Additive(None) => ops::softmax_axis(&scores, -1, true)?,
        AttentionMask::Additive(Some(mask)) => {
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
