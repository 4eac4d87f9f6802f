//! The sessions of one link and the work that waits for them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

use paceline_vocabulary::RequestId;
use paceline_vocabulary::link::{
    Context, DraftRequest, DraftSampling, Feed, ImageSpan, RestoredPrefix, RetainedPages,
    SessionId, SessionProgress,
};

use crate::{PIECE_ROWS, RIDER_ROWS, RetainedContexts, Rows, StoreCommand, Terms};

/// Work of one forward for one session.
#[derive(Clone, Debug, PartialEq)]
pub struct SessionWork {
    /// The target's number of the session.
    pub session: SessionId,
    /// Number of the session in the KV store; another one after every fresh start.
    pub slot: u64,
    /// Absolute position of the first context row, or of the bonus token if there is no context.
    pub position: u32,
    /// Context rows to read.
    pub context: u32,
    /// The hidden states of these rows, in order; none for a drafter without feature layers.
    pub hidden: Vec<Rows>,
    /// The token ids of these rows, if the drafter reads them.
    pub ids: Vec<u32>,
    /// The token after these rows, if the drafter reads token ids and the token is known.
    pub next_id: Option<u32>,
    /// All images of the sequence, ascending.
    pub images: Rc<[ImageSpan]>,
    /// The block to draft; `None` only reads.
    pub block: Option<DraftBlock>,
}

impl SessionWork {
    /// Absolute position after the context rows: that of the bonus token.
    pub fn end(&self) -> u32 {
        self.position + self.context
    }

    /// Rows of the block, the bonus token included; 0 without one.
    pub fn block_rows(&self) -> u32 {
        self.block.as_ref().map_or(0, |block| block.rows)
    }
}

/// A block to draft.
#[derive(Clone, Debug, PartialEq)]
pub struct DraftBlock {
    /// Rows of the block, the bonus token included: at least 2.
    pub rows: u32,
    /// The bonus token.
    pub bonus_id: u32,
    /// The bonus token's embedding, if the drafter takes embeddings.
    pub bonus: Option<Rows>,
    /// How the sequence samples.
    pub sampling: DraftSampling,
    /// As in the request: drafts with less survival are not worth verifying.
    pub least_survival: f32,
}

/// One forward, and what is reported after it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Step {
    /// The sessions in it, each once. Empty if no request of the round can be served: then there is
    /// nothing to compute.
    pub sessions: Vec<SessionWork>,
    /// The round that it answers.
    pub round: Option<u64>,
    /// Requests of the round that it does not serve.
    pub denied: Vec<DeniedDraft>,
    /// How far sessions without a draft have been read after it.
    pub progress: Vec<SessionProgress>,
}

/// A draft request that is left out of the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeniedDraft {
    /// The session.
    pub session: SessionId,
    /// Why it is left out.
    pub reason: DenialReason,
}

/// Why a draft request is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DenialReason {
    /// The session was closed after the request.
    Closed,
    /// The session was to begin with a retained context that is not there.
    Missed,
    /// The session's context has moved on since the request.
    MovedOn,
    /// The block would end after the drafter's last position.
    EndOfContext,
    /// Too many rows of the session wait to be read.
    Reading,
}

/// Sessions that a Feed began.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Opened {
    /// Those that have all they begin with.
    pub opened: Vec<SessionId>,
    /// Those that were to begin with a retained context that is not there. They are read from their
    /// next fresh context on.
    pub missed: Vec<SessionId>,
}

#[derive(Debug)]
struct Session {
    request_id: Option<RequestId>,
    slot: u64,
    /// Position of its slot's first row.
    start: u32,
    /// It was to begin with a retained context that is not there: nothing of it is read until it
    /// starts afresh.
    missed: bool,
    /// Position after the last row that was in a step.
    read: u32,
    /// Position after the last row that came.
    end: u32,
    /// Rows from `read` on. Rows after the drafter's context are not among them: `read` never
    /// catches up then.
    pending: VecDeque<Rows>,
    pending_rows: u32,
    /// Token ids of the pending rows, if the drafter reads them.
    pending_ids: VecDeque<u32>,
    /// The token at `end`, likewise, if it is known.
    next_id: Option<u32>,
    /// All images of the sequence.
    images: Rc<[ImageSpan]>,
}

impl Session {
    /// Rows of the block that it can get, or why it gets none. `context`: the drafter's positions.
    fn block(&self, request: &DraftRequest, context: u32) -> Result<u32, DenialReason> {
        if self.missed {
            return Err(DenialReason::Missed);
        }
        if self.end != request.position {
            return Err(DenialReason::MovedOn);
        }
        // At the end of the drafter's context blocks get shorter.
        let rows = request.block.min(context.saturating_sub(self.end));
        if rows < 2 || self.read + self.pending_rows != self.end {
            return Err(DenialReason::EndOfContext);
        }
        if self.pending_rows > PIECE_ROWS { Err(DenialReason::Reading) } else { Ok(rows) }
    }
}

#[derive(Debug)]
struct Round {
    number: u64,
    requests: Vec<DraftRequest>,
    bonus: Rc<Vec<u8>>,
}

/// The sessions of one link.
#[derive(Debug)]
pub struct Sessions {
    terms: Terms,
    open: BTreeMap<SessionId, Session>,
    /// Sessions with rows to read, each once, oldest first.
    reading: VecDeque<SessionId>,
    rounds: VecDeque<Round>,
    last_round: u64,
    next_slot: u64,
    retained: RetainedContexts,
    commands: Vec<StoreCommand>,
}

impl Sessions {
    /// No sessions yet. Slots are numbered from `first_slot` up: no number twice in a store's life.
    pub fn new(terms: Terms, retained: RetainedContexts, first_slot: u64) -> Self {
        Self {
            terms,
            open: BTreeMap::new(),
            reading: VecDeque::new(),
            rounds: VecDeque::new(),
            last_round: 0,
            next_slot: first_slot,
            retained,
            commands: vec![],
        }
    }

    /// Terms that were agreed on in the handshake.
    pub fn terms(&self) -> &Terms {
        &self.terms
    }

    /// Open sessions.
    pub fn len(&self) -> usize {
        self.open.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Number of the newest round.
    pub(crate) fn last_round(&self) -> u64 {
        self.last_round
    }

    /// Where a session's context ends; `None` if it is not open.
    pub(crate) fn end(&self, session: SessionId) -> Option<u32> {
        self.open.get(&session).map(|session| session.end)
    }

    /// The request that a session serves, if it is open and the target named it.
    pub fn request_id(&self, session: SessionId) -> Option<&RequestId> {
        self.open.get(&session)?.request_id.as_ref()
    }

    /// Bytes of rows that wait to be read. The shell takes in no more while there are many.
    pub fn waiting_bytes(&self) -> u64 {
        self.open.values().map(|session| u64::from(session.pending_rows)).sum::<u64>()
            * self.context_row_bytes()
    }

    /// Bytes of a position that waits to be read.
    fn context_row_bytes(&self) -> u64 {
        let ids = if self.terms.token_ids { size_of::<u32>() } else { 0 };
        (self.row_bytes(self.terms.feature_width) + ids) as u64
    }

    /// Rounds that wait to be answered.
    pub fn waiting_rounds(&self) -> usize {
        self.rounds.len()
    }

    /// Commands for the store since the last call, to be done in this order, before the step that
    /// was returned last.
    pub fn take_commands(&mut self) -> Vec<StoreCommand> {
        std::mem::take(&mut self.commands)
    }

    /// Bytes of retained contexts.
    pub fn retained_bytes(&self) -> u64 {
        self.retained.bytes()
    }

    /// The number that the next slot would get.
    pub fn next_slot(&self) -> u64 {
        self.next_slot
    }

    fn row_bytes(&self, columns: u32) -> usize {
        columns as usize * self.terms.element.bytes()
    }

    /// Takes in a Feed that [`Sessions::check`] has passed, with the bytes of its tensors. Returns
    /// the sessions that it began.
    pub fn feed(&mut self, feed: Feed, hidden: Vec<u8>, bonus: Vec<u8>) -> Opened {
        for session in &feed.closed {
            if let Some(pages) = feed.retained.iter().find(|pages| pages.session == *session) {
                self.retain(pages);
            }
            self.close(*session);
        }
        let (hidden, row_bytes) = (Rc::new(hidden), self.row_bytes(self.terms.feature_width));
        let (mut opened, mut row) = (Opened::default(), 0);
        for context in &feed.contexts {
            let restored = feed.restored.iter().find(|prefix| prefix.session == context.session);
            self.begin(context, restored, &mut opened);
            let session = self.open.get_mut(&context.session).expect("begun above");
            session.end = context.position + context.rows;
            // Rows after the drafter's last position are not read.
            let rows = session.end.min(self.terms.context).saturating_sub(context.position);
            if rows > 0 && !session.missed {
                if session.pending_rows == 0 {
                    self.reading.push_back(context.session);
                }
                if row_bytes > 0 {
                    session.pending.push_back(Rows::new(&hidden, row..row + rows, row_bytes));
                }
                session.pending_rows += rows;
                session.pending_ids.extend(context.ids.iter().take(rows as usize));
                session.next_id = context.ids.get(rows as usize).copied().or(context.next_id);
            }
            row += context.rows;
        }
        if !feed.requests.is_empty() {
            let (last, number) = (self.last_round, feed.round);
            debug_assert!(number > last, "expected a round after {last}, found {number}");
            self.last_round = number;
            let bonus = Rc::new(bonus);
            self.rounds.push_back(Round { number, requests: feed.requests, bonus });
        }
        self.assert_invariants();
        opened
    }

    /// Opens the session of a context, unless it goes on.
    fn begin(&mut self, context: &Context, restored: Option<&RestoredPrefix>, opened: &mut Opened) {
        if context.fresh {
            self.close(context.session);
        }
        if self.open.contains_key(&context.session) {
            return;
        }
        let (slot, position) = (self.next_slot, context.position);
        self.next_slot += 1;
        let (mut start, mut missed) = (position, false);
        if let Some(prefix) = restored {
            match self.retained.find(&prefix.key, position, prefix.since) {
                Some(found) => {
                    start = found.start;
                    let rows = position - start;
                    self.commands.push(StoreCommand::Restore {
                        context: found.context,
                        slot,
                        rows,
                        capacity: rows + context.rows,
                    });
                }
                None => missed = true,
            }
        }
        let begun = if missed { &mut opened.missed } else { &mut opened.opened };
        begun.push(context.session);
        let session = Session {
            request_id: context.request_id.clone(),
            slot,
            start,
            missed,
            read: position,
            end: position,
            pending: VecDeque::new(),
            pending_rows: 0,
            pending_ids: VecDeque::new(),
            next_id: None,
            images: context.images.as_slice().into(),
        };
        self.open.insert(context.session, session);
    }

    /// Retains the whole pages that were read of a session.
    fn retain(&mut self, pages: &RetainedPages) {
        let session = self.open.get(&pages.session).filter(|session| !session.missed);
        let Some(session) = session else { return };
        let (slot, start) = (session.slot, session.start);
        self.retained.add(pages, slot, start..session.read, &mut self.commands);
    }

    fn close(&mut self, session: SessionId) {
        if let Some(closed) = self.open.remove(&session) {
            self.commands.push(StoreCommand::Free { slot: closed.slot });
            self.reading.retain(|other| *other != session);
        }
    }

    /// The next forward; drafts go before reading. `None`: nothing waits. The step counts as done
    /// once it is returned.
    pub fn next_step(&mut self) -> Option<Step> {
        let step = match self.rounds.pop_front() {
            Some(round) => Some(self.draft(&round)),
            None if self.reading.is_empty() => None,
            None => Some(self.read()),
        };
        self.assert_invariants();
        step
    }

    fn draft(&mut self, round: &Round) -> Step {
        let mut step = Step { round: Some(round.number), ..Step::default() };
        let mut rows = 0;
        for (row, request) in (0..).zip(&round.requests) {
            let session = request.session;
            let block_rows = match self.open.get(&session) {
                Some(open) => open.block(request, self.terms.context),
                None => Err(DenialReason::Closed),
            };
            match block_rows {
                Ok(block_rows) => {
                    let block = self.block(round, row, block_rows);
                    let work = self.work(session, u32::MAX, Some(block));
                    rows += work.as_ref().map_or(0, |work| work.context);
                    step.sessions.extend(work);
                }
                Err(reason) => step.denied.push(DeniedDraft { session, reason }),
            }
        }
        let (drafts, denied) = (step.sessions.len(), step.denied.len());
        debug_assert!(
            drafts + denied == round.requests.len(),
            "expected {} requests of round {} to be served or denied, found {drafts} and {denied}",
            round.requests.len(),
            round.number
        );
        if step.sessions.is_empty() {
            return step;
        }
        for session in self.reading.clone() {
            let pending = self.open.get(&session).map_or(0, |session| session.pending_rows);
            if rows.saturating_add(pending) <= RIDER_ROWS {
                rows += pending;
                self.read_into(session, u32::MAX, &mut step);
            }
        }
        step
    }

    /// The block of the round's request number `row`.
    fn block(&self, round: &Round, row: u32, rows: u32) -> DraftBlock {
        let DraftRequest { bonus_id, sampling, least_survival, .. } = round.requests[row as usize];
        let row_bytes = self.row_bytes(self.terms.hidden_size);
        let embedding = || Rows::new(&round.bonus, row..row + 1, row_bytes);
        let bonus = self.terms.embeddings.then(embedding);
        DraftBlock { rows, bonus_id, bonus, sampling, least_survival }
    }

    fn read(&mut self) -> Step {
        let (mut step, mut rows) = (Step::default(), 0);
        // Each session once: one with rows left goes to the end of the queue.
        for _ in 0..self.reading.len() {
            let Some(session) = self.reading.front().copied().filter(|_| rows < PIECE_ROWS) else {
                break;
            };
            rows += self.read_into(session, PIECE_ROWS - rows, &mut step);
        }
        step
    }

    fn read_into(&mut self, session: SessionId, most: u32, step: &mut Step) -> u32 {
        let Some(work) = self.work(session, most, None) else { return 0 };
        let (position, context) = (work.end(), work.context);
        step.sessions.push(work);
        step.progress.push(SessionProgress { session, position, drafts_from: 0 });
        context
    }

    /// Takes up to `most` of a session's rows into a step.
    fn work(
        &mut self,
        session: SessionId,
        most: u32,
        block: Option<DraftBlock>,
    ) -> Option<SessionWork> {
        let row_bytes = self.row_bytes(self.terms.feature_width);
        let open = self.open.get_mut(&session)?;
        let (position, context) = (open.read, open.pending_rows.min(most));
        let (mut hidden, mut left) = (vec![], context as usize * row_bytes);
        while left > 0 {
            let first = open.pending.front_mut()?;
            let taken = first.split(left.min(first.len()));
            if first.len() == 0 {
                open.pending.pop_front();
            }
            left -= taken.len();
            hidden.push(taken);
        }
        open.read += context;
        open.pending_rows -= context;
        let n_ids = open.pending_ids.len().min(context as usize);
        let ids = open.pending_ids.drain(..n_ids).collect();
        let next_id = open.pending_ids.front().copied().or(open.next_id);
        let (slot, more) = (open.slot, open.pending_rows > 0);
        let images = Rc::clone(&open.images);
        self.reading.retain(|other| *other != session);
        if more {
            self.reading.push_back(session);
        }
        Some(SessionWork { session, slot, position, context, hidden, ids, next_id, images, block })
    }

    /// The sessions with rows to read are the open ones that have some, and no two sessions have the
    /// same slot.
    fn assert_invariants(&self) {
        let reads = |id: &&SessionId| self.open.get(id).is_some_and(|open| open.pending_rows > 0);
        let waiting = || self.open.keys().filter(reads).collect::<BTreeSet<_>>();
        let in_turn = || self.reading.iter().collect::<BTreeSet<_>>();
        debug_assert!(
            in_turn() == waiting() && self.reading.len() == waiting().len(),
            "expected {:?} in turn to be read, found {:?}",
            waiting(),
            self.reading
        );
        let slots = || self.open.values().map(|open| open.slot).collect::<BTreeSet<_>>();
        debug_assert!(
            slots().len() == self.open.len() && slots().last() < Some(&self.next_slot),
            "expected {} slots below {}, found {:?}",
            self.open.len(),
            self.next_slot,
            slots()
        );
    }
}

#[cfg(all(test, debug_assertions))]
mod tests {
    use super::*;
    use crate::tests::{request, terms};

    /// Two sessions with three rows to read, in the slots 1 and 2.
    fn reading() -> Sessions {
        let mut sessions = Sessions::new(terms(), RetainedContexts::new(2, 1_000), 1);
        let context = |session| Context { session, rows: 3, fresh: true, ..Context::default() };
        let contexts = vec![context(1), context(2)];
        sessions.feed(Feed { contexts, ..Feed::default() }, vec![0; 12], vec![]);
        sessions
    }

    /// A round of the first session.
    fn round(number: u64) -> Feed {
        Feed { round: number, requests: vec![request(1, 3, 8)], ..Feed::default() }
    }

    #[test]
    #[should_panic(expected = "expected a round after 7, found 7")]
    fn a_number_of_a_round_that_is_used_again_is_noticed() {
        let mut sessions = reading();
        sessions.last_round = 7;
        sessions.feed(round(7), vec![], vec![0; 2]);
    }

    #[test]
    #[should_panic(
        expected = "expected 1 requests of round 1 to be served or denied, found 0 and 0"
    )]
    fn a_request_that_is_neither_served_nor_denied_is_noticed() {
        let mut sessions = reading();
        sessions.feed(round(1), vec![], vec![0; 2]);
        sessions.open.get_mut(&1).expect("it is open").pending.clear();
        sessions.next_step();
    }

    #[test]
    #[should_panic(expected = "expected {2} in turn to be read, found [1, 2]")]
    fn a_closed_session_that_is_still_to_be_read_is_noticed() {
        let mut sessions = reading();
        sessions.open.remove(&1);
        sessions.feed(Feed::default(), vec![], vec![]);
    }

    #[test]
    #[should_panic(expected = "expected {1, 2} in turn to be read, found [2]")]
    fn a_session_that_never_gets_its_turn_is_noticed() {
        let mut sessions = reading();
        sessions.reading.pop_front();
        sessions.feed(Feed::default(), vec![], vec![]);
    }

    #[test]
    #[should_panic(expected = "expected 3 slots below 3, found {1, 2}")]
    fn a_slot_of_two_sessions_is_noticed() {
        let mut sessions = reading();
        sessions.next_slot = 2;
        let contexts = vec![Context { session: 3, rows: 3, fresh: true, ..Context::default() }];
        sessions.feed(Feed { contexts, ..Feed::default() }, vec![0; 6], vec![]);
    }
}
