use futures::FutureExt as _;
use paceline_protocols::vllm::encode::AnswerRoom as _;

use super::*;

const MIB: u64 = 1 << 20;

fn key(name: &str) -> Party {
    Party::of_key(name)
}

/// A body of this length that holds its bytes, or waits for them.
struct Body {
    hold: Arc<ByteHold>,
    taking: TakeBytes,
}

impl Body {
    fn begin(budget: &ByteBudget, party: &Party, bytes: u64) -> Self {
        let hold = budget.hold(party.clone());
        let taking = hold.take(ByteKind::Large, bytes);
        Self { hold, taking }
    }

    fn holds(&mut self) -> bool {
        (&mut self.taking).now_or_never().is_some()
    }
}

fn bodies(budget: &ByteBudget, party: &Party, count: usize, bytes: u64) -> Vec<Body> {
    (0..count).map(|_| Body::begin(budget, party, bytes)).collect()
}

fn count(bodies: &mut [Body]) -> usize {
    bodies.iter_mut().filter_map(|body| body.holds().then_some(())).count()
}

#[test]
fn three_hundred_bodies_of_one_key_hold_a_quarter_and_another_keys_holds_at_once() {
    let budget = ByteBudget::new(256 * MIB);
    let mut flood = bodies(&budget, &key("a"), 320, 15 * MIB);
    assert_eq!(count(&mut flood), 4);
    let mut his = Body::begin(&budget, &key("b"), 16 * MIB);
    assert!(his.holds());
    let figures = budget.figures();
    assert_eq!((figures.bodies, figures.waiting), ((4 * 15 + 16) * MIB, 316));
    // What ends makes room for the next one of the flood, and no more.
    drop(his);
    flood.remove(0);
    assert_eq!(count(&mut flood), 4);
    drop(flood);
    assert_eq!(budget.figures(), ByteFigures { limit: 256 * MIB, ..Default::default() });
    assert!(lock(&budget.0.ledger).of_parties.is_empty());
}

#[test]
fn however_many_parties_hold_what_they_may_another_one_finds_room() {
    let budget = ByteBudget::new(256 * MIB);
    let mut held = vec![];
    for party in 0..5 {
        let mut flood = bodies(&budget, &key(&party.to_string()), 300, MIB + MIB / 4);
        let some = count(&mut flood);
        assert!(some > 0, "party {party}");
        // Those that wait leave again.
        flood.retain_mut(Body::holds);
        held.push(flood);
    }
    assert!(budget.figures().bodies <= 128 * MIB);
}

#[test]
fn a_long_body_whose_turn_it_is_is_not_overtaken() {
    let budget = ByteBudget::new(64 * MIB);
    // 32 MiB for long bodies: parties with little hold 24 of them.
    let mut held: Vec<Body> =
        (0..12).map(|at| Body::begin(&budget, &key(&at.to_string()), 2 * MIB)).collect();
    assert_eq!(count(&mut held), 12);
    let mut long = Body::begin(&budget, &key("long"), 16 * MIB);
    let mut newer = Body::begin(&budget, &key("newer"), 2 * MIB);
    assert!(!long.holds() && !newer.holds(), "the first keeps its turn");
    // A body that gives up makes way.
    drop(long);
    assert!(newer.holds());
    let mut long = Body::begin(&budget, &key("long"), 16 * MIB);
    drop((held, newer));
    assert!(long.holds());
}

#[test]
fn bodies_without_a_length_never_wait_for_each_other_in_a_circle() {
    let budget = ByteBudget::new(64 * MIB);
    // More than there is room for, each with its first bytes.
    let mut waiting = vec![];
    for party in 0..40 {
        let hold = budget.hold(key(&party.to_string()));
        let mut first = hold.take(ByteKind::Small, MIB);
        if (&mut first).now_or_never().is_some() {
            waiting.push((hold.take(ByteKind::Large, 15 * MIB), hold));
        }
    }
    assert!(waiting.len() >= 14, "{}", waiting.len());
    while !waiting.is_empty() {
        let before = waiting.len();
        // Whatever holds all its bytes ends.
        waiting.retain_mut(|(taking, _)| taking.now_or_never().is_none());
        assert!(waiting.len() < before, "{before} bodies wait, and none of them for ever");
    }
    assert_eq!(budget.figures().bodies, 0);
}

#[test]
fn short_bodies_do_not_wait_for_long_ones() {
    let budget = ByteBudget::new(64 * MIB);
    let mut flood = bodies(&budget, &key("a"), 10, 8 * MIB);
    assert_eq!(count(&mut flood), 2);
    let hold = budget.hold(key("a"));
    assert!(hold.take(ByteKind::Small, MIB).now_or_never().is_some(), "the same key's");
    drop(hold);
    assert_eq!(budget.figures().bodies, 16 * MIB);
}

#[test]
fn a_grant_that_is_not_taken_goes_to_the_next_one() {
    let budget = ByteBudget::new(64 * MIB);
    let mut first = Body::begin(&budget, &key("a"), 16 * MIB);
    assert!(first.holds());
    let untaken = Body::begin(&budget, &key("a"), 16 * MIB);
    let mut last = Body::begin(&budget, &key("a"), 16 * MIB);
    drop(first);
    assert!(!last.holds());
    drop(untaken);
    assert!(last.holds());
    last.hold.shrink(5 * MIB);
    assert_eq!(budget.figures().bodies, 5 * MIB);
}

#[test]
fn an_answer_is_counted_as_it_grows_and_refused_when_it_is_too_much() {
    let budget = ByteBudget::new(16 * MIB);
    let answer = budget.hold(key("a"));
    answer.grow_answer(FREE_BYTES).expect("not counted");
    assert_eq!(budget.figures().answers, 0);
    answer.grow_answer(FREE_BYTES + 1).expect("room");
    assert!(budget.figures().answers > FREE_BYTES);
    answer.grow_answer(7 * MIB).expect("room");
    // Another party has half of the rest.
    let other = budget.hold(key("b"));
    other.grow_answer(4 * MIB).expect("room");
    let refused = other.grow_answer(5 * MIB).expect_err("no room now");
    assert_eq!(refused.kind, Reason::BodiesFull);
    assert!(refused.kind.retryable() && refused.message.contains("as a stream"), "{refused}");
    drop(answer);
    other.grow_answer(5 * MIB).expect("room again");
    let refused = other.grow_answer(9 * MIB).expect_err("more than one may have");
    assert_eq!(refused.kind, Reason::MessageTooLarge);
    other.shrink(MIB);
    assert_eq!(budget.figures().answers, MIB);
    drop(other);
    assert_eq!(budget.figures().answers, 0);
}
