//! One sequence on the link: the hidden states that the drafter gets, and the draft that comes
//! back.

use crate::core::{DrafterProgress, HiddenStateWindow, PageKey};

use super::link::RequestTime;
use super::proposal::Proposed;

/// What the drafter has of one sequence, and what it proposed.
#[derive(Debug)]
pub(super) struct DraftSession {
    pub(super) window: HiddenStateWindow,
    pub(super) progress: DrafterProgress,
    /// Name of the last page that the drafter may have retained for the sequence.
    pub(super) restorable: Option<PageKey>,
    /// The draft that is awaited.
    pub(super) awaited: Option<AwaitedDraft>,
    /// Position of the last draft request. Each position is requested once: if no draft comes, a
    /// step is next, whatever the drafter answers.
    pub(super) requested_at: Option<usize>,
    pub(super) proposed: Option<Proposed>,
}

impl DraftSession {
    pub(super) fn new(window: HiddenStateWindow) -> Self {
        Self {
            window,
            progress: DrafterProgress::default(),
            restorable: None,
            awaited: None,
            requested_at: None,
            proposed: None,
        }
    }

    /// Whether a draft at this position is awaited.
    pub(super) fn awaits(&self, position: u32) -> bool {
        self.awaited.is_some_and(|awaited| awaited.position == position as usize)
    }
}

/// A draft that is awaited.
#[derive(Clone, Copy, Debug)]
pub(super) struct AwaitedDraft {
    pub(super) position: usize,
    /// When its round was requested.
    pub(super) requested: RequestTime,
    /// Sequences in its round.
    pub(super) sequences: usize,
}
