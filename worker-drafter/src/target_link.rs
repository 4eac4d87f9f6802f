//! The drafter's end of a link: answers the handshake, takes Feeds in, sends Proposals. A fault of
//! the target ends the link, never the worker.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use paceline_drafter_core::{RetainedContexts, Sessions, Step, StoreCommand, Terms};
use paceline_link::handshake::{self, Mismatch};
use paceline_link::{End, Frame, LinkError, tensor};
use paceline_vocabulary::chain;
use paceline_vocabulary::link::{
    DraftShape, DraftTokens, Drafts, Feed, Hello, Proposal, ReadProgress, SessionId, Welcome,
};
use paceline_vocabulary::state::LinkPhase;
use paceline_vocabulary::tensor::TensorRef;

use crate::proposer::Proposed;
use crate::session_spans::SessionSpans;

/// Most sessions that a target may have.
const MAX_SESSIONS: u32 = 1024;
/// Longest sequence: the arithmetic of positions stays far below its limits.
const MAX_POSITIONS: u32 = 1 << 30;
/// Nothing more is taken in while this many bytes wait to be read. A target that is faster than the
/// drafter then finds its ring full.
const MAX_WAITING_BYTES: u64 = 64 << 20;
/// Nothing more is taken in while this many rounds wait to be answered.
const MAX_WAITING_ROUNDS: usize = 32;

/// Why a link ended.
#[derive(Debug)]
pub(crate) struct LinkEnd {
    pub(crate) phase: LinkPhase,
    pub(crate) reason: String,
}

impl LinkEnd {
    /// The target broke a rule.
    fn ejected(reason: impl Into<String>) -> Self {
        Self { phase: LinkPhase::Ejected, reason: reason.into() }
    }
}

impl From<LinkError> for LinkEnd {
    fn from(error: LinkError) -> Self {
        match error {
            LinkError::Gone => {
                Self { phase: LinkPhase::Lost, reason: "the target closed the link".into() }
            }
            LinkError::Stalled => Self::ejected("the target has stopped reading"),
            LinkError::Protocol(fault) => Self::ejected(chain(&fault)),
            LinkError::Io(cause) => Self::ejected(chain(&cause)),
        }
    }
}

/// Memory for contexts of closed sessions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RetentionLimits {
    /// Bytes of a position in the store.
    pub(crate) row_bytes: u64,
    /// Bytes of what the store keeps of the end of a context alone.
    pub(crate) end_bytes: u64,
    /// Most bytes of all retained contexts.
    pub(crate) total_bytes: u64,
}

/// A link and its sessions.
pub(crate) struct TargetLink {
    end: End,
    welcome: Welcome,
    misfit: Option<Mismatch>,
    limits: RetentionLimits,
    first_slot: u64,
    up: Option<Up>,
}

/// State of the link once the handshake is over.
struct Up {
    sessions: Sessions,
    /// The mask token's embedding, if the drafter names one and the target has sent it.
    mask: Option<Vec<u8>>,
    spans: SessionSpans,
}

impl TargetLink {
    /// A link without its handshake. `welcome` describes the drafter; `misfit` is the reason to
    /// refuse any target; `first_slot` is the number of the first session in the store.
    pub(crate) fn new(
        end: End,
        welcome: Welcome,
        misfit: Option<Mismatch>,
        limits: RetentionLimits,
        first_slot: u64,
    ) -> Self {
        let welcome = Welcome { generation: end.generation(), ..welcome };
        Self { end, welcome, misfit, limits, first_slot, up: None }
    }

    pub(crate) fn generation(&self) -> u64 {
        self.end.generation()
    }

    pub(crate) fn is_up(&self) -> bool {
        self.up.is_some()
    }

    /// Open sessions.
    pub(crate) fn n_sessions(&self) -> usize {
        self.up.as_ref().map_or(0, |up| up.sessions.len())
    }

    pub(crate) fn next_slot(&self) -> u64 {
        self.up.as_ref().map_or(self.first_slot, |up| up.sessions.next_slot())
    }

    /// Commands for the store before the next step, in this order.
    pub(crate) fn take_commands(&mut self) -> Vec<StoreCommand> {
        self.up.as_mut().map(|up| up.sessions.take_commands()).unwrap_or_default()
    }

    /// Bytes of retained contexts.
    pub(crate) fn retained_bytes(&self) -> u64 {
        self.up.as_ref().map_or(0, |up| up.sessions.retained_bytes())
    }

    /// The next forward, if work waits. Denied requests are logged.
    pub(crate) fn next_step(&mut self) -> Option<Step> {
        let sessions = &mut self.up.as_mut()?.sessions;
        let step = sessions.next_step()?;
        for denied in &step.denied {
            let (session, reason) = (denied.session, denied.reason);
            tracing::debug!(
                request_id = request_id(sessions, session),
                session,
                round = step.round,
                ?reason,
                "draft denied"
            );
        }
        Some(step)
    }

    /// The mask token's embedding; empty if the drafter names no mask token.
    pub(crate) fn mask(&self) -> &[u8] {
        self.up.as_ref().and_then(|up| up.mask.as_deref()).unwrap_or_default()
    }

    /// Form of the target's tensors, once the handshake is over.
    pub(crate) fn terms(&self) -> Option<&Terms> {
        self.up.as_ref().map(|up| up.sessions.terms())
    }

    pub(crate) fn poll_fd(&self) -> BorrowedFd<'_> {
        self.end.poll_fd()
    }

    /// Whether all bytes to the target have been written.
    pub(crate) fn is_flushed(&self) -> bool {
        self.end.is_flushed()
    }

    /// Takes in the frames that have come.
    pub(crate) fn receive(&mut self) -> Result<(), LinkEnd> {
        while self.has_room() {
            let Some(frame) = self.end.receive(Duration::ZERO)? else { return Ok(()) };
            self.on_frame(frame)?;
        }
        // Bytes that wait to be written are still written.
        Ok(self.end.flush()?)
    }

    fn has_room(&self) -> bool {
        let has_room = |up: &Up| {
            up.sessions.waiting_bytes() < MAX_WAITING_BYTES
                && up.sessions.waiting_rounds() < MAX_WAITING_ROUNDS
        };
        self.up.as_ref().is_none_or(has_room)
    }

    fn on_frame(&mut self, frame: Frame) -> Result<(), LinkEnd> {
        match (frame, &mut self.up) {
            (Frame::Hello(hello), None) => self.greet(&hello),
            (Frame::MaskRow(row), Some(up))
                if self.welcome.mask_id.is_some() && up.mask.is_none() =>
            {
                if !up.is_mask_row(&row) {
                    return Err(LinkEnd::ejected("expected one row of embeddings as the mask"));
                }
                up.mask = Some(self.end.take(&row)?);
                Ok(())
            }
            (Frame::Feed(feed), Some(up)) => {
                if !feed.requests.is_empty() && self.welcome.mask_id.is_some() && up.mask.is_none()
                {
                    return Err(LinkEnd::ejected("drafts are requested before the mask row came"));
                }
                up.feed(feed, &mut self.end)
            }
            (other, _) => {
                Err(LinkEnd::ejected(format!("a {} that is not expected here", other.name())))
            }
        }
    }

    fn greet(&mut self, hello: &Hello) -> Result<(), LinkEnd> {
        if let Err(mismatch) = self.check(hello) {
            let reason = mismatch.to_string();
            self.end.send(Frame::Refusal(reason.clone()))?;
            return Err(LinkEnd { phase: LinkPhase::Refused, reason });
        }
        self.end.send(Frame::Welcome(self.welcome.clone()))?;
        let context = self.welcome.context_length.unwrap_or(hello.context_length);
        let terms = Terms {
            hidden_size: hello.hidden_size,
            feature_width: hello.hidden_size * self.welcome.feature_layers.len() as u32,
            embeddings: self.welcome.embeddings,
            token_ids: self.welcome.token_ids,
            vocab_size: hello.vocab_size,
            block: self.welcome.block_size,
            context: context.min(hello.context_length),
            target_context: hello.context_length,
            max_sessions: hello.max_sessions as usize,
            element: hello.element,
        };
        let RetentionLimits { row_bytes, end_bytes, total_bytes } = self.limits;
        let retained = RetainedContexts::new(row_bytes, total_bytes).with_ends(end_bytes);
        let sessions = Sessions::new(terms, retained, self.first_slot);
        self.up = Some(Up { sessions, mask: None, spans: SessionSpans::default() });
        Ok(())
    }

    fn check(&self, hello: &Hello) -> Result<(), Mismatch> {
        handshake::check_hello(hello, &self.welcome, self.end.generation())?;
        for (what, most, found) in [
            ("sessions of the target", MAX_SESSIONS, hello.max_sessions),
            ("context length of the target", MAX_POSITIONS, hello.context_length),
        ] {
            if found > most {
                return Err(Mismatch::new(what, format!("at most {most}"), found));
            }
        }
        self.misfit.clone().map_or(Ok(()), Err)
    }

    /// Answers a round. The answer has no draft if the ring has no room for the rows, or if a
    /// number of them is not finite.
    pub(crate) fn propose(
        &mut self,
        round: u64,
        proposed: Option<Proposed>,
    ) -> Result<(), LinkEnd> {
        let kind = self.welcome.proposal;
        let nothing = || Drafts::none(kind);
        let drafts = match proposed {
            None => nothing(),
            Some(Proposed::Tokens(mut drafts)) => {
                let vocab = self.terms().map_or(0, |terms| terms.vocab_size);
                drafts.iter_mut().for_each(|draft| cut_unknown(draft, vocab));
                Drafts::Tokens(drafts)
            }
            Some(Proposed::Hidden { shapes, bytes }) => {
                self.put_rows(round, shapes, &bytes)?.unwrap_or_else(nothing)
            }
        };
        if let Some(up) = self.up.as_mut().filter(|up| !up.spans.is_empty()) {
            up.spans.proposed(&drafts.shapes());
        }
        Ok(self.end.send(Frame::Proposal(Proposal { round, drafts }))?)
    }

    fn put_rows(
        &mut self,
        round: u64,
        shapes: Vec<DraftShape>,
        bytes: &[u8],
    ) -> Result<Option<Drafts>, LinkEnd> {
        let element = self.welcome.element;
        if !tensor::all_finite(bytes, element) {
            tracing::warn!(round, "hidden rows are not finite; nothing is proposed");
            return Ok(None);
        }
        let rows = shapes.iter().map(|shape| shape.rows).sum();
        let rows = self.end.put(rows, self.welcome.hidden_size, element, bytes)?;
        Ok(rows.map(|rows| Drafts::Hidden { shapes, rows: Some(rows) }))
    }

    /// Reports how far sessions were read.
    pub(crate) fn report_progress(&mut self, step: Step) -> Result<(), LinkEnd> {
        if step.progress.is_empty() {
            return Ok(());
        }
        let progress = ReadProgress { sessions: step.progress, missed: vec![] };
        Ok(self.end.send(Frame::Progress(progress))?)
    }
}

impl Up {
    fn is_mask_row(&self, row: &TensorRef) -> bool {
        let terms = self.sessions.terms();
        row.rows == 1 && row.columns == terms.hidden_size && row.element == terms.element
    }

    fn feed(&mut self, feed: Feed, end: &mut End) -> Result<(), LinkEnd> {
        self.sessions.check(&feed).map_err(|fault| LinkEnd::ejected(fault.to_string()))?;
        let mut take =
            |tensor: &Option<TensorRef>| tensor.as_ref().map_or(Ok(vec![]), |one| end.take(one));
        let (hidden, bonus) = (take(&feed.hidden)?, take(&feed.bonus)?);
        self.spans.feed(&feed);
        let begun = self.sessions.feed(feed, hidden, bonus);
        for session in begun.opened {
            let sessions = &self.sessions;
            tracing::debug!(request_id = request_id(sessions, session), session, "session opened");
        }
        for session in &begun.missed {
            let sessions = &self.sessions;
            tracing::debug!(
                request_id = request_id(sessions, *session),
                session,
                "the retained context of a session is gone"
            );
        }
        if begun.missed.is_empty() {
            return Ok(());
        }
        let progress = ReadProgress { sessions: vec![], missed: begun.missed };
        Ok(end.send(Frame::Progress(progress))?)
    }
}

/// Ends a draft before the first id that is not below `vocab`: padding of the drafter's head, which
/// may be longer than the target's.
fn cut_unknown(draft: &mut DraftTokens, vocab: u32) {
    let known = draft.ids.iter().take_while(|id| **id < vocab).count();
    draft.ids.truncate(known);
    draft.logprobs.truncate(known);
}

/// The request that a session serves, for the log; empty if the target did not name it.
fn request_id(sessions: &Sessions, session: SessionId) -> &str {
    sessions.request_id(session).map_or("", |id| id.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_draft_ends_before_padding_that_the_target_does_not_have() {
        let cut = |ids: &[u32], logprobs: &[f32]| {
            let (ids, logprobs) = (ids.to_vec(), logprobs.to_vec());
            let mut draft = DraftTokens { session: 1, position: 9, ids, logprobs, drafts_from: 0 };
            cut_unknown(&mut draft, 100);
            (draft.ids, draft.logprobs)
        };
        assert_eq!(cut(&[99, 100, 5], &[-0.5, -1.0, -2.0]), (vec![99], vec![-0.5]));
        assert_eq!(cut(&[1, 2], &[]), (vec![1, 2], vec![]));
        assert_eq!(cut(&[100], &[-0.5]), (vec![], vec![]));
    }
}
