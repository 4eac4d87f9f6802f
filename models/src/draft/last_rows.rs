//! Inputs of sessions' last rows, for kinds whose block begins at the last context row. A block may
//! be asked for later than the context was read, and the store has no place for inputs.

use std::cell::RefCell;
use std::collections::HashMap;

use mlx_rs::Array;

use super::DraftBatch;
use crate::error::Result;
use crate::kv::KvStore;
use crate::segment::SequenceId;

/// Input of a session's last row, which was read without a block.
struct LastRow {
    /// Rows of the session, this one included.
    length: i32,
    /// Hidden states of the target `[1, features]`.
    hidden: Array,
}

/// At most one row for each sequence of a store. A copied sequence, such as a retained context, has
/// none: its first block without context gets no draft.
#[derive(Default)]
pub(super) struct LastRows(RefCell<HashMap<SequenceId, LastRow>>);

impl LastRows {
    /// The hidden states of the last row of a session of `length` rows, if they were kept.
    pub(super) fn of(&self, sequence: SequenceId, length: i32) -> Option<Array> {
        let kept = self.0.borrow();
        kept.get(&sequence).filter(|last| last.length == length).map(|last| last.hidden.clone())
    }

    /// Keeps the input of the last rows that were read without a block, and forgets those of
    /// sessions that have other rows now.
    ///
    /// # Errors
    /// MLX's own.
    pub(super) fn keep(&self, batch: &DraftBatch, kv: &KvStore) -> Result<()> {
        let mut kept = self.0.borrow_mut();
        kept.retain(|sequence, last| kv.length(*sequence) == Some(last.length));
        let Some(states) = &batch.hidden_states else { return Ok(()) };
        let mut end = 0;
        for part in &batch.parts {
            end += part.context;
            let length = kv.length(part.sequence).filter(|_| part.context > 0);
            if let (Some(length), None) = (length, part.block) {
                // A gather copies: a slice would keep the hidden states of all rows.
                let hidden = states.take_axis(Array::from_slice(&[end - 1], &[1]), 0)?;
                hidden.eval()?;
                kept.insert(part.sequence, LastRow { length, hidden });
            }
        }
        Ok(())
    }
}
