//! Facts of a request that the core uses.

use paceline_vocabulary::{KeyId, Lane, Millis, ModelMark, RouteReason, RouteWish};

/// A request by its content, the same for each submission of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fingerprint(pub u64);

/// Facts of a request that admission and routing use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestSummary {
    /// Owner of the request.
    pub key: KeyId,
    /// Tokens of its prompt, without the continuation.
    pub prompt_tokens: u32,
    /// Most tokens after the prompt, with the continuation.
    pub max_tokens: u32,
    /// Tokens it starts with: prompt and continuation.
    pub context_tokens: u32,
    /// The request's deadline.
    pub deadline: Option<Millis>,
    /// The lane that its client asks for.
    pub wish: RouteWish,
    /// Patches of all its images; 0 without images.
    pub patches: u64,
    /// It ran before and goes on.
    pub resumed: bool,
    /// Hash of the prompt, the images and the grammar, the same for each submission.
    pub fingerprint: Fingerprint,
    /// The model whose tokens it has; `None` is not checked.
    pub model: Option<ModelMark>,
}

impl RequestSummary {
    /// Whether it has images.
    pub fn images(&self) -> bool {
        self.patches > 0
    }

    /// Most positions of KV that it can come to hold.
    pub fn most_positions(&self) -> u64 {
        u64::from(self.prompt_tokens) + u64::from(self.max_tokens)
    }

    /// Positions that it is expected to hold, if an answer has `typical_tokens` tokens. A resumed
    /// request is expected to produce a whole answer more, up to its limit.
    pub fn expected_positions(&self, typical_tokens: u32) -> u64 {
        let left = self.max_tokens.saturating_sub(self.continuation_tokens());
        u64::from(self.context_tokens) + u64::from(left.min(typical_tokens))
    }

    /// Tokens of its continuation.
    pub fn continuation_tokens(&self) -> u32 {
        self.context_tokens.saturating_sub(self.prompt_tokens)
    }
}

/// How a request that ended well was served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServedRequest {
    /// Lane of the request.
    pub lane: Lane,
    /// Why it had this lane.
    pub reason: RouteReason,
    /// Tokens it got, those it was submitted with excluded.
    pub tokens: u64,
    /// Milliseconds from its admission to its first token.
    pub first_ms: Option<u64>,
}
