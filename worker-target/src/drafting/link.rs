//! One link to a drafter, from its Hello to its end: the handshake, then frames in and out.

use std::collections::BTreeMap;
use std::time::Duration;

use paceline_link::{End, Frame, LinkError, handshake};
use paceline_vocabulary::link::{DraftRequest, Hello, ReadProgress, SessionId, Welcome};
use paceline_vocabulary::state::LinkPhase;
use paceline_vocabulary::{Millis, chain};

use super::draft::ServedDraft;

/// Most rounds of requests without an answer. A drafter that owes more gets no requests.
const MAX_OPEN_ROUNDS: usize = 64;
/// Time for the answer to Hello, in milliseconds.
const HANDSHAKE_MS: u64 = 10_000;

/// Why a link is over, or was never up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LinkEnd {
    /// Refused, ejected or lost.
    pub(super) phase: LinkPhase,
    /// For the supervisor's status and the log.
    pub(super) reason: String,
}

impl LinkEnd {
    /// The pair does not go together.
    fn refused(reason: impl Into<String>) -> Self {
        Self { phase: LinkPhase::Refused, reason: reason.into() }
    }

    /// The drafter broke a rule of the protocol.
    pub(super) fn ejected(reason: impl Into<String>) -> Self {
        Self { phase: LinkPhase::Ejected, reason: reason.into() }
    }

    /// The drafter is gone.
    fn lost(reason: impl Into<String>) -> Self {
        Self { phase: LinkPhase::Lost, reason: reason.into() }
    }
}

impl From<LinkError> for LinkEnd {
    fn from(error: LinkError) -> Self {
        match error {
            LinkError::Gone => Self::lost("the drafter closed the link"),
            LinkError::Stalled => Self::ejected("the drafter has stopped reading"),
            LinkError::Protocol(fault) => Self::ejected(chain(&fault)),
            LinkError::Io(_) => Self::lost(chain(&error)),
        }
    }
}

/// A link whose handshake is not over.
#[derive(Debug)]
pub(super) struct Handshake {
    end: End,
    hello: Hello,
    deadline: Millis,
}

impl Handshake {
    /// Sends Hello.
    pub(super) fn start(mut end: End, hello: Hello, now: Millis) -> Result<Self, LinkEnd> {
        let hello = Hello { generation: end.generation(), ..hello };
        end.send(Frame::Hello(hello.clone()))?;
        Ok(Self { end, hello, deadline: now + HANDSHAKE_MS })
    }

    pub(super) fn end(&self) -> &End {
        &self.end
    }

    /// The drafter's Welcome, if it has come.
    pub(super) fn answer(&mut self, now: Millis) -> Result<Option<Welcome>, LinkEnd> {
        self.end.limit_intake();
        match self.end.receive(Duration::ZERO)? {
            Some(Frame::Welcome(welcome)) => {
                handshake::check_welcome(&self.hello, &welcome)
                    .map_err(|mismatch| LinkEnd::refused(mismatch.to_string()))?;
                Ok(Some(welcome))
            }
            Some(Frame::Refusal(reason)) => Err(LinkEnd::refused(reason)),
            Some(other) => {
                let found = other.name();
                Err(LinkEnd::ejected(format!("expected an answer to Hello, found {found}")))
            }
            None if now >= self.deadline => {
                let seconds = HANDSHAKE_MS / 1000;
                Err(LinkEnd::lost(format!("no answer to Hello within {seconds} s")))
            }
            None => Ok(None),
        }
    }

    /// The link after its handshake. `mask_row` is the embedding of the token that the Welcome
    /// names, as bytes.
    pub(super) fn finish(
        mut self,
        welcome: Welcome,
        mask_row: Option<&[u8]>,
    ) -> Result<DrafterLink, LinkEnd> {
        if let Some(row) = mask_row {
            let row = self.end.put(1, self.hello.hidden_size, self.hello.element, row)?;
            let row = row.ok_or_else(|| LinkEnd::lost("the ring has no room for one row"))?;
            self.end.send(Frame::MaskRow(row))?;
        }
        Ok(DrafterLink {
            end: self.end,
            welcome,
            vocab_size: self.hello.vocab_size,
            idle_reports: 0,
            last_round: 0,
            rounds: BTreeMap::new(),
        })
    }
}

/// Requests that were sent together.
#[derive(Clone, Debug)]
pub(super) struct SentRound {
    pub(super) requested: RequestTime,
    pub(super) requests: Vec<RequestedDraft>,
}

/// A request without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RequestedDraft {
    pub(super) session: SessionId,
    /// Position of the bonus token.
    pub(super) position: u32,
    /// Most tokens of the draft.
    pub(super) max_tokens: u32,
}

/// When a round was requested, and how much work it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RequestTime {
    pub(super) at_ns: i64,
    /// Rows of the blocks, and of context that was not read yet.
    pub(super) rows: usize,
    /// Steps that the target had done.
    pub(super) steps: u64,
}

/// A message of the drafter, after its checks.
#[derive(Debug)]
pub(super) enum Received {
    /// Drafts, and the requests of the round that got none.
    Drafts { requested: RequestTime, served: Vec<ServedDraft>, left_out: Vec<RequestedDraft> },
    /// How far the drafter has read.
    Progress(ReadProgress),
}

/// A link over which drafts come.
#[derive(Debug)]
pub(super) struct DrafterLink {
    pub(super) end: End,
    pub(super) welcome: Welcome,
    pub(super) vocab_size: u32,
    /// Progress reports in a row with nothing new.
    pub(super) idle_reports: usize,
    last_round: u64,
    rounds: BTreeMap<u64, SentRound>,
}

impl DrafterLink {
    /// Whether the drafter reads token ids and no hidden states. Ids are at hand for all committed
    /// rows of a sequence.
    pub(super) fn reads_ids_alone(&self) -> bool {
        self.welcome.feature_layers.is_empty()
    }

    /// Whether the drafter owes too many answers to get another request.
    pub(super) fn is_clogged(&self) -> bool {
        self.rounds.len() >= MAX_OPEN_ROUNDS
    }

    /// Opens a round of these requests.
    pub(super) fn open_round(&mut self, requests: &[DraftRequest], requested: RequestTime) -> u64 {
        self.last_round += 1;
        let requests = requests.iter().map(|request| RequestedDraft {
            session: request.session,
            position: request.position,
            max_tokens: request.block - 1,
        });
        let round = SentRound { requested, requests: requests.collect() };
        self.rounds.insert(self.last_round, round);
        self.last_round
    }

    /// Takes a round off those that wait for an answer.
    pub(super) fn close_round(&mut self, number: u64) -> Option<SentRound> {
        self.rounds.remove(&number)
    }

    /// The next message that has come.
    pub(super) fn receive(&mut self) -> Result<Option<Received>, LinkEnd> {
        match self.end.receive(Duration::ZERO)? {
            None => Ok(None),
            Some(Frame::Proposal(proposal)) => self.check(proposal).map(Some),
            Some(Frame::Progress(progress)) => Ok(Some(Received::Progress(progress))),
            Some(other) => {
                let found = other.name();
                Err(LinkEnd::ejected(format!("expected Proposal or ReadProgress, found {found}")))
            }
        }
    }
}
