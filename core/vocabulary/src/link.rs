//! Messages between target and drafter, without their encoding. `paceline_link::wire` encodes and
//! decodes them.
//!
//! ```text
//!  target                                                    drafter
//!  Hello ────────────────────────────────────────────────▶
//!         ◀──────────────────────────────────────────────── Welcome, or a refusal
//!  embedding of the mask token, if the Welcome names one ──▶
//!  Feed: closed sessions, new positions, draft requests ───▶
//!         ◀──────────────────────────────────────────────── Proposal for each round of requests,
//!                                                           ReadProgress for positions alone
//! ```

use crate::tensor::{TensorRef, TensorType};
use crate::{RequestId, SamplingRule, TraceContext};

/// A sequence as both workers know it: the target opens it, feeds it and closes it.
pub type SessionId = u64;

/// Bytes of the name of a page: a hash of all ids up to the page's end, in one cache scope.
pub type PageKey = [u8; 32];

/// Most page names that one closed session may have in a [`Feed`].
pub const MAX_PAGE_KEYS: usize = 256;

/// The target's side of the handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Version of the protocol.
    pub version: u32,
    /// Number of the link.
    pub generation: u64,
    /// Width of the target's embeddings and hidden states.
    pub hidden_size: u32,
    /// Rows of the target's output head.
    pub vocab_size: u32,
    /// Layers of the target.
    pub n_layers: u32,
    /// Element type of the tensors that the target sends.
    pub element: TensorType,
    /// Number and digest of the tokens of tokenizer.json, in words; empty if there is none.
    pub token_digest: String,
    /// Longest sequence, in positions.
    pub context_length: u32,
    /// Most sessions at once.
    pub max_sessions: u32,
}

/// The drafter's side of the handshake: what it proposes, and what it needs for that.
#[derive(Clone, Debug, PartialEq)]
pub struct Welcome {
    /// Version of the protocol.
    pub version: u32,
    /// Number of the link.
    pub generation: u64,
    /// Kind of the drafter, such as `dflash`.
    pub kind: String,
    /// Says which drafts take the same time: the kind, and a digest of what it was loaded from.
    pub fingerprint: String,
    /// Form of the drafter's proposals.
    pub proposal: ProposalKind,
    /// Width of the hidden states and embeddings that it takes, and of the hidden rows that it
    /// proposes; 0 if it has to do with none of them.
    pub hidden_size: u32,
    /// Rows of the target's output head that it was made for, if it names them. They may be padded
    /// to another number than the target's if both have the same tokens.
    pub vocab_size: Option<u32>,
    /// Layers of the target that it was made for, if it names them.
    pub target_layers: Option<u32>,
    /// Layers of the target whose hidden states it conditions on, in the order in which they are
    /// concatenated. Empty for a drafter that reads token ids alone.
    pub feature_layers: Vec<u32>,
    /// Whether it reads the token ids of a sequence.
    pub token_ids: bool,
    /// Whether it reads a context in next to no time. The target then sends it every sequence that
    /// may draft, and names no pages: to read a context again costs it less than to retain it.
    pub reads_at_once: bool,
    /// Rows of its longest block, the bonus token included.
    pub block_size: u32,
    /// Whether a request comes with the embedding of its bonus token.
    pub embeddings: bool,
    /// Token whose embedding it needs once, after the handshake.
    pub mask_id: Option<u32>,
    /// Element type of the tensors that it sends.
    pub element: TensorType,
    /// Number and digest of the tokens of a tokenizer.json beside its weights, in words; empty if
    /// there is none.
    pub token_digest: String,
    /// Cap c of the draft logits, c · tanh(logits / c).
    pub logit_softcap: Option<f32>,
    /// Positions of a sequence that it reads; it drafts nothing after them. Absent if it names no
    /// bound.
    pub context_length: Option<u32>,
}

/// Form of a drafter's proposals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProposalKind {
    /// Hidden rows; the target applies its own output head to them.
    Hidden,
    /// Token ids.
    Tokens,
}

/// Everything that the target has for its drafter at one step border, for all sequences.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Feed {
    /// Sessions that ended.
    pub closed: Vec<SessionId>,
    /// Positions to read, in the order of the rows of `hidden`. The first entry of a session opens
    /// it.
    pub contexts: Vec<Context>,
    /// Hidden states [rows of all contexts, feature layers · hidden size of the target]. Absent
    /// without contexts, and for a drafter without feature layers.
    pub hidden: Option<TensorRef>,
    /// Requested drafts, in the order of the rows of `bonus`.
    pub requests: Vec<DraftRequest>,
    /// Embeddings of the bonus tokens [requests, hidden size]. Absent without requests, and for
    /// drafters that do not take embeddings.
    pub bonus: Option<TensorRef>,
    /// Counts feeds with requests up from 1; 0 without requests.
    pub round: u64,
    /// Names of the pages of closed sessions.
    pub retained: Vec<RetainedPages>,
    /// Retained pages that sessions with a fresh context begin with.
    pub restored: Vec<RestoredPrefix>,
}

/// Newly committed positions of a session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Context {
    /// The session.
    pub session: SessionId,
    /// Absolute position of the first row. In an open session: where its last context ended.
    pub position: u32,
    /// Positions.
    pub rows: u32,
    /// The session's context starts here; what it had before is forgotten.
    pub fresh: bool,
    /// The request that the session serves, if `fresh`. For the drafter's log only.
    pub request_id: Option<RequestId>,
    /// Parent of the drafter's span of the session, if `fresh` and the request is traced.
    pub trace: Option<TraceContext>,
    /// Token ids of the positions, if the drafter reads them; else empty.
    pub ids: Vec<u32>,
    /// The token after these positions, if the drafter reads token ids and the token is known.
    pub next_id: Option<u32>,
    /// All images of the sequence, ascending, if `fresh` and the drafter reads token ids; else
    /// empty. A drafter whose heads turn by several positions computes them of these.
    pub images: Vec<ImageSpan>,
}

/// Rows of an image among those of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageSpan {
    /// Absolute position of its first row.
    pub first: u32,
    /// Rows of its merged grid.
    pub rows: u32,
    /// Columns of its merged grid.
    pub columns: u32,
}

impl ImageSpan {
    /// Absolute position after its last row; `None` if it is no number of 32 bits.
    pub fn end(&self) -> Option<u32> {
        self.rows.checked_mul(self.columns)?.checked_add(self.first)
    }
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
    /// The bonus token.
    pub bonus_id: u32,
    /// How the sequence samples.
    pub sampling: DraftSampling,
    /// Survival from which on a draft is worth verifying: the drafter's own probability that it and all
    /// drafts before it are right. With 0 all drafts are.
    pub least_survival: f32,
}

/// How a sequence samples: a drafter that draws with the same noise agrees with the target more
/// often.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DraftSampling {
    /// Temperature and filters. Penalties are off: a drafter does not know what they count.
    pub rule: SamplingRule,
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
    /// Page by page, at most [`MAX_PAGE_KEYS`].
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
    /// The drafter has no draft for a bonus token before this position; 0 if it does not know.
    pub drafts_from: u32,
}

/// How far the drafter has read. Sent after contexts that came without requests, and for sessions
/// whose retained context is gone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReadProgress {
    /// How far sessions were read.
    pub sessions: Vec<SessionProgress>,
    /// Sessions that were to begin with a retained context that the drafter does not have.
    pub missed: Vec<SessionId>,
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

/// The proposed drafts, each of another session.
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

impl Drafts {
    /// No draft at all.
    pub fn none(kind: ProposalKind) -> Self {
        match kind {
            ProposalKind::Hidden => Drafts::Hidden { shapes: vec![], rows: None },
            ProposalKind::Tokens => Drafts::Tokens(vec![]),
        }
    }

    /// Form of the drafts.
    pub fn kind(&self) -> ProposalKind {
        match self {
            Drafts::Hidden { .. } => ProposalKind::Hidden,
            Drafts::Tokens(_) => ProposalKind::Tokens,
        }
    }

    /// Places and lengths of the drafts.
    pub fn shapes(&self) -> Vec<DraftShape> {
        let shape = |draft: &DraftTokens| DraftShape {
            session: draft.session,
            position: draft.position,
            rows: draft.ids.len() as u32,
        };
        match self {
            Drafts::Hidden { shapes, .. } => shapes.clone(),
            Drafts::Tokens(drafts) => drafts.iter().map(shape).collect(),
        }
    }
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
    /// The proposed tokens; none if the drafter has nothing to propose here.
    pub ids: Vec<u32>,
    /// Natural logarithm of the drafter's probability of each; empty if the drafter has none.
    pub logprobs: Vec<f32>,
    /// If there are no tokens: as [`SessionProgress::drafts_from`].
    pub drafts_from: u32,
}
