//! The sessions of one link and what waits to be done for them.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::rc::Rc;

use paceline_proto::internal::v1::{Feed, Keep, SessionReach, Want};

use super::{Kept, Move, PIECE_ROWS, RIDER_ROWS, Terms};

/// Some rows of a tensor that came over the link, as bytes. The tensor lives as long as rows of it
/// are waited for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rows {
    tensor: Rc<Vec<u8>>,
    bytes: Range<usize>,
}

impl Rows {
    fn new(tensor: &Rc<Vec<u8>>, rows: Range<u32>, row_bytes: usize) -> Self {
        Self {
            tensor: tensor.clone(),
            bytes: rows.start as usize * row_bytes..rows.end as usize * row_bytes,
        }
    }

    /// The rows.
    pub fn bytes(&self) -> &[u8] {
        &self.tensor[self.bytes.clone()]
    }

    /// Takes the first `length` bytes off.
    fn split(&mut self, length: usize) -> Self {
        let middle = self.bytes.start + length;
        let first = Self { tensor: self.tensor.clone(), bytes: self.bytes.start..middle };
        self.bytes.start = middle;
        first
    }
}

/// What one forward does for one session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The target's number of it.
    pub session: u64,
    /// Its name in the KV store; another after every fresh start.
    pub slot: u64,
    /// Absolute position of the first context row, or of the bonus token where there is no context.
    pub position: u32,
    /// Context rows to read in.
    pub context: u32,
    /// These rows, in order.
    pub taps: Vec<Rows>,
    /// Rows of the block to draft, the bonus token included; 0 only reads.
    pub block: u32,
    /// The bonus token's embedding, where there is a block.
    pub bonus: Option<Rows>,
}

/// One forward, and what is to be told behind it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// The sessions in it, each once. Empty where no want of the round can be served: then there is
    /// nothing to compute.
    pub parts: Vec<Part>,
    /// The round it answers.
    pub round: Option<u64>,
    /// How far sessions have been read behind it, of those that get no draft.
    pub reach: Vec<SessionReach>,
}

#[derive(Debug)]
struct Session {
    slot: u64,
    /// Position of its slot's first row.
    start: u32,
    /// It was to begin with something that is not kept: nothing of it is read until it starts
    /// afresh.
    missed: bool,
    /// Position behind the last row that was in a step.
    read: u32,
    /// Position behind the last row that came.
    end: u32,
    /// Rows from `read` on. Rows behind the drafter's context are not among them: `read` never
    /// catches up then.
    pending: VecDeque<Rows>,
    pending_rows: u32,
}

#[derive(Debug)]
struct Round {
    number: u64,
    wants: Vec<Want>,
    bonus: Rc<Vec<u8>>,
}

/// The sessions of one link.
#[derive(Debug)]
pub struct Sessions {
    terms: Terms,
    open: BTreeMap<u64, Session>,
    /// Sessions with rows to read, each once, oldest first.
    reading: VecDeque<u64>,
    rounds: VecDeque<Round>,
    last_round: u64,
    next_slot: u64,
    kept: Kept,
    moves: Vec<Move>,
}

impl Sessions {
    /// None yet, beside contexts that are kept. Slots are named from `first_slot` up: never twice
    /// in a store's life.
    pub fn new(terms: Terms, kept: Kept, first_slot: u64) -> Self {
        let (open, reading, rounds) = (BTreeMap::new(), VecDeque::new(), VecDeque::new());
        Self {
            terms,
            open,
            reading,
            rounds,
            last_round: 0,
            next_slot: first_slot,
            kept,
            moves: vec![],
        }
    }

    /// What was agreed.
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
    pub(super) fn last_round(&self) -> u64 {
        self.last_round
    }

    /// Where a session's context ends; `None` if it is not open.
    pub(super) fn end(&self, session: u64) -> Option<u32> {
        self.open.get(&session).map(|session| session.end)
    }

    /// Bytes of rows that wait to be read. The shell takes in no more while there are many.
    pub fn waiting_bytes(&self) -> u64 {
        self.open.values().map(|session| u64::from(session.pending_rows)).sum::<u64>()
            * self.row_bytes(self.terms.taps) as u64
    }

    /// Rounds that wait to be answered.
    pub fn waiting_rounds(&self) -> usize {
        self.rounds.len()
    }

    /// What is to be done in the store since the last call, in this order, before the step that was
    /// returned last.
    pub fn take_moves(&mut self) -> Vec<Move> {
        std::mem::take(&mut self.moves)
    }

    /// Bytes of contexts that are kept.
    pub fn kept_bytes(&self) -> u64 {
        self.kept.bytes()
    }

    /// The name the next slot would get.
    pub fn next_slot(&self) -> u64 {
        self.next_slot
    }

    fn row_bytes(&self, columns: u32) -> usize {
        let number = paceline_link::tensor::number_bytes(self.terms.kind).unwrap_or_default();
        columns as usize * number as usize
    }

    /// Takes in a Feed that [`Sessions::check`] has passed, with the bytes of its tensors. The
    /// sessions that were to begin with something that is not kept.
    pub fn feed(&mut self, feed: Feed, taps: Vec<u8>, bonus: Vec<u8>) -> Vec<u64> {
        let mut missed = vec![];
        for session in &feed.closed {
            if let Some(keep) = feed.keeps.iter().find(|keep| keep.session == *session) {
                self.keep(keep);
            }
            self.close(*session);
        }
        let (taps, row_bytes) = (Rc::new(taps), self.row_bytes(self.terms.taps));
        let mut row = 0;
        for context in &feed.contexts {
            if context.fresh {
                self.close(context.session);
            }
            let position = context.position;
            let recall = feed.recalls.iter().find(|recall| recall.session == context.session);
            let (next_slot, kept, moves) = (&mut self.next_slot, &mut self.kept, &mut self.moves);
            let session = self.open.entry(context.session).or_insert_with(|| {
                let slot = *next_slot;
                *next_slot += 1;
                let found = recall.map(|recall| kept.find(&recall.key, position, recall.since));
                let start = match found.flatten() {
                    Some((kept, start)) => {
                        let (rows, room) = (position - start, position - start + context.rows);
                        moves.push(Move::Recall { kept, slot, rows, room });
                        start
                    }
                    None => position,
                };
                let (missed, pending) = (matches!(found, Some(None)), VecDeque::new());
                Session {
                    slot,
                    start,
                    missed,
                    read: position,
                    end: position,
                    pending,
                    pending_rows: 0,
                }
            });
            if session.missed && context.fresh && recall.is_some() {
                missed.push(context.session);
            }
            session.end = position + context.rows;
            // Behind the drafter's last position nothing is read.
            let rows = session.end.min(self.terms.context).saturating_sub(position);
            if rows > 0 && !session.missed {
                if session.pending.is_empty() {
                    self.reading.push_back(context.session);
                }
                session.pending.push_back(Rows::new(&taps, row..row + rows, row_bytes));
                session.pending_rows += rows;
            }
            row += context.rows;
        }
        if !feed.wants.is_empty() {
            self.last_round = feed.round;
            self.rounds.push_back(Round {
                number: feed.round,
                wants: feed.wants,
                bonus: Rc::new(bonus),
            });
        }
        missed
    }

    /// Keeps the whole pages that were read of a session.
    fn keep(&mut self, keep: &Keep) {
        let Some(session) = self.open.get(&keep.session).filter(|session| !session.missed) else {
            return;
        };
        let (slot, start) = (session.slot, session.start);
        self.kept.add(keep, slot, start..session.read, &mut self.moves);
    }

    fn close(&mut self, session: u64) {
        if let Some(closed) = self.open.remove(&session) {
            self.moves.push(Move::Free { slot: closed.slot });
            self.reading.retain(|other| *other != session);
        }
    }

    /// The next forward; drafts go before reading. `None`: nothing waits. The step counts as done
    /// once it is returned.
    pub fn next_step(&mut self) -> Option<Step> {
        match self.rounds.pop_front() {
            Some(round) => Some(self.draft(&round)),
            None if self.reading.is_empty() => None,
            None => Some(self.read()),
        }
    }

    fn draft(&mut self, round: &Round) -> Step {
        let mut step = Step { round: Some(round.number), ..Step::default() };
        let mut rows = 0;
        for (row, want) in (0..).zip(&round.wants) {
            let Some(session) = self.open.get(&want.session) else { continue };
            let caught_up =
                session.end == want.position && session.read + session.pending_rows == session.end;
            // At the end of the drafter's context blocks get shorter.
            let block = want.block.min(self.terms.context.saturating_sub(session.end));
            if !caught_up || session.missed || block < 2 || session.pending_rows > PIECE_ROWS {
                continue;
            }
            rows += session.pending_rows;
            let bonus = Rows::new(&round.bonus, row..row + 1, self.row_bytes(self.terms.hidden));
            step.parts.extend(self.part(want.session, u32::MAX, block, Some(bonus)));
        }
        if step.parts.is_empty() {
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

    fn read(&mut self) -> Step {
        let (mut step, mut rows) = (Step::default(), 0);
        // Each once: who is not done goes behind the others.
        for _ in 0..self.reading.len() {
            let Some(session) = self.reading.front().copied().filter(|_| rows < PIECE_ROWS) else {
                break;
            };
            rows += self.read_into(session, PIECE_ROWS - rows, &mut step);
        }
        step
    }

    fn read_into(&mut self, session: u64, most: u32, step: &mut Step) -> u32 {
        let Some(part) = self.part(session, most, 0, None) else { return 0 };
        let (position, context) = (part.position + part.context, part.context);
        step.parts.push(part);
        step.reach.push(SessionReach { session, position });
        context
    }

    /// Takes up to `most` of a session's rows into a part.
    fn part(&mut self, session: u64, most: u32, block: u32, bonus: Option<Rows>) -> Option<Part> {
        let row_bytes = self.row_bytes(self.terms.taps);
        let open = self.open.get_mut(&session)?;
        let (position, context) = (open.read, open.pending_rows.min(most));
        let (mut taps, mut left) = (vec![], context as usize * row_bytes);
        while left > 0 {
            let first = open.pending.front_mut()?;
            let taken = first.split(left.min(first.bytes.len()));
            if first.bytes.is_empty() {
                open.pending.pop_front();
            }
            left -= taken.bytes.len();
            taps.push(taken);
        }
        open.read += context;
        open.pending_rows -= context;
        let (slot, more) = (open.slot, open.pending_rows > 0);
        self.reading.retain(|other| *other != session);
        if more {
            self.reading.push_back(session);
        }
        Some(Part { session, slot, position, context, taps, block, bonus })
    }
}
