//! What a drafter decides: which sessions there are, what a Feed means for them, what the next
//! forward holds. Pure.
//!
//! ```text
//!  first context ──▶ open ──▶ reading ⇄ caught up ──▶ closed      caught up: everything sent was read
//!                      ▲         fresh: from anywhere, as if just opened
//! ```
//! What was read of a closed session may be kept under the names of its pages, for one that begins
//! alike (`kept`). A target that says what link.proto does not allow is a fault, and the link ends.
//! A want that cannot be served (its session has moved on, is still reading, or is at the end of
//! the drafter's context) is left out of the Proposal.

mod check;
mod kept;
mod sessions;
#[cfg(test)]
mod tests;

pub use kept::{Kept, Move};
pub use sessions::{Part, Rows, Sessions, Step};

use paceline_proto::internal::v1::TensorType;

/// What both sides agreed on in the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Width of embeddings and of hidden rows.
    pub hidden: u32,
    /// Width of a row of taps.
    pub taps: u32,
    /// Rows of the longest block, the bonus token included.
    pub block: u32,
    /// Positions the drafter reads and drafts, from the sequence's start.
    pub context: u32,
    /// Positions a sequence of the target may have.
    pub target_context: u32,
    /// Most sessions at once.
    pub max_sessions: usize,
    /// What the target's tensors are made of.
    pub kind: TensorType,
}

/// Context rows of one forward that only reads, at most: what a draft that is asked for meanwhile
/// may have to wait for. Also what a session may be behind and still get a draft in the same
/// forward; of all sessions together the target's ring is the bound, as to leave one out would only
/// make the target send all of its rows again.
pub const PIECE_ROWS: u32 = 512;
/// Context rows of other sessions that ride with a draft: so few that they cost it no time.
pub const RIDER_ROWS: u32 = 64;
