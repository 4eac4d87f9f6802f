use std::collections::VecDeque;

use super::*;
use crate::core::dice::Dice;
use crate::core::likely::PRIOR_TOKENS;

fn capacity() -> Capacity {
    Capacity {
        classes: vec![(256, 100), (512, 200), (1024, 400)],
        max_sequences: 2,
        patch_bytes: 10,
    }
}

fn room(capacity: &Capacity) -> Room<'_> {
    Room { epoch: Epoch(1), capacity, budget_bytes: 1_000, held_bytes: 0, spare_bytes: None }
}

fn ask(prompt_tokens: u32, max_tokens: u32) -> Ask {
    let wish = RouteWish::Auto;
    Ask {
        key: KeyId::NONE,
        prompt_tokens,
        max_tokens,
        context_tokens: prompt_tokens,
        deadline: None,
        wish,
        patches: 0,
    }
}

fn ask_of(key: u64, prompt_tokens: u32, max_tokens: u32) -> Ask {
    Ask { key: KeyId(key), ..ask(prompt_tokens, max_tokens) }
}

/// With so many places, a wait of a second, and 16 running requests of a key.
fn admission(places: usize) -> Admission {
    Admission::new(places, 1_000, 16)
}

/// Submits requests from ticket `first` on until one has to wait; how many run.
fn fill(admission: &mut Admission, first: u64, ask: Ask, room: &Room<'_>) -> usize {
    let runs = |at: &u64| {
        admission.submit(Ticket(first + at), ask, room, Millis(0)).expect("a place");
        admission.admit(room, Millis(0)).is_some()
    };
    (0..).take_while(runs).count()
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
        !Capacity { classes: vec![(512, 1), (256, 2)], max_sequences: 1, patch_bytes: 0 }
            .is_usable()
    );
}

#[test]
fn what_is_likely_is_what_there_is_and_a_typical_answer_at_most() {
    let positions = |prompt, max, context, typical| {
        let ask = Ask { context_tokens: context, ..ask(prompt, max) };
        let likely = ask.likely_positions(typical);
        assert!(likely <= ask.most_positions(), "{ask:?}");
        likely
    };
    assert_eq!(positions(100, 4_000, 100, 256), 356);
    assert_eq!(positions(100, 50, 100, 256), 150);
    // Resumed: 300 tokens are there, and it goes on; near its limit not for long.
    assert_eq!(positions(100, 4_000, 400, 256), 656);
    assert_eq!(positions(100, 350, 400, 256), 450);
    assert_eq!(positions(100, 300, 400, 256), 400);
}

#[test]
fn a_queue_without_places_still_lets_through_what_fits() {
    let capacity = capacity();
    let room = Room { budget_bytes: 250, ..room(&capacity) };
    let mut admission = admission(0);
    assert_eq!(admission.submit(Ticket(1), ask(100, 300), &room, Millis(0)), Ok(None));
    assert!(admission.admit(&room, Millis(0)).is_some());
    assert_eq!(
        admission.submit(Ticket(2), ask(100, 300), &room, Millis(0)),
        Err(Denial::QueueFull { limit: 0 })
    );
    admission.ended(Ticket(1));
    assert_eq!(admission.reserved_bytes(), 0);
}

#[test]
fn a_full_machine_lets_nobody_in_whatever_the_ledger_says() {
    let capacity = capacity();
    let room = |spare_bytes| Room { spare_bytes, ..room(&capacity) };
    let mut admission = admission(4);
    assert_eq!(admission.submit(Ticket(1), ask(100, 300), &room(Some(199)), Millis(0)), Ok(None));
    assert_eq!(admission.admit(&room(Some(199)), Millis(0)), None);
    assert!(admission.is_squeezed(&room(Some(199))) && !admission.is_squeezed(&room(Some(200))));
    assert!(
        !admission.is_squeezed(&Room { budget_bytes: 100, ..room(Some(199)) }),
        "the ledger is full as well"
    );
    assert!(admission.admit(&room(Some(200)), Millis(0)).is_some());
    assert_eq!(admission.reserved_bytes(), 200);
    assert!(!admission.is_squeezed(&room(Some(0))), "nobody waits");
}

#[test]
fn limits_far_away_keep_nobody_waiting_and_what_could_never_fit_is_refused() {
    let capacity = Capacity { max_sequences: 99, ..capacity() };
    let room = room(&capacity);
    let mut admission = admission(4);
    // 400 bytes at worst: by that two would run. 100 + 256 tokens are likely, in a class of 200
    // bytes.
    assert_eq!(fill(&mut admission, 1, ask(100, 924), &room), 5);
    assert_eq!(admission.reserved_bytes(), 1_000);
    let tight = Room { budget_bytes: 399, ..room };
    let refused = admission.submit(Ticket(9), ask(100, 924), &tight, Millis(0));
    assert_eq!(
        refused,
        Err(Denial::KvExhausted { positions: 1_024, need_bytes: 400, budget_bytes: 399 })
    );
    let refused = admission.submit(Ticket(9), ask(100, 925), &room, Millis(0));
    assert_eq!(
        refused,
        Err(Denial::TooLong { prompt_tokens: 100, max_tokens: 925, context: 1_024 })
    );
}

#[test]
fn what_answers_have_been_decides_what_is_likely() {
    let capacity = Capacity { max_sequences: 99, ..capacity() };
    let room = room(&capacity);
    let mut admission = admission(4);
    let serve = |admission: &mut Admission, tokens, max| {
        for _ in 0..64 {
            admission.submit(Ticket(1), ask(100, max), &room, Millis(0)).expect("a place");
            assert!(admission.admit(&room, Millis(0)).is_some());
            admission.served(Ticket(1), tokens);
            admission.ended(Ticket(1));
        }
    };
    assert_eq!(admission.typical_tokens(), PRIOR_TOKENS);
    serve(&mut admission, 40, 900);
    assert_eq!((admission.typical_tokens(), admission.reserved_bytes()), (40, 0));
    assert_eq!(fill(&mut admission, 100, ask(100, 900), &room), 10);
    (100..111).for_each(|ticket| admission.ended(Ticket(ticket)));
    // Cut by their limits they say nothing of how long answers are.
    serve(&mut admission, 16, 16);
    assert_eq!(admission.typical_tokens(), 40);
    serve(&mut admission, 800, 900);
    assert_eq!(fill(&mut admission, 100, ask(100, 900), &room), 2);
    // Who is not there any more says nothing either.
    admission.served(Ticket(7), 1);
    assert_eq!(admission.typical_tokens(), 800);
}

#[test]
fn what_outgrew_its_likely_length_counts_as_it_is_held() {
    let capacity = Capacity { max_sequences: 99, ..capacity() };
    let room = |held_bytes| Room { held_bytes, ..room(&capacity) };
    let mut admission = admission(4);
    for ticket in [1, 2] {
        admission.submit(Ticket(ticket), ask(100, 924), &room(0), Millis(0)).expect("a place");
        assert!(admission.admit(&room(0), Millis(0)).is_some());
    }
    // Both were likely to hold 200, and hold all they may.
    admission.heard();
    admission.submit(Ticket(3), ask(100, 300), &room(800), Millis(0)).expect("a place");
    assert!(admission.admit(&room(800), Millis(0)).is_some(), "200 bytes are free");
    admission.submit(Ticket(4), ask(10, 10), &room(800), Millis(0)).expect("a place");
    assert_eq!(admission.admit(&room(800), Millis(0)), None, "who was let in since holds them");
    // Whose end is known gives his back before the target says so.
    admission.ended(Ticket(3));
    assert!(admission.admit(&room(800), Millis(0)).is_some());
    // What is held by nobody who runs is on its way back.
    [1, 2, 4].into_iter().for_each(|ticket| admission.ended(Ticket(ticket)));
    admission.heard();
    admission.submit(Ticket(5), ask(100, 924), &room(1_000), Millis(0)).expect("a place");
    assert!(admission.admit(&room(1_000), Millis(0)).is_some());
    admission.abandon(Epoch(1));
    assert_eq!((admission.reserved_bytes(), admission.active()), (0, 0));
}

#[test]
fn a_deadline_before_the_first_token_is_refused_once_that_was_measured() {
    let capacity = capacity();
    let room = room(&capacity);
    let mut admission = admission(4);
    let hurried = Ask { deadline: Some(Millis(1_100)), ..ask(200, 100) };
    for at in 0..8 {
        // Nothing is refused before enough was measured.
        admission.submit(Ticket(at), hurried, &room, Millis(1_000)).expect("a place");
        assert!(admission.admit(&room, Millis(1_000)).is_some());
        admission.first_token(Ticket(at), 400);
        admission.served(Ticket(at), 10);
        admission.ended(Ticket(at));
    }
    let refused = admission.submit(Ticket(9), hurried, &room, Millis(1_000));
    assert_eq!(refused, Err(Denial::DeadlineInfeasible { earliest_ms: 320, patience_ms: 100 }));
    let patient = Ask { deadline: Some(Millis(1_320)), ..hurried };
    assert_eq!(admission.submit(Ticket(9), patient, &room, Millis(1_000)), Ok(None));
    assert_eq!(
        admission.submit(Ticket(10), ask(200, 100), &room, Millis(1_000)),
        Ok(None),
        "without a deadline"
    );
    // Another life of the target may be faster.
    admission.abandon(Epoch(1));
    assert_eq!(admission.submit(Ticket(11), hurried, &room, Millis(1_000)), Ok(None));
}

/// Submits requests, numbered from `first` on, of these keys.
fn submit_all(admission: &mut Admission, first: u64, asks: &[Ask], room: &Room<'_>) {
    for (ticket, ask) in (first..).zip(asks) {
        assert_eq!(
            admission.submit(Ticket(ticket), *ask, room, Millis(0)),
            Ok(None),
            "ticket {ticket}"
        );
    }
}

/// The numbers of all that are admitted now.
fn admitted(admission: &mut Admission, room: &Room<'_>) -> Vec<u64> {
    std::iter::from_fn(|| admission.admit(room, Millis(0)).map(|admitted| admitted.ticket.0))
        .collect()
}

#[test]
fn a_flood_of_one_key_does_not_keep_another_waiting() {
    let capacity = capacity();
    let room = room(&capacity);
    let mut admission = admission(128);
    submit_all(&mut admission, 1, &[ask_of(1, 100, 100); 60], &room);
    assert_eq!(admitted(&mut admission, &room), [1, 2]);
    submit_all(&mut admission, 100, &[ask_of(2, 100, 100)], &room);
    assert_eq!(admitted(&mut admission, &room), Vec::<u64>::new(), "both places are taken");
    admission.ended(Ticket(1));
    assert_eq!(admitted(&mut admission, &room), [100], "the next place is the other key's");
    admission.ended(Ticket(2));
    assert_eq!(admitted(&mut admission, &room), [3], "and nobody else waits");
    admission.ended(Ticket(100));
    assert_eq!(admitted(&mut admission, &room), [4], "so the first key may have all");
}

#[test]
fn a_key_runs_as_many_as_it_may_and_its_others_wait() {
    let capacity = Capacity { max_sequences: 8, ..capacity() };
    let room = room(&capacity);
    let mut admission = Admission::new(4, 1_000, 3);
    submit_all(&mut admission, 1, &[ask_of(1, 10, 10); 3], &room);
    assert_eq!(admitted(&mut admission, &room), [1, 2, 3]);
    submit_all(&mut admission, 4, &[ask_of(1, 10, 10); 2], &room);
    assert_eq!(admitted(&mut admission, &room), Vec::<u64>::new());
    assert_eq!((admission.active(), admission.queued()), (3, 2));
    // Another key is not behind those that wait for their own.
    submit_all(&mut admission, 6, &[ask_of(2, 10, 10)], &room);
    assert_eq!(admitted(&mut admission, &room), [6]);
    admission.ended(Ticket(6));
    assert_eq!(
        admitted(&mut admission, &room),
        Vec::<u64>::new(),
        "an end of another key changes nothing"
    );
    admission.ended(Ticket(2));
    assert_eq!(admitted(&mut admission, &room), [4]);
    // Where the queue is full of them, another key that fits needs no place in it.
    submit_all(&mut admission, 7, &[ask_of(1, 10, 10); 3], &room);
    assert_eq!(
        admission.submit(Ticket(10), ask_of(1, 10, 10), &room, Millis(0)),
        Err(Denial::QueueFull { limit: 4 })
    );
    submit_all(&mut admission, 11, &[ask_of(2, 10, 10)], &room);
    assert_eq!((admitted(&mut admission, &room), admission.queued()), (vec![11], 4));
    // Without keys there is no limit but the target's.
    let mut plain = Admission::new(16, 1_000, 1);
    submit_all(&mut plain, 1, &[ask(10, 10); 9], &room);
    assert_eq!(admitted(&mut plain, &room).len(), 8);
}

#[test]
fn a_full_queue_takes_a_key_with_few_in_place_of_the_one_with_most() {
    let capacity = Capacity { max_sequences: 1, ..capacity() };
    let room = room(&capacity);
    let mut admission = admission(4);
    submit_all(&mut admission, 1, &[ask_of(1, 10, 10)], &room);
    assert_eq!(admitted(&mut admission, &room), [1]);
    submit_all(&mut admission, 2, &[ask_of(1, 10, 10); 4], &room);
    let full = Denial::QueueFull { limit: 4 };
    let mut submit =
        |ticket, key| admission.submit(Ticket(ticket), ask_of(key, 10, 10), &room, Millis(0));
    assert_eq!(submit(6, 1), Err(full.clone()), "of the same key nothing is displaced");
    assert_eq!(
        submit(7, 2),
        Ok(Some((Ticket(5), full.clone()))),
        "the newest of the key with most"
    );
    assert_eq!(submit(8, 2), Ok(Some((Ticket(4), full.clone()))));
    assert_eq!(submit(9, 2), Err(full.clone()), "both have two");
    assert_eq!(
        submit(10, 3),
        Ok(Some((Ticket(8), full))),
        "of two with as many the one whose newest came last"
    );
    assert_eq!(admission.queued(), 4);
    let order = [1, 2, 7, 10].map(|ticket| {
        admission.ended(Ticket(ticket));
        admitted(&mut admission, &room)
    });
    assert_eq!(order.concat(), [2, 7, 10, 3], "in turn, as they began to wait");
}

#[test]
fn a_large_request_gets_its_turn_however_many_small_ones_of_other_keys_come() {
    let capacity = Capacity { max_sequences: 99, ..capacity() };
    let room = room(&capacity);
    let mut admission = admission(64);
    // Ten small ones of other keys hold all 1,000 bytes; then a large one comes (400), and small
    // ones in front of each end.
    submit_all(&mut admission, 1, &[ask_of(1, 10, 10); 10], &room);
    assert_eq!(admitted(&mut admission, &room).len(), 10);
    submit_all(&mut admission, 100, &[ask_of(2, 600, 300)], &room);
    for end in 1..=4 {
        submit_all(&mut admission, 200 + end, &[ask_of(2 + end, 10, 10)], &room);
        assert_eq!(
            admitted(&mut admission, &room),
            Vec::<u64>::new(),
            "the turn stays with the large one"
        );
        admission.ended(Ticket(end));
    }
    assert_eq!(admitted(&mut admission, &room)[..1], [100], "four ends are room for it");
}

#[test]
fn a_key_that_floods_with_large_requests_does_not_hold_the_turn_against_others() {
    let capacity = Capacity { max_sequences: 99, ..capacity() };
    let room = room(&capacity);
    let mut admission = admission(64);
    submit_all(&mut admission, 1, &[ask_of(1, 600, 300); 4], &room);
    assert_eq!(
        admitted(&mut admission, &room),
        [1, 2],
        "the third does not fit, and it is its turn"
    );
    // Another key runs nothing: it does not wait for the large one, as that key runs its share.
    submit_all(&mut admission, 10, &[ask_of(2, 10, 10); 3], &room);
    assert_eq!(admitted(&mut admission, &room), [10, 11], "two each, and the memory is full");
    admission.ended(Ticket(1));
    assert_eq!(
        admitted(&mut admission, &room),
        [3],
        "then the large one fits, and its turn has stayed"
    );
}

#[test]
fn a_deadline_is_held_against_those_of_the_own_key_that_wait() {
    let capacity = Capacity { max_sequences: 1, ..capacity() };
    let room = room(&capacity);
    let mut admission = admission(64);
    // A hundred milliseconds between two: so much at least for each of the own key.
    let mut now = Millis(0);
    submit_all(&mut admission, 1, &[ask_of(1, 10, 10); 30], &room);
    for ticket in 1..=10 {
        assert!(admission.admit(&room, now).is_some());
        admission.ended(Ticket(ticket));
        now = now + 100;
    }
    let hurried = |key| Ask { deadline: Some(now + 300), ..ask_of(key, 10, 10) };
    let refused = admission.submit(Ticket(50), hurried(1), &room, now);
    assert_eq!(refused, Err(Denial::DeadlineInfeasible { earliest_ms: 1_600, patience_ms: 300 }));
    assert_eq!(
        admission.submit(Ticket(51), hurried(2), &room, now),
        Ok(None),
        "its turn is the next but one"
    );
}

/// A queue in the order of arrival, as it is without keys: what admission has to do where there is
/// one key.
struct Plain {
    queue: VecDeque<(Ticket, Ask, Millis)>,
    running: BTreeMap<Ticket, u64>,
}

impl Plain {
    fn fits(&self, ask: &Ask, room: &Room<'_>) -> bool {
        let likely = room
            .capacity
            .cost_of(ask, ask.likely_positions(PRIOR_TOKENS))
            .expect("it is short enough");
        self.running.len() < room.capacity.max_sequences
            && self.running.values().sum::<u64>() + likely <= room.budget_bytes
    }

    fn submit(
        &mut self,
        ticket: Ticket,
        ask: Ask,
        places: usize,
        room: &Room<'_>,
        until: Millis,
    ) -> bool {
        let takes = (self.queue.is_empty() && self.fits(&ask, room)) || self.queue.len() < places;
        if takes {
            self.queue.push_back((ticket, ask, until));
        }
        takes
    }

    fn admit(&mut self, room: &Room<'_>) -> Option<Ticket> {
        let (ticket, ask, _) = *self.queue.front().filter(|(_, ask, _)| self.fits(ask, room))?;
        self.queue.pop_front();
        self.running
            .insert(ticket, room.capacity.cost_of(&ask, ask.likely_positions(PRIOR_TOKENS))?);
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
fn with_one_key_everything_is_as_in_a_plain_queue() {
    let capacity = Capacity { max_sequences: 4, ..capacity() };
    let room = room(&capacity);
    for seed in 1..=200 {
        let mut dice = Dice::new(seed);
        let key = KeyId(dice.roll(2));
        let places = dice.roll(8) as usize;
        let mut admission = Admission::new(places, 1_000, 16);
        let mut plain = Plain { queue: VecDeque::new(), running: BTreeMap::new() };
        let mut now = Millis(0);
        for ticket in 1..=200 {
            now = now + dice.roll(200);
            let expired: Vec<Ticket> =
                admission.expire(now).into_iter().map(|(ticket, _)| ticket).collect();
            assert_eq!(expired, plain.expire(now), "seed {seed}");
            let ask = Ask { key, ..ask(1 + dice.roll(600) as u32, 1 + dice.roll(400) as u32) };
            let taken = admission.submit(Ticket(ticket), ask, &room, now);
            let expected = plain.submit(Ticket(ticket), ask, places, &room, now + 1_000);
            assert_eq!(
                taken,
                if expected { Ok(None) } else { Err(Denial::QueueFull { limit: places }) },
                "seed {seed}"
            );
            loop {
                let next = plain.admit(&room);
                assert_eq!(
                    admission.admit(&room, now).map(|admitted| admitted.ticket),
                    next,
                    "seed {seed}"
                );
                if next.is_none() {
                    break;
                }
            }
            let over = Ticket(1 + dice.roll(ticket));
            admission.ended(over);
            plain.end(over);
            assert_eq!(
                (admission.active(), admission.queued()),
                (plain.running.len(), plain.queue.len()),
                "seed {seed}"
            );
        }
    }
}
