use super::*;
use crate::ClassBytes;
use paceline_vocabulary::{Lane, RouteReason};

const PLAIN: Permit =
    Permit { lane: Lane::Plain, max_draft: 0, reason: RouteReason::DrafterAbsent, policy_epoch: 0 };
const DRAFTS: Permit =
    Permit { lane: Lane::Speculative, max_draft: 7, reason: RouteReason::Prior, policy_epoch: 0 };

fn classes(of: &[(usize, u64)]) -> Vec<ClassBytes> {
    of.iter()
        .map(|(positions, kv)| ClassBytes { positions: *positions, kv: *kv, hidden: 0 })
        .collect()
}

/// On a machine without measurements.
fn unmeasured() -> Scheduler {
    Scheduler::new(Ledger::new(10_000, classes(&[(256, 100), (4096, 1600)])), 4)
}

/// On a machine where a prompt row is known to take a millisecond.
pub(super) fn scheduler() -> Scheduler {
    unmeasured().with_row_us(1_000.0)
}

/// The next step, without a prefix cache.
pub(super) fn next(scheduler: &mut Scheduler, now: u64) -> Step {
    scheduler.start(|_| 0);
    scheduler.next_step(Millis(now), |_| 0)
}

pub(super) fn request(prompt: usize, max_tokens: u32) -> Request {
    Request {
        prompt: vec![7; prompt],
        continuation: vec![],
        max_tokens,
        stop_ids: vec![2],
        ignored_ids: vec![],
        deadline: None,
        permit: PLAIN,
        class: String::new(),
        cache_scope: String::new(),
        images: Default::default(),
        last_turn: None,
    }
}

/// Computes a step and chooses `token` wherever one is chosen. Returns the rows and the emissions.
pub(super) fn step(
    scheduler: &mut Scheduler,
    now: u64,
    token: u32,
) -> (Vec<(u64, usize, bool)>, Vec<Emission>) {
    let step = next(scheduler, now);
    let tokens = vec![Token { id: token, margin: 1.0 }];
    let chosen: Vec<Chosen> = step
        .parts
        .iter()
        .filter(|part| part.chooses)
        .map(|part| Chosen { key: part.key, tokens: tokens.clone() })
        .collect();
    let rows = step.parts.iter().map(|part| (part.key.0, part.rows, part.chooses)).collect();
    (rows, scheduler.on_step(&step.parts, chosen, 1000))
}

fn finish(emission: &Emission) -> Option<Finish> {
    emission.end.as_ref().map(|end| end.finish)
}

#[test]
fn a_request_is_prefilled_then_decoded_then_removed() {
    let mut scheduler = scheduler();
    scheduler.add(request(10, 3)).expect("room");
    assert_eq!(step(&mut scheduler, 0, 50).0, [(0, 10, true)]);
    assert_eq!(step(&mut scheduler, 1, 51).0, [(0, 1, true)]);
    let (_, last) = step(&mut scheduler, 2, 52);
    assert_eq!(
        (last[0].index, last[0].tokens[0].id, finish(&last[0])),
        (2, 52, Some(Finish::Length))
    );
    assert!(scheduler.is_empty());
    assert_eq!(scheduler.ledger().free(), 10_000);
}

#[test]
fn a_stop_id_ends_a_sequence() {
    let mut scheduler = scheduler();
    scheduler.add(request(1, 100)).expect("room");
    assert_eq!(finish(&step(&mut scheduler, 0, 2).1[0]), Some(Finish::Stop));
    assert!(scheduler.is_empty());
}

#[test]
fn long_prompts_are_prefilled_in_chunks_beside_decoding() {
    let mut scheduler = scheduler();
    scheduler.price = RowPrice::flat(2_000.0);
    scheduler.add(request(5, 50)).expect("room");
    step(&mut scheduler, 0, 9);
    scheduler.add(request(300, 5)).expect("room");
    scheduler.add(request(20, 5)).expect("room");
    // The short prompt goes first, and the long one gets the rest of the chunk.
    assert_eq!(step(&mut scheduler, 1, 9).0, [(0, 1, true), (2, 20, true), (1, 32, false)]);
    scheduler.price = RowPrice::flat(200.0);
    assert_eq!(step(&mut scheduler, 2, 9).0, [(0, 1, true), (2, 1, true), (1, 268, true)]);
    assert_eq!(step(&mut scheduler, 3, 9).0, [(0, 1, true), (1, 1, true), (2, 1, true)]);
}

#[test]
fn an_operator_sets_the_longest_time_of_a_chunk() {
    // 1 ms a row; half of the time beside a sequence that decodes.
    for (ms, alone, beside) in [(250, 224, 96), (64, 64, 32), (1_000, 992, 480)] {
        let mut scheduler = scheduler().with_longest_chunk_ms(ms);
        scheduler.price = RowPrice::flat(1_000.0);
        scheduler.add(request(3_000, 5)).expect("room");
        assert_eq!(step(&mut scheduler, 0, 9).0, [(0, alone, false)], "{ms} ms");
        scheduler.add(request(5, 50)).expect("room");
        step(&mut scheduler, 1, 9);
        assert_eq!(step(&mut scheduler, 2, 9).0, [(1, 1, true), (0, beside, false)], "{ms} ms");
    }
}

#[test]
fn a_slow_machine_gets_small_chunks() {
    let mut scheduler = unmeasured();
    scheduler.add(request(2000, 5)).expect("room");
    // 5 ms a row: 50 rows in 250 ms, 32 as a multiple of 32.
    for (now, rows) in [1, 32, 32, 32].into_iter().enumerate() {
        let step = next(&mut scheduler, now as u64);
        assert_eq!(step.parts[0].rows, rows, "step {now}");
        scheduler.on_step(&step.parts, vec![], rows as u64 * 5_000);
    }
}

#[test]
fn on_an_unmeasured_machine_no_prefill_step_counts_as_hung() {
    const HANG_US: u64 = 10_000_000;
    // The fixed cost of a step, and the cost of a row.
    let machines = [
        (1_000, 10),
        (30_000, 500),
        (0, 5_000),
        (5_000_000, 1_000),
        (0, 300_000),
        (100_000, 1_200_000),
        (0, 9_900_000),
    ];
    for (step_us, row_us) in machines {
        for prompts in [1, 3] {
            let mut scheduler = unmeasured();
            (0..prompts).for_each(|_| _ = scheduler.add(request(1_000, 1)).expect("room"));
            let (mut slowest_us, mut steps) = (0, 0);
            while !scheduler.is_empty() {
                let step = next(&mut scheduler, steps);
                let rows: usize = step.parts.iter().map(|part| part.rows).sum();
                let took_us = step_us + row_us * rows as u64;
                let what = format!(
                    "{step_us} and {row_us} us, step {steps} of {rows} rows: {took_us} us after {slowest_us}"
                );
                assert!(rows > 0 && took_us <= HANG_US.max(10 * slowest_us), "{what}");
                let chosen = |part: &StepPart| Chosen {
                    key: part.key,
                    tokens: vec![Token { id: 9, margin: 1.0 }],
                };
                let chosen = step.parts.iter().filter(|part| part.chooses).map(chosen).collect();
                scheduler.on_step(&step.parts, chosen, took_us);
                (slowest_us, steps) = (slowest_us.max(took_us), steps + 1);
            }
            // Only the first chunks are small.
            assert!(steps <= prompts * 32 + 6, "{step_us} and {row_us} us: {steps} steps");
        }
    }
}

#[test]
fn a_continuation_is_prefilled_like_a_prompt_and_counts_as_generated() {
    let mut scheduler = scheduler();
    scheduler.add(Request { continuation: vec![8, 9], ..request(4, 3) }).expect("room");
    let (rows, emissions) = step(&mut scheduler, 0, 60);
    assert_eq!(rows, [(0, 6, true)]);
    assert_eq!((emissions[0].index, finish(&emissions[0])), (2, Some(Finish::Length)));
}

#[test]
fn cached_rows_are_not_prefilled_and_count_as_cached_prompt_tokens() {
    let mut scheduler = scheduler();
    let resumed = Request { continuation: vec![8; 100], ..request(100, 101) };
    for (at, request, cached) in [(0, request(200, 1), 192), (1, resumed, 100)] {
        let key = scheduler.add(request).expect("room");
        assert_eq!(scheduler.start(|_| 0).keys, [key]);
        assert_eq!(scheduler.unread(), [key]);
        scheduler.found(key, 192);
        let (rows, last) = step(&mut scheduler, 0, 50);
        assert_eq!(rows, [(at, 8, true)]);
        let end = last[0].end.as_ref().expect("it may have one token more");
        assert_eq!((end.served.cached_tokens, end.ids.len()), (cached, 201));
        assert!(scheduler.unread().is_empty());
    }
}

#[test]
fn deadlines_end_a_sequence_at_the_step_border() {
    let mut scheduler = scheduler();
    scheduler.add(Request { deadline: Some(Millis(5)), ..request(4, 30) }).expect("room");
    step(&mut scheduler, 4, 60);
    let late = next(&mut scheduler, 5);
    assert_eq!(
        late,
        Step { ended: vec![(SequenceKey(0), EndReason::DeadlinePassed)], ..Step::default() }
    );
    assert_eq!(scheduler.ledger().free(), 10_000);
}

#[test]
fn a_full_engine_and_a_request_too_large_are_refused() {
    let mut scheduler = Scheduler::new(Ledger::new(250, classes(&[(256, 100), (512, 300)])), 2)
        .with_row_us(1_000.0);
    assert!(matches!(
        scheduler.add(request(10, 300)),
        Err(SchedulerError::Ledger(LedgerError::Never { .. }))
    ));
    assert!(matches!(
        scheduler.add(request(10, 600)),
        Err(SchedulerError::Ledger(LedgerError::TooLong { .. }))
    ));
    scheduler.add(request(10, 10)).expect("room");
    scheduler.add(request(10, 10)).expect("room");
    assert_eq!(scheduler.add(request(10, 10)), Err(SchedulerError::Full(2)));
}

#[test]
fn a_sequence_without_room_waits() {
    let mut scheduler =
        Scheduler::new(Ledger::new(250, classes(&[(256, 100)])), 4).with_row_us(1_000.0);
    (0..3).for_each(|_| _ = scheduler.add(request(10, 2)).expect("taken"));
    assert_eq!(scheduler.start(|_| 0).keys, [SequenceKey(0), SequenceKey(1)]);
    assert_eq!(step(&mut scheduler, 0, 9).0, [(0, 10, true), (1, 10, true)]);
    step(&mut scheduler, 1, 9);
    assert_eq!(scheduler.start(|_| 0).keys, [SequenceKey(2)]);
}

/// A speculative sequence of `max_tokens` that has its first token.
fn drafting(max_tokens: u32) -> (Scheduler, SequenceKey) {
    let mut scheduler = scheduler();
    let key = scheduler.add(Request { permit: DRAFTS, ..request(10, max_tokens) }).expect("room");
    step(&mut scheduler, 0, 50);
    (scheduler, key)
}

fn verified(scheduler: &mut Scheduler, now: u64, ids: &[u32]) -> Emission {
    let step = next(scheduler, now);
    let tokens = ids.iter().map(|id| Token { id: *id, margin: 1.0 }).collect();
    scheduler.on_step(&step.parts, vec![Chosen { key: step.parts[0].key, tokens }], 1000).remove(0)
}

#[test]
fn a_draft_is_waited_for_verified_and_counted() {
    let (mut scheduler, key) = drafting(100);
    assert_eq!(scheduler.get(key).expect("there").draft_most(), 7);
    scheduler.asked(key, Millis(20));
    assert_eq!(
        (next(&mut scheduler, 19).parts, scheduler.waits_until()),
        (vec![], Some(Millis(20)))
    );
    assert!(scheduler.proposed(key, 5));
    let part = next(&mut scheduler, 19).parts[0];
    assert_eq!((part.start, part.rows, part.drafted, part.chooses), (10, 6, 5, true));
    // Three of five accepted, and the target's own token.
    let emission = verified(&mut scheduler, 19, &[51, 52, 53, 54]);
    assert_eq!((emission.index, emission.tokens.len()), (1, 4));
    let sequence = scheduler.get(key).expect("there");
    assert_eq!((sequence.committed, sequence.ids.len(), sequence.draft), (14, 15, Draft::None));
    assert_eq!(sequence.counts, DraftCounts { cycles: 1, drafted: 5, accepted: 3 });
    // And then plainly.
    assert_eq!(step(&mut scheduler, 20, 60).0, [(0, 1, true)]);
}

#[test]
fn a_late_draft_is_neither_waited_for_nor_used() {
    let (mut scheduler, key) = drafting(100);
    scheduler.asked(key, Millis(20));
    let step = next(&mut scheduler, 20);
    assert_eq!((step.late, step.parts[0].rows), (vec![key], 1));
    assert!(!scheduler.proposed(key, 5));
    scheduler.asked(key, Millis(40));
    scheduler.give_up_draft(key);
    assert!(!scheduler.proposed(key, 5));
    assert_eq!(next(&mut scheduler, 21).parts[0].rows, 1);
}

#[test]
fn others_step_while_a_draft_is_under_way() {
    let (mut scheduler, key) = drafting(100);
    scheduler.add(request(4, 10)).expect("room");
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
    assert_eq!(next(&mut scheduler, 1).parts[0].rows, 1);
    assert_eq!(scheduler.get(key).expect("there").draft_most(), 0);
    scheduler.set_permit(key, DRAFTS);
    assert_eq!(scheduler.get(key).expect("there").draft_most(), 7);
}

#[test]
fn short_prompts_overtake_a_long_one_for_four_steps_at_most() {
    let mut scheduler =
        Scheduler::new(Ledger::new(100_000, classes(&[(256, 100), (4096, 1600)])), 32);
    let long = scheduler.add(request(2_000, 2)).expect("room");
    scheduler.price = RowPrice::flat(250_000.0 / 64.0);
    let mut waited = 0;
    for now in 0..40 {
        // In every step a request arrives whose prompt fills the chunk.
        scheduler.add(request(64, 1)).expect("room");
        scheduler.start(|_| 0);
        let step = scheduler.next_step(Millis(now), |_| 0);
        let rows: usize = step.parts.iter().map(|part| part.rows).sum();
        assert!(rows <= 64, "{step:?}");
        let passed =
            step.skipped.iter().find(|(key, _)| *key == long).map_or(0, |(_, steps)| *steps);
        assert!(passed == 0 || passed == waited + 1, "{passed} after {waited}");
        waited = passed;
        assert!(waited <= 4, "{waited} steps without a row");
        let chosen =
            |part: &StepPart| Chosen { key: part.key, tokens: vec![Token { id: 9, margin: 1.0 }] };
        let chosen = step.parts.iter().filter(|part| part.chooses).map(chosen).collect();
        let parts = step.parts;
        scheduler.on_step(&parts, chosen, 250_000);
    }
    assert!(scheduler.get(long).is_none_or(|one| one.committed >= 7 * 64));
}

#[test]
fn beside_streams_a_chunk_takes_half_the_time() {
    let mut scheduler = scheduler();
    scheduler.price = RowPrice::flat(1_000.0);
    scheduler.add(request(600, 5)).expect("room");
    assert_eq!(step(&mut scheduler, 0, 9).0, [(0, 224, false)]);
    scheduler.price = RowPrice::flat(1_000.0);
    let key = scheduler.add(request(1, 50)).expect("room");
    step(&mut scheduler, 1, 9);
    scheduler.price = RowPrice::flat(1_000.0);
    assert_eq!(scheduler.get(key).expect("there").phase, Phase::Decoding);
    assert_eq!(step(&mut scheduler, 2, 9).0, [(1, 1, true), (0, 96, false)]);
}

#[test]
fn a_prompt_waits_for_one_with_the_same_beginning_which_goes_first() {
    let mut scheduler = scheduler();
    let [a, b, c] = [1000, 900, 500].map(|rows| scheduler.add(request(rows, 5)).expect("room"));
    scheduler.price = RowPrice::flat(250_000.0 / 64.0);
    scheduler.prefix_waits.insert(b, PrefixWait { leader: a, rows: 200 });
    let first = next(&mut scheduler, 0);
    // Two prompts wait for the first 200 rows of A, so it goes before C, which is shorter.
    assert_eq!(first.parts.iter().map(|part| (part.key, part.rows)).collect::<Vec<_>>(), [(a, 64)]);
    assert_eq!(first.skipped, [(c, 1), (b, 1)]);
    scheduler.on_step(&first.parts, vec![], 64_000);
    scheduler.prefix_waits.clear();
    scheduler.found(b, 192);
    let keys: Vec<_> = next(&mut scheduler, 1).parts.iter().map(|part| part.key).collect();
    assert_eq!(keys, [c]);
}

mod memory;
mod snapshots;
mod vision_turns;
