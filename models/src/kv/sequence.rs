//! What a store knows of a sequence, and which of its rows windows still have.

use std::ops::Range;

use super::{GrowingKv, KvStore, SlotAddress};
use crate::error::{ModelError, Result};
use crate::segment::SequenceId;

/// A sequence of the store.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SequenceEntry {
    pub(super) slot: Option<SlotAddress>,
    /// Rows that are accepted: rejected ones after them are not counted.
    pub(super) length: i32,
    /// Rows that passes have written, rejected ones too: of a layer with a window they took the
    /// places of earlier ones.
    pub(super) written: i32,
    /// Rows with which the sequence began: of a layer with a window those before them are not
    /// there.
    pub(super) restored: i32,
}

/// Rows of a slot that are copied to another.
#[derive(Clone, Copy, Debug)]
pub(super) struct CopiedRows {
    /// How many rows the sequence has.
    pub(super) length: i32,
    /// Rows that passes have written, as [`SequenceEntry`] counts them.
    pub(super) written: i32,
}

impl CopiedRows {
    /// The first places that hold them, of a layer of which the slot keeps `kept` positions.
    pub(super) fn places(self, kept: i32) -> Range<i32> {
        0..if self.written > kept { kept } else { self.length }
    }
}

impl KvStore {
    /// Whether the windows before row `length` are still there: rows that were written later may
    /// have taken their places.
    ///
    /// # Errors
    /// One is not.
    pub(super) fn check_windows(
        &self,
        sequence: SequenceId,
        entry: &SequenceEntry,
        length: i32,
    ) -> Result<()> {
        if self.most_rows.is_none() {
            return Ok(());
        }
        let overwritten = |ring: i32| entry.written - ring;
        let lost = |(layer, ring): (&GrowingKv, &Option<i32>)| {
            let (window, ring) = (layer.window?, (*ring)?);
            let is_lost = overwritten(ring) > (length - window + 1).max(0);
            (length > 0 && (is_lost || length < entry.restored)).then_some(window)
        };
        match self.layers.growing.iter().zip(&self.layers.rings).find_map(lost) {
            None => Ok(()),
            Some(window) => Err(ModelError::Batch(format!(
                "sequence {}: expected the {window} rows before row {length}, found that rows up to \
                 {} took their places, or that it began after row {}",
                sequence.0, entry.written, entry.restored
            ))),
        }
    }
}
