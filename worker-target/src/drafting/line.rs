//! One link to a drafter, from its Hello to its end: frames in and out, and what they must hold
//! (I3).

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use paceline_link::{End, Frame, LinkError, frame, handshake};
use paceline_proto::internal::v1::{
    Hello, MaskRow, Proposal, ProposalKind, SessionReach, TensorType, Want, Welcome,
};
use paceline_vocabulary::Millis;

/// Rounds of wants that may be unanswered. A drafter that owes more is not asked.
const MOST_ROUNDS: usize = 64;
/// For the answer to Hello.
const GREETING_MS: u64 = 10_000;

/// Why a link is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The pair does not go together.
    Refused(String),
    /// The drafter broke the protocol.
    Ejected(String),
    /// It is gone.
    Lost(String),
}

impl From<LinkError> for Fault {
    fn from(error: LinkError) -> Self {
        match error {
            LinkError::Gone => Fault::Lost("the drafter closed the link".into()),
            LinkError::Stalled => Fault::Ejected("it does not read what it is sent".into()),
            LinkError::Protocol(what) => Fault::Ejected(what),
            LinkError::Io(error) => Fault::Lost(format!("the link failed: {error}")),
        }
    }
}

/// A link whose handshake is not over.
#[derive(Debug)]
pub(super) struct Greeting {
    end: End,
    hello: Hello,
    until: Millis,
}

impl Greeting {
    /// Says hello.
    pub(super) fn start(mut end: End, hello: Hello, now: Millis) -> Result<Self, Fault> {
        let hello = Hello { generation: end.generation(), ..hello };
        end.send(Frame::Hello(hello.clone()))?;
        Ok(Self { end, hello, until: now + GREETING_MS })
    }

    pub(super) fn end(&self) -> &End {
        &self.end
    }

    /// Looks whether the drafter has answered.
    pub(super) fn answered(&mut self, now: Millis) -> Result<Option<Welcome>, Fault> {
        self.end.limit_intake();
        match self.end.receive(Duration::ZERO)? {
            Some(Frame::Welcome(welcome)) => {
                handshake::check_welcome(&self.hello, &welcome).map_err(Fault::Refused)?;
                Ok(Some(welcome))
            }
            Some(Frame::Refusal(refusal)) => Err(Fault::Refused(refusal.reason)),
            Some(other) => Err(Fault::Ejected(format!(
                "expected an answer to Hello, found {}",
                frame::name(&other)
            ))),
            None if now >= self.until => {
                Err(Fault::Lost(format!("no answer to Hello within {} s", GREETING_MS / 1000)))
            }
            None => Ok(None),
        }
    }

    /// The link, greeted. `mask_row` is the mask token's embedding, as bytes.
    pub(super) fn into_line(mut self, welcome: Welcome, mask_row: &[u8]) -> Result<Line, Fault> {
        if welcome.proposal() == ProposalKind::Hidden {
            let kind = self.hello.r#type();
            let tensor = self.end.put(1, self.hello.hidden_size, kind, mask_row)?;
            self.end.send(Frame::MaskRow(MaskRow { tensor }))?;
        }
        let (vocab, kind) = (self.hello.vocab_size, self.hello.r#type());
        Ok(Line {
            end: self.end,
            welcome,
            vocab,
            kind,
            idle_reports: 0,
            last_round: 0,
            rounds: BTreeMap::new(),
        })
    }
}

/// Wants that were asked together.
#[derive(Clone, Debug)]
struct Round {
    asked: Asked,
    /// Session, position, tokens at most.
    wants: Vec<(u64, u32, u32)>,
}

/// When drafts were asked for, and how much work they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Asked {
    pub(super) at_ns: i64,
    /// Rows of the blocks and of context sent with them.
    pub(super) rows: usize,
    /// Steps the target had done.
    pub(super) steps: u64,
}

/// What was proposed for a session.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Proposed {
    /// Hidden rows that meet the target's head.
    Hidden {
        /// Row-major, as bytes.
        bytes: Vec<u8>,
        /// How many.
        rows: usize,
        /// What their numbers are.
        kind: TensorType,
        /// Cap of the draft logits; 0 is none.
        softcap: f32,
    },
    /// Token ids, each below the vocabulary's size.
    Ids(Vec<u32>),
}

impl Proposed {
    /// Drafted tokens.
    pub(crate) fn len(&self) -> usize {
        match self {
            Proposed::Hidden { rows, .. } => *rows,
            Proposed::Ids(ids) => ids.len(),
        }
    }
}

/// What came over a link.
#[derive(Debug)]
pub(super) enum Heard {
    /// Drafts: session, position, what. Sessions that were asked for and are not named could not be
    /// served.
    Drafts { asked: Asked, served: Vec<(u64, u32, Proposed)>, left_out: Vec<(u64, u32)> },
    /// The drafter has read so far, and could not begin these sessions with what it was thought to
    /// have kept.
    Reach { sessions: Vec<SessionReach>, missed: Vec<u64> },
}

/// A link over which drafts come.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) end: End,
    pub(super) welcome: Welcome,
    vocab: u32,
    /// What our numbers are.
    pub(super) kind: TensorType,
    /// Progress reports in a row that told nothing new.
    pub(super) idle_reports: usize,
    last_round: u64,
    rounds: BTreeMap<u64, Round>,
}

impl Line {
    /// Whether it owes us so much that it is not asked for more.
    pub(super) fn is_clogged(&self) -> bool {
        self.rounds.len() >= MOST_ROUNDS
    }

    /// Opens a round of these wants.
    pub(super) fn open_round(&mut self, wants: &[Want], asked: Asked) -> u64 {
        self.last_round += 1;
        let wants =
            wants.iter().map(|want| (want.session, want.position, want.block - 1)).collect();
        self.rounds.insert(self.last_round, Round { asked, wants });
        self.last_round
    }

    /// The next message that is there.
    pub(super) fn hear(&mut self) -> Result<Option<Heard>, Fault> {
        match self.end.receive(Duration::ZERO)? {
            None => Ok(None),
            Some(Frame::Proposal(proposal)) => self.check(&proposal).map(Some),
            Some(Frame::Reach(reach)) => {
                Ok(Some(Heard::Reach { sessions: reach.sessions, missed: reach.missed }))
            }
            Some(other) => Err(Fault::Ejected(format!(
                "expected Proposal or Reach, found {}",
                frame::name(&other)
            ))),
        }
    }

    /// Holds a proposal against what was asked for. Its rows are copied out in any case, as the
    /// peer counts them.
    fn check(&mut self, proposal: &Proposal) -> Result<Heard, Fault> {
        let eject = |what: String| {
            Err(Fault::Ejected(format!("proposal of round {}: {what}", proposal.round)))
        };
        let Some(round) = self.rounds.remove(&proposal.round) else {
            return eject("it was not asked for, or is answered already".into());
        };
        let mut seen = HashSet::new();
        for draft in &proposal.drafts {
            let Some(want) = round.wants.iter().find(|want| want.0 == draft.session) else {
                return eject(format!("session {} was not asked for", draft.session));
            };
            if !seen.insert(draft.session) {
                return eject(format!("session {} comes twice", draft.session));
            }
            if draft.position != want.1 || !(1..=want.2).contains(&draft.rows) {
                let expected = format!("position {} and 1 to {} tokens", want.1, want.2);
                return eject(format!(
                    "expected {expected}, found {} and {}",
                    draft.position, draft.rows
                ));
            }
        }
        let served = match self.welcome.proposal() {
            ProposalKind::Tokens => {
                if proposal.hidden.is_some() {
                    return eject("expected ids, found hidden rows".into());
                }
                let ids = |draft: &paceline_proto::internal::v1::Draft| {
                    let fault = if draft.ids.len() != draft.rows as usize {
                        Some(format!("expected {} ids, found {}", draft.rows, draft.ids.len()))
                    } else {
                        let beyond = draft.ids.iter().find(|id| **id >= self.vocab);
                        beyond.map(|id| format!("expected ids below {}, found {id}", self.vocab))
                    };
                    fault.map_or(
                        Ok((draft.session, draft.position, Proposed::Ids(draft.ids.clone()))),
                        Err,
                    )
                };
                match proposal.drafts.iter().map(ids).collect() {
                    Ok(served) => served,
                    Err(fault) => return eject(fault),
                }
            }
            ProposalKind::Hidden | ProposalKind::Unspecified => {
                let rows: u32 = proposal.drafts.iter().map(|draft| draft.rows).sum();
                let (columns, kind) = (self.welcome.hidden_size, self.welcome.r#type());
                let fits = |tensor: &paceline_proto::internal::v1::TensorRef| {
                    (tensor.rows, tensor.columns, tensor.r#type) == (rows, columns, kind.into())
                };
                match (&proposal.hidden, rows) {
                    (None, 0) => vec![],
                    (Some(tensor), 1..)
                        if fits(tensor)
                            && proposal.drafts.iter().all(|draft| draft.ids.is_empty()) =>
                    {
                        let bytes = self.end.take(tensor)?;
                        let row_bytes = bytes.len() / rows as usize;
                        let mut rest = bytes.as_slice();
                        let cut = |draft: &paceline_proto::internal::v1::Draft| {
                            let (mine, others) = rest.split_at(draft.rows as usize * row_bytes);
                            rest = others;
                            let (bytes, rows, softcap) =
                                (mine.to_vec(), draft.rows as usize, self.welcome.logit_softcap);
                            (
                                draft.session,
                                draft.position,
                                Proposed::Hidden { bytes, rows, kind, softcap },
                            )
                        };
                        proposal.drafts.iter().map(cut).collect()
                    }
                    (found, _) => {
                        return eject(format!(
                            "expected {rows} hidden rows of {columns} {kind:?}, found {found:?}"
                        ));
                    }
                }
            }
        };
        let left_out = round
            .wants
            .iter()
            .filter(|want| !seen.contains(&want.0))
            .map(|want| (want.0, want.1))
            .collect();
        Ok(Heard::Drafts { asked: round.asked, served, left_out })
    }
}
