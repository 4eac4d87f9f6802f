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

/// A scheduler with `count` sequences that decode, with room for 8 positions each and hidden states.
fn decoding(budget: u64, count: usize) -> Scheduler {
    let mut scheduler =
        Scheduler::new(Ledger::new(budget, with_hidden(&[(8, 80, 20), (16, 160, 40)])), 8)
            .with_row_us(1_000.0);
    (0..count).for_each(|_| {
        _ = scheduler.admit(Request { permit: DRAFTS, ..request(7, 9) }).expect("taken")
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
    // 0 grows by 100, which the cache has. 1 needs 100: the hidden states of 2, of 1 and of 0 are 80, and
    // that is not enough.
    assert_eq!(asked, 100);
    assert_eq!(step.preempted.lost_hidden, [SequenceKey(2), SequenceKey(1), SequenceKey(0)]);
    assert_eq!(step.preempted.sequences, [SequenceKey(2)]);
    assert_eq!(step.parts.iter().map(|part| part.key.0).collect::<Vec<_>>(), [0, 1]);
    assert_eq!((scheduler.ledger().held(), scheduler.ledger().free()), (320, 80));
    // The one that gave way waits, and its tokens are still there.
    let young = scheduler.get(SequenceKey(2)).expect("there");
    assert_eq!(
        (young.phase, young.committed, young.ids.len(), young.preemptions),
        (Phase::Waiting, 0, 9, 1)
    );
    assert_eq!(scheduler.start(|_| 0), Started::default());
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
    // 0 and 1 hold 80 and 20 each, and the cache 30: 2 has room without hidden states if the cache and one
    // of them give theirs up.
    let mut scheduler = decoding(260, 2);
    scheduler.set_cached_bytes(30).expect("room");
    scheduler.admit(Request { permit: DRAFTS, ..request(7, 9) }).expect("taken");
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
    // The next would not fit with all that is left of them: nobody loses any for it.
    scheduler.admit(request(7, 9)).expect("taken");
    assert_eq!(scheduler.start(|_| 0), Started::default());
}

#[test]
fn a_sequence_alone_evicts_the_cache_and_runs_without_hidden_states() {
    let mut scheduler =
        Scheduler::new(Ledger::new(100, with_hidden(&[(16, 80, 40)])), 8).with_row_us(1_000.0);
    scheduler.set_cached_bytes(40).expect("room");
    scheduler.admit(Request { permit: DRAFTS, ..request(7, 9) }).expect("it could run alone");
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
    // Of one that has lost its hidden states there are none to go on with.
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

/// What this model says behind these ids: never the stop id before a stream is some tokens long.
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

/// Random requests, drafts, hang-ups, permits and cache on little memory, on a store that keeps
/// exactly the rows it was given: each stream is what it is alone, the store and the ledger agree,
/// and all comes to its end.
#[test]
fn preemption_never_changes_a_stream() {
    let (mut preemptions, mut lost_hidden, mut evicted, mut cycles) = (0, 0, 0, 0);
    for seed in 0..500 {
        let mut dice = Dice(seed);
        let classes = with_hidden(&[(16, 100, 20), (32, 200, 40), (64, 400, 40), (128, 800, 40)]);
        let mut scheduler = Scheduler::new(Ledger::new(800 + dice.roll(8) * 200, classes), 16);
        scheduler.price = RowPrice::flat(2_000.0 + 1_000.0 * dice.roll(5) as f64);
        let (mut store, mut streams) = (
            BTreeMap::<SequenceKey, Vec<u32>>::new(),
            BTreeMap::<SequenceKey, (Vec<u32>, Vec<u32>)>::new(),
        );
        let (mut to_come, mut cached) = (16, 0u64);
        let patient = dice.roll(2) == 0;
        for now in 0.. {
            assert!(now < 20_000, "seed {seed}: it comes to no end");
            if to_come > 0 && dice.roll(3) == 0 {
                let prompt = (0..1 + dice.roll(50)).map(|_| 3 + dice.roll(100) as u32).collect();
                let permit = if dice.roll(3) == 0 { PLAIN } else { DRAFTS };
                let request = Request { prompt, permit, ..request(0, 1 + dice.roll(60) as u32) };
                let expected = alone(&request);
                let key = scheduler.admit(request).expect("it could run alone");
                streams.insert(key, (expected, vec![]));
                to_come -= 1;
            }
            // Who hangs up must not be what ends a standstill.
            if !patient
                && dice.roll(40) == 0
                && let Some(key) =
                    streams.keys().nth(dice.roll(streams.len().max(1) as u64) as usize).copied()
            {
                scheduler.remove(key);
                store.remove(&key);
                streams.remove(&key);
            }
            let mut evict = |bytes: u64| {
                let bytes = bytes.min(cached);
                (cached, evicted) = (cached - bytes, evicted + bytes);
                bytes
            };
            let started = scheduler.start(&mut evict);
            lost_hidden += started.lost_hidden.len();
            for key in started.keys {
                assert!(store.insert(key, vec![]).is_none(), "it held nothing");
                let rows = 1 + dice.roll(20) as usize;
                if dice.roll(4) == 0 && scheduler.get(key).expect("there").ids.len() > rows {
                    scheduler.found(key, rows);
                    let ids = scheduler.get(key).expect("there").ids[..rows].to_vec();
                    store.insert(key, ids);
                }
            }
            let step = scheduler.next_step(Millis(now), &mut evict);
            for key in &step.preempted.sequences {
                assert!(store.remove(key).is_some(), "it held something");
                preemptions += 1;
            }
            lost_hidden += step.preempted.lost_hidden.len();
            let mut chosen = vec![];
            for part in &step.parts {
                let (sequence, rows) = (
                    scheduler.get(part.key).expect("there"),
                    store.get_mut(&part.key).expect("in the store"),
                );
                assert_eq!(rows.len(), part.start, "seed {seed}: {part:?}");
                assert!(
                    part.start + part.rows <= scheduler.ledger().room_of(part.key),
                    "seed {seed}: {part:?} has no room"
                );
                // Its draft went with its hidden states: there is nothing to verify.
                assert!(
                    part.drafted == 0 || !step.preempted.lost_hidden.contains(&part.key),
                    "seed {seed}: {part:?} in {:?}",
                    step.preempted
                );
                let mut ids = sequence.ids[..part.start + part.rows - part.drafted].to_vec();
                *rows = ids.clone();
                if !part.chooses {
                    continue;
                }
                // Of a draft as many are right as the dice say.
                let right =
                    if part.drafted > 0 { dice.roll(part.drafted as u64 + 1) as usize } else { 0 };
                let mut tokens = vec![];
                for _ in 0..=right {
                    let id = model(&ids);
                    ids.push(id);
                    tokens.push(Token { id, margin: 1.0 });
                }
                rows.extend(tokens[..right].iter().map(|token| token.id));
                cycles += u64::from(part.drafted > 0);
                chosen.push(Chosen { key: part.key, tokens });
            }
            for emission in scheduler.on_step(&step.parts, chosen, 1 + dice.roll(50_000)) {
                let (expected, stream) = streams.get_mut(&emission.key).expect("running");
                assert_eq!(emission.index as usize, stream.len());
                stream.extend(emission.tokens.iter().map(|token| token.id));
                assert!(expected.starts_with(stream), "seed {seed}: sequence {:?}", emission.key);
                if emission.end.is_some() {
                    assert_eq!(stream, expected, "seed {seed}");
                    store.remove(&emission.key);
                    streams.remove(&emission.key);
                }
            }
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
                let more = cached + dice.roll(200);
                if scheduler.set_cached_bytes(more).is_ok() {
                    cached = more;
                }
            }
            let ledger = scheduler.ledger();
            assert_eq!(ledger.free() + ledger.held() + ledger.cached(), ledger.budget(), "I11");
            assert_eq!(ledger.cached(), cached, "I11");
            assert!(store.keys().all(|key| ledger.holds(*key)));
            if to_come == 0 && scheduler.is_empty() {
                assert_eq!((ledger.held(), streams.len()), (0, 0));
                break;
            }
        }
    }
    println!(
        "{preemptions} preempted way, {lost_hidden} lost their hidden, {evicted} bytes evicted, {cycles} cycles"
    );
    assert!(preemptions > 100 && lost_hidden > 100 && evicted > 1_000 && cycles > 1_000);
}
