//! One step's reads by MLX: the calls of its attention that a read takes, and how a call is told
//! which keys its rows do not attend to. Made once for a step and used by every layer.
//!
//! ```text
//!  CPU    one call a read, a mask
//!  Metal  one call a read, the word "causal" for one sequence, else a mask
//!  CUDA   few rows: a call a row (float32: three) over its own keys; a prompt: a call a sequence
//! ```
//!
//! On CUDA, MLX gives rows of 16 bits to cuDNN. MLX keeps cuDNN's plans by the number of keys. Each
//! step adds a key, so it makes a new plan, and that takes longer than the step. A row alone needs no
//! such plan. Its numbers are also those of a plain step, whatever rows are beside it.

use std::ops::Range;

use mlx_rs::ops::{broadcast_to, concatenate, select};
use mlx_rs::{Array, Dtype};

use super::class::CapacityClass;
use super::cut_rows;
use super::step_rows::{Call, Causality, ClassRead, QueryKind, Reach, SlotQueries};
use crate::device::on_gpu;
use crate::error::Result;
use crate::layers::{HiddenKeys, attention};

/// More query rows of a sequence are a prompt's, whose calls are few and long.
const MOST_ROWS_ALONE: i32 = 32;
/// Rows that MLX's own kernel on CUDA takes at once, where cuDNN takes none.
const ROWS_OF_FLOAT32: i32 = 3;
/// Most rows of MLX's vector kernel on Metal. It reads a mask head by head and copies one that is not
/// spread over them, in every layer. The kernel for more rows reads a mask by its strides.
const VECTOR_ROWS: i32 = 8;

/// The calls that a read takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CallForm {
    /// Whether a call of one sequence is told "causal".
    pub(super) causal: bool,
    /// Most rows of a sequence in one read, if a sequence has few rows. `None` is no limit.
    pub(super) rows_at_once: Option<i32>,
}

impl CallForm {
    /// Form that suits the device.
    pub(super) fn here(dtype: Dtype) -> Self {
        match on_gpu() {
            false => Self { causal: false, rows_at_once: None },
            true if cfg!(target_os = "macos") => Self { causal: true, rows_at_once: None },
            true if dtype == Dtype::Float32 => {
                Self { causal: true, rows_at_once: Some(ROWS_OF_FLOAT32) }
            }
            true => Self { causal: true, rows_at_once: Some(1) },
        }
    }
}

/// The calls of one read, rows in their order.
pub(super) fn calls(read: &ClassRead, kind: QueryKind, form: CallForm) -> Result<Vec<Call>> {
    let ClassRead { slots, rows, queries, .. } = read;
    let causality = kind.causality;
    let each = queries[0].positions.len() as i32;
    if queries.iter().any(|queries| queries.positions.end > kind.kept) {
        return Ok(vec![of_all_places(slots.clone(), rows.clone(), queries, kind, form)?]);
    }
    let needs = !all_visible(queries, causality, &keys(queries, causality));
    let at_once = form.rows_at_once.filter(|_| each > 1 || needs);
    let Some(at_once) = at_once else {
        return Ok(vec![whole(slots.clone(), rows.clone(), queries, kind, form)?]);
    };
    // A window moves with each row, and rows of an image attend to more than the row before it.
    let is_even = causality.window.is_none() && causality.reach != Reach::Image;
    let at_once = if is_even { at_once } else { 1 };
    let mut calls = vec![];
    for ((slot, queries), first) in
        slots.clone().zip(queries).zip((rows.start..).step_by(each as usize))
    {
        if each > MOST_ROWS_ALONE {
            let queries = std::slice::from_ref(queries);
            calls.push(whole(slot..slot + 1, first..first + each, queries, kind, form)?);
            continue;
        }
        for at in (0..each).step_by(at_once as usize) {
            let part = at..(at + at_once).min(each);
            let start = queries.positions.start;
            let positions = start + part.start..start + part.end;
            let end = queries.visible_end(positions.end - 1, causality.reach);
            let alone = queries.visible_end(positions.start, causality.reach) == end;
            calls.push(Call {
                slots: slot..slot + 1,
                rows: first + part.start..first + part.end,
                keys: first_key(positions.start, causality)..end,
                hidden: if alone { HiddenKeys::Nothing } else { HiddenKeys::Later },
            });
        }
    }
    Ok(calls)
}

/// One call for slots of which some keep only their last positions: its keys are all places of the
/// slots, whatever positions these hold, so that their number does not change from step to step.
fn of_all_places(
    slots: Range<usize>,
    rows: Range<i32>,
    queries: &[SlotQueries],
    kind: QueryKind,
    form: CallForm,
) -> Result<Call> {
    let kept = kind.kept;
    // The last position before the end that has this place; below 0: none was written.
    let held = |end: i32| (0..kept).map(move |place| end - 1 - (end - 1 - place).rem_euclid(kept));
    let ends = queries.iter().map(|queries| queries.positions.end);
    let held: Vec<i32> = ends.flat_map(held).collect();
    let held = Array::from_slice(&held, &[queries.len() as i32, 1, 1, kept]);
    let window = kind.causality.window.unwrap_or(i32::MAX);
    let hidden = masked(queries, kind, &held, Some(window), form.causal)?;
    Ok(Call { slots, rows, keys: 0..kept, hidden })
}

/// For each row, one slot's rows after another's, the last position that it attends to.
fn last_visible(queries: &[SlotQueries], causality: Causality) -> Vec<i32> {
    let of_slot = |queries: &SlotQueries| -> Vec<i32> {
        let last = |position| queries.visible_end(position, causality.reach) - 1;
        queries.positions.clone().map(last).collect()
    };
    queries.iter().flat_map(of_slot).collect()
}

/// One call for slots with as many rows each.
fn whole(
    slots: Range<usize>,
    rows: Range<i32>,
    queries: &[SlotQueries],
    kind: QueryKind,
    form: CallForm,
) -> Result<Call> {
    let causality = kind.causality;
    let keys = keys(queries, causality);
    let hidden = if all_visible(queries, causality, &keys) {
        HiddenKeys::Nothing
    } else if form.causal
        && queries.len() == 1
        && queries[0].is_causal(causality.reach)
        && narrow(queries, causality, &keys).is_none()
    {
        HiddenKeys::Later
    } else {
        let held: Vec<i32> = keys.clone().collect();
        let held = Array::from_slice(&held, &[1, 1, 1, held.len() as i32]);
        let window = narrow(queries, causality, &keys);
        masked(queries, kind, &held, window, form.causal && queries.len() > 1)?
    };
    Ok(Call { slots, rows, keys, hidden })
}

/// From the first key that some row attends to, to the longest sequence's last new row.
fn keys(queries: &[SlotQueries], causality: Causality) -> Range<i32> {
    let end = queries.iter().map(|queries| queries.positions.end).max().unwrap_or(0);
    let start = queries.iter().map(|queries| queries.positions.start).min().unwrap_or(0);
    first_key(start, causality)..end
}

fn first_key(position: i32, causality: Causality) -> i32 {
    causality.window.map_or(0, |window| (position - window + 1).max(0))
}

/// The window, if it hides one of these keys from a row.
fn narrow(queries: &[SlotQueries], causality: Causality, keys: &Range<i32>) -> Option<i32> {
    let last = queries.iter().map(|queries| queries.positions.end - 1).max().unwrap_or(0);
    causality.window.filter(|window| last - window >= keys.start)
}

/// Whether every row attends to every key.
fn all_visible(queries: &[SlotQueries], causality: Causality, keys: &Range<i32>) -> bool {
    // The first row's reach is the shortest.
    let reaches_end = |queries: &SlotQueries| {
        queries.visible_end(queries.positions.start, causality.reach) == keys.end
    };
    queries.iter().all(reaches_end) && narrow(queries, causality, keys).is_none()
}

/// A mask `[slots, 1, rows each, keys]`: -inf after each row's last visible position, before its
/// window, and where no key was written; else 0. `held` `[slots or 1, 1, 1, keys]`: the positions
/// of the keys. `spreads`: a mask of few rows is spread over the heads here, once; MLX would copy
/// it in each layer.
fn masked(
    queries: &[SlotQueries],
    kind: QueryKind,
    held: &Array,
    window: Option<i32>,
    spreads: bool,
) -> Result<HiddenKeys> {
    let rows = queries[0].positions.len() as i32;
    let by_row = |values: Vec<i32>| Array::from_slice(&values, &[queries.len() as i32, 1, rows, 1]);
    let mut visible = by_row(last_visible(queries, kind.causality)).ge(held)?;
    if let Some(window) = window {
        let positions = queries.iter().flat_map(|queries| queries.positions.clone());
        let last_hidden = positions.map(|position| (position - window).max(-1)).collect();
        visible = visible.logical_and(by_row(last_hidden).lt(held)?)?;
    }
    let mask = select(&visible, Array::from_f32(0.0), Array::from_f32(f32::NEG_INFINITY))?;
    let mask = mask.as_dtype(kind.dtype)?;
    let is_spread = spreads && rows <= VECTOR_ROWS;
    Ok(HiddenKeys::Masked(if is_spread { spread(&mask, kind.heads)? } else { mask }))
}

/// `mask` `[slots, 1, rows, keys]` → `[slots, heads, rows, keys]`, one number after another.
fn spread(mask: &Array, heads: i32) -> Result<Array> {
    let shape = [mask.dim(0), heads, mask.dim(2), mask.dim(3)];
    Ok(broadcast_to(mask, &shape)?.contiguous()?)
}

/// `q` `[queries, heads, key_dim]` → `[rows of the calls, heads · value_dim]`.
pub(super) fn attend(
    class: &CapacityClass,
    layer: usize,
    q: &Array,
    calls: &[Call],
    scale: f32,
) -> Result<Array> {
    let one = |call: &Call| {
        let (mut k, mut v) = class.view(layer, call.slots.clone(), call.keys.clone())?;
        if call.keys.start > 0 && cfg!(target_os = "linux") && on_gpu() {
            // Of keys that begin later in their array, MLX gives cuDNN the first ones.
            (k, v) = (k.contiguous()?, v.contiguous()?);
        }
        attention(&cut_rows(q, &call.rows)?, &k, &v, scale, &call.hidden)
    };
    if let [call] = calls {
        return one(call);
    }
    let outputs = calls.iter().map(one).collect::<Result<Vec<_>>>()?;
    Ok(concatenate(&outputs, 0)?)
}
