//! Attention of every patch of an image to all of them, and rows that pass in parts: a large image
//! has more numbers than memory holds at once.

use mlx_rs::Array;
use mlx_rs::ops::concatenate;
use mlx_rs::ops::indexing::TryIndexOp;

use crate::error::Result;
use crate::layers::{
    HiddenKeys, QueryRows, RowKeys, StoredHeads, attend_rows, attention, computes,
};

/// Most numbers of one product of queries and keys, all heads: 64 MiB in float32.
const MAX_SCORES: i64 = 1 << 24;
/// Most rows that pass at a time.
const MAX_ROWS: i32 = 4096;

/// `forward` of the rows of `x` `[rows, width]`, each by itself, some at a time.
pub(super) fn in_parts(x: &Array, forward: impl Fn(&Array) -> Result<Array>) -> Result<Array> {
    let rows = x.dim(0);
    if rows <= MAX_ROWS {
        return forward(x);
    }
    let mut parts = Vec::new();
    for first in (0..rows).step_by(MAX_ROWS as usize) {
        let part = forward(&x.try_index((first..rows.min(first + MAX_ROWS), ..))?)?;
        // Evaluated now, so that its inner numbers are freed before the next ones are made.
        part.eval()?;
        parts.push(part);
    }
    Ok(concatenate(&parts, 0)?)
}

/// All patches attend to all. `queries` `[N, H, D]`, `keys` and `values` `[1, H, N, D]` →
/// `[N, H · D]`.
pub(super) fn attend(queries: &Array, keys: &Array, values: &Array, scale: f32) -> Result<Array> {
    let (patches, heads, dim) = (queries.dim(0), queries.dim(1), queries.dim(2));
    if !computes(&[queries, keys, values]) {
        return attend_in_parts(queries, keys, values, scale, MAX_SCORES);
    }
    let by_head = |part: &Array| part.reshape(&[heads * patches, dim]);
    let (keys, values) = (&by_head(keys)?, &by_head(values)?);
    let stored = StoredHeads { keys, values, kv_heads: heads, capacity: patches };
    let every = RowKeys { slot: 0, positions: 0..patches as usize };
    let visible = std::iter::repeat_n(every, patches as usize).collect();
    let queries = QueryRows { heads: queries.into(), first: 0 };
    attend_rows(&queries, &stored, &visible, scale)
}

/// Attention by MLX: some queries at a time, with at most `max_scores` scores, because a large
/// image has too many for the memory.
fn attend_in_parts(
    queries: &Array,
    keys: &Array,
    values: &Array,
    scale: f32,
    max_scores: i64,
) -> Result<Array> {
    let (patches, heads) = (queries.dim(0), queries.dim(1));
    let most =
        (max_scores / (i64::from(heads) * i64::from(patches))).clamp(1, i64::from(patches)) as i32;
    let mut parts = Vec::new();
    for first in (0..patches).step_by(most as usize) {
        let rows = most.min(patches - first);
        let part = if rows == patches {
            queries.clone()
        } else {
            queries.try_index((first..first + rows, .., ..))?
        };
        let part = attention(&part, keys, values, scale, &HiddenKeys::Nothing)?;
        if rows < patches {
            // Evaluated now, so that its scores are freed before the next ones are made.
            part.eval()?;
        }
        parts.push(part);
    }
    if let [one] = parts.as_slice() { Ok(one.clone()) } else { Ok(concatenate(&parts, 0)?) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{DeviceChoice, choose};

    #[test]
    fn attention_in_parts_equals_attention_at_once() {
        choose(DeviceChoice::Cpu).expect("there is a CPU");
        let wave = |step: f32, shape: &[i32]| {
            let numbers: Vec<f32> =
                (0..shape.iter().product::<i32>()).map(|at| (at as f32 * step).sin()).collect();
            Array::from_slice(&numbers, shape)
        };
        let (queries, keys, values) =
            (wave(0.37, &[21, 2, 8]), wave(0.11, &[1, 2, 21, 8]), wave(0.73, &[1, 2, 21, 8]));
        let numbers = |out: Result<Array>| {
            let out = out.expect("attends");
            out.eval().expect("evaluates");
            assert_eq!(out.shape(), [21, 16]);
            out.try_as_slice::<f32>().expect("floats").to_vec()
        };
        let whole = numbers(attend(&queries, &keys, &values, 0.4));
        // One query at a time; parts with a shorter last one; a bound below one query's scores.
        for max_scores in [MAX_SCORES, 42, 42 * 8, 42 * 20, 1] {
            let parts = numbers(attend_in_parts(&queries, &keys, &values, 0.4, max_scores));
            let off = whole.iter().zip(parts).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(off < 1e-5, "at most {max_scores} scores: off by {off}");
        }
    }
}
