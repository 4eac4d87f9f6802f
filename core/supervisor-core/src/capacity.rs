//! Capacity of one epoch of the target, as the target describes it.

use paceline_vocabulary::report::KvClass;

use crate::request::RequestSummary;

/// Capacity of a target.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Capacity {
    /// KV memory by length of a sequence, ascending.
    pub classes: Vec<KvClass>,
    /// Sequences that it runs at once.
    pub max_sequences: usize,
    /// Bytes for each patch of a sequence's images, in addition to its class.
    pub patch_bytes: u64,
}

impl Capacity {
    /// Whether any request can be admitted.
    pub fn is_usable(&self) -> bool {
        let ascends = |pair: &[KvClass]| {
            pair[0].positions < pair[1].positions && pair[0].bytes <= pair[1].bytes
        };
        self.max_sequences > 0 && !self.classes.is_empty() && self.classes.windows(2).all(ascends)
    }

    /// Bytes that a sequence of `positions` positions holds; `None` if no sequence is that long.
    pub fn cost(&self, positions: u64) -> Option<u64> {
        let fits = |class: &&KvClass| u64::from(class.positions) >= positions;
        self.classes.iter().find(fits).map(|class| class.bytes)
    }

    /// Bytes that a request's sequence holds at `positions` positions, its images included.
    pub fn cost_of(&self, summary: &RequestSummary, positions: u64) -> Option<u64> {
        let images = summary.patches.saturating_mul(self.patch_bytes);
        Some(self.cost(positions)?.saturating_add(images))
    }

    /// Positions of the longest sequence.
    pub fn longest(&self) -> u32 {
        self.classes.last().map_or(0, |class| class.positions)
    }
}
