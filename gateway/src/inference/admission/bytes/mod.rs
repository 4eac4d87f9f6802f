//! The one budget of bytes (`limits.body_bytes`) for bodies that are received and for whole answers
//! that are made.
//!
//! A holder may have as many bytes of a kind as are left for others after it, so each further party
//! finds some. Bodies wait in turn by party; answers do not wait, because a request that runs holds
//! a place of the target.
//!
//! Bodies cannot wait for each other in a circle. A body takes its whole length at once. One
//! without a length takes [`SMALL_BYTES`] first and the longest length next: bytes of one kind,
//! then of the other, and the holders of the second kind wait for nothing.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};

use paceline_protocols::inference::error::{InferenceError, Result};
use paceline_protocols::vllm::encode::AnswerRoom;
use paceline_vocabulary::Reason;
use tokio::sync::oneshot;

use crate::lock::lock;
use crate::metrics::ByteFigures;
use crate::turns::{Fit, Party, Turns};

/// Bytes of a body or an answer that are not counted. All requests together hold at most 21 MiB of
/// them by default, and almost every request has no more.
pub const FREE_BYTES: u64 = 64 << 10;
/// Bodies up to this length do not wait for longer ones. Prompts of agents are below it, documents
/// and images above.
pub const SMALL_BYTES: u64 = 1 << 20;
/// Bytes of an answer are counted in steps of this length.
const ANSWER_STEP: u64 = 64 << 10;

/// Purpose of held bytes. Half of the budget is for long bodies, a quarter for short ones. The
/// rest, and the bytes that bodies leave, is for answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ByteKind {
    /// Bodies of at most [`SMALL_BYTES`], and the first bytes of a body without a length.
    Small,
    /// Longer bodies.
    Large,
    /// Whole answers.
    Answer,
}

const KINDS: usize = 3;
/// The kinds that are waited for.
const BODIES: [ByteKind; 2] = [ByteKind::Small, ByteKind::Large];

/// The budget.
#[derive(Clone, Debug)]
pub struct ByteBudget(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    limit: u64,
    ledger: Mutex<ByteLedger>,
}

#[derive(Debug, Default)]
struct ByteLedger {
    held: ByKind,
    /// A party that holds nothing has no entry.
    of_parties: HashMap<Party, ByKind>,
    /// Bodies that wait, by their kind.
    waiting: [Turns<Waiter>; KINDS],
    next_id: u64,
}

/// Bytes of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ByKind([u64; KINDS]);

impl ByKind {
    fn get(self, kind: ByteKind) -> u64 {
        self.0[kind as usize]
    }

    fn add(&mut self, kind: ByteKind, bytes: u64) {
        self.0[kind as usize] += bytes;
    }

    fn take(&mut self, kind: ByteKind, bytes: u64) {
        self.0[kind as usize] = self.get(kind).saturating_sub(bytes);
    }

    fn sum(self) -> u64 {
        self.0.iter().sum()
    }
}

#[derive(Debug)]
struct Waiter {
    id: u64,
    bytes: u64,
    given: oneshot::Sender<()>,
}

impl ByteBudget {
    /// A budget of `limits.body_bytes`.
    pub fn new(limit: u64) -> Self {
        Self(Arc::new(Shared { limit, ledger: Mutex::default() }))
    }

    /// Holds nothing yet, for one body or answer of this party.
    pub fn hold(&self, party: Party) -> Arc<ByteHold> {
        Arc::new(ByteHold { budget: self.clone(), party, held: Mutex::default() })
    }

    /// Bytes that are held now.
    pub fn figures(&self) -> ByteFigures {
        let ledger = lock(&self.0.ledger);
        let answers = ledger.held.get(ByteKind::Answer);
        ByteFigures {
            limit: self.0.limit,
            bodies: ledger.held.sum() - answers,
            answers,
            waiting: ledger.waiting.iter().map(Turns::len).sum(),
        }
    }

    fn give_back(&self, party: &Party, bytes: ByKind) {
        if bytes == ByKind::default() {
            return;
        }
        let mut ledger = lock(&self.0.ledger);
        for kind in [ByteKind::Small, ByteKind::Large, ByteKind::Answer] {
            ledger.remove(party, kind, bytes.get(kind));
        }
        ledger.serve(self.0.limit);
    }
}

impl ByteLedger {
    fn fit(&self, limit: u64, party: &Party, kind: ByteKind, bytes: u64) -> Fit {
        let (most, held) = match kind {
            ByteKind::Small => (limit / 4, self.held.get(kind)),
            ByteKind::Large => (limit / 2, self.held.get(kind)),
            ByteKind::Answer => (limit, self.held.sum()),
        };
        let of_party = self.of_parties.get(party).map_or(0, |held| held.get(kind));
        let after = of_party.saturating_add(bytes);
        // As much is left for others as the party has then.
        if held.saturating_add(bytes).saturating_add(after) <= most {
            Fit::Fits
        } else if of_party == 0 {
            Fit::Blocks
        } else {
            Fit::PassOver
        }
    }

    fn add(&mut self, party: &Party, kind: ByteKind, bytes: u64) {
        self.held.add(kind, bytes);
        self.of_parties.entry(party.clone()).or_default().add(kind, bytes);
    }

    fn remove(&mut self, party: &Party, kind: ByteKind, bytes: u64) {
        self.held.take(kind, bytes);
        if let Some(held) = self.of_parties.get_mut(party) {
            held.take(kind, bytes);
            if *held == ByKind::default() {
                self.of_parties.remove(party);
            }
        }
    }

    /// Gives bytes to the bodies whose turn it is and that fit.
    fn serve(&mut self, limit: u64) {
        for kind in BODIES {
            let mut turns = std::mem::take(&mut self.waiting[kind as usize]);
            while let Some((party, waiter)) =
                turns.next(|party, waiter| self.fit(limit, party, kind, waiter.bytes))
            {
                self.add(&party, kind, waiter.bytes);
                // The receiver leaves the queue before it goes, so it is there.
                let _ = waiter.given.send(());
            }
            self.waiting[kind as usize] = turns;
        }
    }
}

/// The bytes of one body or one answer; given back when dropped.
#[derive(Debug)]
pub struct ByteHold {
    budget: ByteBudget,
    party: Party,
    held: Mutex<ByKind>,
}

impl ByteHold {
    /// Takes bytes of a body, in turn.
    pub fn take(self: &Arc<Self>, kind: ByteKind, bytes: u64) -> TakeBytes {
        let (id, receiver) = {
            let mut ledger = lock(&self.budget.0.ledger);
            let (id, (given, receiver)) = (ledger.next_id, oneshot::channel());
            ledger.next_id += 1;
            let waiting = &mut ledger.waiting[kind as usize];
            waiting.push(&self.party, Waiter { id, bytes, given });
            ledger.serve(self.budget.0.limit);
            (id, receiver)
        };
        TakeBytes { hold: Arc::clone(self), kind, bytes, id, given: Some(receiver) }
    }

    /// Gives back the bytes that are held above `bytes`.
    pub fn shrink(&self, bytes: u64) {
        let mut back = ByKind::default();
        {
            let mut held = lock(&self.held);
            for kind in [ByteKind::Answer, ByteKind::Large, ByteKind::Small] {
                let more = held.sum().saturating_sub(bytes).min(held.get(kind));
                held.take(kind, more);
                back.add(kind, more);
            }
        }
        self.budget.give_back(&self.party, back);
    }
}

impl AnswerRoom for ByteHold {
    fn grow_answer(&self, bytes: u64) -> Result<()> {
        let mut held = lock(&self.held);
        let counted = held.get(ByteKind::Answer);
        if bytes <= FREE_BYTES.max(counted) {
            return Ok(());
        }
        let (more, limit) = ((bytes - counted).max(ANSWER_STEP), self.budget.0.limit);
        let mut ledger = lock(&self.budget.0.ledger);
        if ledger.fit(limit, &self.party, ByteKind::Answer, more) == Fit::Fits {
            ledger.add(&self.party, ByteKind::Answer, more);
            held.add(ByteKind::Answer, more);
            return Ok(());
        }
        drop(ledger);
        Err(answer_too_large(counted + more, limit))
    }
}

impl Drop for ByteHold {
    fn drop(&mut self) {
        let held = *lock(&self.held);
        self.budget.give_back(&self.party, held);
    }
}

/// Bytes that a body waits for.
#[derive(Debug)]
pub struct TakeBytes {
    hold: Arc<ByteHold>,
    kind: ByteKind,
    bytes: u64,
    id: u64,
    /// `None` once the bytes are held.
    given: Option<oneshot::Receiver<()>>,
}

impl Future for TakeBytes {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let Some(given) = &mut self.given else { return Poll::Ready(()) };
        // The sender stays in the queue until it is used.
        let _ = ready!(Pin::new(given).poll(context));
        self.given = None;
        lock(&self.hold.held).add(self.kind, self.bytes);
        Poll::Ready(())
    }
}

impl Drop for TakeBytes {
    fn drop(&mut self) {
        if self.given.is_none() {
            return;
        }
        let ByteHold { budget, party, .. } = &*self.hold;
        let (id, kind) = (self.id, self.kind);
        let mut ledger = lock(&budget.0.ledger);
        // Bytes that are not waited for were given, and not taken.
        if ledger.waiting[kind as usize].leave(party, |one| one.id == id) == 0 {
            ledger.remove(party, kind, self.bytes);
        }
        ledger.serve(budget.0.limit);
    }
}

/// The refusal of a body that waited for its whole time.
pub fn bodies_full() -> InferenceError {
    let message = "the bodies that others send take all memory that there is for them (limits.body_bytes of this service), \
                   and none of it came free in time; try again shortly";
    InferenceError::new(Reason::BodiesFull, message).field("limits.body_bytes")
}

fn answer_too_large(found: u64, limit: u64) -> InferenceError {
    // As much as the only party may have.
    let most = limit / 2;
    let (reason, expected) = if found > most {
        (
            Reason::MessageTooLarge,
            format!(
                "at most {most} bytes in an answer that is not streamed (half of limits.body_bytes of this service)"
            ),
        )
    } else {
        (
            Reason::BodiesFull,
            "room beside the bodies and answers of others (limits.body_bytes of this service)"
                .to_owned(),
        )
    };
    let message = format!(
        "answer: expected {expected}, found {found} and more to come; ask for it as a stream, or for fewer tokens, samples or log-probabilities"
    );
    let error = InferenceError::new(reason, message).field("limits.body_bytes");
    error.fact("limit_bytes", most).fact("found_bytes", found)
}

#[cfg(test)]
mod tests;
