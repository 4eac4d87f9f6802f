//! What the next step reads: one row of every decoding sequence, and a chunk of the oldest prompt that is not read yet.
//!
//! A chunk is sized by time: at most about 250 ms by the measured cost of a prompt row, so that a step, and with it a
//! cancellation, is never long (design section 4). Sequences are served in order of admission: nobody starves.

use std::collections::BTreeMap;

use paceline_process::Millis;

use super::{Ended, Finish, Ledger, LedgerError, Phase, Request, Sequence, SequenceKey};

/// A step with prompt rows should not take longer.
const CHUNK_US: f64 = 250_000.0;
/// Rows of a chunk: the first, before anything is measured, and the bounds.
const FIRST_CHUNK: usize = 256;
const MIN_CHUNK: usize = 32;
const MAX_CHUNK: usize = 1024;

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
pub struct Part {
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
}

/// What to do next.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// Rows to read; empty when there is nothing to do.
    pub parts: Vec<Part>,
    /// Sequences that ended without a step: their deadline passed.
    pub ended: Vec<(SequenceKey, Ended)>,
}

/// A token the target chose.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Chosen {
    /// For which sequence.
    pub key: SequenceKey,
    /// Its id.
    pub token: u32,
    /// Deciding margin.
    pub margin: f32,
}

/// What a step gave one sequence.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Emission {
    /// Which.
    pub key: SequenceKey,
    /// Place of the token behind the prompt.
    pub index: u32,
    /// The token.
    pub token: u32,
    /// Deciding margin.
    pub margin: f32,
    /// Set with the last token.
    pub finish: Option<Finish>,
}

/// All sequences of the engine.
#[derive(Debug)]
pub struct Scheduler {
    sequences: BTreeMap<SequenceKey, Sequence>,
    ledger: Ledger,
    max_sequences: usize,
    next_key: u64,
    /// Measured cost of a prompt row, µs.
    row_us: Option<f64>,
}

impl Scheduler {
    /// A scheduler for up to `max_sequences` sequences over `ledger`.
    pub fn new(ledger: Ledger, max_sequences: usize) -> Self {
        Self { sequences: BTreeMap::new(), ledger, max_sequences, next_key: 0, row_us: None }
    }

    /// The KV ledger.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Sequences in the engine.
    pub fn len(&self) -> usize {
        self.sequences.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.sequences.is_empty()
    }

    /// A sequence.
    pub fn get(&self, key: SequenceKey) -> Option<&Sequence> {
        self.sequences.get(&key)
    }

    /// Takes a request and reserves its memory.
    ///
    /// # Errors
    /// No room, or as many sequences as run at once.
    pub fn admit(&mut self, request: Request) -> Result<SequenceKey, SchedulerError> {
        if self.sequences.len() >= self.max_sequences {
            return Err(SchedulerError::Full(self.sequences.len()));
        }
        let key = SequenceKey(self.next_key);
        self.ledger.reserve(key, request.prompt.len() as u32 + request.max_tokens)?;
        self.next_key += 1;
        self.sequences.insert(key, Sequence::new(request));
        Ok(key)
    }

    /// Forgets a sequence and returns its memory. Unknown ones are none.
    pub fn remove(&mut self, key: SequenceKey) -> Option<Sequence> {
        self.ledger.give_back(key);
        self.sequences.remove(&key)
    }

    /// The next step. Sequences it names as ended are forgotten already.
    pub fn next_step(&mut self, now: Millis) -> Step {
        let late: Vec<_> = self.sequences.iter().filter(|(_, sequence)| sequence.is_late(now)).map(|(key, _)| *key).collect();
        for key in &late {
            self.remove(*key);
        }
        let mut parts = Vec::new();
        let mut chunk = Some(self.chunk_rows());
        for (key, sequence) in &self.sequences {
            let (start, pending) = (sequence.committed, sequence.pending_rows());
            match sequence.phase {
                Phase::Decoding => parts.push(Part { key: *key, start, rows: 1, chooses: true, prefill: false }),
                Phase::Waiting | Phase::Prefilling => {
                    // One prompt a step, the oldest: it gets its first token soonest.
                    if let Some(limit) = chunk.take() {
                        let rows = pending.min(limit);
                        parts.push(Part { key: *key, start, rows, chooses: rows == pending, prefill: true });
                    }
                }
                Phase::Finished(_) => {}
            }
        }
        Step { parts, ended: late.into_iter().map(|key| (key, Ended::DeadlinePassed)).collect() }
    }

    fn chunk_rows(&self) -> usize {
        let fits = self.row_us.map_or(FIRST_CHUNK, |row_us| (CHUNK_US / row_us) as usize);
        // Multiples of 32 keep the number of different shapes small.
        (fits.clamp(MIN_CHUNK, MAX_CHUNK) / MIN_CHUNK) * MIN_CHUNK
    }

    /// A step is done: its rows are in the store, and these tokens were chosen. Finished sequences are forgotten.
    pub fn on_step(&mut self, parts: &[Part], chosen: &[Chosen], took_us: u64) -> Vec<Emission> {
        for part in parts {
            if let Some(sequence) = self.sequences.get_mut(&part.key) {
                sequence.commit(part.rows);
            }
        }
        let prefill_rows: usize = parts.iter().filter(|part| part.prefill).map(|part| part.rows).sum();
        if prefill_rows >= MIN_CHUNK {
            let row_us = took_us as f64 / prefill_rows as f64;
            self.row_us = Some(self.row_us.map_or(row_us, |old| 0.7 * old + 0.3 * row_us));
        }
        let mut emissions = Vec::with_capacity(chosen.len());
        for Chosen { key, token, margin } in chosen {
            let Some(sequence) = self.sequences.get_mut(key) else { continue };
            let index = sequence.generated();
            sequence.push(*token);
            let finish = match sequence.phase {
                Phase::Finished(Ended::Well(finish)) => Some(finish),
                _ => None,
            };
            if finish.is_some() {
                self.remove(*key);
            }
            emissions.push(Emission { key: *key, index, token: *token, margin: *margin, finish });
        }
        emissions
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scheduler() -> Scheduler {
        Scheduler::new(Ledger::new(10_000, vec![(256, 100), (4096, 1600)]), 4)
    }

    fn request(prompt: usize, max_tokens: u32) -> Request {
        Request { prompt: vec![7; prompt], continuation: vec![], max_tokens, stop_ids: vec![2], deadline: None }
    }

    /// Does a step and chooses `token` wherever one is chosen; says which rows were read and what came out.
    fn step(scheduler: &mut Scheduler, now: u64, token: u32) -> (Vec<(u64, usize, bool)>, Vec<Emission>) {
        let step = scheduler.next_step(Millis(now));
        let chosen: Vec<Chosen> =
            step.parts.iter().filter(|part| part.chooses).map(|part| Chosen { key: part.key, token, margin: 1.0 }).collect();
        let rows = step.parts.iter().map(|part| (part.key.0, part.rows, part.chooses)).collect();
        (rows, scheduler.on_step(&step.parts, &chosen, 1000))
    }

    #[test]
    fn a_request_is_read_then_decoded_then_gone() {
        let mut scheduler = scheduler();
        scheduler.admit(request(10, 3)).expect("room");
        assert_eq!(step(&mut scheduler, 0, 50).0, [(0, 10, true)]);
        assert_eq!(step(&mut scheduler, 1, 51).0, [(0, 1, true)]);
        let (_, last) = step(&mut scheduler, 2, 52);
        let key = SequenceKey(0);
        assert_eq!(last, [Emission { key, index: 2, token: 52, margin: 1.0, finish: Some(Finish::Length) }]);
        assert!(scheduler.is_empty());
        assert_eq!(scheduler.ledger().free(), 10_000);
    }

    #[test]
    fn a_stop_id_ends_it() {
        let mut scheduler = scheduler();
        scheduler.admit(request(1, 100)).expect("room");
        assert_eq!(step(&mut scheduler, 0, 2).1[0].finish, Some(Finish::Stop));
        assert!(scheduler.is_empty());
    }

    #[test]
    fn long_prompts_are_read_in_chunks_beside_decoding() {
        let mut scheduler = scheduler();
        scheduler.admit(request(5, 50)).expect("room");
        step(&mut scheduler, 0, 9);
        scheduler.admit(request(300, 5)).expect("room");
        scheduler.admit(request(20, 5)).expect("room");
        assert_eq!(step(&mut scheduler, 1, 9).0, [(0, 1, true), (1, 256, false)]);
        // What a row costs is measured by now: the chunk grows to its bound.
        assert_eq!(step(&mut scheduler, 2, 9).0, [(0, 1, true), (1, 44, true)]);
        assert_eq!(step(&mut scheduler, 3, 9).0, [(0, 1, true), (1, 1, true), (2, 20, true)]);
    }

    #[test]
    fn a_slow_machine_gets_small_chunks() {
        let mut scheduler = scheduler();
        scheduler.admit(request(2000, 5)).expect("room");
        let first = scheduler.next_step(Millis(0));
        scheduler.on_step(&first.parts, &[], 256 * 5000);
        // 5 ms a row: 50 rows in 250 ms, 32 as a multiple of 32.
        assert_eq!(scheduler.next_step(Millis(1)).parts[0].rows, 32);
    }

    #[test]
    fn a_continuation_is_read_like_a_prompt_and_counted_as_stream() {
        let mut scheduler = scheduler();
        scheduler.admit(Request { continuation: vec![8, 9], ..request(4, 3) }).expect("room");
        let (rows, emissions) = step(&mut scheduler, 0, 60);
        assert_eq!(rows, [(0, 6, true)]);
        assert_eq!((emissions[0].index, emissions[0].finish), (2, Some(Finish::Length)));
    }

    #[test]
    fn deadlines_end_a_sequence_at_the_step_border() {
        let mut scheduler = scheduler();
        scheduler.admit(Request { deadline: Some(Millis(5)), ..request(4, 30) }).expect("room");
        step(&mut scheduler, 4, 60);
        let late = scheduler.next_step(Millis(5));
        assert_eq!(late, Step { parts: vec![], ended: vec![(SequenceKey(0), Ended::DeadlinePassed)] });
        assert_eq!(scheduler.ledger().free(), 10_000);
    }

    #[test]
    fn no_more_sequences_and_bytes_than_there_are() {
        let mut scheduler = Scheduler::new(Ledger::new(250, vec![(256, 100)]), 3);
        scheduler.admit(request(10, 10)).expect("room");
        let second = scheduler.admit(request(10, 10)).expect("room");
        assert!(matches!(scheduler.admit(request(10, 10)), Err(SchedulerError::Ledger(LedgerError::NotNow { .. }))));
        scheduler.remove(second);
        scheduler.admit(request(10, 10)).expect("room again");
        let mut one = Scheduler::new(Ledger::new(1000, vec![(256, 100)]), 1);
        one.admit(request(10, 10)).expect("room");
        assert_eq!(one.admit(request(10, 10)), Err(SchedulerError::Full(1)));
    }
}
