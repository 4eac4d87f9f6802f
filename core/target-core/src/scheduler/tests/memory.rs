//! Preemption: which sequence loses its memory, and that no stream changes by it.

use std::collections::BTreeMap;

use super::*;

fn with_hidden(of: &[(usize, u64, u64)]) -> Vec<ClassBytes> {
    of.iter()
        .map(|(positions, kv, hidden)| ClassBytes {
            positions: *positions,
            kv: *kv,
            hidden: *hidden,
        })
        .collect()
}

/// A scheduler with `count` sequences that decode, with room for 8 positions each and hidden
/// states.
fn decoding(budget: u64, count: usize) -> Scheduler {
    let mut scheduler =
        Scheduler::new(Ledger::new(budget, with_hidden(&[(8, 80, 20), (16, 160, 40)])), 8)
            .with_row_us(1_000.0);
    (0..count).for_each(|_| {
        _ = scheduler.add(Request { permit: DRAFTS, ..request(7, 9) }).expect("taken")
    });
    step(&mut scheduler, 0, 9);
    scheduler
}

#[test]
fn memory_comes_from_the_cache_then_hidden_states_then_the_youngest() {
    let mut scheduler = decoding(400, 3);
    scheduler.set_cached_bytes(100).expect("room");
    // Each has 7 rows and a token: this step fills its class, the next wants another.
    step(&mut scheduler, 1, 9);
    scheduler.start(|_| 0);
    let mut asked = 0;
    let step = scheduler.next_step(Millis(2), |bytes| {
        asked += bytes;
        bytes
    });
    // 0 grows by 100, which the cache has. 1 needs 100: the hidden states of 2, of 1 and of 0 are
    // 80, and that is not enough.
    assert_eq!(asked, 100);
    assert_eq!(step.preempted.lost_hidden, [SequenceKey(2), SequenceKey(1), SequenceKey(0)]);
    assert_eq!(step.preempted.sequences, [SequenceKey(2)]);
    assert_eq!(step.parts.iter().map(|part| part.key.0).collect::<Vec<_>>(), [0, 1]);
    assert_eq!((scheduler.ledger().held(), scheduler.ledger().free()), (320, 80));
    // The preempted one waits, and keeps its tokens.
    let young = scheduler.get(SequenceKey(2)).expect("there");
    assert_eq!(
        (young.phase, young.committed, young.ids.len(), young.preemptions),
        (Phase::Waiting, 0, 9, 1)
    );
    assert_eq!(scheduler.start(|_| 0), Started::default());
}

#[test]
fn a_sequence_without_a_row_is_unstarted_and_so_is_a_preempted_one() {
    let mut scheduler = decoding(260, 2);
    assert_eq!(scheduler.unstarted(), Unstarted::default());
    step(&mut scheduler, 1, 9);
    // Both want their second class, and the budget has room for one.
    assert_eq!(next(&mut scheduler, 2).preempted.sequences, [SequenceKey(1)]);
    assert_eq!(scheduler.unstarted(), Unstarted { sequences: 1, tokens: 9 });
    let key = scheduler.add(request(5, 1)).expect("taken");
    assert_eq!(scheduler.unstarted(), Unstarted { sequences: 2, tokens: 14 });
    // With the memory of the others it has rows after its first step.
    scheduler.remove(SequenceKey(0));
    scheduler.remove(SequenceKey(1));
    assert_eq!(scheduler.start(|_| 0).keys, [key]);
    assert_eq!(scheduler.unstarted(), Unstarted { sequences: 1, tokens: 5 }, "memory is no row");
    step(&mut scheduler, 3, 9);
    assert_eq!(scheduler.unstarted(), Unstarted::default());
}

#[test]
fn no_sequence_is_preempted_for_a_block() {
    let mut scheduler = decoding(200, 2);
    scheduler.asked(SequenceKey(1), Millis(9));
    scheduler.proposed(SequenceKey(1), 3);
    let step = scheduler.next_step(Millis(1), |_| 0);
    assert_eq!((step.dropped_drafts, step.preempted), (vec![SequenceKey(1)], Preempted::default()));
    assert_eq!(step.parts[1].rows, 1);
}

#[test]
fn a_preempted_sequence_resumes_and_retains_hidden_states_again_when_they_fit() {
    let mut scheduler = decoding(260, 2);
    step(&mut scheduler, 1, 9);
    let preempted = next(&mut scheduler, 2).preempted;
    assert_eq!(
        (preempted.lost_hidden.len(), preempted.sequences.as_slice()),
        (2, &[SequenceKey(1)][..])
    );
    scheduler.remove(SequenceKey(0));
    assert_eq!(scheduler.start(|_| 0).keys, [SequenceKey(1)]);
    let again = scheduler.next_step(Millis(3), |_| 0);
    assert_eq!(
        again.parts,
        [StepPart {
            key: SequenceKey(1),
            start: 0,
            rows: 9,
            chooses: true,
            prefill: true,
            drafted: 0
        }]
    );
    let emissions = scheduler.on_step(
        &again.parts,
        vec![Chosen { key: SequenceKey(1), tokens: vec![Token { id: 5, margin: 1.0 }] }],
        9,
    );
    assert_eq!(
        (emissions[0].index, scheduler.get(SequenceKey(1)).expect("there").retains_hidden),
        (2, true)
    );
}

#[test]
fn hidden_states_are_released_before_a_request_waits() {
    // 0 and 1 hold 80 and 20 each, and the cache 30: 2 fits without hidden states if the cache
    // is evicted and one of them loses its hidden states.
    let mut scheduler = decoding(260, 2);
    scheduler.set_cached_bytes(30).expect("room");
    scheduler.add(Request { permit: DRAFTS, ..request(7, 9) }).expect("taken");
    let mut evicted = 0;
    let started = scheduler.start(|bytes| {
        evicted += bytes;
        bytes
    });
    assert_eq!(
        (started.keys, started.lost_hidden, evicted),
        (vec![SequenceKey(2)], vec![SequenceKey(1)], 30)
    );
    let hidden = |key| scheduler.get(SequenceKey(key)).expect("there").retains_hidden;
    assert_eq!((hidden(0), hidden(1), hidden(2)), (true, false, false));
    assert_eq!(
        (scheduler.ledger().held(), scheduler.ledger().hidden_bytes(), scheduler.ledger().free()),
        (260, 20, 0)
    );
    // The next would not fit with all of the rest: no sequence loses hidden states for it.
    scheduler.add(request(7, 9)).expect("taken");
    assert_eq!(scheduler.start(|_| 0), Started::default());
}

#[test]
fn a_sequence_alone_evicts_the_cache_and_runs_without_hidden_states() {
    let mut scheduler =
        Scheduler::new(Ledger::new(100, with_hidden(&[(16, 80, 40)])), 8).with_row_us(1_000.0);
    scheduler.set_cached_bytes(40).expect("room");
    scheduler.add(Request { permit: DRAFTS, ..request(7, 9) }).expect("it could run alone");
    assert_eq!(scheduler.start(|bytes| bytes).keys, [SequenceKey(0)]);
    assert_eq!((scheduler.ledger().held(), scheduler.ledger().cached()), (80, 20));
}

#[test]
fn hidden_states_of_another_drafter_are_retained_where_they_fit() {
    let mut scheduler = decoding(260, 2);
    assert_eq!(scheduler.set_hidden_bytes(|positions| positions as u64 * 8), [SequenceKey(1)]);
    assert_eq!((scheduler.ledger().held(), scheduler.ledger().hidden_bytes()), (224, 64));
    let hidden = |key| scheduler.get(SequenceKey(key)).expect("there").retains_hidden;
    assert_eq!((hidden(0), hidden(1)), (true, false));
    // A sequence that lost its hidden states has none to retain.
    assert_eq!(scheduler.set_hidden_bytes(|_| 1), []);
    assert_eq!(scheduler.ledger().hidden_bytes(), 1);
}

struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % below
    }
}

/// The token that this model chooses after these ids. Never a stop id.
fn model(ids: &[u32]) -> u32 {
    let mixed = ids.iter().fold(17u64, |sum, id| {
        (sum ^ u64::from(*id)).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(23)
    });
    3 + (mixed % 200) as u32
}

fn alone(request: &Request) -> Vec<u32> {
    let mut ids = request.prompt.clone();
    (0..request.max_tokens).for_each(|_| ids.push(model(&ids)));
    ids.split_off(request.prompt.len())
}

/// A stream, and what it would be if its sequence ran alone.
struct Stream {
    expected: Vec<u32>,
    tokens: Vec<u32>,
}

/// How often memory was short, in sum.
#[derive(Debug, Default)]
struct Pressure {
    preemptions: u64,
    lost_hidden: usize,
    evicted_bytes: u64,
    cycles: u64,
}

/// A random run on little memory, with a store that keeps exactly the rows that it was given.
struct Run {
    seed: u64,
    dice: Dice,
    scheduler: Scheduler,
    store: BTreeMap<SequenceKey, Vec<u32>>,
    streams: BTreeMap<SequenceKey, Stream>,
    requests_to_come: u32,
    cached: u64,
    /// No client cancels. Without this a cancellation could hide that the scheduler is stuck.
    patient: bool,
    pressure: Pressure,
}

impl Run {
    fn new(seed: u64, pressure: Pressure) -> Self {
        let mut dice = Dice(seed);
        let classes = with_hidden(&[(16, 100, 20), (32, 200, 40), (64, 400, 40), (128, 800, 40)]);
        let ledger = Ledger::new(800 + dice.roll(8) * 200, classes).with_tape_row_bytes(3);
        let mut scheduler = Scheduler::new(ledger, 16);
        if seed % 2 == 1 {
            scheduler = scheduler.with_snapshots();
        }
        scheduler.price = RowPrice::flat(2_000.0 + 1_000.0 * dice.roll(5) as f64);
        Self {
            seed,
            patient: dice.roll(2) == 0,
            dice,
            scheduler,
            store: BTreeMap::new(),
            streams: BTreeMap::new(),
            requests_to_come: 16,
            cached: 0,
            pressure,
        }
    }

    fn add_or_cancel(&mut self) {
        let dice = &mut self.dice;
        if self.requests_to_come > 0 && dice.roll(3) == 0 {
            // One in eight may go over the first place of states.
            let most = if dice.roll(8) == 0 { 66 } else { 50 };
            let prompt: Vec<u32> =
                (0..1 + dice.roll(most)).map(|_| 3 + dice.roll(100) as u32).collect();
            let last_turn = (dice.roll(2) == 0).then_some(prompt.len());
            let permit = if dice.roll(3) == 0 { PLAIN } else { DRAFTS };
            let tokens = 1 + dice.roll(60) as u32;
            let request = Request { prompt, permit, last_turn, ..request(0, tokens) };
            let expected = alone(&request);
            let key = self.scheduler.add(request).expect("it could run alone");
            self.streams.insert(key, Stream { expected, tokens: vec![] });
            self.requests_to_come -= 1;
        }
        if !self.patient
            && dice.roll(40) == 0
            && let Some(key) = self
                .streams
                .keys()
                .nth(dice.roll(self.streams.len().max(1) as u64) as usize)
                .copied()
        {
            self.scheduler.remove(key);
            self.store.remove(&key);
            self.streams.remove(&key);
        }
    }

    /// Starts sequences and computes one step.
    fn step(&mut self, now: u64) {
        let (cached, evicted) = (&mut self.cached, &mut self.pressure.evicted_bytes);
        let mut evict = |bytes: u64| {
            let bytes = bytes.min(*cached);
            (*cached, *evicted) = (*cached - bytes, *evicted + bytes);
            bytes
        };
        let started = self.scheduler.start(&mut evict);
        self.pressure.lost_hidden += started.lost_hidden.len();
        for key in started.keys {
            assert!(self.store.insert(key, vec![]).is_none(), "it held no memory");
            let rows = 1 + self.dice.roll(20) as usize;
            let has_rows =
                |scheduler: &Scheduler| scheduler.get(key).expect("there").ids.len() > rows;
            if self.dice.roll(4) == 0 && has_rows(&self.scheduler) {
                self.scheduler.found(key, rows);
                let ids = self.scheduler.get(key).expect("there").ids[..rows].to_vec();
                self.store.insert(key, ids);
            }
        }
        let step = self.scheduler.next_step(Millis(now), &mut evict);
        for key in &step.preempted.sequences {
            assert!(self.store.remove(key).is_some(), "it held memory");
            self.pressure.preemptions += 1;
        }
        self.pressure.lost_hidden += step.preempted.lost_hidden.len();
        let chosen = step.parts.iter().filter_map(|part| self.compute(part, &step)).collect();
        let took_us = 1 + self.dice.roll(50_000);
        let emissions = self.scheduler.on_step(&step.parts, chosen, took_us);
        emissions.into_iter().for_each(|emission| self.receive(emission));
    }

    /// Computes one sequence's rows of a step.
    fn compute(&mut self, part: &StepPart, step: &Step) -> Option<Chosen> {
        let seed = self.seed;
        let sequence = self.scheduler.get(part.key).expect("there");
        let rows = self.store.get_mut(&part.key).expect("in the store");
        assert_eq!(rows.len(), part.start, "seed {seed}: {part:?}");
        let room = self.scheduler.ledger().room_of(part.key);
        assert!(part.start + part.rows <= room, "seed {seed}: {part:?} has no room");
        // A draft is lost together with the hidden states.
        let lost = &step.preempted.lost_hidden;
        assert!(
            part.drafted == 0 || !lost.contains(&part.key),
            "seed {seed}: {part:?} in {:?}",
            step.preempted
        );
        if let Some(places) = sequence.snapshots.filter(|_| part.prefill) {
            let place = places.next(part.start);
            assert!(part.start + part.rows <= place, "seed {seed}: {part:?} goes over {place}");
        }
        let mut ids = sequence.ids[..part.start + part.rows - part.drafted].to_vec();
        *rows = ids.clone();
        if !part.chooses {
            return None;
        }
        // A random number of drafted tokens is accepted.
        let accepted =
            if part.drafted > 0 { self.dice.roll(part.drafted as u64 + 1) as usize } else { 0 };
        let mut tokens = vec![];
        for _ in 0..=accepted {
            let id = model(&ids);
            ids.push(id);
            tokens.push(Token { id, margin: 1.0 });
        }
        rows.extend(tokens[..accepted].iter().map(|token| token.id));
        self.pressure.cycles += u64::from(part.drafted > 0);
        Some(Chosen { key: part.key, tokens })
    }

    fn receive(&mut self, emission: Emission) {
        let seed = self.seed;
        let Stream { expected, tokens } = self.streams.get_mut(&emission.key).expect("running");
        assert_eq!(emission.index as usize, tokens.len());
        tokens.extend(emission.tokens.iter().map(|token| token.id));
        assert!(expected.starts_with(tokens), "seed {seed}: sequence {:?}", emission.key);
        if emission.end.is_some() {
            assert_eq!(tokens, expected, "seed {seed}");
            self.store.remove(&emission.key);
            self.streams.remove(&emission.key);
        }
    }

    /// Requests drafts, lets them arrive, and changes permits and the prefix cache.
    fn draft_and_cache(&mut self, now: u64) {
        let (scheduler, dice) = (&mut self.scheduler, &mut self.dice);
        for key in scheduler.iter().map(|(key, _)| key).collect::<Vec<_>>() {
            let sequence = scheduler.get(key).expect("there");
            let most = sequence.draft_most().min(7);
            match (sequence.phase, sequence.draft, dice.roll(4)) {
                (Phase::Decoding, Draft::None, 0) if most > 0 => {
                    scheduler.asked(key, Millis(now + 3))
                }
                (Phase::Decoding, Draft::Asked { .. }, 0 | 1) if most > 0 => {
                    scheduler.proposed(key, 1 + dice.roll(most as u64) as usize);
                }
                (_, _, 3) if dice.roll(20) == 0 => {
                    scheduler.set_permit(key, if dice.roll(2) == 0 { PLAIN } else { DRAFTS })
                }
                _ => {}
            }
        }
        if dice.roll(5) == 0 {
            let more = self.cached + dice.roll(200);
            if scheduler.set_cached_bytes(more).is_ok() {
                self.cached = more;
            }
        }
    }

    /// The store and the ledger agree. Returns whether all requests are over.
    fn is_over(&self) -> bool {
        let ledger = self.scheduler.ledger();
        assert_eq!(ledger.free() + ledger.held() + ledger.cached(), ledger.budget(), "I11");
        assert_eq!(ledger.cached(), self.cached, "I11");
        assert!(self.store.keys().all(|key| ledger.holds(*key)));
        let over = self.requests_to_come == 0 && self.scheduler.is_empty();
        if over {
            assert_eq!((ledger.held(), self.streams.len()), (0, 0));
        }
        over
    }
}

/// Random requests, drafts, cancellations, permits and cache sizes on little memory: each stream is
/// what it is alone, the store and the ledger agree, and all requests complete.
#[test]
fn preemption_never_changes_a_stream() {
    let mut pressure = Pressure::default();
    for seed in 0..500 {
        let mut run = Run::new(seed, pressure);
        for now in 0.. {
            assert!(now < 20_000, "seed {seed}: the requests do not complete");
            run.add_or_cancel();
            run.step(now);
            run.draft_and_cache(now);
            if run.is_over() {
                break;
            }
        }
        pressure = run.pressure;
    }
    println!("{pressure:?}");
    assert!(pressure.preemptions > 100 && pressure.lost_hidden > 100);
    assert!(pressure.evicted_bytes > 1_000 && pressure.cycles > 1_000);
}
