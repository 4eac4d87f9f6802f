//! Whether a Feed agrees with the sessions, before a byte of it is used.

use std::collections::HashMap;

use paceline_vocabulary::TensorType;
use paceline_vocabulary::link::{Context, DraftRequest, Feed, ImageSpan, SessionId};
use paceline_vocabulary::sampling::OutOfRange;
use paceline_vocabulary::tensor::TensorRef;

use crate::Sessions;

/// A Feed that contradicts the sessions there are, or the handshake. The link ends.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum FeedError {
    /// Rows that do not follow those before.
    #[error("session {session}: expected its context to go on at {expected}, found {found}")]
    Gap {
        /// The session.
        session: SessionId,
        /// Where its context ended.
        expected: u32,
        /// Where it goes on.
        found: u32,
    },
    /// No rows, or rows after the target's last position.
    #[error(
        "session {session}: expected rows at positions up to {last}, found {rows} rows from {position}"
    )]
    Positions {
        /// The session.
        session: SessionId,
        /// Positions that a sequence may have.
        last: u32,
        /// Rows.
        rows: u32,
        /// Position of the first.
        position: u32,
    },
    /// Token ids that are not those of the rows.
    #[error("session {session}: expected {expected} token ids below {vocab_size}, found {found}")]
    Ids {
        /// The session that the ids are of.
        session: SessionId,
        /// As many as there are rows, or none if the drafter reads no ids.
        expected: u32,
        /// Ids of the target's vocabulary.
        vocab_size: u32,
        /// Number of ids, or the id that is not below `vocab_size`, in words.
        found: String,
    },
    /// Images that do not lie one after another in the sequence, or in a context that goes on.
    #[error(
        "session {session}: expected images of a fresh context, ascending, up to position {last}, \
         found {found:?}"
    )]
    Images {
        /// Session whose context names them.
        session: SessionId,
        /// Positions that a sequence may have.
        last: u32,
        /// The first image that is none.
        found: ImageSpan,
    },
    /// More sessions than were agreed on.
    #[error("expected at most {limit} sessions, found {found}")]
    TooManySessions {
        /// Most sessions that were agreed on.
        limit: usize,
        /// Sessions after this Feed.
        found: usize,
    },
    /// A tensor whose shape is not that of its entries.
    #[error(
        "expected {what} of [{rows}, {columns}] {element:?}, none for no rows; found {found:?}"
    )]
    Tensor {
        /// Name of the tensor's content.
        what: &'static str,
        /// Rows of all entries.
        rows: u64,
        /// Width of a row.
        columns: u32,
        /// Element type that was agreed on.
        element: TensorType,
        /// The tensor.
        found: Option<TensorRef>,
    },
    /// A draft request without a session.
    #[error("a draft is requested for session {session}, which is not open")]
    NotOpen {
        /// The session.
        session: SessionId,
    },
    /// Two draft requests of one session in one round.
    #[error("two drafts are requested for session {session}")]
    TwoDrafts {
        /// The session.
        session: SessionId,
    },
    /// A block of an impossible length.
    #[error("session {session}: expected a block of 2 to {longest} rows, found {found}")]
    Block {
        /// The session.
        session: SessionId,
        /// Rows of the longest block.
        longest: u32,
        /// Rows.
        found: u32,
    },
    /// A temperature or filter that is none.
    #[error("session {session}: {} of its sampling: expected {}, found {}", cause.name, cause.expected, cause.found)]
    Sampling {
        /// The session that a draft is requested for.
        session: SessionId,
        /// The number that is out of its range.
        cause: OutOfRange,
    },
    /// A least survival that is no probability.
    #[error("session {session}: expected a least survival from 0 to 1, found {found}")]
    LeastSurvival {
        /// The session that a draft is requested for.
        session: SessionId,
        /// Least survival in the request.
        found: f32,
    },
    /// A round number without requests.
    #[error("round {round} has no requests")]
    EmptyRound {
        /// Number of the round.
        round: u64,
    },
    /// A round number that does not count up.
    #[error("expected a round after {newest}, found {found}")]
    Round {
        /// The newest round.
        newest: u64,
        /// The number.
        found: u64,
    },
    /// Page names of a session that goes on, or names given twice.
    #[error("session {session}: expected page names once, for a session that this feed closes")]
    Retained {
        /// The session.
        session: SessionId,
    },
    /// A page name to begin with, and not exactly one fresh context that it is for.
    #[error(
        "session {session}: expected one fresh context and one name to begin it with, found {found}"
    )]
    Restored {
        /// The session.
        session: SessionId,
        /// Fresh contexts of the session in this Feed.
        found: usize,
    },
}

impl Sessions {
    /// Checks a Feed against the sessions there are. Nothing is changed.
    ///
    /// # Errors
    /// The first contradiction, with expected and found.
    pub fn check(&self, feed: &Feed) -> Result<(), FeedError> {
        // Where each session's context ends after this Feed; `None`: closed.
        let mut ends: HashMap<SessionId, Option<u32>> =
            feed.closed.iter().map(|session| (*session, None)).collect();
        let mut rows = 0u64;
        for context in &feed.contexts {
            let before =
                ends.get(&context.session).copied().unwrap_or_else(|| self.end(context.session));
            ends.insert(context.session, Some(self.check_context(context, before)?));
            rows += u64::from(context.rows);
            self.check_ids(context)?;
            self.check_images(context)?;
        }
        self.check_count(&ends)?;
        let (features, width) = (feed.hidden.as_ref(), self.terms().feature_width);
        let rows = if width == 0 { 0 } else { rows };
        self.check_tensor("hidden states", features, rows, width)?;
        for (at, request) in feed.requests.iter().enumerate() {
            let session = request.session;
            if ends.get(&session).copied().unwrap_or_else(|| self.end(session)).is_none() {
                return Err(FeedError::NotOpen { session });
            }
            if feed.requests[..at].iter().any(|other| other.session == session) {
                return Err(FeedError::TwoDrafts { session });
            }
            self.check_request(request)?;
        }
        check_pages(feed)?;
        let embedded = if self.terms().embeddings { feed.requests.len() as u64 } else { 0 };
        let (bonus, width) = (feed.bonus.as_ref(), self.terms().hidden_size);
        self.check_tensor("embeddings", bonus, embedded, width)?;
        match (feed.requests.is_empty(), feed.round) {
            (true, 0) => Ok(()),
            (true, round) => Err(FeedError::EmptyRound { round }),
            (false, round) if round > self.last_round() => Ok(()),
            (false, found) => Err(FeedError::Round { newest: self.last_round(), found }),
        }
    }

    /// Where the session's context ends after this one; `before`: where it ended, if it was open.
    fn check_context(&self, context: &Context, before: Option<u32>) -> Result<u32, FeedError> {
        let Context { session, position, rows, fresh, .. } = *context;
        if let Some(expected) = before.filter(|end| !fresh && *end != position) {
            return Err(FeedError::Gap { session, expected, found: position });
        }
        let last = self.terms().target_context;
        position
            .checked_add(rows)
            .filter(|end| rows > 0 && *end <= last)
            .ok_or(FeedError::Positions { session, last, rows, position })
    }

    fn check_ids(&self, context: &Context) -> Result<(), FeedError> {
        let (session, vocab_size) = (context.session, self.terms().vocab_size);
        let expected = if self.terms().token_ids { context.rows } else { 0 };
        let wrong = |found: String| Err(FeedError::Ids { session, expected, vocab_size, found });
        if context.ids.len() != expected as usize {
            return wrong(format!("{} of them", context.ids.len()));
        }
        let mut ids = context.ids.iter().chain(&context.next_id);
        match ids.find(|id| **id >= vocab_size) {
            Some(id) => wrong(format!("id {id}")),
            None => Ok(()),
        }
    }

    fn check_images(&self, context: &Context) -> Result<(), FeedError> {
        let (session, last) = (context.session, self.terms().target_context);
        let mut before = 0;
        for found in &context.images {
            let end = found.end().filter(|end| *end <= last && found.first < *end);
            match end.filter(|_| context.fresh && found.first >= before) {
                Some(end) => before = end,
                None => return Err(FeedError::Images { session, last, found: *found }),
            }
        }
        Ok(())
    }

    fn check_count(&self, ends: &HashMap<SessionId, Option<u32>>) -> Result<(), FeedError> {
        let is_open = |session: SessionId| self.end(session).is_some();
        let closed = ends.iter().filter(|(id, end)| end.is_none() && is_open(**id)).count();
        let opened = ends.iter().filter(|(id, end)| end.is_some() && !is_open(**id)).count();
        let (limit, found) = (self.terms().max_sessions, self.len() - closed + opened);
        if found > limit { Err(FeedError::TooManySessions { limit, found }) } else { Ok(()) }
    }

    fn check_request(&self, request: &DraftRequest) -> Result<(), FeedError> {
        let DraftRequest { session, block: found, sampling, least_survival, .. } = *request;
        let longest = self.terms().block;
        if !(2..=longest).contains(&found) {
            return Err(FeedError::Block { session, longest, found });
        }
        if !(0.0..=1.0).contains(&least_survival) {
            return Err(FeedError::LeastSurvival { session, found: least_survival });
        }
        sampling.rule.check().map_err(|cause| FeedError::Sampling { session, cause })
    }

    fn check_tensor(
        &self,
        what: &'static str,
        tensor: Option<&TensorRef>,
        rows: u64,
        columns: u32,
    ) -> Result<(), FeedError> {
        let element = self.terms().element;
        let fits = match tensor {
            None => rows == 0,
            Some(tensor) => {
                rows > 0
                    && u64::from(tensor.rows) == rows
                    && tensor.columns == columns
                    && tensor.element == element
            }
        };
        let found = tensor.copied();
        if fits { Ok(()) } else { Err(FeedError::Tensor { what, rows, columns, element, found }) }
    }
}

/// Page names belong to sessions that this Feed closes or begins, once each.
fn check_pages(feed: &Feed) -> Result<(), FeedError> {
    for (at, pages) in feed.retained.iter().enumerate() {
        let session = pages.session;
        let again = feed.retained[..at].iter().any(|other| other.session == session);
        if again || !feed.closed.contains(&session) {
            return Err(FeedError::Retained { session });
        }
    }
    for (at, prefix) in feed.restored.iter().enumerate() {
        let session = prefix.session;
        let again = feed.restored[..at].iter().any(|other| other.session == session);
        let begins = |context: &&Context| context.session == session && context.fresh;
        let found = feed.contexts.iter().filter(begins).count();
        if again || found != 1 {
            return Err(FeedError::Restored { session, found });
        }
    }
    Ok(())
}
