use super::*;
use crate::core::likely::PRIOR_TOKENS;

fn capacity() -> Capacity {
    Capacity { classes: vec![(256, 100), (512, 200), (1024, 400)], max_sequences: 2, patch_bytes: 10 }
}

fn room(capacity: &Capacity) -> Room<'_> {
    Room { epoch: Epoch(1), capacity, budget_bytes: 1_000, held_bytes: 0, spare_bytes: None }
}

fn ask(prompt_tokens: u32, max_tokens: u32) -> Ask {
    let wish = RouteWish::Auto;
    Ask { prompt_tokens, max_tokens, context_tokens: prompt_tokens, deadline: None, wish, patches: 0 }
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
    assert_eq!([cost(1), cost(256), cost(257), cost(1024), cost(1025)], [Some(100), Some(100), Some(200), Some(400), None]);
    assert!(capacity().is_usable());
    assert!(!Capacity::default().is_usable());
    assert!(!Capacity { classes: vec![(512, 1), (256, 2)], max_sequences: 1, patch_bytes: 0 }.is_usable());
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
    let mut admission = Admission::new(0, 1_000);
    assert_eq!(admission.submit(Ticket(1), ask(100, 300), &room, Millis(0)), Ok(()));
    assert!(admission.admit(&room, Millis(0)).is_some());
    assert_eq!(admission.submit(Ticket(2), ask(100, 300), &room, Millis(0)), Err(Denial::QueueFull { limit: 0 }));
    admission.ended(Ticket(1));
    assert_eq!(admission.reserved_bytes(), 0);
}

#[test]
fn a_full_machine_lets_nobody_in_whatever_the_ledger_says() {
    let capacity = capacity();
    let room = |spare_bytes| Room { spare_bytes, ..room(&capacity) };
    let mut admission = Admission::new(4, 1_000);
    assert_eq!(admission.submit(Ticket(1), ask(100, 300), &room(Some(199)), Millis(0)), Ok(()));
    assert_eq!(admission.admit(&room(Some(199)), Millis(0)), None);
    assert!(admission.is_squeezed(&room(Some(199))) && !admission.is_squeezed(&room(Some(200))));
    assert!(!admission.is_squeezed(&Room { budget_bytes: 100, ..room(Some(199)) }), "the ledger is full as well");
    assert!(admission.admit(&room(Some(200)), Millis(0)).is_some());
    assert_eq!(admission.reserved_bytes(), 200);
    assert!(!admission.is_squeezed(&room(Some(0))), "nobody waits");
}

#[test]
fn limits_far_away_keep_nobody_waiting_and_what_could_never_fit_is_refused() {
    let capacity = Capacity { max_sequences: 99, ..capacity() };
    let room = room(&capacity);
    let mut admission = Admission::new(4, 1_000);
    // 400 bytes at worst: by that two would run. 100 + 256 tokens are likely, in a class of 200 bytes.
    assert_eq!(fill(&mut admission, 1, ask(100, 924), &room), 5);
    assert_eq!(admission.reserved_bytes(), 1_000);
    let tight = Room { budget_bytes: 399, ..room };
    let refused = admission.submit(Ticket(9), ask(100, 924), &tight, Millis(0));
    assert_eq!(refused, Err(Denial::KvExhausted { positions: 1_024, need_bytes: 400, budget_bytes: 399 }));
    let refused = admission.submit(Ticket(9), ask(100, 925), &room, Millis(0));
    assert_eq!(refused, Err(Denial::TooLong { prompt_tokens: 100, max_tokens: 925, context: 1_024 }));
}

#[test]
fn what_answers_have_been_decides_what_is_likely() {
    let capacity = Capacity { max_sequences: 99, ..capacity() };
    let room = room(&capacity);
    let mut admission = Admission::new(4, 1_000);
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
    let mut admission = Admission::new(4, 1_000);
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
    let mut admission = Admission::new(4, 1_000);
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
    assert_eq!(admission.submit(Ticket(9), patient, &room, Millis(1_000)), Ok(()));
    assert_eq!(admission.submit(Ticket(10), ask(200, 100), &room, Millis(1_000)), Ok(()), "without a deadline");
    // Another life of the target may be faster.
    admission.abandon(Epoch(1));
    assert_eq!(admission.submit(Ticket(11), hurried, &room, Millis(1_000)), Ok(()));
}
