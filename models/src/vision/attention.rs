//! Attention of every patch of an image to all of them, and rows that pass in parts: a large image
//! has more numbers than memory holds at once.

use mlx_rs::Array;
use mlx_rs::ops::concatenate;
use mlx_rs::ops::indexing::TryIndexOp;

use super::windows::WindowRun;
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

/// All patches of a window attend to all of it. W windows of n patches: `queries` `[W · n, H, D]`,
/// `keys` and `values` `[W, H, n, D]` → `[W · n, H · D]`.
pub(super) fn attend(queries: &Array, keys: &Array, values: &Array, scale: f32) -> Result<Array> {
    let (windows, heads, patches, dim) = (keys.dim(0), keys.dim(1), keys.dim(2), keys.dim(3));
    if !computes(&[queries, keys, values]) {
        return attend_in_parts(queries, keys, values, scale, MAX_SCORES);
    }
    let by_head = |part: &Array| part.reshape(&[windows * heads * patches, dim]);
    let (keys, values) = (&by_head(keys)?, &by_head(values)?);
    let stored = StoredHeads { keys, values, kv_heads: heads, capacity: patches };
    let every = |slot| RowKeys { slot, positions: 0..patches as usize };
    let visible = (0..windows as usize)
        .flat_map(|window| std::iter::repeat_n(every(window), patches as usize))
        .collect();
    let queries = QueryRows { heads: queries.into(), first: 0 };
    attend_rows(&queries, &stored, &visible, scale)
}

/// Patches attend to those of their window, or without windows to all. All arrays `[N, H, D]` →
/// `[N, H · D]`. `windows` are all of the patches, in their order.
pub(super) fn attend_by_windows(
    queries: &Array,
    keys: &Array,
    values: &Array,
    scale: f32,
    windows: &[WindowRun],
) -> Result<Array> {
    let all = [WindowRun { windows: 1, patches: queries.dim(0) }];
    let windows = if windows.is_empty() { &all } else { windows };
    let (heads, dim) = (queries.dim(1), queries.dim(2));
    let (mut parts, mut first) = (Vec::with_capacity(windows.len()), 0);
    for WindowRun { windows, patches } in windows {
        let rows = windows * patches;
        let of_run = |x: &Array| x.try_index((first..first + rows, .., ..));
        // [windows, H, patches, D], in one piece: each part of the queries reads them.
        let by_head = |x: &Array| -> Result<Array> {
            let split = of_run(x)?.reshape(&[*windows, *patches, heads, dim])?;
            Ok(split.transpose_axes(&[0, 2, 1, 3])?.contiguous()?)
        };
        parts.push(attend(&of_run(queries)?, &by_head(keys)?, &by_head(values)?, scale)?);
        first += rows;
    }
    if let [one] = parts.as_slice() { Ok(one.clone()) } else { Ok(concatenate(&parts, 0)?) }
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
    if keys.dim(0) > 1 {
        return attend_in_windows(queries, keys, values, scale, max_scores);
    }
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

/// As [`attend_in_parts`], some windows at a time.
fn attend_in_windows(
    queries: &Array,
    keys: &Array,
    values: &Array,
    scale: f32,
    max_scores: i64,
) -> Result<Array> {
    let (windows, heads, patches) = (keys.dim(0), keys.dim(1), keys.dim(2));
    let scores = i64::from(heads) * i64::from(patches).pow(2);
    let most = (max_scores / scores).clamp(1, i64::from(windows)) as i32;
    let mut parts = Vec::new();
    for first in (0..windows).step_by(most as usize) {
        let end = windows.min(first + most);
        let queries = queries.try_index((first * patches..end * patches, .., ..))?;
        let of = |x: &Array| x.try_index((first..end, .., .., ..));
        let part = attention(&queries, &of(keys)?, &of(values)?, scale, &HiddenKeys::Nothing)?;
        if most < windows {
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

    #[test]
    fn patches_attend_to_their_own_window_alone() {
        choose(DeviceChoice::Cpu).expect("there is a CPU");
        let wave = |step: f32| {
            let numbers: Vec<f32> = (0..14 * 2 * 8).map(|at| (at as f32 * step).sin()).collect();
            Array::from_slice(&numbers, &[14, 2, 8])
        };
        let (queries, keys, values) = (wave(0.37), wave(0.11), wave(0.73));
        let numbers = |out: Result<Array>| {
            let out = out.expect("attends").contiguous().expect("a copy");
            out.eval().expect("evaluates");
            out.try_as_slice::<f32>().expect("floats").to_vec()
        };
        let run = |windows, patches| WindowRun { windows, patches };
        let together = attend_by_windows(&queries, &keys, &values, 0.4, &[run(3, 4), run(1, 2)]);
        let alone: Vec<f32> = [(0, 4), (4, 8), (8, 12), (12, 14)]
            .into_iter()
            .flat_map(|(first, end)| {
                let of = |x: &Array| x.try_index((first..end, .., ..)).expect("a window");
                numbers(attend_by_windows(&of(&queries), &of(&keys), &of(&values), 0.4, &[]))
            })
            .collect();
        let together = numbers(together);
        let off = |other: &[f32]| {
            together.iter().zip(other).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
        };
        assert!(off(&alone) < 1e-5, "off by {}", off(&alone));
        assert!(off(&numbers(attend_by_windows(&queries, &keys, &values, 0.4, &[]))) > 1e-2);
        // By MLX, a few windows at a time.
        let by_head = |x: &Array| {
            let x = x.try_index((..12, .., ..)).and_then(|x| x.reshape(&[3, 4, 2, 8]));
            x.and_then(|x| x.transpose_axes(&[0, 2, 1, 3])).expect("by heads")
        };
        let queries = queries.try_index((..12, .., ..)).expect("three windows");
        for max_scores in [1, 64, MAX_SCORES] {
            let (keys, values) = (by_head(&keys), by_head(&values));
            let parts = numbers(attend_in_parts(&queries, &keys, &values, 0.4, max_scores));
            assert!(off(&parts) < 1e-5, "at most {max_scores} scores: off by {}", off(&parts));
        }
    }
}
