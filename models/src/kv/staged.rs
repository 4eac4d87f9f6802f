//! Rows that are written in advance: the store's arrays as they will be once a step has run that
//! is not certain yet.
//!
//! Staging builds a graph on the store and rolls the store back: it is then as if nothing had been
//! built. Taking the staged rows puts them into the store. Every other change of the store drops
//! them first. This keeps the order of writes, and it keeps them cheap: a graph that never runs
//! would hold the arrays it was built on, and the next write to these would copy them.

use std::any::Any;

use super::KvStore;
use super::class::LayerArrays;
use super::states::States;
use crate::error::Result;
use crate::segment::Segment;

/// All arrays of a store.
#[derive(Debug)]
struct StoreSnapshot {
    /// Keys and values, class by class.
    classes: Vec<Vec<LayerArrays>>,
    states: States,
}

/// Rows written in advance, and what the caller built with them.
#[derive(Debug)]
pub(super) struct Staged {
    /// The store's arrays with the new rows.
    arrays: StoreSnapshot,
    /// Result of `build`, of a type that the store need not know.
    built: Box<dyn Any>,
}

impl KvStore {
    /// Lets `build` write the rows of `segments`, keeps what it returns together with the written
    /// arrays for [`KvStore::take_staged`], and rolls the store back. Returns whether it did so:
    /// every row must have room in the slot of its sequence, because no sequence is moved for a
    /// step that may never run.
    ///
    /// # Errors
    /// Those of `build`.
    pub fn stage<T: 'static>(
        &mut self,
        segments: &[Segment],
        build: impl FnOnce(&mut Self) -> Result<T>,
    ) -> Result<bool> {
        self.staged = None;
        if !segments.iter().all(|segment| self.has_room(segment)) {
            return Ok(false);
        }
        let classes = self.classes.iter().map(|class| class.arrays.clone()).collect();
        let before = StoreSnapshot { classes, states: self.states.clone() };
        let built = build(self);
        let arrays = self.replace(before);
        self.access = None;
        self.staged = Some(Staged { arrays, built: Box::new(built?) });
        Ok(true)
    }

    /// Result of `build` for the staged rows. They become rows of the store if the store has not
    /// changed since and `accepts` agrees. The caller runs the result next. Else the staged rows
    /// are dropped.
    pub fn take_staged<T: 'static>(&mut self, accepts: impl FnOnce(&T) -> bool) -> Option<T> {
        let staged = self.staged.take()?;
        let built = staged.built.downcast::<T>().ok().filter(|built| accepts(built))?;
        // The old handles are dropped here, so that MLX writes in place.
        self.replace(staged.arrays);
        Some(*built)
    }

    /// Whether rows are staged. For tests, also those of the target worker.
    pub fn has_staged(&self) -> bool {
        self.staged.is_some()
    }

    fn has_room(&self, segment: &Segment) -> bool {
        self.sequences.get(&segment.sequence).is_some_and(|entry| {
            let capacity = entry.slot.map_or(0, |slot| self.classes[slot.class].capacity);
            entry.length == segment.start && segment.end() <= capacity
        })
    }

    /// Puts arrays in the place of the store's, and returns those.
    fn replace(&mut self, StoreSnapshot { classes, states }: StoreSnapshot) -> StoreSnapshot {
        let classes = self
            .classes
            .iter_mut()
            .zip(classes)
            .map(|(class, arrays)| std::mem::replace(&mut class.arrays, arrays))
            .collect();
        StoreSnapshot { classes, states: std::mem::replace(&mut self.states, states) }
    }
}
