//! What the next step reads: one row of every decoding sequence, or the block of one whose draft is there, and a chunk of the
//! oldest prompt that is not read yet. A sequence whose draft is on its way is left out until it comes or is late: the
//! others go on meanwhile.
//!
//! A chunk is sized by time: at most about 250 ms by the measured cost of a prompt row, so that a step, and with it a
//! cancellation, is never long (design section 4). Sequences are served in order of admission: nobody starves.

use std::collections::BTreeMap;

use paceline_process::Millis;
use paceline_proto::v1::Route;

use super::{
    Counts, Draft, Ended, Finish, Ledger, LedgerError, Permit, Phase, Plan, Reading, Request, Sequence, SequenceKey, Speculation,
};

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
    /// Of the rows the last ones, which are drafted and not in its ids.
    pub drafted: usize,
}

/// What to do next.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// Rows to read; empty when there is nothing to do.
    pub parts: Vec<Part>,
    /// Sequences that ended without a step: their deadline passed.
    pub ended: Vec<(SequenceKey, Ended)>,
    /// Sequences whose draft did not come in time; they step plainly.
    pub late: Vec<SequenceKey>,
}

/// A token the target chose.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Token {
    /// Its id.
    pub id: u32,
    /// Deciding margin.
    pub margin: f32,
}

/// What the target chose for one sequence in a step: one token, or the accepted drafts and one more.
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
    /// Set with the last token. The sequence is forgotten then.
    pub end: Option<End>,
}

/// The end of a sequence that went well.
#[derive(Clone, Debug, PartialEq)]
pub struct End {
    /// How it ended.
    pub finish: Finish,
    /// How it was served.
    pub route: Route,
    /// What speculation did for it.
    pub counts: Counts,
    /// Prompt tokens that were not read, as they were found in the prefix cache.
    pub cached_tokens: u32,
    /// All its ids.
    pub ids: Vec<u32>,
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
    /// Who drafts, and how far.
    pub speculation: Speculation,
}

impl Scheduler {
    /// A scheduler for up to `max_sequences` sequences over `ledger`.
    pub fn new(ledger: Ledger, max_sequences: usize) -> Self {
        Self { sequences: BTreeMap::new(), ledger, max_sequences, next_key: 0, row_us: None, speculation: Speculation::default() }
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
        self.speculation.open(key, &request.class);
        self.sequences.insert(key, Sequence::new(request));
        Ok(key)
    }

    /// Forgets a sequence and returns its memory. Unknown ones are none.
    pub fn remove(&mut self, key: SequenceKey) -> Option<Sequence> {
        self.ledger.give_back(key);
        self.speculation.close(key);
        self.sequences.remove(&key)
    }

    /// The prompt of which the next step reads a chunk: the oldest that is not read yet.
    pub fn next_prompt(&self) -> Option<(SequenceKey, &Sequence)> {
        self.iter().find(|(_, sequence)| matches!(sequence.phase, Phase::Waiting | Phase::Prefilling))
    }

    /// The first rows of a sequence are in the store: they were found in the prefix cache.
    pub fn found(&mut self, key: SequenceKey, rows: usize) {
        if let Some(sequence) = self.sequences.get_mut(&key) {
            sequence.found(rows);
        }
    }

    /// So many bytes lie in the prefix cache.
    pub fn set_cached(&mut self, bytes: u64) {
        self.ledger.set_cached(bytes);
    }

    /// The next step. Sequences it names as ended are forgotten already.
    pub fn next_step(&mut self, now: Millis) -> Step {
        let late: Vec<_> = self.sequences.iter().filter(|(_, sequence)| sequence.is_late(now)).map(|(key, _)| *key).collect();
        for key in &late {
            self.remove(*key);
        }
        let (mut parts, mut overdue) = (Vec::new(), Vec::new());
        let mut chunk = Some(self.chunk_rows());
        for (key, sequence) in &mut self.sequences {
            let (start, pending) = (sequence.committed, sequence.pending_rows());
            match sequence.phase {
                Phase::Decoding => {
                    let drafted = match sequence.draft {
                        Draft::Asked { until } if until > now => continue,
                        Draft::Asked { .. } => {
                            sequence.draft = Draft::None;
                            overdue.push(*key);
                            0
                        }
                        Draft::Ready { drafted } => drafted,
                        Draft::None => 0,
                    };
                    parts.push(Part { key: *key, start, rows: 1 + drafted, chooses: true, prefill: false, drafted });
                }
                Phase::Waiting | Phase::Prefilling => {
                    // One prompt a step, the oldest: it gets its first token soonest.
                    if let Some(limit) = chunk.take() {
                        let rows = pending.min(limit);
                        parts.push(Part { key: *key, start, rows, chooses: rows == pending, prefill: true, drafted: 0 });
                    }
                }
                Phase::Finished(_) => {}
            }
        }
        Step { parts, ended: late.into_iter().map(|key| (key, Ended::DeadlinePassed)).collect(), late: overdue }
    }

    /// Until when a draft is waited for, where nothing else is to be done: the earliest. `None` if none is on its way.
    pub fn waits_until(&self) -> Option<Millis> {
        let until = |sequence: &Sequence| match sequence.draft {
            Draft::Asked { until } => Some(until),
            Draft::None | Draft::Ready { .. } => None,
        };
        self.sequences.values().filter_map(until).min()
    }

    /// What to show the drafter and what to ask it for: see [`Speculation::plan`].
    pub fn plan(&mut self, pressed: bool, reading: impl Fn(SequenceKey, &Sequence) -> Option<Reading>) -> Plan {
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
        let waiting = self.sequences.get_mut(&key).filter(|sequence| matches!(sequence.draft, Draft::Asked { .. }));
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

    /// Another permit, from the next step on. A draft under way is not waited for where none may be made any more.
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

    fn chunk_rows(&self) -> usize {
        let fits = self.row_us.map_or(FIRST_CHUNK, |row_us| (CHUNK_US / row_us) as usize);
        // Multiples of 32 keep the number of different shapes small.
        (fits.clamp(MIN_CHUNK, MAX_CHUNK) / MIN_CHUNK) * MIN_CHUNK
    }

    /// A step is done: its rows are in the store, and these tokens were chosen. Finished sequences are forgotten.
    pub fn on_step(&mut self, parts: &[Part], chosen: Vec<Chosen>, took_us: u64) -> Vec<Emission> {
        for part in parts.iter().filter(|part| part.drafted == 0) {
            if let Some(sequence) = self.sequences.get_mut(&part.key) {
                sequence.commit(part.rows);
            }
        }
        let prefill_rows: usize = parts.iter().filter(|part| part.prefill).map(|part| part.rows).sum();
        if prefill_rows >= MIN_CHUNK {
            let row_us = took_us as f64 / prefill_rows as f64;
            self.row_us = Some(self.row_us.map_or(row_us, |old| 0.7 * old + 0.3 * row_us));
        }
        let accepted: Vec<_> = chosen.iter().map(|chosen| (chosen.key, chosen.tokens.len().saturating_sub(1))).collect();
        let beside = self.waits_until().is_some();
        self.speculation.stepped(parts, &accepted, took_us as f64, beside);
        let mut emissions = Vec::with_capacity(chosen.len());
        for Chosen { key, mut tokens } in chosen {
            let drafted = parts.iter().find(|part| part.key == key).map_or(0, |part| part.drafted);
            let Some(sequence) = self.sequences.get_mut(&key) else { continue };
            if drafted > 0 {
                sequence.verified(drafted, tokens.len());
            }
            let index = sequence.generated();
            let mut finish = None;
            for (at, token) in tokens.iter().enumerate() {
                sequence.push(token.id);
                if let Phase::Finished(Ended::Well(how)) = sequence.phase {
                    finish = Some((how, at + 1));
                    break;
                }
            }
            if drafted > 0 && finish.is_none() {
                // The bonus token's row, and those of the accepted drafts.
                sequence.commit(tokens.len());
            }
            let end = finish.map(|(finish, count)| {
                tokens.truncate(count);
                let cached_tokens = sequence.cached.min(sequence.prompt_len) as u32;
                let (route, counts) = (self.speculation.route(key, sequence), sequence.counts);
                // It is forgotten below.
                End { finish, route, counts, cached_tokens, ids: std::mem::take(&mut sequence.ids) }
            });
            if end.is_some() {
                self.remove(key);
            }
            emissions.push(Emission { key, index, tokens, end });
        }
        emissions
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_proto::v1::{Lane, RouteReason};

    const PLAIN: Permit = Permit { lane: Lane::Plain, max_draft: 0, reason: RouteReason::DrafterAbsent };
    const DRAFTS: Permit = Permit { lane: Lane::Speculative, max_draft: 7, reason: RouteReason::Prior };

    fn scheduler() -> Scheduler {
        Scheduler::new(Ledger::new(10_000, vec![(256, 100), (4096, 1600)]), 4)
    }

    fn request(prompt: usize, max_tokens: u32) -> Request {
        Request {
            prompt: vec![7; prompt],
            continuation: vec![],
            max_tokens,
            stop_ids: vec![2],
            deadline: None,
            permit: PLAIN,
            class: String::new(),
        }
    }

    /// Does a step and chooses `token` wherever one is chosen; says which rows were read and what came out.
    fn step(scheduler: &mut Scheduler, now: u64, token: u32) -> (Vec<(u64, usize, bool)>, Vec<Emission>) {
        let step = scheduler.next_step(Millis(now));
        let tokens = vec![Token { id: token, margin: 1.0 }];
        let chosen: Vec<Chosen> =
            step.parts.iter().filter(|part| part.chooses).map(|part| Chosen { key: part.key, tokens: tokens.clone() }).collect();
        let rows = step.parts.iter().map(|part| (part.key.0, part.rows, part.chooses)).collect();
        (rows, scheduler.on_step(&step.parts, chosen, 1000))
    }

    fn finish(emission: &Emission) -> Option<Finish> {
        emission.end.as_ref().map(|end| end.finish)
    }

    #[test]
    fn a_request_is_read_then_decoded_then_gone() {
        let mut scheduler = scheduler();
        scheduler.admit(request(10, 3)).expect("room");
        assert_eq!(step(&mut scheduler, 0, 50).0, [(0, 10, true)]);
        assert_eq!(step(&mut scheduler, 1, 51).0, [(0, 1, true)]);
        let (_, last) = step(&mut scheduler, 2, 52);
        assert_eq!((last[0].index, last[0].tokens[0].id, finish(&last[0])), (2, 52, Some(Finish::Length)));
        assert!(scheduler.is_empty());
        assert_eq!(scheduler.ledger().free(), 10_000);
    }

    #[test]
    fn a_stop_id_ends_it() {
        let mut scheduler = scheduler();
        scheduler.admit(request(1, 100)).expect("room");
        assert_eq!(finish(&step(&mut scheduler, 0, 2).1[0]), Some(Finish::Stop));
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
        scheduler.on_step(&first.parts, vec![], 256 * 5000);
        // 5 ms a row: 50 rows in 250 ms, 32 as a multiple of 32.
        assert_eq!(scheduler.next_step(Millis(1)).parts[0].rows, 32);
    }

    #[test]
    fn a_continuation_is_read_like_a_prompt_and_counted_as_stream() {
        let mut scheduler = scheduler();
        scheduler.admit(Request { continuation: vec![8, 9], ..request(4, 3) }).expect("room");
        let (rows, emissions) = step(&mut scheduler, 0, 60);
        assert_eq!(rows, [(0, 6, true)]);
        assert_eq!((emissions[0].index, finish(&emissions[0])), (2, Some(Finish::Length)));
    }

    #[test]
    fn what_was_found_is_not_read_and_of_it_the_prompt_is_counted() {
        let mut scheduler = scheduler();
        let resumed = Request { continuation: vec![8; 100], ..request(100, 101) };
        for (at, request, cached) in [(0, request(200, 1), 192), (1, resumed, 100)] {
            let key = scheduler.admit(request).expect("room");
            assert_eq!(scheduler.next_prompt().map(|(key, _)| key), Some(key));
            scheduler.found(key, 192);
            let (rows, last) = step(&mut scheduler, 0, 50);
            assert_eq!(rows, [(at, 8, true)]);
            let end = last[0].end.as_ref().expect("it may have one token more");
            assert_eq!((end.cached_tokens, end.ids.len()), (cached, 201));
            assert!(scheduler.next_prompt().is_none());
        }
    }

    #[test]
    fn deadlines_end_a_sequence_at_the_step_border() {
        let mut scheduler = scheduler();
        scheduler.admit(Request { deadline: Some(Millis(5)), ..request(4, 30) }).expect("room");
        step(&mut scheduler, 4, 60);
        let late = scheduler.next_step(Millis(5));
        assert_eq!(late, Step { ended: vec![(SequenceKey(0), Ended::DeadlinePassed)], ..Step::default() });
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

    /// A speculative sequence of `max_tokens` that has its first token.
    fn drafting(max_tokens: u32) -> (Scheduler, SequenceKey) {
        let mut scheduler = scheduler();
        let key = scheduler.admit(Request { permit: DRAFTS, ..request(10, max_tokens) }).expect("room");
        step(&mut scheduler, 0, 50);
        (scheduler, key)
    }

    fn verified(scheduler: &mut Scheduler, now: u64, ids: &[u32]) -> Emission {
        let step = scheduler.next_step(Millis(now));
        let tokens = ids.iter().map(|id| Token { id: *id, margin: 1.0 }).collect();
        scheduler.on_step(&step.parts, vec![Chosen { key: step.parts[0].key, tokens }], 1000).remove(0)
    }

    #[test]
    fn a_draft_is_waited_for_verified_and_counted() {
        let (mut scheduler, key) = drafting(100);
        assert_eq!(scheduler.get(key).expect("there").draft_most(), 7);
        scheduler.asked(key, Millis(20));
        assert_eq!((scheduler.next_step(Millis(19)).parts, scheduler.waits_until()), (vec![], Some(Millis(20))));
        assert!(scheduler.proposed(key, 5));
        let part = scheduler.next_step(Millis(19)).parts[0];
        assert_eq!((part.start, part.rows, part.drafted, part.chooses), (10, 6, 5, true));
        // Three of five accepted, and the target's own token.
        let emission = verified(&mut scheduler, 19, &[51, 52, 53, 54]);
        assert_eq!((emission.index, emission.tokens.len()), (1, 4));
        let sequence = scheduler.get(key).expect("there");
        assert_eq!((sequence.committed, sequence.ids.len(), sequence.draft), (14, 15, Draft::None));
        assert_eq!(sequence.counts, Counts { cycles: 1, drafted: 5, accepted: 3 });
        // And then plainly.
        assert_eq!(step(&mut scheduler, 20, 60).0, [(0, 1, true)]);
    }

    #[test]
    fn a_late_draft_is_not_waited_for_and_not_taken() {
        let (mut scheduler, key) = drafting(100);
        scheduler.asked(key, Millis(20));
        let step = scheduler.next_step(Millis(20));
        assert_eq!((step.late, step.parts[0].rows), (vec![key], 1));
        assert!(!scheduler.proposed(key, 5));
        scheduler.asked(key, Millis(40));
        scheduler.give_up_draft(key);
        assert!(!scheduler.proposed(key, 5));
        assert_eq!(scheduler.next_step(Millis(21)).parts[0].rows, 1);
    }

    #[test]
    fn others_step_while_a_draft_is_out() {
        let (mut scheduler, key) = drafting(100);
        scheduler.admit(request(4, 10)).expect("room");
        scheduler.asked(key, Millis(20));
        assert_eq!(step(&mut scheduler, 1, 60).0, [(1, 4, true)]);
        assert_eq!(step(&mut scheduler, 2, 60).0, [(1, 1, true)]);
    }

    #[test]
    fn a_block_ends_at_the_stop_id_and_at_the_last_token() {
        let (mut scheduler, key) = drafting(100);
        scheduler.asked(key, Millis(20));
        scheduler.proposed(key, 5);
        let emission = verified(&mut scheduler, 1, &[51, 2, 53]);
        assert_eq!((emission.tokens.len(), finish(&emission)), (2, Some(Finish::Stop)));
        assert_eq!(scheduler.ledger().free(), 10_000);

        let (mut scheduler, key) = drafting(4);
        // Three tokens are left: two drafts and the target's own.
        assert_eq!(scheduler.get(key).expect("there").draft_most(), 2);
        scheduler.asked(key, Millis(20));
        scheduler.proposed(key, 2);
        let emission = verified(&mut scheduler, 1, &[51, 52, 53]);
        assert_eq!((emission.tokens.len(), finish(&emission)), (3, Some(Finish::Length)));
    }

    #[test]
    fn a_permit_changes_the_lane_at_the_next_step() {
        let (mut scheduler, key) = drafting(100);
        scheduler.asked(key, Millis(20));
        scheduler.set_permit(key, PLAIN);
        assert_eq!(scheduler.next_step(Millis(1)).parts[0].rows, 1);
        assert_eq!(scheduler.get(key).expect("there").draft_most(), 0);
        scheduler.set_permit(key, DRAFTS);
        assert_eq!(scheduler.get(key).expect("there").draft_most(), 7);
    }
}
