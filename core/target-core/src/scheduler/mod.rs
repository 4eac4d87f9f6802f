//! What the next step reads: one row of every decoding sequence, or the block of one whose draft is
//! there, and chunks of prompts that are not read yet (`batch`). A sequence whose draft is on its
//! way is left out until it comes or is late: the others go on meanwhile. Who runs, and who gives
//! way when memory is short: `preemption`. A picture goes through the vision tower in steps of their own,
//! in turn with these (`vision_turns`).

mod batch;
mod preemption;
mod prices;
mod vision_turns;

use std::collections::BTreeMap;

use paceline_vocabulary::{Millis, Permit, Route};

use prices::RowPrice;

use super::{
    Draft, DraftCounts, DraftPlan, DrafterReadiness, EndReason, Finish, Ledger, LedgerError, Phase,
    Request, Sequence, SequenceKey, Speculation, Tower, TowerSlice,
};

/// A request that cannot be taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SchedulerError {
    /// The KV ledger says no.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// As many sequences as the engine runs are running.
    #[error("{0} sequences are running, which is all the engine runs at once")]
    Full(usize),
}

/// Rows of one sequence in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepPart {
    /// Whose.
    pub key: SequenceKey,
    /// Place of the first row in its ids.
    pub start: usize,
    /// Rows.
    pub rows: usize,
    /// The last row is the newest id: a token is chosen behind it.
    pub chooses: bool,
    /// Prompt (or continuation) rows, not a decode step.
    pub prefill: bool,
    /// Of the rows the last ones, which are drafted and not in its ids.
    pub drafted: usize,
}

/// What to do next.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// Rows to read; empty when there is nothing to do.
    pub parts: Vec<StepPart>,
    /// Work for the vision tower; no rows are read then.
    pub tower: Option<TowerSlice>,
    /// Sequences that ended without a step: their deadline passed.
    pub ended: Vec<(SequenceKey, EndReason)>,
    /// Sequences whose draft did not come in time; they step plainly.
    pub late: Vec<SequenceKey>,
    /// Sequences whose draft is there and for which there is no room; they step plainly.
    pub dropped_drafts: Vec<SequenceKey>,
    /// Prompts that get no row in this step, and how many steps in a row that is now.
    pub passed: Vec<(SequenceKey, u32)>,
    /// Who gave something up, so that the others have room.
    pub preempted: Preempted,
}

/// Who has memory now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Started {
    /// Sequences that begin, in the order of their admission.
    pub keys: Vec<SequenceKey>,
    /// Sequences of which no hidden states are kept any more, so that these can.
    pub lost_hidden: Vec<SequenceKey>,
}

/// What was given up for want of memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Preempted {
    /// Sequences of which no hidden states are kept any more.
    pub lost_hidden: Vec<SequenceKey>,
    /// Sequences that hold nothing any more, and begin again, with the tokens they have, when there
    /// is room.
    pub sequences: Vec<SequenceKey>,
}

/// A token the target chose.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Token {
    /// Its id.
    pub id: u32,
    /// Deciding margin.
    pub margin: f32,
}

/// What the target chose for one sequence in a step: one token, or the accepted drafts and one
/// more.
#[derive(Clone, Debug, PartialEq)]
pub struct Chosen {
    /// For which.
    pub key: SequenceKey,
    /// In order.
    pub tokens: Vec<Token>,
}

/// What a step gave one sequence.
#[derive(Clone, Debug, PartialEq)]
pub struct Emission {
    /// Which.
    pub key: SequenceKey,
    /// Place of the first token behind the prompt.
    pub index: u32,
    /// The tokens, up to the one that ends the stream.
    pub tokens: Vec<Token>,
    /// How it was served so far.
    pub served: Service,
    /// Set with the last token. The sequence is forgotten then.
    pub end: Option<End>,
}

/// How a sequence was served.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Service {
    /// In which lane, and why.
    pub route: Route,
    /// What speculation did for it.
    pub counts: DraftCounts,
    /// Prompt tokens that were not read, as they were found in the prefix cache.
    pub cached_tokens: u32,
}

impl Service {
    fn of(speculation: &Speculation, key: SequenceKey, sequence: &Sequence) -> Self {
        let cached_tokens = sequence.cached.min(sequence.prompt_len) as u32;
        Self { route: speculation.route(key, sequence), counts: sequence.counts, cached_tokens }
    }
}

/// The end of a sequence that went well.
#[derive(Clone, Debug, PartialEq)]
pub struct End {
    /// How it ended.
    pub finish: Finish,
    /// How it was served.
    pub served: Service,
    /// All its ids.
    pub ids: Vec<u32>,
}

/// A prompt that begins like another one that is being read waits for what the prefix cache gets of
/// it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrefixWait {
    /// The other one.
    pub leader: SequenceKey,
    /// Rows with which both begin.
    pub rows: usize,
}

/// All sequences of the engine.
#[derive(Debug)]
pub struct Scheduler {
    sequences: BTreeMap<SequenceKey, Sequence>,
    ledger: Ledger,
    max_sequences: usize,
    next_key: u64,
    /// Of prompt rows, measured.
    price: RowPrice,
    /// Who drafts, and how far.
    pub speculation: Speculation,
    /// Which unread prompts the next step leaves out, as they wait for what others read.
    pub prefix_waits: BTreeMap<SequenceKey, PrefixWait>,
    /// What the vision tower has done and is doing.
    pub tower: Tower,
    turn: vision_turns::Turn,
    /// Time of steps that streams have good for the tower's, µs.
    owed_us: f64,
    /// Bytes of the prefix cache, by what was last said of it.
    prefix_bytes: u64,
}

impl Scheduler {
    /// A scheduler for up to `max_sequences` sequences over `ledger`.
    pub fn new(ledger: Ledger, max_sequences: usize) -> Self {
        let (speculation, prefix_waits) = (Speculation::default(), BTreeMap::new());
        Self {
            sequences: BTreeMap::new(),
            ledger,
            max_sequences,
            next_key: 0,
            price: RowPrice::default(),
            speculation,
            prefix_waits,
            tower: Tower::default(),
            turn: vision_turns::Turn::default(),
            owed_us: 0.0,
            prefix_bytes: 0,
        }
    }

    /// The same for a target with a vision tower.
    pub fn with_tower(self, tower: Tower) -> Self {
        Self { tower, ..self }
    }

    /// The same on a machine where a prompt row is known to cost so much.
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

    /// Sequences that may be in it at once.
    pub fn max_sequences(&self) -> usize {
        self.max_sequences
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.sequences.is_empty()
    }

    /// A sequence.
    pub fn get(&self, key: SequenceKey) -> Option<&Sequence> {
        self.sequences.get(&key)
    }

    /// Takes a request. It has memory, and is read, from [`Scheduler::start`] on.
    ///
    /// # Errors
    /// It is too large to ever run, or there are as many sequences as run at once.
    pub fn admit(&mut self, request: Request) -> Result<SequenceKey, SchedulerError> {
        if self.sequences.len() >= self.max_sequences {
            return Err(SchedulerError::Full(self.sequences.len()));
        }
        let beside = self.beside(&request.images, 0);
        self.ledger.could_hold(request.prompt.len() + request.max_tokens as usize, beside)?;
        let key = SequenceKey(self.next_key);
        self.next_key += 1;
        self.speculation.open(key, &request);
        self.ledger.set_extra_bytes(key, beside);
        let sequence = Sequence::new(request);
        if sequence.past_end {
            self.speculation.continue_past_end(key, sequence.generated());
        }
        self.sequences.insert(key, sequence);
        Ok(key)
    }

    /// Forgets a sequence and returns its memory. Unknown ones are none.
    pub fn remove(&mut self, key: SequenceKey) -> Option<Sequence> {
        self.ledger.release(key);
        self.ledger.set_extra_bytes(key, 0);
        self.speculation.close(key);
        self.sequences.remove(&key)
    }

    /// The next step. Sequences it names as ended are forgotten already. `evict` frees at least so
    /// many bytes of the prefix cache, or all it has, and says how many.
    pub fn next_step(&mut self, now: Millis, mut evict: impl FnMut(u64) -> u64) -> Step {
        let mut step = Step::default();
        for key in self.keys(|sequence| sequence.is_late(now)) {
            self.remove(key);
            step.ended.push((key, EndReason::DeadlinePassed));
        }
        let prompts = match self.take_turn(now) {
            vision_turns::Taken::Tower(slice) => return Step { tower: Some(slice), ..step },
            vision_turns::Taken::Text { prompts } => prompts,
        };
        let mut decodes = false;
        for key in self.keys(|sequence| sequence.phase == Phase::Decoding) {
            // Somebody older may have taken its room meanwhile.
            let Some(sequence) =
                self.sequences.get_mut(&key).filter(|sequence| sequence.phase == Phase::Decoding)
            else {
                continue;
            };
            decodes = true;
            let mut drafted = match sequence.draft {
                Draft::Asked { until } if until > now => continue,
                Draft::Asked { .. } => {
                    sequence.draft = Draft::None;
                    step.late.push(key);
                    0
                }
                Draft::Ready { drafted } => drafted,
                Draft::None => 0,
            };
            let start = sequence.committed;
            if drafted > 0 && !self.has_room(key, start + 1 + drafted, &mut evict) {
                // A block is not worth somebody's place.
                self.give_up_draft(key);
                step.dropped_drafts.push(key);
                drafted = 0;
            }
            if self.make_room(key, start + 1 + drafted, &mut evict, &mut step.preempted) {
                step.parts.push(StepPart {
                    key,
                    start,
                    rows: 1 + drafted,
                    chooses: true,
                    prefill: false,
                    drafted,
                });
            }
        }
        // Who gave its hidden states up for a younger one's room has lost the draft that was to be verified.
        for part in step
            .parts
            .iter_mut()
            .filter(|part| part.drafted > 0 && step.preempted.lost_hidden.contains(&part.key))
        {
            (part.rows, part.drafted) = (part.rows - part.drafted, 0);
        }
        if prompts {
            self.fill(decodes, &mut step);
        }
        step
    }

    fn keys(&self, such: impl Fn(&Sequence) -> bool) -> Vec<SequenceKey> {
        self.sequences.iter().filter(|(_, sequence)| such(sequence)).map(|(key, _)| *key).collect()
    }

    /// Until when a draft is waited for, where nothing else is to be done: the earliest. `None` if
    /// none is on its way.
    pub fn waits_until(&self) -> Option<Millis> {
        let until = |sequence: &Sequence| match sequence.draft {
            Draft::Asked { until } => Some(until),
            Draft::None | Draft::Ready { .. } => None,
        };
        self.sequences.values().filter_map(until).min()
    }

    /// What to show the drafter and what to ask it for: see [`Speculation::plan`].
    pub fn plan(
        &mut self,
        pressed: bool,
        reading: impl Fn(SequenceKey, &Sequence) -> Option<DrafterReadiness>,
    ) -> DraftPlan {
        self.speculation.plan(&self.sequences, pressed, reading)
    }

    /// A draft of this sequence was asked for.
    pub fn asked(&mut self, key: SequenceKey, until: Millis) {
        if let Some(sequence) = self.sequences.get_mut(&key) {
            sequence.draft = Draft::Asked { until };
        }
    }

    /// A draft of so many tokens came; says whether somebody waits for it.
    pub fn proposed(&mut self, key: SequenceKey, drafted: usize) -> bool {
        let waiting = self
            .sequences
            .get_mut(&key)
            .filter(|sequence| matches!(sequence.draft, Draft::Asked { .. }));
        let Some(sequence) = waiting else { return false };
        sequence.draft = Draft::Ready { drafted };
        true
    }

    /// No draft will come for this sequence.
    pub fn give_up_draft(&mut self, key: SequenceKey) {
        if let Some(sequence) = self.sequences.get_mut(&key) {
            sequence.draft = Draft::None;
        }
    }

    /// Another permit, from the next step on. A draft under way is not waited for where none may be
    /// made any more.
    pub fn set_permit(&mut self, key: SequenceKey, permit: Permit) {
        if let Some(sequence) = self.sequences.get_mut(&key) {
            sequence.permit = permit;
            if !permit.may_draft() {
                sequence.draft = Draft::None;
            }
        }
    }

    /// All sequences, in the order of their admission.
    pub fn iter(&self) -> impl Iterator<Item = (SequenceKey, &Sequence)> {
        self.sequences.iter().map(|(key, sequence)| (*key, sequence))
    }

    /// A step is done: its rows are in the store, and these tokens were chosen. Finished sequences
    /// are forgotten.
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
        let mut emissions = Vec::with_capacity(chosen.len());
        for Chosen { key, mut tokens } in chosen {
            let drafted = parts.iter().find(|part| part.key == key).map_or(0, |part| part.drafted);
            let Some(sequence) = self.sequences.get_mut(&key) else { continue };
            if drafted > 0 {
                sequence.verified(drafted, tokens.len());
            }
            let (index, past_end) = (sequence.generated(), sequence.past_end);
            let mut finish = None;
            for (at, token) in tokens.iter().enumerate() {
                sequence.push(token.id);
                if let Phase::Finished(EndReason::Well(how)) = sequence.phase {
                    finish = Some((how, at + 1));
                    break;
                }
            }
            if drafted > 0 && finish.is_none() {
                // The bonus token's row, and those of the accepted drafts.
                sequence.commit(tokens.len());
            }
            if sequence.past_end && !past_end && finish.is_none() {
                self.speculation.continue_past_end(key, sequence.generated());
            }
            let served = Service::of(&self.speculation, key, sequence);
            let end = finish.map(|(finish, count)| {
                tokens.truncate(count);
                // It is forgotten below.
                End { finish, served, ids: std::mem::take(&mut sequence.ids) }
            });
            if end.is_some() {
                self.remove(key);
            }
            emissions.push(Emission { key, index, tokens, served, end });
        }
        emissions
    }
}

#[cfg(test)]
mod tests;
