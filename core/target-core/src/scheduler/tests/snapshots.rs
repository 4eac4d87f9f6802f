//! Targets with recurrent layers: where chunks end, and the memory of tapes.

use super::*;

/// Start and rows of the chunks of sequence 0 until its first token.
fn chunks(scheduler: &mut Scheduler, now: u64) -> Vec<(usize, usize)> {
    let mut found = vec![];
    loop {
        let step = next(scheduler, now);
        let part = step.parts.iter().find(|part| part.key == SequenceKey(0)).expect("rows");
        found.push((part.start, part.rows));
        let tokens = vec![Token { id: 9, margin: 1.0 }];
        let chosen = step.parts.iter().filter(|part| part.chooses);
        let chosen = chosen.map(|part| Chosen { key: part.key, tokens: tokens.clone() }).collect();
        scheduler.on_step(&step.parts, chosen, 1_000);
        if part.chooses {
            return found;
        }
    }
}

#[test]
fn chunks_end_where_states_are_kept() {
    let request = Request { last_turn: Some(100), ..request(300, 9) };
    let mut plain = scheduler();
    plain.add(request.clone()).expect("room");
    assert_eq!(chunks(&mut plain, 0), [(0, 224), (224, 76)]);
    let mut scheduler = scheduler().with_snapshots();
    scheduler.add(request).expect("room");
    assert_eq!(chunks(&mut scheduler, 0), [(0, 64), (64, 192), (256, 44)]);
    // Rows that came from the cache end no chunk.
    scheduler.add(super::request(2_200, 9)).expect("room");
    scheduler.remove(SequenceKey(0));
    scheduler.start(|_| 0);
    scheduler.found(SequenceKey(1), 1_984);
    let rows: Vec<_> = (1..4).map(|now| step(&mut scheduler, now, 9).0).collect();
    assert_eq!(rows, [[(1, 64, false)], [(1, 128, false)], [(1, 24, true)]]);
}

#[test]
fn a_preempted_sequence_is_read_again_in_the_same_chunks() {
    let ledger = Ledger::new(250, classes(&[(256, 100), (512, 200)]));
    let mut scheduler = Scheduler::new(ledger, 4).with_row_us(1_000.0).with_snapshots();
    scheduler.add(Request { last_turn: Some(70), ..request(200, 40) }).expect("room");
    assert_eq!(chunks(&mut scheduler, 0), [(0, 64), (64, 128), (192, 8)]);
    (1..30).for_each(|now| _ = step(&mut scheduler, now, 9));
    scheduler.preempt(SequenceKey(0));
    assert_eq!(chunks(&mut scheduler, 40), [(0, 64), (64, 128), (192, 38)]);
}

/// A speculative sequence with its first token, in a budget of `budget` bytes. It holds 100, and a
/// drafted row takes 30.
fn drafting_in(budget: u64) -> Scheduler {
    let ledger = Ledger::new(budget, classes(&[(256, 100)])).with_tape_row_bytes(30);
    let mut scheduler = Scheduler::new(ledger, 4).with_row_us(1_000.0);
    scheduler.add(Request { permit: DRAFTS, ..request(10, 100) }).expect("room");
    step(&mut scheduler, 0, 50);
    scheduler
}

fn propose(scheduler: &mut Scheduler, drafted: usize) {
    scheduler.asked(SequenceKey(0), Millis(99));
    assert!(scheduler.proposed(SequenceKey(0), drafted));
}

#[test]
fn the_tape_of_a_block_is_held_until_the_next_step_with_rows() {
    let mut scheduler = drafting_in(1_000);
    propose(&mut scheduler, 4);
    let emission = verified(&mut scheduler, 1, &[51, 52, 53]);
    assert_eq!((emission.tokens.len(), scheduler.ledger().held()), (3, 220));
    // No step: the rows are on the tape still.
    scheduler.asked(SequenceKey(0), Millis(99));
    assert_eq!((next(&mut scheduler, 2).parts.len(), scheduler.ledger().held()), (0, 220));
    assert!(scheduler.proposed(SequenceKey(0), 2));
    verified(&mut scheduler, 3, &[54]);
    assert_eq!(scheduler.ledger().held(), 160);
    step(&mut scheduler, 4, 55);
    assert_eq!(scheduler.ledger().held(), 100);
    scheduler.remove(SequenceKey(0));
    assert_eq!(scheduler.ledger().held(), 0);
}

#[test]
fn a_block_whose_tape_has_no_room_is_dropped_and_evicts_the_cache_before() {
    let mut scheduler = drafting_in(240);
    scheduler.set_cached_bytes(100).expect("room");
    propose(&mut scheduler, 4);
    let mut evicted = 0;
    let step = scheduler.next_step(Millis(1), |bytes| {
        evicted += bytes;
        bytes
    });
    assert_eq!((step.parts[0].drafted, evicted, scheduler.ledger().held()), (4, 80, 220));
    scheduler.on_step(&step.parts, vec![], 9);
    let mut scheduler = drafting_in(240);
    propose(&mut scheduler, 5);
    let step = scheduler.next_step(Millis(1), |_| 0);
    assert_eq!((step.parts[0].rows, step.dropped_drafts.as_slice()), (1, &[SequenceKey(0)][..]));
    assert_eq!(scheduler.ledger().held(), 100);
}
