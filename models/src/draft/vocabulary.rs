//! Output heads with rows for some of the target's ids alone. A head is read once a draft, and few
//! ids are drafted at all: a head of the most frequent ones is read in a fraction of the time
//! (FR-Spec, arXiv 2502.14856). Ids without a row are never proposed, which costs drafts and nothing
//! else.

use std::path::Path;

use mlx_rs::Array;
use mlx_rs::ops::concatenate;

use crate::error::Result;
use crate::load::{ConfigJson, LoadError, special_ids, stop_ids};
use crate::sample::DraftedIds;

/// An offset that leads to no id of the target, or to that of another row.
pub(super) struct BadOffset {
    pub(super) row: usize,
    pub(super) offset: i64,
}

/// The rows of a head by the target's ids.
pub(super) struct RowsById {
    /// `[vocab]`: the row of each id, or one after the last for an id without one.
    rows: Array,
    /// The id of each row.
    ids: Vec<u32>,
    /// The same `[rows]`.
    id_array: Array,
}

impl RowsById {
    /// From the id of each row; ids are below `vocab`.
    pub(super) fn of_ids(ids: &[i32], vocab: i32) -> Self {
        let count = ids.len() as i32;
        let mut rows = vec![count; vocab as usize];
        for (row, id) in (0..).zip(ids) {
            rows[*id as usize] = row;
        }
        let ids: Vec<u32> = ids.iter().map(|id| *id as u32).collect();
        let rows = Array::from_slice(&rows, &[vocab]);
        let id_array = Array::from_slice(&ids, &[count]);
        Self { rows, ids, id_array }
    }

    /// The ids of these rows. Lazy.
    pub(super) fn ids_of(&self, rows: &DraftedIds) -> Result<DraftedIds> {
        let id = |row: &u32| self.ids.get(*row as usize).copied().unwrap_or_default();
        Ok(match rows {
            DraftedIds::InGraph(rows) => DraftedIds::InGraph(self.id_array.take_axis(rows, 0)?),
            DraftedIds::OnHost(rows) => DraftedIds::OnHost(rows.iter().map(id).collect()),
        })
    }

    /// From what to add to the number of each row for its id.
    pub(super) fn of_offsets(offsets: &[i64], vocab: i32) -> Result<Self, BadOffset> {
        let mut is_taken = vec![false; vocab as usize];
        let id = |(row, &offset): (usize, &i64)| {
            let id = offset.checked_add(row as i64).and_then(|id| usize::try_from(id).ok());
            let is_new = |id: &usize| {
                is_taken.get_mut(*id).is_some_and(|taken| !std::mem::replace(taken, true))
            };
            id.filter(is_new).map(|id| id as i32).ok_or(BadOffset { row, offset })
        };
        let ids = offsets.iter().enumerate().map(id).collect::<Result<Vec<_>, _>>()?;
        Ok(Self::of_ids(&ids, vocab))
    }

    /// Logits of the head's rows `[R, rows]`, float32 → of the target's ids `[R, vocab]`: −∞ for an
    /// id without a row. So noise and ties are those of the target's ids.
    pub(super) fn spread(&self, logits: &Array) -> Result<Array> {
        let rows = logits.dim(0);
        let without = Array::from_slice(&vec![f32::NEG_INFINITY; rows as usize], &[rows, 1]);
        Ok(concatenate(&[logits, &without], 1)?.take_axis(&self.rows, 1)?)
    }
}

/// Ids that a head of `vocab` rows proposes if only the first `count` are wanted, ascending: these,
/// and of the checkpoint in `dir` the special tokens and those that end a text. The ids of a
/// byte-pair vocabulary are in the order of its merges, the most frequent first.
///
/// # Errors
/// A file of the tokenizer or of the settings for generation is there and cannot be read.
pub(super) fn proposed_ids(
    dir: &Path,
    config: &ConfigJson,
    count: u32,
    vocab: i32,
) -> Result<Vec<i32>, LoadError> {
    let count = count.min(vocab as u32);
    let more = special_ids(dir)?.into_iter().chain(stop_ids(dir, config)?);
    let mut more: Vec<u32> = more.filter(|id| (count..vocab as u32).contains(id)).collect();
    more.sort_unstable();
    more.dedup();
    Ok((0..count).chain(more).map(|id| id as i32).collect())
}
