//! The one place where the link's protobuf messages become types of `paceline_vocabulary`, and
//! back.
//!
//! [`Message`] is what protobuf can hold, [`Frame`] what link.proto allows. Rules that need no
//! knowledge of the sessions are checked here. The rules about sessions are the workers'.

use paceline_proto::internal::v1 as proto;
use paceline_vocabulary::link::{
    Context, DraftRequest, DraftSampling, DraftShape, DraftTokens, Drafts, Feed, Hello, ImageSpan,
    MAX_PAGE_KEYS, PageKey, Proposal, ProposalKind, ReadProgress, RestoredPrefix, RetainedPages,
    SessionId, SessionProgress, Welcome,
};
use paceline_vocabulary::tensor::TensorRef;
use paceline_vocabulary::{RequestId, SamplingRule, TensorType, TraceContext};

/// A frame as protobuf has it: nothing is checked.
pub type Message = proto::link_frame::Frame;

/// Bytes of a page's name.
const KEY_BYTES: usize = size_of::<PageKey>();

/// A frame.
#[derive(Clone, Debug, PartialEq)]
pub enum Frame {
    /// Target → drafter, first.
    Hello(Hello),
    /// The drafter's answer.
    Welcome(Welcome),
    /// The drafter's other answer: why the pair does not go together.
    Refusal(String),
    /// The embedding of the mask token, one row.
    MaskRow(TensorRef),
    /// Target → drafter, at step borders.
    Feed(Feed),
    /// Drafter → target, for each round of requests.
    Proposal(Proposal),
    /// Drafter → target.
    Progress(ReadProgress),
    /// Every tensor of the other side up to this number was copied out.
    Ack(u64),
}

impl Frame {
    /// The message's name in link.proto.
    pub fn name(&self) -> &'static str {
        match self {
            Frame::Hello(_) => "Hello",
            Frame::Welcome(_) => "Welcome",
            Frame::Refusal(_) => "Refusal",
            Frame::MaskRow(_) => "MaskRow",
            Frame::Feed(_) => "Feed",
            Frame::Proposal(_) => "Proposal",
            Frame::Progress(_) => "ReadProgress",
            Frame::Ack(_) => "Ack",
        }
    }
}

/// A message that link.proto does not allow.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum WireError {
    /// A field that every such message has.
    #[error("expected a {message} with {field}, found none")]
    Missing {
        /// The message.
        message: &'static str,
        /// Field that the message lacks.
        field: &'static str,
    },
    /// An element type that this version does not know.
    #[error("type of {whose}: expected one of f32, f16, bf16, found {found}")]
    ElementType {
        /// Whose type it is.
        whose: &'static str,
        /// Number of the element type.
        found: i32,
    },
    /// A kind of proposal that this version does not know.
    #[error("proposal kind: expected hidden rows or tokens, found {found}")]
    ProposalKind {
        /// Number of the kind.
        found: i32,
    },
    /// Names of pages that are none, or too many.
    #[error(
        "session {session}: expected up to {MAX_PAGE_KEYS} names of {KEY_BYTES} bytes, found {found} bytes"
    )]
    PageKeys {
        /// The closed session.
        session: SessionId,
        /// Bytes of all names.
        found: usize,
    },
    /// The name of a page that is none.
    #[error("session {session}: expected a name of {KEY_BYTES} bytes, found {found}")]
    PageKey {
        /// The session that begins.
        session: SessionId,
        /// Bytes of the name.
        found: usize,
    },
    /// Text that is no request id.
    #[error("session {session}: expected a request id or none, found another text")]
    RequestId {
        /// The session.
        session: SessionId,
    },
    /// Probabilities of some ids and not of others.
    #[error("session {session}: expected a logprob for each of {ids} ids or none, found {found}")]
    LogprobCount {
        /// The session.
        session: SessionId,
        /// Proposed ids.
        ids: usize,
        /// Logarithms.
        found: usize,
    },
    /// A number that is the logarithm of no probability.
    #[error("session {session}: expected logprobs up to 0, found {found}")]
    Logprob {
        /// The session.
        session: SessionId,
        /// The number.
        found: f32,
    },
}

impl From<Frame> for Message {
    fn from(frame: Frame) -> Self {
        match frame {
            Frame::Hello(hello) => Message::Hello(from_hello(hello)),
            Frame::Welcome(welcome) => Message::Welcome(from_welcome(welcome)),
            Frame::Refusal(reason) => Message::Refusal(proto::Refusal { reason }),
            Frame::MaskRow(row) => {
                Message::MaskRow(proto::MaskRow { tensor: Some(from_tensor(row)) })
            }
            Frame::Feed(feed) => Message::Feed(from_feed(feed)),
            Frame::Proposal(proposal) => Message::Proposal(from_proposal(proposal)),
            Frame::Progress(progress) => Message::Progress(from_progress(progress)),
            Frame::Ack(number) => Message::Ack(proto::Ack { number }),
        }
    }
}

impl TryFrom<Message> for Frame {
    type Error = WireError;

    fn try_from(message: Message) -> Result<Self, WireError> {
        Ok(match message {
            Message::Hello(hello) => Frame::Hello(to_hello(hello)?),
            Message::Welcome(welcome) => Frame::Welcome(to_welcome(welcome)?),
            Message::Refusal(refusal) => Frame::Refusal(refusal.reason),
            Message::MaskRow(row) => {
                let missing = WireError::Missing { message: "MaskRow", field: "a tensor" };
                Frame::MaskRow(to_tensor(row.tensor.ok_or(missing)?)?)
            }
            Message::Feed(feed) => Frame::Feed(to_feed(feed)?),
            Message::Proposal(proposal) => Frame::Proposal(to_proposal(proposal)?),
            Message::Progress(progress) => Frame::Progress(to_progress(progress)),
            Message::Ack(ack) => Frame::Ack(ack.number),
        })
    }
}

/// A tensor's place and shape, of which only the element type is checked.
///
/// # Errors
/// [`WireError::ElementType`].
pub fn to_tensor(tensor: proto::TensorRef) -> Result<TensorRef, WireError> {
    let proto::TensorRef { number, offset, length, rows, columns, r#type } = tensor;
    let element = element("a tensor", r#type)?;
    Ok(TensorRef { number, offset, length, rows, columns, element })
}

/// A tensor's place and shape as protobuf has them.
pub fn from_tensor(tensor: TensorRef) -> proto::TensorRef {
    let TensorRef { number, offset, length, rows, columns, element } = tensor;
    proto::TensorRef { number, offset, length, rows, columns, r#type: from_element(element) }
}

fn element(whose: &'static str, found: i32) -> Result<TensorType, WireError> {
    proto::TensorType::try_from(found)
        .ok()
        .and_then(|found| TensorType::try_from(found).ok())
        .ok_or(WireError::ElementType { whose, found })
}

fn from_element(element: TensorType) -> i32 {
    proto::TensorType::from(element).into()
}

fn to_hello(hello: proto::Hello) -> Result<Hello, WireError> {
    Ok(Hello {
        version: hello.version,
        generation: hello.generation,
        hidden_size: hello.hidden_size,
        vocab_size: hello.vocab_size,
        n_layers: hello.n_layers,
        element: element("the target's tensors", hello.r#type)?,
        token_digest: hello.token_digest,
        context_length: hello.context_length,
        max_sessions: hello.max_sessions,
    })
}

fn from_hello(hello: Hello) -> proto::Hello {
    proto::Hello {
        version: hello.version,
        generation: hello.generation,
        hidden_size: hello.hidden_size,
        vocab_size: hello.vocab_size,
        n_layers: hello.n_layers,
        r#type: from_element(hello.element),
        token_digest: hello.token_digest,
        context_length: hello.context_length,
        max_sessions: hello.max_sessions,
    }
}

fn to_welcome(welcome: proto::Welcome) -> Result<Welcome, WireError> {
    let found = welcome.proposal;
    let proposal = match proto::ProposalKind::try_from(found) {
        Ok(proto::ProposalKind::Hidden) => ProposalKind::Hidden,
        Ok(proto::ProposalKind::Tokens) => ProposalKind::Tokens,
        Ok(proto::ProposalKind::Unspecified) | Err(_) => {
            return Err(WireError::ProposalKind { found });
        }
    };
    let named = |number: u32| (number != 0).then_some(number);
    Ok(Welcome {
        version: welcome.version,
        generation: welcome.generation,
        kind: welcome.kind,
        fingerprint: welcome.fingerprint,
        proposal,
        hidden_size: welcome.hidden_size,
        vocab_size: named(welcome.vocab_size),
        target_layers: named(welcome.target_layers),
        feature_layers: welcome.feature_layers,
        block_size: welcome.block_size,
        embeddings: welcome.embeddings,
        token_ids: welcome.token_ids,
        reads_at_once: welcome.reads_at_once,
        mask_id: welcome.mask_id,
        element: element("the drafter's tensors", welcome.r#type)?,
        token_digest: welcome.token_digest,
        // NaN is a cap too, and the handshake refuses it.
        logit_softcap: Some(welcome.logit_softcap).filter(|cap| *cap != 0.0),
        context_length: named(welcome.context_length),
    })
}

fn from_welcome(welcome: Welcome) -> proto::Welcome {
    let proposal = match welcome.proposal {
        ProposalKind::Hidden => proto::ProposalKind::Hidden,
        ProposalKind::Tokens => proto::ProposalKind::Tokens,
    };
    proto::Welcome {
        version: welcome.version,
        generation: welcome.generation,
        kind: welcome.kind,
        fingerprint: welcome.fingerprint,
        proposal: proposal.into(),
        hidden_size: welcome.hidden_size,
        vocab_size: welcome.vocab_size.unwrap_or(0),
        target_layers: welcome.target_layers.unwrap_or(0),
        feature_layers: welcome.feature_layers,
        block_size: welcome.block_size,
        mask_id: welcome.mask_id,
        r#type: from_element(welcome.element),
        token_digest: welcome.token_digest,
        logit_softcap: welcome.logit_softcap.unwrap_or(0.0),
        context_length: welcome.context_length.unwrap_or(0),
        embeddings: welcome.embeddings,
        token_ids: welcome.token_ids,
        reads_at_once: welcome.reads_at_once,
    }
}

fn to_feed(feed: proto::Feed) -> Result<Feed, WireError> {
    Ok(Feed {
        closed: feed.closed,
        contexts: feed.contexts.into_iter().map(to_context).collect::<Result<_, _>>()?,
        hidden: feed.hidden.map(to_tensor).transpose()?,
        requests: feed.requests.into_iter().map(to_request).collect::<Result<_, _>>()?,
        bonus: feed.bonus.map(to_tensor).transpose()?,
        round: feed.round,
        retained: feed.retained.into_iter().map(to_retained).collect::<Result<_, _>>()?,
        restored: feed.restored.into_iter().map(to_restored).collect::<Result<_, _>>()?,
    })
}

fn from_feed(feed: Feed) -> proto::Feed {
    proto::Feed {
        closed: feed.closed,
        contexts: feed.contexts.into_iter().map(from_context).collect(),
        hidden: feed.hidden.map(from_tensor),
        requests: feed.requests.into_iter().map(from_request).collect(),
        bonus: feed.bonus.map(from_tensor),
        round: feed.round,
        retained: feed.retained.into_iter().map(from_retained).collect(),
        restored: feed.restored.into_iter().map(from_restored).collect(),
    }
}

fn to_context(context: proto::Context) -> Result<Context, WireError> {
    let proto::Context {
        session,
        position,
        rows,
        fresh,
        request_id,
        ids,
        next_id,
        traceparent,
        images,
    } = context;
    // The worst that a malformed one costs is a span.
    let trace = TraceContext::parse(traceparent.as_bytes());
    let request_id = match request_id.as_str() {
        "" => None,
        text => Some(RequestId::parse(text).ok_or(WireError::RequestId { session })?),
    };
    let span = |image| {
        let proto::ImageSpan { first, rows, columns } = image;
        ImageSpan { first, rows, columns }
    };
    let images = images.into_iter().map(span).collect();
    Ok(Context { session, position, rows, fresh, request_id, trace, ids, next_id, images })
}

fn from_context(context: Context) -> proto::Context {
    let Context { session, position, rows, fresh, request_id, trace, ids, next_id, images } =
        context;
    let span = |image| {
        let ImageSpan { first, rows, columns } = image;
        proto::ImageSpan { first, rows, columns }
    };
    let images = images.into_iter().map(span).collect();
    let traceparent = trace.map(|trace| trace.to_string()).unwrap_or_default();
    let request_id = request_id.map(|id| id.as_str().to_owned()).unwrap_or_default();
    proto::Context { session, position, rows, fresh, request_id, ids, next_id, traceparent, images }
}

fn to_request(request: proto::DraftRequest) -> Result<DraftRequest, WireError> {
    let proto::DraftRequest { session, position, block, bonus_id, .. } = request;
    let proto::DraftRequest { sampling, seed, sample_index, least_survival, .. } = request;
    let missing = WireError::Missing { message: "draft request", field: "a sampling rule" };
    let rule = SamplingRule::from(&sampling.ok_or(missing)?);
    let sampling = DraftSampling { rule, seed, sample_index };
    Ok(DraftRequest { session, position, block, bonus_id, sampling, least_survival })
}

fn from_request(request: DraftRequest) -> proto::DraftRequest {
    let DraftRequest { session, position, block, bonus_id, sampling, least_survival } = request;
    let DraftSampling { rule, seed, sample_index } = sampling;
    let sampling = Some(rule.into());
    proto::DraftRequest {
        session,
        position,
        block,
        bonus_id,
        sampling,
        seed,
        sample_index,
        least_survival,
    }
}

fn to_retained(pages: proto::RetainedPages) -> Result<RetainedPages, WireError> {
    let proto::RetainedPages { session, first_page, keys } = pages;
    let (names, rest) = keys.as_chunks::<KEY_BYTES>();
    if !rest.is_empty() || names.len() > MAX_PAGE_KEYS {
        return Err(WireError::PageKeys { session, found: keys.len() });
    }
    Ok(RetainedPages { session, first_page, keys: names.to_vec() })
}

fn from_retained(pages: RetainedPages) -> proto::RetainedPages {
    let RetainedPages { session, first_page, keys } = pages;
    proto::RetainedPages { session, first_page, keys: keys.concat().into() }
}

fn to_restored(prefix: proto::RestoredPrefix) -> Result<RestoredPrefix, WireError> {
    let proto::RestoredPrefix { session, key, since } = prefix;
    let found = key.len();
    let key = key.as_ref().try_into().map_err(|_| WireError::PageKey { session, found })?;
    Ok(RestoredPrefix { session, key, since })
}

fn from_restored(prefix: RestoredPrefix) -> proto::RestoredPrefix {
    let RestoredPrefix { session, key, since } = prefix;
    proto::RestoredPrefix { session, key: key.to_vec().into(), since }
}

fn to_proposal(proposal: proto::Proposal) -> Result<Proposal, WireError> {
    use proto::proposal::Drafts as Wire;
    let missing = WireError::Missing { message: "Proposal", field: "drafts" };
    let drafts = match proposal.drafts.ok_or(missing)? {
        Wire::Hidden(hidden) => Drafts::Hidden {
            shapes: hidden.shapes.into_iter().map(to_shape).collect(),
            rows: hidden.rows.map(to_tensor).transpose()?,
        },
        Wire::Tokens(tokens) => {
            Drafts::Tokens(tokens.drafts.into_iter().map(to_tokens).collect::<Result<_, _>>()?)
        }
    };
    Ok(Proposal { round: proposal.round, drafts })
}

fn from_proposal(proposal: Proposal) -> proto::Proposal {
    use proto::proposal::Drafts as Wire;
    let drafts = match proposal.drafts {
        Drafts::Hidden { shapes, rows } => Wire::Hidden(proto::HiddenDrafts {
            shapes: shapes.into_iter().map(from_shape).collect(),
            rows: rows.map(from_tensor),
        }),
        Drafts::Tokens(drafts) => {
            let drafts = drafts.into_iter().map(from_tokens).collect();
            Wire::Tokens(proto::TokenDrafts { drafts })
        }
    };
    proto::Proposal { round: proposal.round, drafts: Some(drafts) }
}

fn to_shape(shape: proto::DraftShape) -> DraftShape {
    let proto::DraftShape { session, position, rows } = shape;
    DraftShape { session, position, rows }
}

fn from_shape(shape: DraftShape) -> proto::DraftShape {
    let DraftShape { session, position, rows } = shape;
    proto::DraftShape { session, position, rows }
}

fn to_tokens(draft: proto::DraftTokens) -> Result<DraftTokens, WireError> {
    let proto::DraftTokens { session, position, ids, logprobs, drafts_from } = draft;
    if !logprobs.is_empty() && logprobs.len() != ids.len() {
        let (ids, found) = (ids.len(), logprobs.len());
        return Err(WireError::LogprobCount { session, ids, found });
    }
    if let Some(found) = logprobs.iter().find(|logprob| !logprob.is_finite() || **logprob > 0.0) {
        return Err(WireError::Logprob { session, found: *found });
    }
    Ok(DraftTokens { session, position, ids, logprobs, drafts_from })
}

fn from_tokens(draft: DraftTokens) -> proto::DraftTokens {
    let DraftTokens { session, position, ids, logprobs, drafts_from } = draft;
    proto::DraftTokens { session, position, ids, logprobs, drafts_from }
}

fn to_progress(progress: proto::ReadProgress) -> ReadProgress {
    let one = |read: proto::SessionProgress| SessionProgress {
        session: read.session,
        position: read.position,
        drafts_from: read.drafts_from,
    };
    ReadProgress {
        sessions: progress.sessions.into_iter().map(one).collect(),
        missed: progress.missed,
    }
}

fn from_progress(progress: ReadProgress) -> proto::ReadProgress {
    let one = |read: SessionProgress| proto::SessionProgress {
        session: read.session,
        position: read.position,
        drafts_from: read.drafts_from,
    };
    proto::ReadProgress {
        sessions: progress.sessions.into_iter().map(one).collect(),
        missed: progress.missed,
    }
}

#[cfg(test)]
mod tests;
