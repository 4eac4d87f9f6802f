//! Decisions about single sequences, as data for the log.

use crate::SequenceKey;

/// Most events that wait for the shell. It takes them at every step border, where a sequence has
/// two at most.
const MAX_WAITING: usize = 256;

/// A decision about the lane of one sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaneEvent {
    /// Its drafts do not pay: no draft is requested before its next probe.
    BackoffBegan {
        /// The sequence.
        key: SequenceKey,
        /// Generated tokens at which a probe is considered.
        until_tokens: u32,
    },
    /// A draft is requested in order to measure whether drafts pay now.
    Probed {
        /// The sequence.
        key: SequenceKey,
        /// Length of the draft.
        draft_tokens: usize,
    },
    /// A probe was verified, or other evidence speaks for drafts: the next decision is open.
    BackoffEnded {
        /// The sequence.
        key: SequenceKey,
    },
}

/// Events that the shell has not taken yet.
#[derive(Clone, Debug, Default)]
pub(super) struct LaneEvents(Vec<LaneEvent>);

impl LaneEvents {
    /// Adds an event. If too many wait, the event is dropped: it is only for the log.
    pub(super) fn push(&mut self, event: LaneEvent) {
        if self.0.len() < MAX_WAITING {
            self.0.push(event);
        }
    }

    pub(super) fn take(&mut self) -> Vec<LaneEvent> {
        std::mem::take(&mut self.0)
    }
}
