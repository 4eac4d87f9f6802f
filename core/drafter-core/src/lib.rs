//! Decisions of a drafter: the sessions that exist, the meaning of a Feed for them, the content of
//! the next forward. Pure: no clock, no socket, no array.
//!
//! ```text
//!  first context ──▶ open ──▶ reading ⇄ caught up ──▶ closed     caught up: all rows that came were read
//!                      ▲         fresh: from any position, as if just opened
//! ```
//! The context of a closed session may be retained under the names of its pages, for a session that
//! begins with the same pages ([`retained`]). [`lookup`] is a drafter without a model. A Feed that contradicts the sessions is a fault, and
//! the link ends ([`FeedError`]). A draft request that cannot be served is left out of the
//! Proposal, with a [`DenialReason`] for the log.

mod check;
pub mod lookup;
mod retained;
mod rows;
mod sessions;
#[cfg(test)]
mod tests;

pub use check::FeedError;
pub use retained::{RetainedContexts, StoreCommand};
pub use rows::Rows;
pub use sessions::{DenialReason, DeniedDraft, DraftBlock, Opened, SessionWork, Sessions, Step};

use paceline_vocabulary::TensorType;

/// Terms that both sides agreed on in the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Width of embeddings and of hidden rows.
    pub hidden_size: u32,
    /// Width of a context row: hidden states of all feature layers.
    pub feature_width: u32,
    /// Whether a draft request comes with the embedding of its bonus token.
    pub embeddings: bool,
    /// Whether a context comes with the token ids of its positions.
    pub token_ids: bool,
    /// Ids of the target's vocabulary.
    pub vocab_size: u32,
    /// Rows of the longest block, the bonus token included.
    pub block: u32,
    /// Positions that the drafter reads and drafts, from the sequence's start.
    pub context: u32,
    /// Positions that a sequence of the target may have.
    pub target_context: u32,
    /// Most sessions at once.
    pub max_sessions: usize,
    /// Element type of the target's tensors.
    pub element: TensorType,
}

/// Most context rows of one forward that only reads. A draft that is requested meanwhile may have
/// to wait for that forward. Also the most unread rows with which a session still gets a draft in
/// the same forward. For all sessions together the target's ring is the bound: to leave one out
/// would only make the target send all of its rows again.
pub const PIECE_ROWS: u32 = 512;
/// Most context rows of other sessions that ride with a draft: so few that they cost it no time.
pub const RIDER_ROWS: u32 = 64;
