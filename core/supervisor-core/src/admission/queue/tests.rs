use super::super::tests::summary;
use super::*;

const A: KeyId = KeyId(1);
const B: KeyId = KeyId(2);
const C: KeyId = KeyId(3);

fn waiting(ticket: u64, key: KeyId) -> WaitingRequest {
    let summary = RequestSummary { key, ..summary(10, 10) };
    WaitingRequest { ticket: Ticket(ticket), summary, since: Millis(0), until: Millis(ticket * 10) }
}

/// A queue of requests 1, 2, 3, … of these keys.
fn queue(keys: &[KeyId]) -> Queue {
    let mut queue = Queue::default();
    for (ticket, key) in (1..).zip(keys) {
        queue.push(waiting(ticket, *key));
    }
    queue
}

/// The numbers in the order in which they are admitted to a machine with room for `at_once`, where
/// the oldest running one ends whenever it is full.
fn order(mut queue: Queue, at_once: usize, limit: usize) -> Vec<u64> {
    let (mut running, mut order) = (VecDeque::new(), Vec::new());
    while !queue.is_empty() {
        let by_key = RunningByKey::new(running.iter().copied(), limit);
        match queue.next(&by_key) {
            Some(next) if running.len() < at_once => {
                assert_eq!(queue.take(next.summary.key), Some(next));
                running.push_back(next.summary.key);
                order.push(next.ticket.0);
            }
            _ => assert!(running.pop_front().is_some(), "nothing runs and nobody is next"),
        }
    }
    order
}

#[test]
fn one_key_is_served_in_the_order_of_arrival() {
    for key in [KeyId::NONE, A] {
        for at_once in [1, 3, 100] {
            assert_eq!(order(queue(&[key; 20]), at_once, 16), (1..=20).collect::<Vec<_>>());
        }
    }
}

#[test]
fn keys_are_served_in_turn() {
    // A: 1 2 3 4, B: 5 6, C: 7.
    let keys = [A, A, A, A, B, B, C];
    assert_eq!(order(queue(&keys), 1, 16), [1, 5, 7, 2, 6, 3, 4]);
    assert_eq!(order(queue(&keys), 2, 16), [1, 5, 7, 2, 6, 3, 4]);
}

#[test]
fn a_key_that_returns_comes_after_the_keys_that_wait() {
    let mut queue = queue(&[A, B, B, C]);
    let idle = RunningByKey::new(std::iter::empty(), 16);
    let next = |queue: &mut Queue| {
        let next = queue.next(&idle).expect("somebody waits");
        queue.take(next.summary.key).map(|taken| taken.ticket.0)
    };
    assert_eq!(next(&mut queue), Some(1));
    queue.push(waiting(5, A));
    // However often a key with one request comes, it is behind the others.
    assert_eq!([(); 4].map(|()| next(&mut queue)), [Some(2), Some(4), Some(5), Some(3)]);
}

#[test]
fn a_key_at_its_share_is_passed_over_while_a_key_below_its_share_waits() {
    let queue = queue(&[A, A, B]);
    let next = |running: &[KeyId]| {
        let by_key = RunningByKey::new(running.iter().copied(), 16);
        queue.next(&by_key).map(|next| next.ticket.0)
    };
    // Two keys, and one more running request: each may have half of them.
    assert_eq!(next(&[]), Some(1));
    assert_eq!(next(&[A]), Some(3), "A has one of two");
    assert_eq!(next(&[A, B]), Some(1), "A may have two of three");
    assert_eq!(next(&[A, A, A, B]), Some(3));
    // C runs and does not wait: it counts, and nothing is kept free for it.
    assert_eq!(next(&[A, A, A, C]), Some(3), "A has more than two");
    assert_eq!(next(&[A, A, B, B, C]), Some(1), "both have their share of two");
    let (d, e) = (KeyId(4), KeyId(5));
    assert_eq!(
        next(&[A, A, A, B, B, C, d, e]),
        Some(3),
        "both are at their share of two, and B runs fewer"
    );
}

#[test]
fn a_key_alone_may_use_all_places() {
    let queue = queue(&[A]);
    let running = [[B; 3], [A; 3]].concat();
    assert_eq!(
        queue.next(&RunningByKey::new(running.into_iter(), 4)).map(|next| next.ticket.0),
        Some(1)
    );
}

#[test]
fn a_key_at_its_limit_is_passed_over_and_keeps_its_turn() {
    let queue = queue(&[A, B]);
    let next = |running: &[KeyId]| {
        let by_key = RunningByKey::new(running.iter().copied(), 2);
        queue.next(&by_key).map(|next| next.ticket.0)
    };
    assert_eq!(next(&[A, A]), Some(2));
    assert_eq!(next(&[A, A, B, B]), None, "all that wait have as many as they may");
    assert_eq!(next(&[A, B, B]), Some(1));
    // Without keys there is no such limit.
    let no_keys = RunningByKey::new([KeyId::NONE; 100].into_iter(), 2);
    assert_eq!(no_keys.left(KeyId::NONE), None);
    assert_eq!(
        super::tests::queue(&[KeyId::NONE]).next(&no_keys).map(|next| next.ticket.0),
        Some(1)
    );
}

#[test]
fn a_turn_stays_until_it_is_taken_whatever_arrives() {
    // A's first request does not fit, so it is not taken. Other keys come and go.
    let mut queue = queue(&[A]);
    let idle = RunningByKey::new(std::iter::empty(), 16);
    for ticket in 2..20 {
        queue.push(waiting(ticket, KeyId(ticket)));
        assert_eq!(queue.next(&idle).map(|next| next.ticket.0), Some(1));
        // Those that run are of others: A is below its share however many they are.
        let others = RunningByKey::new((2..ticket).map(KeyId), 16);
        assert_eq!(queue.next(&others).map(|next| next.ticket.0), Some(1));
    }
}

#[test]
fn the_newest_request_of_the_longest_fifo_is_displaced() {
    // A: 1 2 3, B: 4, C: 5 6 8.
    let mut queue = queue(&[A, A, A, B, C, C, B, C]);
    queue.remove(Ticket(7));
    // B comes with its second: A and C have two more than its one, and C's newest came last.
    queue.push(waiting(9, B));
    assert_eq!(queue.displace(B).map(|gone| gone.ticket.0), Some(8));
    // B has two now; A has one more than that, which is not enough.
    queue.push(waiting(10, B));
    assert_eq!(queue.displace(B), None);
    queue.remove(Ticket(10));
    // A newcomer with nothing waiting takes from A, then from none: nobody has two.
    queue.push(waiting(11, KeyId(9)));
    assert_eq!(queue.displace(KeyId(9)).map(|gone| gone.ticket.0), Some(3));
    let left: BTreeSet<u64> = queue.iter().map(|waiting| waiting.ticket.0).collect();
    assert_eq!((left, queue.len()), (BTreeSet::from([1, 2, 4, 5, 6, 9, 11]), 7));
    // Of one key alone nothing is displaced.
    assert_eq!(super::tests::queue(&[A; 5]).displace(A), None);
}

#[test]
fn take_where_returns_requests_in_the_order_of_arrival() {
    let mut queue = queue(&[C, A, B, A, C]);
    let tickets = |taken: Vec<WaitingRequest>| {
        taken.into_iter().map(|waiting| waiting.ticket.0).collect::<Vec<_>>()
    };
    assert_eq!(tickets(queue.take_where(|waiting| waiting.until <= Millis(20))), [1, 2]);
    assert_eq!((queue.len(), queue.len_of(A), queue.len_of(C)), (3, 1, 1));
    assert_eq!(tickets(queue.take_where(|_| true)), [3, 4, 5]);
    assert_eq!((queue.len(), queue.take(A)), (0, None));
}

#[test]
fn interrupted_requests_go_first_and_the_shortest_of_them() {
    let mut queue = queue(&[A, A]);
    for (ticket, context_tokens) in [(3, 900), (4, 20), (5, 300)] {
        let mut waiting = waiting(ticket, A);
        (waiting.summary.resumed, waiting.summary.context_tokens) = (true, context_tokens);
        queue.push(waiting);
    }
    queue.push(waiting(6, A));
    assert_eq!(order(queue, 1, 16), [4, 5, 3, 1, 2, 6]);
}

#[test]
fn the_tokens_of_the_queue_are_those_of_the_requests_in_it() {
    let waits = |ticket: u64, key, tokens| {
        let mut one = waiting(ticket, key);
        one.summary.context_tokens = tokens;
        one
    };
    let mut queue = Queue::default();
    assert_eq!(queue.tokens(), 0);
    // One request goes on and has the largest context that the field can express.
    let resumed = RequestSummary { resumed: true, ..waits(3, B, u32::MAX).summary };
    queue.push(waits(1, A, 100));
    queue.push(waits(2, A, 20));
    queue.push(WaitingRequest { summary: resumed, ..waits(3, B, 0) });
    queue.push(waits(4, B, 3));
    let whole = u64::from(u32::MAX);
    assert_eq!(queue.tokens(), whole + 123);
    queue.take(A);
    assert_eq!(queue.tokens(), whole + 23, "admitted");
    queue.remove(Ticket(3));
    assert_eq!(queue.tokens(), 23, "cancelled");
    queue.remove(Ticket(3));
    assert_eq!(queue.tokens(), 23, "gone before");
    queue.take_where(|waiting| waiting.until <= Millis(20));
    assert_eq!(queue.tokens(), 3, "waited too long");
    queue.push(waits(5, B, 7));
    queue.displace(C);
    assert_eq!(queue.tokens(), 3, "displaced");
}
