//! The graph of a step that is made while the one in front of it runs.
//!
//! A step in which each sequence has one row leaves all of its rows in the store, so where the next
//! one's rows will lie is known before anything of it is computed, and the ids it chooses can stay
//! in the graph. What is built on them is kept beside the store: the store itself is as if nothing
//! had been built, and whatever changes it drops the graph first. That is not only for order: a
//! graph nobody runs would hold on to the arrays it was built on, and the next write to them would
//! copy them.

use super::KvStore;
use super::class::LayerArrays;
use crate::batch::{Forward, Segment, Wants};
use crate::error::Result;
use crate::sample::Picks;

/// A step's graph, not run yet.
#[derive(Debug)]
pub struct Graph {
    /// What the model gives.
    pub forward: Forward,
    /// What is chosen of it.
    pub picks: Picks,
}

#[derive(Debug)]
pub(super) struct Ahead {
    segments: Vec<Segment>,
    wants: Wants,
    graph: Graph,
    /// The store's arrays with its rows, class by class.
    arrays: Vec<Vec<LayerArrays>>,
}

impl KvStore {
    /// Has `make` build the graph of a forward over `segments` that may come next, for
    /// [`KvStore::take_ahead`]; says whether it did. Only where all rows have room where their
    /// sequences lie: nothing is moved for a step that may never be.
    ///
    /// # Errors
    /// What `make` says.
    pub fn make_ahead(
        &mut self,
        segments: &[Segment],
        wants: &Wants,
        make: impl FnOnce(&mut Self) -> Result<Graph>,
    ) -> Result<bool> {
        self.ahead = None;
        if !segments.iter().all(|segment| self.has_room(segment)) {
            return Ok(false);
        }
        let before: Vec<Vec<LayerArrays>> =
            self.classes.iter().map(|class| class.arrays.clone()).collect();
        let made = make(self);
        let arrays = self.put(before);
        self.plan = None;
        self.ahead =
            Some(Ahead { segments: segments.to_vec(), wants: wants.clone(), graph: made?, arrays });
        Ok(true)
    }

    /// The graph that was made for just this forward, if nothing has happened to the store since
    /// and `serves` says that what it chooses is what is wanted. It is the next thing to be run:
    /// its rows are the store's from now on. Any other is dropped.
    pub fn take_ahead(
        &mut self,
        segments: &[Segment],
        wants: &Wants,
        serves: impl FnOnce(&Picks) -> bool,
    ) -> Option<Graph> {
        let ahead = self.ahead.take()?;
        if ahead.segments != segments || ahead.wants != *wants || !serves(&ahead.graph.picks) {
            return None;
        }
        // The old handles go here, so that MLX writes in place.
        self.put(ahead.arrays);
        Some(ahead.graph)
    }

    /// Whether there is such a graph.
    pub fn is_ahead(&self) -> bool {
        self.ahead.is_some()
    }

    fn has_room(&self, segment: &Segment) -> bool {
        self.sequences.get(&segment.sequence).is_some_and(|entry| {
            let capacity = entry.place.map_or(0, |place| self.classes[place.class].capacity);
            entry.length == segment.start && segment.start + segment.length <= capacity
        })
    }

    /// Puts arrays in the place of the store's, and gives those back.
    fn put(&mut self, arrays: Vec<Vec<LayerArrays>>) -> Vec<Vec<LayerArrays>> {
        self.classes
            .iter_mut()
            .zip(arrays)
            .map(|(class, arrays)| std::mem::replace(&mut class.arrays, arrays))
            .collect()
    }
}
