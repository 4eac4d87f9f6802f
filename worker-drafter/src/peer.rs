//! The link's drafter end: greets, takes Feeds in, sends Proposals. Whatever is wrong with the peer
//! ends the link, never the worker.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use paceline_link::{End, Frame, LinkError, frame, handshake, tensor};
use paceline_proto::internal::v1::{
    Draft, Feed, Hello, LinkPhase, Proposal, Reach, Refusal, TensorRef, TensorType, Welcome,
};

use crate::core::{Kept, Move, Sessions, Step, Terms};
use crate::model::Proposed;

/// Sessions a target may have at most.
const MAX_SESSIONS: u32 = 1024;
/// Longest sequence: what our arithmetic of positions takes with room to spare.
const MAX_POSITIONS: u32 = 1 << 30;
/// Nothing more is taken in while so many bytes wait to be read: a target that is faster than we
/// are finds its ring full.
const MAX_WAITING_BYTES: u64 = 64 << 20;
/// Nor while so many rounds do.
const MAX_WAITING_ROUNDS: usize = 32;

/// Why a link ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) phase: LinkPhase,
    pub(crate) reason: String,
}

impl From<LinkError> for Ended {
    fn from(error: LinkError) -> Self {
        let (phase, reason) = match error {
            LinkError::Gone => (LinkPhase::Lost, "the target closed the link".into()),
            LinkError::Stalled => (LinkPhase::Ejected, "the target has stopped reading".into()),
            LinkError::Protocol(what) => (LinkPhase::Ejected, what),
            LinkError::Io(cause) => (LinkPhase::Ejected, cause.to_string()),
        };
        Self { phase, reason }
    }
}

fn fault(what: impl Into<String>) -> Ended {
    Ended { phase: LinkPhase::Ejected, reason: what.into() }
}

/// A link and its sessions.
pub(crate) struct Peer {
    end: End,
    welcome: Welcome,
    /// Positions the model takes.
    context: u32,
    /// Bytes of a position in the store, and of all kept contexts at most.
    keep: (u64, u64),
    first_slot: u64,
    up: Option<Up>,
}

struct Up {
    sessions: Sessions,
    mask: Option<Vec<u8>>,
}

impl Peer {
    /// `welcome`: what we say of ourselves; `context`: positions the model takes; `keep`: bytes of
    /// one of them, and of all contexts of ended sessions that are kept, at most; `first_slot`
    /// names the first session.
    pub(crate) fn new(
        end: End,
        welcome: Welcome,
        context: u32,
        keep: (u64, u64),
        first_slot: u64,
    ) -> Self {
        let welcome = Welcome { generation: end.generation(), ..welcome };
        Self { end, welcome, context, keep, first_slot, up: None }
    }

    pub(crate) fn generation(&self) -> u64 {
        self.end.generation()
    }

    pub(crate) fn is_up(&self) -> bool {
        self.up.is_some()
    }

    pub(crate) fn sessions(&self) -> usize {
        self.up.as_ref().map_or(0, |up| up.sessions.len())
    }

    pub(crate) fn next_slot(&self) -> u64 {
        self.up.as_ref().map_or(self.first_slot, |up| up.sessions.next_slot())
    }

    /// What is to be done in the store before the next step, in this order.
    pub(crate) fn take_moves(&mut self) -> Vec<Move> {
        self.up.as_mut().map(|up| up.sessions.take_moves()).unwrap_or_default()
    }

    /// Bytes of kept contexts.
    pub(crate) fn kept_bytes(&self) -> u64 {
        self.up.as_ref().map_or(0, |up| up.sessions.kept_bytes())
    }

    pub(crate) fn next_step(&mut self) -> Option<Step> {
        self.up.as_mut().and_then(|up| up.sessions.next_step())
    }

    /// What the target's rows are made of, and the mask token's embedding (empty until it came).
    pub(crate) fn rows(&self) -> (TensorType, &[u8]) {
        let up = self.up.as_ref();
        let mask = up.and_then(|up| up.mask.as_deref()).unwrap_or_default();
        (up.map_or(TensorType::Unspecified, |up| up.sessions.terms().kind), mask)
    }

    /// To wait on for something to receive.
    pub(crate) fn poll_fd(&self) -> BorrowedFd<'_> {
        self.end.poll_fd()
    }

    /// Whether everything we said is on its way.
    pub(crate) fn is_flushed(&self) -> bool {
        self.end.is_flushed()
    }

    /// Takes in what has come.
    pub(crate) fn receive(&mut self) -> Result<(), Ended> {
        while self.has_room() {
            let Some(frame) = self.end.receive(Duration::ZERO)? else { return Ok(()) };
            self.on_frame(frame)?;
        }
        // What waits to be written goes out all the same.
        Ok(self.end.flush()?)
    }

    fn has_room(&self) -> bool {
        let room = |up: &Up| {
            up.sessions.waiting_bytes() < MAX_WAITING_BYTES
                && up.sessions.waiting_rounds() < MAX_WAITING_ROUNDS
        };
        self.up.as_ref().is_none_or(room)
    }

    fn on_frame(&mut self, frame: Frame) -> Result<(), Ended> {
        match (frame, &mut self.up) {
            (Frame::Hello(hello), None) => self.greet(&hello),
            (Frame::MaskRow(row), Some(up)) if up.mask.is_none() => {
                let row = row
                    .tensor
                    .filter(|row| up.fits(row))
                    .ok_or_else(|| fault("expected one row of embeddings as the mask"))?;
                up.mask = Some(self.end.take(&row)?);
                Ok(())
            }
            (Frame::Feed(feed), Some(up)) => up.feed(feed, &mut self.end),
            (other, _) => {
                Err(fault(format!("a {} that is not expected here", frame::name(&other))))
            }
        }
    }

    fn greet(&mut self, hello: &Hello) -> Result<(), Ended> {
        if let Err(reason) = self.check(hello) {
            self.end.send(Frame::Refusal(Refusal { reason: reason.clone() }))?;
            return Err(Ended { phase: LinkPhase::Refused, reason });
        }
        self.end.send(Frame::Welcome(self.welcome.clone()))?;
        let terms = Terms {
            hidden: hello.hidden_size,
            taps: hello.hidden_size * self.welcome.tap_layers.len() as u32,
            block: self.welcome.block_size,
            context: self.context.min(hello.context_length),
            target_context: hello.context_length,
            max_sessions: hello.max_sessions as usize,
            kind: hello.r#type(),
        };
        let kept = Kept::new(self.keep.0, self.keep.1);
        self.up = Some(Up { sessions: Sessions::new(terms, kept, self.first_slot), mask: None });
        Ok(())
    }

    fn check(&self, hello: &Hello) -> Result<(), String> {
        handshake::check_hello(hello, &self.welcome, self.end.generation())?;
        for (what, most, found) in [
            ("sessions", MAX_SESSIONS, hello.max_sessions),
            ("context length", MAX_POSITIONS, hello.context_length),
        ] {
            if found > most {
                return Err(format!(
                    "{what} of the target: expected at most {most}, found {found}"
                ));
            }
        }
        Ok(())
    }

    /// Answers a round. Where the ring has no room for the rows, or they are no numbers, nothing is
    /// proposed.
    pub(crate) fn propose(&mut self, round: u64, proposed: Option<&Proposed>) -> Result<(), Ended> {
        let mut proposal = Proposal { round, ..Proposal::default() };
        if let Some(proposed) = proposed {
            let kind = self.welcome.r#type();
            let rows = proposed.drafts.iter().map(|(_, _, rows)| rows).sum();
            let tensor = match tensor::all_finite(&proposed.bytes, kind) {
                true => self.end.put(rows, self.welcome.hidden_size, kind, &proposed.bytes)?,
                false => {
                    tracing::warn!(round, "hidden rows are not finite; nothing is proposed");
                    None
                }
            };
            if tensor.is_some() {
                let draft = |&(session, position, rows): &(u64, u32, u32)| Draft {
                    session,
                    position,
                    rows,
                    ids: vec![],
                };
                proposal = Proposal {
                    round,
                    drafts: proposed.drafts.iter().map(draft).collect(),
                    hidden: tensor,
                };
            }
        }
        Ok(self.end.send(Frame::Proposal(proposal))?)
    }

    /// Tells how far sessions were read.
    pub(crate) fn reach(&mut self, step: &Step) -> Result<(), Ended> {
        match step.reach.is_empty() {
            true => Ok(()),
            false => Ok(self
                .end
                .send(Frame::Reach(Reach { sessions: step.reach.clone(), missed: vec![] }))?),
        }
    }
}

impl Up {
    fn fits(&self, row: &TensorRef) -> bool {
        let terms = self.sessions.terms();
        row.rows == 1 && row.columns == terms.hidden && row.r#type == i32::from(terms.kind)
    }

    fn feed(&mut self, feed: Feed, end: &mut End) -> Result<(), Ended> {
        if !feed.wants.is_empty() && self.mask.is_none() {
            return Err(fault("drafts are wanted before the mask row came"));
        }
        self.sessions.check(&feed).map_err(fault)?;
        let mut take = |tensor: &Option<TensorRef>| {
            tensor.as_ref().map_or(Ok(vec![]), |tensor| end.take(tensor))
        };
        let (taps, bonus) = (take(&feed.taps)?, take(&feed.bonus)?);
        let missed = self.sessions.feed(feed, taps, bonus);
        match missed.is_empty() {
            true => Ok(()),
            false => Ok(end.send(Frame::Reach(Reach { sessions: vec![], missed }))?),
        }
    }
}
