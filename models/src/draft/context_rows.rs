//! Rows of context in a drafter's store: how many there are before a pass, and which stay after it.

use super::DraftPart;
use crate::error::{ModelError, Result};
use crate::kv::KvStore;

/// Rows that the store has of each part's sequence.
pub(super) fn lengths(parts: &[DraftPart], kv: &KvStore) -> Result<Vec<i32>> {
    let length = |part: &DraftPart| {
        let unknown =
            || ModelError::Batch(format!("sequence {} is not in the store", part.sequence.0));
        kv.length(part.sequence).ok_or_else(unknown)
    };
    parts.iter().map(length).collect()
}

/// Commits the context rows of each part after a pass, and no row of a block; none at all after a
/// fault.
///
/// # Errors
/// As [`KvStore::commit`].
pub(super) fn commit_context<T>(
    parts: &[DraftPart],
    starts: &[i32],
    drafted: &Result<T>,
    kv: &mut KvStore,
) -> Result<()> {
    commit_rows(parts, starts, drafted, kv, |part| part.context)
}

/// As [`commit_context`] for a drafter that keeps `rows` of the context of a part.
///
/// # Errors
/// As [`KvStore::commit`].
pub(super) fn commit_rows<T>(
    parts: &[DraftPart],
    starts: &[i32],
    drafted: &Result<T>,
    kv: &mut KvStore,
    rows: impl Fn(&DraftPart) -> i32,
) -> Result<()> {
    let rows = |part: &DraftPart| if drafted.is_ok() { rows(part) } else { 0 };
    let mut each = parts.iter().zip(starts);
    each.try_for_each(|(part, start)| kv.commit(part.sequence, start + rows(part)))
}
