//! Sequences that outgrow their slot: one layer after another is copied into the larger class, and
//! the old slot's memory of that layer is given back before the next layer is copied.
//!
//! So the most memory that a growth takes beside the new slot is one layer of the old one, and the
//! rows of that layer on their way ([`KvStore::growth_row_bytes`]).

use std::ops::Range;

use super::{CopiedRows, KvStore, SequenceEntry, SlotAddress};
use crate::error::{ModelError, Result};
use crate::segment::{Segment, SequenceId};

/// The next state of an old slot's class, after its sequence has left it. Layer by layer.
enum OldSlots {
    /// The slot stays for a later sequence.
    Stay,
    /// Only these slots stay.
    Cut(Vec<i32>),
}

impl KvStore {
    /// Bytes that a growth into a larger class takes for a moment, beside the larger slot: keys and
    /// values of one layer where they were, and on their way. For each position of the old slot;
    /// and, if they are more, of a layer of which a slot keeps its last positions alone.
    pub fn growth_bytes(&self) -> (u64, u64) {
        let width = self.classes.first().map_or(0, |class| class.number_bytes());
        let (mut row, mut ring) = (0, 0);
        for (layer, kept) in self.layers.growing.iter().zip(&self.layers.rings) {
            match kept {
                None => row = row.max(layer.row_numbers()),
                Some(kept) => ring = ring.max(layer.row_numbers() * *kept as u64),
            }
        }
        (2 * width * row, 2 * width * ring)
    }

    /// Gives every sequence of a batch a slot that holds its new rows, moving it to a larger class
    /// where needed.
    pub(super) fn make_room(&mut self, segments: &[Segment]) -> Result<()> {
        for segment in segments {
            let end = segment.start + segment.length;
            if let Some(most) = self.most_rows.filter(|most| segment.length > *most) {
                let what = format!("expected at most {most} rows, found {}", segment.length);
                return Err(ModelError::Batch(what));
            }
            let entry = self.sequences.get(&segment.sequence).copied();
            let Some(entry) = entry.filter(|entry| entry.length == segment.start) else {
                let found = entry.map_or("none of that name".to_owned(), |entry| {
                    format!("{} rows", entry.length)
                });
                let what = format!(
                    "sequence {}: expected {} committed rows, found {found}",
                    segment.sequence.0, segment.start
                );
                return Err(ModelError::Batch(what));
            };
            self.take_states(segment.sequence)?;
            let large_enough = entry.slot.filter(|slot| self.classes[slot.class].capacity >= end);
            let written = entry.written.max(end);
            if large_enough.is_some() {
                self.sequences.insert(segment.sequence, SequenceEntry { written, ..entry });
                continue;
            }
            let class = self.class_for(end)?;
            let rows = CopiedRows { length: entry.length, written: entry.written };
            let index = match entry.slot {
                Some(old) => self.grow(segment.sequence, old, class, rows)?,
                None => self.take_slot(class, segment.sequence)?,
            };
            let slot = Some(SlotAddress { class, index });
            self.sequences.insert(segment.sequence, SequenceEntry { slot, written, ..entry });
        }
        Ok(())
    }

    /// Moves the rows of a sequence from the slot `old` to one of a larger class.
    /// Returns the index of the new slot. The old one is given back.
    fn grow(
        &mut self,
        sequence: SequenceId,
        old: SlotAddress,
        class: usize,
        rows: CopiedRows,
    ) -> Result<usize> {
        self.changes();
        let needed = self.classes[class].slot_bytes();
        if self.classes[class].idle_bytes() == 0 {
            self.fit(needed)?;
        }
        // Where it is now: slots without an owner may have gone from before it.
        let slot = self.sequences.get(&sequence).and_then(|entry| entry.slot);
        let old = slot.unwrap_or(old);
        let spare = self.limit.saturating_sub(self.allocated_bytes());
        let free = self.classes[class].take_free_slot(sequence)?;
        let more = match free {
            Some(_) => 0,
            None => self.classes[class].slots_to_add(spare),
        };
        let index = free.unwrap_or_else(|| self.classes[class].slots());
        let new = SlotAddress { class, index };
        let slots = self.slots_that_stay(old, free.is_none() && needed > spare);
        for layer in 0..self.layers.growing.len() {
            if more > 0 {
                self.classes[class].extend_layer(layer, more)?;
            }
            self.copy_rows(old, new, rows, layer..layer + 1)?;
            if let OldSlots::Cut(kept) = &slots {
                self.classes[old.class].cut_layer(layer, kept)?;
            }
        }
        if more > 0 {
            self.classes[class].take_added_slot(sequence, more);
        }
        match slots {
            OldSlots::Stay => self.classes[old.class].give_back(old.index),
            OldSlots::Cut(kept) => {
                let moved = self.classes[old.class].keep_slots(&kept);
                self.note_moved(moved);
            }
        }
        Ok(index)
    }

    /// The slots of the class of `leaving` that stay. None if no other one has an owner: such a class
    /// gives all its memory back. If memory is `short`, only slots with an owner.
    fn slots_that_stay(&self, leaving: SlotAddress, short: bool) -> OldSlots {
        let kept = self.classes[leaving.class].owned_slots(Some(leaving.index));
        match kept.is_empty() || short {
            true => OldSlots::Cut(kept),
            false => OldSlots::Stay,
        }
    }

    /// Notes where the slots of a class are after others of it are gone.
    pub(super) fn note_moved(&mut self, moved: Vec<(SequenceId, usize)>) {
        for (sequence, index) in moved {
            let entry = self.sequences.get_mut(&sequence);
            if let Some(slot) = entry.and_then(|entry| entry.slot.as_mut()) {
                slot.index = index;
            }
        }
    }

    /// Copies rows of some layers of a slot to another. Computed when this returns.
    pub(super) fn copy_rows(
        &mut self,
        from: SlotAddress,
        to: SlotAddress,
        rows: CopiedRows,
        layers: Range<usize>,
    ) -> Result<()> {
        #[cfg(target_os = "linux")]
        if self.by_nodes() {
            return self.move_rows(from, to, rows, layers);
        }
        for layer in layers {
            let source = &self.classes[from.class];
            let places = rows.places(source.places(layer));
            let (keys, values) = source.view(layer, from.index..from.index + 1, places)?;
            self.classes[to.class].overwrite(layer, to.index, 0, &keys, &values)?;
        }
        Ok(())
    }
}
