//! One sequence on the link: the hidden states that the drafter gets, and the draft that comes
//! back.

use std::ops::Range;

use paceline_target_core::{DrafterProgress, HiddenStateWindow, PageKey};

use super::draft::Proposed;
use super::link::RequestTime;

/// State of one sequence at the drafter, and its proposals.
#[derive(Debug)]
pub(super) struct DraftSession {
    pub(super) window: HiddenStateWindow,
    pub(super) progress: DrafterProgress,
    /// The drafter has a session for the sequence. It may have one whose context it misses in part.
    pub(super) is_known: bool,
    /// Name of the last page that the drafter may have retained for the sequence.
    pub(super) restorable: Option<PageKey>,
    /// The draft that is awaited.
    pub(super) awaited: Option<AwaitedDraft>,
    /// Position of the last draft request. Each position is requested once: if no draft comes, a
    /// step is next, whatever the drafter answers.
    pub(super) requested_at: Option<usize>,
    /// The drafter has no draft for a bonus token before this position.
    pub(super) drafts_from: usize,
    /// The drafter has proposed tokens for the sequence.
    pub(super) has_proposed: bool,
    pub(super) proposed: Option<Proposed>,
    /// The embedding of the last token that a step's graph chose.
    pub(super) bonus: Option<EmbeddedBonus>,
}

/// The embedding of a token.
#[derive(Debug, Default)]
pub(super) struct EmbeddedBonus {
    pub(super) id: u32,
    /// Its numbers, in the target's type.
    pub(super) row: Vec<u8>,
}

impl DraftSession {
    pub(super) fn new(window: HiddenStateWindow) -> Self {
        Self {
            window,
            progress: DrafterProgress::default(),
            is_known: false,
            restorable: None,
            awaited: None,
            requested_at: None,
            drafts_from: 0,
            has_proposed: false,
            proposed: None,
            bonus: None,
        }
    }

    /// The rows of which something can be sent, of `committed` ones: those of the window, or all for
    /// a drafter that reads token ids alone.
    pub(super) fn available(&self, committed: usize, ids_alone: bool) -> Range<usize> {
        if ids_alone { 0..committed } else { self.window.first()..self.window.end() }
    }

    /// The drafter misses a part of the sequence: all of it is sent anew.
    pub(super) fn start_again(&mut self) {
        self.progress.start_again();
        self.drafts_from = 0;
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
