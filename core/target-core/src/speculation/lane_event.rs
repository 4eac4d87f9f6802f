//! Decisions about single sequences, as data for the log.

use crate::SequenceKey;

/// Most events that wait for the shell. It takes them at every step border, where one sequence adds
/// three at most: its back-off ended, the next one began, and it was probed.
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
    /// Adds an event. If too many wait, the event is dropped: only log lines and their counts use
    /// it.
    pub(super) fn push(&mut self, event: LaneEvent) {
        if self.0.len() < MAX_WAITING {
            self.0.push(event);
        }
    }

    /// Removes all events. Does not allocate.
    pub(super) fn take(&mut self) -> Vec<LaneEvent> {
        std::mem::take(&mut self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_that_the_shell_never_takes_are_bounded() {
        let mut events = LaneEvents::default();
        (0..1_000).for_each(|key| events.push(LaneEvent::BackoffEnded { key: SequenceKey(key) }));
        assert_eq!(events.take().len(), MAX_WAITING);
        assert_eq!(events.take(), []);
    }
}
