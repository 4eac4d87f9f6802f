//! Choice of the next step: one row of every decoding sequence, or the block of one whose draft has
//! arrived, and chunks of prompts (`batch`). A sequence whose draft is under way is left out until
//! the draft arrives or is late; the others continue meanwhile. `preemption` decides which
//! sequences have memory. Images go through the vision tower in steps of their own
//! (`vision_turns`).
//!
//! [`Scheduler`] has methods of four types:
//! - a sequence's life: [`add`](Scheduler::add), [`start`](Scheduler::start),
//!   [`found`](Scheduler::found), [`set_permit`](Scheduler::set_permit),
//!   [`remove`](Scheduler::remove);
//! - the loop: [`next_step`](Scheduler::next_step), [`on_step`](Scheduler::on_step),
//!   [`plan`](Scheduler::plan), [`waits_until`](Scheduler::waits_until);
//! - events of drafts and memory: [`asked`](Scheduler::asked), [`proposed`](Scheduler::proposed),
//!   [`give_up_draft`](Scheduler::give_up_draft),
//!   [`set_cached_bytes`](Scheduler::set_cached_bytes),
//!   [`set_hidden_bytes`](Scheduler::set_hidden_bytes);
//! - reads: [`get`](Scheduler::get), [`iter`](Scheduler::iter), [`len`](Scheduler::len),
//!   [`is_empty`](Scheduler::is_empty), [`max_sequences`](Scheduler::max_sequences),
//!   [`unread`](Scheduler::unread), [`unstarted`](Scheduler::unstarted),
//!   [`ledger`](Scheduler::ledger),
//!   [`keeps_hidden_states`](Scheduler::keeps_hidden_states).

mod batch;
mod invariants;
mod preemption;
mod prices;
mod vision_turns;

use std::collections::BTreeMap;

use paceline_vocabulary::{Millis, Permit, Route};

use crate::step::{Chosen, Preempted, Step, StepPart, Token};
use crate::{
    Draft, DraftCounts, DraftPlan, DrafterReadiness, EndReason, Finish, Ledger, LedgerError, Phase,
    Request, Sequence, SequenceKey, Speculation, Tower,
};
use batch::CHUNK_US;
use prices::RowPrice;
use vision_turns::{StepPurpose, VisionTurn};

/// A request that cannot be taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SchedulerError {
    /// The KV ledger refuses it.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// As many sequences as the engine runs are running.
    #[error("{0} sequences are running, which is all the engine runs at once")]
    Full(usize),
}

/// Sequences that have memory now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Started {
    /// Sequences that begin, in the order of their arrival.
    pub keys: Vec<SequenceKey>,
    /// Sequences whose hidden states were released for them.
    pub lost_hidden: Vec<SequenceKey>,
}

/// Tokens that a step gave one sequence.
#[derive(Clone, Debug, PartialEq)]
pub struct Emission {
    /// The sequence.
    pub key: SequenceKey,
    /// Place of the first token, counted from the end of the prompt.
    pub index: u32,
    /// The tokens, up to the one that ends the stream.
    pub tokens: Vec<Token>,
    /// How it was served so far.
    pub served: ServedFigures,
    /// Set with the last token. The sequence is removed then.
    pub end: Option<Completion>,
}

/// How a sequence was served.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ServedFigures {
    /// The lane, and why.
    pub route: Route,
    /// Counts of the sequence's drafts.
    pub counts: DraftCounts,
    /// Prompt tokens whose rows came from the prefix cache.
    pub cached_tokens: u32,
}

impl ServedFigures {
    fn of(speculation: &Speculation, key: SequenceKey, sequence: &Sequence) -> Self {
        let cached_tokens = sequence.cached.min(sequence.prompt_len) as u32;
        Self { route: speculation.route(key, sequence), counts: sequence.counts, cached_tokens }
    }
}

/// The end of a sequence that completed.
#[derive(Clone, Debug, PartialEq)]
pub struct Completion {
    /// How it ended.
    pub finish: Finish,
    /// How it was served.
    pub served: ServedFigures,
    /// All its ids.
    pub ids: Vec<u32>,
}

/// Sequences of which no row is computed yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unstarted {
    /// Number of sequences.
    pub sequences: usize,
    /// All their tokens, those that the prefix cache may have included.
    pub tokens: usize,
}

/// A prompt that begins like another one waits until that one's rows are in the prefix cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrefixWait {
    /// The other sequence.
    pub leader: SequenceKey,
    /// Rows that both share.
    pub rows: usize,
}

/// All sequences of the engine.
#[derive(Debug)]
pub struct Scheduler {
    sequences: BTreeMap<SequenceKey, Sequence>,
    ledger: Ledger,
    max_sequences: usize,
    next_key: u64,
    /// Measured cost of prompt rows.
    price: RowPrice,
    /// Longest time of the prompt rows of a step, in microseconds.
    chunk_us: f64,
    /// Most rows that a step adds to a sequence.
    most_rows: usize,
    /// The sequences that draft, and how many tokens.
    pub speculation: Speculation,
    /// Prompts that the next step leaves out, because they wait for the rows of others.
    pub prefix_waits: BTreeMap<SequenceKey, PrefixWait>,
    /// Images that the vision tower has computed and is computing.
    pub tower: Tower,
    turn: VisionTurn,
    /// Time that is reserved for decoding streams before the tower's next slice, in microseconds.
    reserved_us: f64,
    /// Bytes of the prefix cache, as last reported.
    prefix_bytes: u64,
    /// Whether the states of recurrent layers are kept for the prefix cache.
    keeps_states: bool,
}

impl Scheduler {
    /// A scheduler for up to `max_sequences` sequences over `ledger`.
    pub fn new(ledger: Ledger, max_sequences: usize) -> Self {
        Self {
            sequences: BTreeMap::new(),
            ledger,
            max_sequences,
            next_key: 0,
            price: RowPrice::default(),
            chunk_us: CHUNK_US,
            most_rows: usize::MAX,
            speculation: Speculation::default(),
            prefix_waits: BTreeMap::new(),
            tower: Tower::default(),
            turn: VisionTurn::default(),
            reserved_us: 0.0,
            prefix_bytes: 0,
            keeps_states: false,
        }
    }

    /// Sets the longest time of the prompt rows of a step, in milliseconds.
    pub fn with_longest_chunk_ms(self, ms: u32) -> Self {
        Self { chunk_us: f64::from(ms) * 1e3, ..self }
    }

    /// Sets the vision tower of the target.
    pub fn with_tower(self, tower: Tower) -> Self {
        Self { tower, ..self }
    }

    /// Sets the most rows that a step adds to a sequence; `None` is any number.
    pub fn with_most_rows(self, rows: Option<usize>) -> Self {
        Self { most_rows: rows.unwrap_or(usize::MAX), ..self }
    }

    /// Sets that the target's states are kept for the prefix cache: chunks of prompts end where
    /// they are.
    pub fn with_snapshots(self) -> Self {
        Self { keeps_states: true, ..self }
    }

    /// Sets the known cost of a prompt row on this machine, `us`.
    #[cfg(test)]
    pub(crate) fn with_row_us(self, us: f64) -> Self {
        Self { price: RowPrice::flat(us), ..self }
    }

    /// The KV ledger.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Sequences in the engine.
    pub fn len(&self) -> usize {
        self.sequences.len()
    }

    /// Most sequences at once.
    pub fn max_sequences(&self) -> usize {
        self.max_sequences
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.sequences.is_empty()
    }

    /// Sequences that wait: for memory, for the rows of another prompt, or for a place among the
    /// prompt rows of a step. A preempted sequence waits again.
    pub fn unstarted(&self) -> Unstarted {
        let waiting = self.sequences.values().filter(|sequence| sequence.phase == Phase::Waiting);
        waiting.fold(Unstarted::default(), |sum, sequence| Unstarted {
            sequences: sum.sequences + 1,
            tokens: sum.tokens + sequence.ids.len(),
        })
    }

    /// A sequence.
    pub fn get(&self, key: SequenceKey) -> Option<&Sequence> {
        self.sequences.get(&key)
    }

    /// Whether hidden states of a sequence are collected in the next step. Those of a parked one are
    /// not, so its step does the work of a step without a drafter.
    pub fn keeps_hidden_states(&self, key: SequenceKey) -> bool {
        let keeps =
            |one: &Sequence| one.keeps_hidden_states() && !self.speculation.is_parked(key, one);
        self.sequences.get(&key).is_some_and(keeps)
    }

    /// Takes a request. It gets memory from [`Scheduler::start`].
    ///
    /// # Errors
    /// It is too large to ever run, or there are as many sequences as run at once.
    pub fn add(&mut self, request: Request) -> Result<SequenceKey, SchedulerError> {
        if self.sequences.len() >= self.max_sequences {
            return Err(SchedulerError::Full(self.sequences.len()));
        }
        let extra_bytes = self.image_bytes(&request.images, 0);
        let positions = request.prompt.len() + request.max_tokens as usize;
        self.ledger.could_hold(positions, extra_bytes)?;
        let key = SequenceKey(self.next_key);
        self.next_key += 1;
        let newest = self.sequences.last_key_value().map(|(newest, _)| *newest);
        debug_assert!(newest < Some(key), "expected a sequence after {newest:?}, found {key:?}");
        self.speculation.open(key, &request);
        self.ledger.set_extra_bytes(key, extra_bytes);
        let last_turn = request.last_turn;
        let sequence = match (Sequence::new(request), self.keeps_states) {
            (sequence, true) => sequence.with_snapshots(last_turn),
            (sequence, false) => sequence,
        };
        if sequence.past_end {
            self.speculation.continue_past_end(key);
        }
        self.sequences.insert(key, sequence);
        self.assert_invariants();
        Ok(key)
    }

    /// Removes a sequence and releases its memory. Does nothing for an unknown one.
    pub fn remove(&mut self, key: SequenceKey) -> Option<Sequence> {
        self.ledger.release(key);
        self.ledger.set_extra_bytes(key, 0);
        self.speculation.close(key);
        self.sequences.remove(&key)
    }

    /// The next step. Sequences that it names as ended are removed already. `evict` frees at least
    /// the given bytes of the prefix cache, or all it has, and returns how many.
    pub fn next_step(&mut self, now: Millis, mut evict: impl FnMut(u64) -> u64) -> Step {
        let mut step = Step::default();
        self.ledger.begin_step();
        for key in self.keys(|sequence| sequence.is_late(now)) {
            self.remove(key);
            step.ended.push((key, EndReason::DeadlinePassed));
        }
        let prompts = match self.choose_purpose(now) {
            StepPurpose::Tower(slice) => return Step { tower: Some(slice), ..step },
            StepPurpose::Text { prompts } => prompts,
        };
        let mut decodes = false;
        for key in self.keys(|sequence| sequence.phase == Phase::Decoding) {
            // An older sequence may have preempted it in this loop.
            if self.sequences.get(&key).is_some_and(|one| one.phase == Phase::Decoding) {
                decodes = true;
                self.add_decode(key, now, &mut evict, &mut step);
            }
        }
        // A sequence whose hidden states were released in this loop has lost its draft.
        let lost = &step.preempted.lost_hidden;
        for part in
            step.parts.iter_mut().filter(|part| part.drafted > 0 && lost.contains(&part.key))
        {
            (part.rows, part.drafted) = (part.rows - part.drafted, 0);
        }
        if prompts {
            self.add_prompts(decodes, &mut step);
        }
        if !step.parts.is_empty() {
            self.release_tapes(&step.parts);
        }
        self.assert_invariants();
        step
    }

    /// A step replaces the tapes of the step before. A sequence without drafted rows has none then.
    fn release_tapes(&mut self, parts: &[StepPart]) {
        let drafted =
            |key| parts.iter().find(|part| part.key == key).map_or(0, |part| part.drafted);
        self.ledger.shrink_tapes(drafted);
    }

    /// Adds a decoding sequence's row, or block, to a step. Adds nothing while its draft is waited
    /// for, or if it is preempted.
    fn add_decode(
        &mut self,
        key: SequenceKey,
        now: Millis,
        evict: &mut impl FnMut(u64) -> u64,
        step: &mut Step,
    ) {
        let Some(sequence) = self.sequences.get_mut(&key) else { return };
        let mut drafted = match sequence.draft {
            Draft::Asked { until } if until > now => return,
            Draft::Asked { .. } => {
                sequence.draft = Draft::None;
                step.late.push(key);
                0
            }
            Draft::Ready { drafted } => drafted,
            Draft::None => 0,
        };
        let start = sequence.committed;
        let fits = drafted == 0
            || self.has_room(key, start + 1 + drafted, evict)
                && self.hold_tape(key, drafted, evict);
        if !fits {
            // No sequence is preempted for a block.
            self.give_up_draft(key);
            step.dropped_drafts.push(key);
            drafted = 0;
        }
        if self.make_room(key, start + 1 + drafted, evict, &mut step.preempted) {
            let rows = 1 + drafted;
            let part = StepPart { key, start, rows, chooses: true, prefill: false, drafted };
            step.parts.push(part);
        }
    }

    fn keys(&self, such: impl Fn(&Sequence) -> bool) -> Vec<SequenceKey> {
        self.sequences.iter().filter(|(_, sequence)| such(sequence)).map(|(key, _)| *key).collect()
    }

    /// Earliest deadline of the drafts under way, for an engine with nothing else to do. `None` if
    /// none is under way.
    pub fn waits_until(&self) -> Option<Millis> {
        let until = |sequence: &Sequence| match sequence.draft {
            Draft::Asked { until } => Some(until),
            Draft::None | Draft::Ready { .. } => None,
        };
        self.sequences.values().filter_map(until).min()
    }

    /// Rows to send the drafter and drafts to request: see [`Speculation::plan`].
    pub fn plan(
        &mut self,
        pressed: bool,
        readiness: impl Fn(SequenceKey, &Sequence) -> Option<DrafterReadiness>,
    ) -> DraftPlan {
        self.speculation.plan(&self.sequences, pressed, readiness)
    }

    /// A draft of this sequence was requested, and is waited for until then.
    pub fn asked(&mut self, key: SequenceKey, until: Millis) {
        if let Some(sequence) = self.sequences.get_mut(&key) {
            sequence.draft = Draft::Asked { until };
        }
    }

    /// A draft of `drafted` tokens arrived. Returns whether the sequence waits for it.
    pub fn proposed(&mut self, key: SequenceKey, drafted: usize) -> bool {
        let waiting = self
            .sequences
            .get_mut(&key)
            .filter(|sequence| matches!(sequence.draft, Draft::Asked { .. }));
        let Some(sequence) = waiting else { return false };
        sequence.draft = Draft::Ready { drafted };
        true
    }

    /// No draft will arrive for this sequence.
    pub fn give_up_draft(&mut self, key: SequenceKey) {
        if let Some(sequence) = self.sequences.get_mut(&key) {
            sequence.draft = Draft::None;
        }
    }

    /// Changes the permit from the next step on. If it allows no drafts, a draft under way is not
    /// waited for.
    pub fn set_permit(&mut self, key: SequenceKey, permit: Permit) {
        if let Some(sequence) = self.sequences.get_mut(&key) {
            sequence.permit = permit;
            if !permit.may_draft() {
                sequence.draft = Draft::None;
            }
        }
    }

    /// All sequences, in the order of their arrival.
    pub fn iter(&self) -> impl Iterator<Item = (SequenceKey, &Sequence)> {
        self.sequences.iter().map(|(key, sequence)| (*key, sequence))
    }

    /// A step is done: its rows are in the store, and these tokens were chosen. Sequences that
    /// completed are removed.
    pub fn on_step(
        &mut self,
        parts: &[StepPart],
        chosen: Vec<Chosen>,
        took_us: u64,
    ) -> Vec<Emission> {
        for part in parts.iter().filter(|part| part.drafted == 0) {
            if let Some(sequence) = self.sequences.get_mut(&part.key) {
                sequence.commit(part.rows);
            }
        }
        self.measure(parts, took_us);
        self.repay(parts, took_us);
        let accepted: Vec<_> = chosen
            .iter()
            .map(|chosen| (chosen.key, chosen.tokens.len().saturating_sub(1)))
            .collect();
        let beside = self.waits_until().is_some();
        self.speculation.stepped(parts, &accepted, took_us as f64, beside);
        let drafted =
            |key| parts.iter().find(|part| part.key == key).map_or(0, |part| part.drafted);
        let mut emissions = Vec::with_capacity(chosen.len());
        emissions.extend(chosen.into_iter().filter_map(|one| self.emit(drafted(one.key), one)));
        self.assert_invariants();
        emissions
    }

    /// Appends the chosen tokens to their sequence, up to the one that ends it. `drafted`: tokens
    /// of the block that was verified.
    fn emit(&mut self, drafted: usize, Chosen { key, mut tokens }: Chosen) -> Option<Emission> {
        let sequence = self.sequences.get_mut(&key)?;
        if drafted > 0 {
            sequence.verified(drafted, tokens.len());
        }
        let (index, past_end) = (sequence.generated(), sequence.past_end);
        let mut finish = None;
        for (at, token) in tokens.iter().enumerate() {
            sequence.push(token.id);
            if let Phase::Finished(EndReason::Completed(how)) = sequence.phase {
                finish = Some((how, at + 1));
                break;
            }
        }
        if drafted > 0 && finish.is_none() {
            // The bonus token's row, and those of the accepted drafts.
            sequence.commit(tokens.len());
        }
        if sequence.past_end && !past_end && finish.is_none() {
            self.speculation.continue_past_end(key);
        }
        let served = ServedFigures::of(&self.speculation, key, sequence);
        let end = finish.map(|(finish, count)| {
            tokens.truncate(count);
            // The sequence is removed below.
            Completion { finish, served, ids: std::mem::take(&mut sequence.ids) }
        });
        if end.is_some() {
            self.remove(key);
        }
        Some(Emission { key, index, tokens, served, end })
    }
}

#[cfg(test)]
mod tests;
