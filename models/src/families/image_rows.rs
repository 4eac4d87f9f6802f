//! Images in a text model's rows: embeddings in place of the ids', additions after layers, and what
//! a family does with these rows otherwise.

use std::borrow::Cow;
use std::ops::Range;

use mlx_rs::Array;
use mlx_rs::ops::{concatenate, zeros_dtype};

use crate::batch::{Batch, Override};
use crate::error::{ModelError, Result};

/// What a family does with the rows of images.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ImageRows {
    /// In layers with windows, rows of an image attend to one another both ways. A batch then has
    /// all rows of an image or none.
    pub(super) both_ways: bool,
    /// The id that these rows have where layers read ids themselves.
    pub(super) pad: Option<u32>,
}

impl ImageRows {
    /// The rows of each image that attend to one another.
    ///
    /// # Errors
    /// The rows of an image do not follow one another.
    pub(super) fn spans(self, overrides: &[Override]) -> Result<Vec<Range<i32>>> {
        if !self.both_ways {
            return Ok(vec![]);
        }
        let span = |part: &Override| match part.rows.as_slice() {
            [first, .., last] if last - first + 1 == part.rows.len() as i32 => Ok(*first..last + 1),
            [only] => Ok(*only..only + 1),
            rows => Err(ModelError::Batch(format!(
                "expected rows of an image that follow one another, found {rows:?}"
            ))),
        };
        overrides.iter().map(span).collect()
    }

    /// The batch with the ids that layers read.
    pub(super) fn with_pads(self, batch: &Batch) -> Cow<'_, Batch> {
        let Some(pad) = self.pad.filter(|_| !batch.overrides.is_empty()) else {
            return Cow::Borrowed(batch);
        };
        let mut padded = batch.clone();
        let rows = batch.overrides.iter().flat_map(|part| &part.rows);
        rows.for_each(|row| padded.ids[*row as usize] = pad);
        Cow::Owned(padded)
    }
}

/// `x` `[R, hidden]`, the ids' embeddings, with the overridden rows in place. The batch has been
/// checked.
pub(super) fn place(x: Array, overrides: &[Override]) -> Result<Array> {
    if overrides.is_empty() {
        return Ok(x);
    }
    let rows = x.dim(0);
    let parts: Vec<_> =
        overrides.iter().map(|part| (part.rows.as_slice(), &part.embeddings)).collect();
    gather((0..rows).collect(), x, &parts)
}

/// For each layer with additions, what is added to all rows after it: the overrides' arrays, and 0
/// for other rows. Whole rows are summed and not chosen ones, because taking rows out and putting
/// them back costs as much.
pub(super) fn additions(x: &Array, overrides: &[Override]) -> Result<Vec<(usize, Array)>> {
    let mut layers: Vec<usize> =
        overrides.iter().flat_map(|part| &part.after_layer).map(|(layer, _)| *layer).collect();
    layers.sort_unstable();
    layers.dedup();
    let of_layer = |layer: usize| {
        let of =
            |part: &'_ Override| part.after_layer.iter().position(|(other, _)| *other == layer);
        let parts: Vec<_> = overrides
            .iter()
            .filter_map(|part| of(part).map(|at| (part.rows.as_slice(), &part.after_layer[at].1)))
            .collect();
        let nothing = zeros_dtype(&[1, x.dim(1)], x.dtype())?;
        Ok((layer, gather(vec![0; x.dim(0) as usize], nothing, &parts)?))
    };
    layers.into_iter().map(of_layer).collect()
}

/// Rows of `base` in this `order`, but for the rows that a part has. One gather from all of them.
fn gather(mut order: Vec<i32>, base: Array, parts: &[(&[i32], &Array)]) -> Result<Array> {
    let mut next = base.dim(0);
    let mut sources = Vec::with_capacity(parts.len() + 1);
    let dtype = base.dtype();
    sources.push(base);
    for (rows, source) in parts {
        for (at, row) in rows.iter().enumerate() {
            order[*row as usize] = next + at as i32;
        }
        next += source.dim(0);
        sources.push(source.as_dtype(dtype)?);
    }
    Ok(concatenate(&sources, 0)?.take_axis(Array::from_slice(&order, &[order.len() as i32]), 0)?)
}
