//! Scaled dot-product attention over grouped heads (arXiv 2305.13245).

use mlx_rs::{Array, fast, ops};

use super::host;
use crate::device::on_gpu;
use crate::error::Result;
use crate::kv::Seen;

/// Which keys each of N · T rows sees, in the form that is asked for ([`host::computes`]).
#[derive(Clone, Copy, Debug)]
pub(crate) enum Sees<'a> {
    /// Added to the scores, `[N, 1, T, L]`; none where every row sees every key.
    Mask(Option<&'a Array>),
    /// A range of keys for each row.
    Ranges(&'a Seen),
}

/// N sequences · T query rows each · L keys · Hq query heads in Hkv groups · D head_dim.
///
/// `q` `[N·T, Hq, D]`, `k` and `v` `[N, Hkv, L, D]` → `[N·T, Hq·Dv]`.
pub(crate) fn attention(
    q: &Array,
    k: &Array,
    v: &Array,
    scale: f32,
    sees: Sees<'_>,
) -> Result<Array> {
    let (n, kv_heads, keys) = (k.dim(0), k.dim(1), k.dim(2));
    let (heads, dim, value_dim) = (q.dim(1), q.dim(2), v.dim(3));
    let (rows, group) = (q.dim(0) / n, heads / kv_heads);
    if let Sees::Mask(mask) = sees
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
    let q = match sees {
        Sees::Ranges(_) => q.clone(),
        Sees::Mask(_) => q.multiply(Array::from_f32(scale).as_dtype(q.dtype())?)?,
    };
    let q = if rows == 1 {
        q.reshape(&[n, kv_heads, group, dim])?
    } else {
        let split =
            q.reshape(&[n, rows, kv_heads, group, dim])?.transpose_axes(&[0, 2, 3, 1, 4])?;
        split.reshape(&[n, kv_heads, group * rows, dim])?
    };
    let scores = q.matmul(k.transpose_axes(&[0, 1, 3, 2])?)?;
    let shares = match sees {
        Sees::Ranges(seen) => host::softmax(scores, scale, seen)?,
        Sees::Mask(None) => ops::softmax_axis(&scores, -1, true)?,
        Sees::Mask(Some(mask)) => {
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
