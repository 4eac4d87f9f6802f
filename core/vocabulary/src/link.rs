//! Messages between target and drafter, without their encoding. `paceline_link` encodes and
//! decodes them.

use crate::tensor::TensorRef;

/// A sequence as both workers know it: the target opens it, feeds it and closes it.
pub type SessionId = u64;

/// Bytes of the name of a page: a hash of all ids up to the page's end, in one cache scope.
pub type PageKey = [u8; 32];

/// Everything that the target has for its drafter at one step border, for all sequences.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Feed {
    /// Sessions that ended.
    pub closed: Vec<SessionId>,
    /// Positions to read, in the order of the rows of `hidden`. The first entry of a session opens
    /// it.
    pub contexts: Vec<Context>,
    /// Hidden states [rows of all contexts, feature layers · hidden size of the target]. Absent
    /// without contexts.
    pub hidden: Option<TensorRef>,
    /// Requested drafts, in the order of the rows of `bonus`.
    pub requests: Vec<DraftRequest>,
    /// Embeddings of the bonus tokens [requests, hidden size]. Absent without requests, and for
    /// drafters that propose token ids.
    pub bonus: Option<TensorRef>,
    /// Counts feeds with requests up from 1; 0 without requests.
    pub round: u64,
    /// Names of the pages of closed sessions.
    pub retained: Vec<RetainedPages>,
    /// What sessions with a fresh context begin with.
    pub restored: Vec<RestoredPrefix>,
}

/// Newly committed positions of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Context {
    /// The session.
    pub session: SessionId,
    /// Absolute position of the first row. In an open session: where its last context ended.
    pub position: u32,
    /// Positions.
    pub rows: u32,
    /// The session's context starts here; what it had before is forgotten.
    pub fresh: bool,
}

/// A request for a draft.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DraftRequest {
    /// The session.
    pub session: SessionId,
    /// Absolute position of the bonus token: where the session's context ends.
    pub position: u32,
    /// Rows of the block, the bonus token included: 2 to the drafter's block size.
    pub block: u32,
    /// The bonus token, for drafters that propose token ids.
    pub bonus_id: u32,
    /// How the sequence samples.
    pub sampling: DraftSampling,
}

/// How a sequence samples: a drafter that draws with the same noise agrees with the target more
/// often.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DraftSampling {
    /// 0: greedy.
    pub temperature: f32,
    /// Seed of the noise.
    pub seed: u64,
    /// Number of the sample within its request.
    pub sample_index: u32,
}

/// Names of a closed session's pages. The drafter may retain its context under them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetainedPages {
    /// The session, which the same feed closes.
    pub session: SessionId,
    /// Number of the first named page; page n has the positions from 64 · n on.
    pub first_page: u32,
    /// Page by page, at most 256.
    pub keys: Vec<PageKey>,
}

/// A retained context that a session begins with, in place of rows that the target would send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RestoredPrefix {
    /// The session, which has a fresh context in the same feed.
    pub session: SessionId,
    /// Name of the last page. It ends where the session's fresh context begins.
    pub key: PageKey,
    /// First position whose hidden states the target still has.
    pub since: u32,
}

/// Progress of a session: how far the drafter has read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionProgress {
    /// The session.
    pub session: SessionId,
    /// Position after the last one that the drafter has read.
    pub position: u32,
}

/// The answer to one round of requests. Each round is answered once, in order. A session that the
/// drafter could not serve is left out.
#[derive(Clone, Debug, PartialEq)]
pub struct Proposal {
    /// The round.
    pub round: u64,
    /// The drafts.
    pub drafts: Drafts,
}

/// What a drafter proposes.
#[derive(Clone, Debug, PartialEq)]
pub enum Drafts {
    /// Hidden rows; the target applies its own output head to them.
    Hidden {
        /// Whose rows they are, in the order of the tensor's rows.
        shapes: Vec<DraftShape>,
        /// [rows of all drafts, hidden size]; absent where there are no drafts.
        rows: Option<TensorRef>,
    },
    /// Token ids.
    Tokens(Vec<DraftTokens>),
}

/// Place and length of a draft.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DraftShape {
    /// The session.
    pub session: SessionId,
    /// Position of the bonus token, as in the request.
    pub position: u32,
    /// Proposed tokens: at most the block's rows without the bonus token.
    pub rows: u32,
}

/// A draft of token ids.
#[derive(Clone, Debug, PartialEq)]
pub struct DraftTokens {
    /// The session.
    pub session: SessionId,
    /// Position of the bonus token, as in the request.
    pub position: u32,
    /// The proposed tokens.
    pub ids: Vec<u32>,
    /// Natural logarithm of the drafter's probability of each; empty if the drafter has none.
    pub logprobs: Vec<f32>,
}
