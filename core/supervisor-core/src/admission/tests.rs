use std::collections::VecDeque;

use paceline_vocabulary::report::KvClass;
use paceline_vocabulary::{KeyId, Lane, RouteReason, RouteWish};

use super::expected_memory::PRIOR_TOKENS;
use super::*;
use crate::request::Fingerprint;
use crate::tests::testing::Random;

fn classes(sizes: &[(u32, u64)]) -> Vec<KvClass> {
    sizes.iter().map(|&(positions, bytes)| KvClass { positions, bytes }).collect()
}

fn served(tokens: u64) -> ServedRequest {
    ServedRequest { lane: Lane::Plain, reason: RouteReason::Forced, tokens, first_ms: None }
}

pub(super) fn capacity() -> Capacity {
    Capacity {
        classes: classes(&[(256, 100), (512, 200), (1024, 400)]),
        max_sequences: 2,
        patch_bytes: 10,
    }
}

pub(super) fn memory(capacity: &Capacity) -> TargetMemory<'_> {
    TargetMemory {
        epoch: Epoch(1),
        capacity,
        budget_bytes: 1_000,
        held_bytes: 0,
        spare_bytes: None,
    }
}

pub(crate) fn summary(prompt_tokens: u32, max_tokens: u32) -> RequestSummary {
    let wish = RouteWish::Auto;
    RequestSummary {
        key: KeyId::NONE,
        prompt_tokens,
        max_tokens,
        context_tokens: prompt_tokens,
        deadline: None,
        wish,
        patches: 0,
        resumed: false,
        fingerprint: Fingerprint::default(),
        model: None,
    }
}

fn summary_of(key: u64, prompt_tokens: u32, max_tokens: u32) -> RequestSummary {
    RequestSummary { key: KeyId(key), ..summary(prompt_tokens, max_tokens) }
}

/// An admission with `places` places, a wait of a second, and 16 running requests of a key.
pub(super) fn admission(places: usize) -> Admission {
    admission_of(places, 16)
}

fn admission_of(queue_places: usize, streams_per_key: usize) -> Admission {
    Admission::new(AdmissionBounds { queue_places, queue_wait_ms: 1_000, streams_per_key })
}

/// Submits requests from ticket `first` on until one has to wait; how many run.
fn fill(
    admission: &mut Admission,
    first: u64,
    summary: RequestSummary,
    memory: &TargetMemory<'_>,
) -> usize {
    let runs = |at: &u64| {
        admission.submit(Ticket(first + at), summary, memory, Millis(0)).expect("a place");
        admission.admit(memory, Millis(0)).is_some()
    };
    (0..).take_while(runs).count()
}

#[test]
fn running_requests_that_may_draft_are_counted_by_their_newest_permit() {
    let capacity = capacity();
    let memory = memory(&capacity);
    let mut admission = admission(4);
    for at in 1..=2 {
        admission.submit(Ticket(at), summary(10, 10), &memory, Millis(0)).expect("a place");
        admission.admit(&memory, Millis(0)).expect("there is memory");
    }
    let permit =
        |lane, max_draft| Permit { lane, max_draft, reason: RouteReason::Benefit, policy_epoch: 0 };
    assert_eq!(admission.drafting(), 0, "no permits yet");
    admission.routed(Ticket(1), permit(Lane::Speculative, 7));
    admission.routed(Ticket(2), permit(Lane::Plain, 0));
    assert_eq!(admission.drafting(), 1);
    admission.routed(Ticket(2), permit(Lane::Speculative, 7));
    assert_eq!(admission.drafting(), 2);
    admission.routed(Ticket(1), permit(Lane::Plain, 0));
    admission.on_ended(Ticket(2));
    assert_eq!((admission.drafting(), admission.active()), (0, 1));
}

#[test]
fn queued_tokens_are_those_of_requests_that_wait_and_not_of_those_that_run() {
    let capacity = capacity();
    let memory = memory(&capacity);
    let mut admission = admission(2);
    let running = fill(&mut admission, 1, summary(10, 10), &memory) as u64;
    assert_eq!((running, admission.queued_tokens()), (2, 10), "the third waits");
    let soon = RequestSummary { deadline: Some(Millis(500)), ..summary(30, 10) };
    admission.submit(Ticket(10), soon, &memory, Millis(0)).expect("a place");
    assert_eq!(admission.queued_tokens(), 40);
    let refused = admission.submit(Ticket(11), summary(50, 10), &memory, Millis(0));
    assert_eq!(refused, Err(Denial::QueueFull { limit: 2 }));
    assert_eq!(admission.queued_tokens(), 40, "a refused request does not wait");
    assert_eq!(admission.expire(Millis(500)).len(), 1);
    assert_eq!(admission.queued_tokens(), 10, "the deadline of one has passed");
    admission.on_ended(Ticket(1));
    admission.admit(&memory, Millis(600)).expect("a place among the running");
    assert_eq!((admission.queued_tokens(), admission.active()), (0, 2));
}

#[test]
fn a_request_costs_the_first_class_that_holds_it() {
    let cost = |positions| capacity().cost(positions);
    assert_eq!(
        [cost(1), cost(256), cost(257), cost(1024), cost(1025)],
        [Some(100), Some(100), Some(200), Some(400), None]
    );
    assert!(capacity().is_usable());
    assert!(!Capacity::default().is_usable());
    assert!(
        !Capacity { classes: classes(&[(512, 1), (256, 2)]), max_sequences: 1, patch_bytes: 0 }
            .is_usable()
    );
}

#[test]
fn expected_positions_are_the_context_and_at_most_a_typical_answer() {
    let positions = |prompt, max, context, typical| {
        let summary = RequestSummary { context_tokens: context, ..summary(prompt, max) };
        let expected = summary.expected_positions(typical);
        assert!(expected <= summary.most_positions(), "{summary:?}");
        expected
    };
    assert_eq!(positions(100, 4_000, 100, 256), 356);
    assert_eq!(positions(100, 50, 100, 256), 150);
    // Resumed: 300 tokens are there, and it goes on; near its limit not for long.
    assert_eq!(positions(100, 4_000, 400, 256), 656);
    assert_eq!(positions(100, 350, 400, 256), 450);
    assert_eq!(positions(100, 300, 400, 256), 400);
}

/// A class of a model with recurrent layers counts the states, which are as large for a short
/// sequence as for a long one: 32 bytes here, beside one for eight positions.
#[test]
fn short_requests_are_bounded_by_their_states() {
    let classes = classes(&[(256, 32 + 32), (512, 32 + 64), (4_096, 32 + 512)]);
    let capacity = Capacity { classes, max_sequences: 32, patch_bytes: 0 };
    let memory = TargetMemory { budget_bytes: 600, ..memory(&capacity) };
    // The positions alone of 18 such requests would fit.
    assert_eq!(fill(&mut admission(64), 1, summary(10, 20), &memory), 9);
    assert_eq!(fill(&mut admission(64), 1, summary(4_000, 90), &memory), 1);
}

#[test]
fn a_queue_without_places_admits_a_request_that_fits() {
    let capacity = capacity();
    let memory = TargetMemory { budget_bytes: 250, ..memory(&capacity) };
    let mut admission = admission(0);
    assert_eq!(admission.submit(Ticket(1), summary(100, 300), &memory, Millis(0)), Ok(None));
    assert!(admission.admit(&memory, Millis(0)).is_some());
    assert_eq!(
        admission.submit(Ticket(2), summary(100, 300), &memory, Millis(0)),
        Err(Denial::QueueFull { limit: 0 })
    );
    admission.on_ended(Ticket(1));
    assert_eq!(admission.reserved_bytes(), 0);
}

#[test]
fn a_machine_without_memory_admits_nothing_whatever_the_ledger_says() {
    let capacity = capacity();
    let memory = |spare_bytes| TargetMemory { spare_bytes, ..memory(&capacity) };
    let mut admission = admission(4);
    assert_eq!(
        admission.submit(Ticket(1), summary(100, 300), &memory(Some(199)), Millis(0)),
        Ok(None)
    );
    assert_eq!(admission.admit(&memory(Some(199)), Millis(0)), None);
    assert!(
        admission.waits_for_machine_memory(&memory(Some(199)))
            && !admission.waits_for_machine_memory(&memory(Some(200)))
    );
    assert!(
        !admission
            .waits_for_machine_memory(&TargetMemory { budget_bytes: 100, ..memory(Some(199)) }),
        "the ledger is full as well"
    );
    assert!(admission.admit(&memory(Some(200)), Millis(0)).is_some());
    assert_eq!(admission.reserved_bytes(), 200);
    assert!(!admission.waits_for_machine_memory(&memory(Some(0))), "nobody waits");
}

#[test]
fn a_high_max_tokens_delays_no_request_and_a_request_that_never_fits_is_refused() {
    let capacity = Capacity { max_sequences: 99, ..capacity() };
    let memory = memory(&capacity);
    let mut admission = admission(4);
    // 400 bytes at worst: by that two would run. 100 + 256 tokens are expected, in a class of 200
    // bytes.
    assert_eq!(fill(&mut admission, 1, summary(100, 924), &memory), 5);
    assert_eq!(admission.reserved_bytes(), 1_000);
    let tight = TargetMemory { budget_bytes: 399, ..memory };
    let refused = admission.submit(Ticket(9), summary(100, 924), &tight, Millis(0));
    assert_eq!(
        refused,
        Err(Denial::KvExhausted { positions: 1_024, need_bytes: 400, budget_bytes: 399 })
    );
    let refused = admission.submit(Ticket(9), summary(100, 925), &memory, Millis(0));
    assert_eq!(
        refused,
        Err(Denial::TooLong { prompt_tokens: 100, max_tokens: 925, context: 1_024 })
    );
}

#[test]
fn the_length_of_past_answers_decides_the_expected_memory() {
    let capacity = Capacity { max_sequences: 99, ..capacity() };
    let memory = memory(&capacity);
    let mut admission = admission(4);
    let serve = |admission: &mut Admission, tokens, max| {
        for _ in 0..64 {
            admission.submit(Ticket(1), summary(100, max), &memory, Millis(0)).expect("a place");
            assert!(admission.admit(&memory, Millis(0)).is_some());
            admission.on_served(Ticket(1), served(tokens));
            admission.on_ended(Ticket(1));
        }
    };
    assert_eq!(admission.typical_tokens(), PRIOR_TOKENS);
    serve(&mut admission, 40, 900);
    assert_eq!((admission.typical_tokens(), admission.reserved_bytes()), (40, 0));
    assert_eq!(fill(&mut admission, 100, summary(100, 900), &memory), 10);
    (100..111).for_each(|ticket| admission.on_ended(Ticket(ticket)));
    // Cut by their limits they say nothing of how long answers are.
    serve(&mut admission, 16, 16);
    assert_eq!(admission.typical_tokens(), 40);
    serve(&mut admission, 800, 900);
    assert_eq!(fill(&mut admission, 100, summary(100, 900), &memory), 2);
    // A request that is gone already teaches nothing.
    admission.on_served(Ticket(7), served(1));
    assert_eq!(admission.typical_tokens(), 800);
}

#[test]
fn a_request_beyond_its_expected_memory_counts_by_what_it_holds() {
    let capacity = Capacity { max_sequences: 99, ..capacity() };
    let memory = |held_bytes| TargetMemory { held_bytes, ..memory(&capacity) };
    let mut admission = admission(4);
    for ticket in [1, 2] {
        admission
            .submit(Ticket(ticket), summary(100, 924), &memory(0), Millis(0))
            .expect("a place");
        assert!(admission.admit(&memory(0), Millis(0)).is_some());
    }
    // Both were expected to hold 200 bytes, and hold all they may.
    admission.on_heartbeat();
    admission.submit(Ticket(3), summary(100, 300), &memory(800), Millis(0)).expect("a place");
    assert!(admission.admit(&memory(800), Millis(0)).is_some(), "200 bytes are free");
    admission.submit(Ticket(4), summary(10, 10), &memory(800), Millis(0)).expect("a place");
    assert_eq!(admission.admit(&memory(800), Millis(0)), None, "who was let in since holds them");
    // A request that ended frees its bytes before the next heartbeat reports it.
    admission.on_ended(Ticket(3));
    assert!(admission.admit(&memory(800), Millis(0)).is_some());
    // Bytes without a running request are being freed.
    [1, 2, 4].into_iter().for_each(|ticket| admission.on_ended(Ticket(ticket)));
    admission.on_heartbeat();
    admission.submit(Ticket(5), summary(100, 924), &memory(1_000), Millis(0)).expect("a place");
    assert!(admission.admit(&memory(1_000), Millis(0)).is_some());
    admission.abandon(Epoch(1));
    assert_eq!((admission.reserved_bytes(), admission.active()), (0, 0));
}

#[test]
fn a_deadline_before_the_measured_first_token_is_refused() {
    let capacity = capacity();
    let memory = memory(&capacity);
    let mut admission = admission(4);
    let hurried = RequestSummary { deadline: Some(Millis(1_100)), ..summary(200, 100) };
    for at in 0..8 {
        // Nothing is refused before enough was measured.
        admission.submit(Ticket(at), hurried, &memory, Millis(1_000)).expect("a place");
        assert!(admission.admit(&memory, Millis(1_000)).is_some());
        let served = ServedRequest { first_ms: Some(400), ..served(10) };
        admission.on_served(Ticket(at), served);
        admission.on_ended(Ticket(at));
    }
    let refused = admission.submit(Ticket(9), hurried, &memory, Millis(1_000));
    assert_eq!(refused, Err(Denial::DeadlineInfeasible { earliest_ms: 320, remaining_ms: 100 }));
    let patient = RequestSummary { deadline: Some(Millis(1_320)), ..hurried };
    assert_eq!(admission.submit(Ticket(9), patient, &memory, Millis(1_000)), Ok(None));
    assert_eq!(
        admission.submit(Ticket(10), summary(200, 100), &memory, Millis(1_000)),
        Ok(None),
        "without a deadline"
    );
    // Another epoch of the target may be faster.
    admission.abandon(Epoch(1));
    assert_eq!(admission.submit(Ticket(11), hurried, &memory, Millis(1_000)), Ok(None));
}

/// Submits requests, numbered from `first` on, of these keys.
fn submit_all(
    admission: &mut Admission,
    first: u64,
    summaries: &[RequestSummary],
    memory: &TargetMemory<'_>,
) {
    for (ticket, summary) in (first..).zip(summaries) {
        assert_eq!(
            admission.submit(Ticket(ticket), *summary, memory, Millis(0)),
            Ok(None),
            "ticket {ticket}"
        );
    }
}

/// The numbers of all that are admitted now.
fn admitted(admission: &mut Admission, memory: &TargetMemory<'_>) -> Vec<u64> {
    std::iter::from_fn(|| admission.admit(memory, Millis(0)).map(|admitted| admitted.ticket.0))
        .collect()
}

#[test]
fn a_flood_of_one_key_does_not_keep_another_waiting() {
    let capacity = capacity();
    let memory = memory(&capacity);
    let mut admission = admission(128);
    submit_all(&mut admission, 1, &[summary_of(1, 100, 100); 60], &memory);
    assert_eq!(admitted(&mut admission, &memory), [1, 2]);
    submit_all(&mut admission, 100, &[summary_of(2, 100, 100)], &memory);
    assert_eq!(admitted(&mut admission, &memory), Vec::<u64>::new(), "both places are taken");
    admission.on_ended(Ticket(1));
    assert_eq!(admitted(&mut admission, &memory), [100], "the next place is the other key's");
    admission.on_ended(Ticket(2));
    assert_eq!(admitted(&mut admission, &memory), [3], "and nobody else waits");
    admission.on_ended(Ticket(100));
    assert_eq!(admitted(&mut admission, &memory), [4], "so the first key may have all");
}

#[test]
fn a_key_at_its_limit_waits() {
    let capacity = Capacity { max_sequences: 8, ..capacity() };
    let memory = memory(&capacity);
    let mut admission = admission_of(4, 3);
    submit_all(&mut admission, 1, &[summary_of(1, 10, 10); 3], &memory);
    assert_eq!(admitted(&mut admission, &memory), [1, 2, 3]);
    submit_all(&mut admission, 4, &[summary_of(1, 10, 10); 2], &memory);
    assert_eq!(admitted(&mut admission, &memory), Vec::<u64>::new());
    assert_eq!((admission.active(), admission.queued()), (3, 2));
    // A request of another key does not come after those of the first key.
    submit_all(&mut admission, 6, &[summary_of(2, 10, 10)], &memory);
    assert_eq!(admitted(&mut admission, &memory), [6]);
    admission.on_ended(Ticket(6));
    assert_eq!(
        admitted(&mut admission, &memory),
        Vec::<u64>::new(),
        "an end of another key changes nothing"
    );
    admission.on_ended(Ticket(2));
    assert_eq!(admitted(&mut admission, &memory), [4]);
    // Where the queue is full of them, another key that fits needs no place in it.
    submit_all(&mut admission, 7, &[summary_of(1, 10, 10); 3], &memory);
    assert_eq!(
        admission.submit(Ticket(10), summary_of(1, 10, 10), &memory, Millis(0)),
        Err(Denial::QueueFull { limit: 4 })
    );
    submit_all(&mut admission, 11, &[summary_of(2, 10, 10)], &memory);
    assert_eq!((admitted(&mut admission, &memory), admission.queued()), (vec![11], 4));
    // Without keys there is no limit but the target's.
    let mut plain = admission_of(16, 1);
    submit_all(&mut plain, 1, &[summary(10, 10); 9], &memory);
    assert_eq!(admitted(&mut plain, &memory).len(), 8);
}

#[test]
fn a_full_queue_displaces_the_newest_request_of_the_key_with_most() {
    let capacity = Capacity { max_sequences: 1, ..capacity() };
    let memory = memory(&capacity);
    let mut admission = admission(4);
    submit_all(&mut admission, 1, &[summary_of(1, 10, 10)], &memory);
    assert_eq!(admitted(&mut admission, &memory), [1]);
    submit_all(&mut admission, 2, &[summary_of(1, 10, 10); 4], &memory);
    let full = Denial::QueueFull { limit: 4 };
    let displaced = |ticket| Displaced { ticket: Ticket(ticket), denial: full.clone() };
    let mut submit =
        |ticket, key| admission.submit(Ticket(ticket), summary_of(key, 10, 10), &memory, Millis(0));
    assert_eq!(submit(6, 1), Err(full.clone()), "of the same key nothing is displaced");
    assert_eq!(submit(7, 2), Ok(Some(displaced(5))), "the newest of the key with most");
    assert_eq!(submit(8, 2), Ok(Some(displaced(4))));
    assert_eq!(submit(9, 2), Err(full.clone()), "both have two");
    assert_eq!(
        submit(10, 3),
        Ok(Some(displaced(8))),
        "of two with as many the one whose newest came last"
    );
    assert_eq!(admission.queued(), 4);
    let order = [1, 2, 7, 10].map(|ticket| {
        admission.on_ended(Ticket(ticket));
        admitted(&mut admission, &memory)
    });
    assert_eq!(order.concat(), [2, 7, 10, 3], "in turn, as they began to wait");
}

#[test]
fn a_large_request_is_admitted_despite_many_small_ones_of_other_keys() {
    let capacity = Capacity { max_sequences: 99, ..capacity() };
    let memory = memory(&capacity);
    let mut admission = admission(64);
    // Ten small ones of other keys hold all 1,000 bytes; then a large one comes (400), and small
    // ones in front of each end.
    submit_all(&mut admission, 1, &[summary_of(1, 10, 10); 10], &memory);
    assert_eq!(admitted(&mut admission, &memory).len(), 10);
    submit_all(&mut admission, 100, &[summary_of(2, 600, 300)], &memory);
    for end in 1..=4 {
        submit_all(&mut admission, 200 + end, &[summary_of(2 + end, 10, 10)], &memory);
        assert_eq!(
            admitted(&mut admission, &memory),
            Vec::<u64>::new(),
            "the turn stays with the large one"
        );
        admission.on_ended(Ticket(end));
    }
    assert_eq!(admitted(&mut admission, &memory)[..1], [100], "four ends are room for it");
}

#[test]
fn a_key_that_floods_with_large_requests_does_not_block_other_keys() {
    let capacity = Capacity { max_sequences: 99, ..capacity() };
    let memory = memory(&capacity);
    let mut admission = admission(64);
    submit_all(&mut admission, 1, &[summary_of(1, 600, 300); 4], &memory);
    assert_eq!(
        admitted(&mut admission, &memory),
        [1, 2],
        "the third does not fit, and it is its turn"
    );
    // Another key runs nothing: it does not wait for the large one, as that key runs its share.
    submit_all(&mut admission, 10, &[summary_of(2, 10, 10); 3], &memory);
    assert_eq!(admitted(&mut admission, &memory), [10, 11], "two each, and the memory is full");
    admission.on_ended(Ticket(1));
    assert_eq!(
        admitted(&mut admission, &memory),
        [3],
        "then the large one fits, and its turn has stayed"
    );
}

#[test]
fn a_deadline_counts_only_the_waiting_requests_of_its_own_key() {
    let capacity = Capacity { max_sequences: 1, ..capacity() };
    let memory = memory(&capacity);
    let mut admission = admission(64);
    // A hundred milliseconds between two: at least this for each of the own key.
    let mut now = Millis(0);
    submit_all(&mut admission, 1, &[summary_of(1, 10, 10); 30], &memory);
    for ticket in 1..=10 {
        assert!(admission.admit(&memory, now).is_some());
        admission.on_ended(Ticket(ticket));
        now = now + 100;
    }
    let hurried = |key| RequestSummary { deadline: Some(now + 300), ..summary_of(key, 10, 10) };
    let refused = admission.submit(Ticket(50), hurried(1), &memory, now);
    assert_eq!(refused, Err(Denial::DeadlineInfeasible { earliest_ms: 1_600, remaining_ms: 300 }));
    assert_eq!(
        admission.submit(Ticket(51), hurried(2), &memory, now),
        Ok(None),
        "its turn is the next but one"
    );
}

/// A queue in the order of arrival, as it is without keys: what admission has to do where there is
/// one key.
struct Plain {
    queue: VecDeque<(Ticket, RequestSummary, Millis)>,
    running: BTreeMap<Ticket, u64>,
}

impl Plain {
    fn fits(&self, summary: &RequestSummary, memory: &TargetMemory<'_>) -> bool {
        let expected = memory
            .capacity
            .cost_of(summary, summary.expected_positions(PRIOR_TOKENS))
            .expect("it is short enough");
        self.running.len() < memory.capacity.max_sequences
            && self.running.values().sum::<u64>() + expected <= memory.budget_bytes
    }

    fn submit(
        &mut self,
        ticket: Ticket,
        summary: RequestSummary,
        places: usize,
        memory: &TargetMemory<'_>,
        until: Millis,
    ) -> bool {
        let takes =
            (self.queue.is_empty() && self.fits(&summary, memory)) || self.queue.len() < places;
        if takes {
            self.queue.push_back((ticket, summary, until));
        }
        takes
    }

    fn admit(&mut self, memory: &TargetMemory<'_>) -> Option<Ticket> {
        let (ticket, summary, _) =
            *self.queue.front().filter(|(_, summary, _)| self.fits(summary, memory))?;
        self.queue.pop_front();
        self.running.insert(
            ticket,
            memory.capacity.cost_of(&summary, summary.expected_positions(PRIOR_TOKENS))?,
        );
        Some(ticket)
    }

    fn end(&mut self, ticket: Ticket) {
        self.running.remove(&ticket);
        self.queue.retain(|(waiting, ..)| *waiting != ticket);
    }

    fn expire(&mut self, now: Millis) -> Vec<Ticket> {
        let over = self
            .queue
            .iter()
            .filter(|(.., until)| *until <= now)
            .map(|(ticket, ..)| *ticket)
            .collect();
        self.queue.retain(|(.., until)| *until > now);
        over
    }
}

#[test]
fn with_one_key_the_queue_is_a_plain_fifo() {
    let capacity = Capacity { max_sequences: 4, ..capacity() };
    let memory = memory(&capacity);
    for seed in 1..=200 {
        let mut random = Random::new(seed);
        let key = KeyId(random.below(2));
        let places = random.below(8) as usize;
        let mut admission = admission(places);
        let mut plain = Plain { queue: VecDeque::new(), running: BTreeMap::new() };
        let mut now = Millis(0);
        for ticket in 1..=200 {
            now = now + random.below(200);
            let expired: Vec<Ticket> =
                admission.expire(now).into_iter().map(|(ticket, _)| ticket).collect();
            assert_eq!(expired, plain.expire(now), "seed {seed}");
            let summary = RequestSummary {
                key,
                ..summary(1 + random.below(600) as u32, 1 + random.below(400) as u32)
            };
            let taken = admission.submit(Ticket(ticket), summary, &memory, now);
            let expected = plain.submit(Ticket(ticket), summary, places, &memory, now + 1_000);
            assert_eq!(
                taken,
                if expected { Ok(None) } else { Err(Denial::QueueFull { limit: places }) },
                "seed {seed}"
            );
            loop {
                let next = plain.admit(&memory);
                assert_eq!(
                    admission.admit(&memory, now).map(|admitted| admitted.ticket),
                    next,
                    "seed {seed}"
                );
                if next.is_none() {
                    break;
                }
            }
            let over = Ticket(1 + random.below(ticket));
            admission.on_ended(over);
            plain.end(over);
            assert_eq!(
                (admission.active(), admission.queued()),
                (plain.running.len(), plain.queue.len()),
                "seed {seed}"
            );
        }
    }
}
