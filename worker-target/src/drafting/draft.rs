//! Drafts that a drafter proposed.

use paceline_vocabulary::TensorType;
use paceline_vocabulary::link::SessionId;

/// The draft of one sequence.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Proposed {
    /// Hidden rows; the target applies its output head to them.
    Hidden {
        /// Row-major, as bytes.
        bytes: Vec<u8>,
        /// Rows.
        rows: usize,
        /// Element type.
        element: TensorType,
        /// Cap of the draft logits.
        softcap: Option<f32>,
    },
    /// Token ids, each below the vocabulary's size. The target verifies ids without the drafter's
    /// probabilities, so these are not kept.
    Ids(Vec<u32>),
}

impl Proposed {
    /// Drafted tokens.
    pub(crate) fn len(&self) -> usize {
        match self {
            Proposed::Hidden { rows, .. } => *rows,
            Proposed::Ids(ids) => ids.len(),
        }
    }
}

/// A draft that answers a request.
#[derive(Debug)]
pub(super) struct ServedDraft {
    pub(super) session: SessionId,
    /// Position of the bonus token.
    pub(super) position: u32,
    /// Nothing, if the drafter has no proposal.
    pub(super) proposed: Proposed,
    /// If there is none: the drafter has no draft for a bonus token before this position.
    pub(super) drafts_from: u32,
}
