//! How far drafts are expected to survive.

use super::super::acceptance::*;

/// Accepted tokens when each is accepted with probability `accept`.
fn play(seed: &mut u64, accept: f64, drafted: usize) -> usize {
    let mut roll = || {
        *seed =
            seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (*seed >> 33) as f64 / f64::from(1u32 << 31)
    };
    (0..drafted).take_while(|_| roll() < accept).count()
}

#[test]
fn eight_cycles_tell_good_text_from_poor_text() {
    let mut seed = 5;
    for _ in 0..50 {
        for (accept, low, high) in [(0.45, 0.0, 3.0), (0.93, 3.0, 15.0)] {
            let mut class = TrafficClass::default();
            let mut belief = Belief::new(&class);
            for _ in 0..8 {
                let accepted = play(&mut seed, accept, 15);
                belief.observe(&mut class, 15, accepted);
            }
            let expected = accepted(&belief.survival, 15);
            assert!((low..high).contains(&expected), "{accept}: {expected} tokens expected");
        }
    }
}

#[test]
fn a_sequence_starts_with_the_mixture_that_its_class_learned() {
    let (mut class, mut seed) = (TrafficClass::default(), 9);
    let begin = accepted(&Belief::new(&class).survival, 15);
    for _ in 0..30 {
        let mut belief = Belief::new(&class);
        for _ in 0..10 {
            belief.observe(&mut class, 15, play(&mut seed, 0.3, 15));
        }
        belief.end(&mut class);
    }
    let learned = accepted(&Belief::new(&class).survival, 15);
    assert!(learned < begin / 2.0, "{begin} at first, {learned} after thirty that do not pay");
    // And is not stuck with it.
    let mut other = Belief::new(&class);
    (0..3).for_each(|_| other.observe(&mut class, 7, 7));
    assert!(accepted(&other.survival, 15) > 7.0);
    let measured = class.measured();
    assert!(
        (measured[0] - 0.3).abs() < 0.1 && measured.windows(2).all(|pair| pair[1] <= pair[0]),
        "{measured:?}"
    );
}

#[test]
fn survival_never_rises_and_a_hard_position_is_learned() {
    let (mut class, mut seed) = (TrafficClass::default(), 3);
    for _ in 0..200 {
        let mut belief = Belief::new(&class);
        for _ in 0..5 {
            // From the fifth position on nothing is ever accepted.
            let accepted = play(&mut seed, 0.9, 15).min(4);
            belief.observe(&mut class, 15, accepted);
        }
        belief.end(&mut class);
    }
    let survival = Belief::new(&class).survival;
    assert!(survival.windows(2).all(|pair| pair[1] <= pair[0]), "{survival:?}");
    assert!(survival[4] < 0.6 * survival[3], "{survival:?}");
    assert_eq!(class.cycles, 1000);
}

#[test]
fn an_empty_draft_changes_nothing() {
    let mut class = TrafficClass::default();
    let mut belief = Belief::new(&class);
    belief.observe(&mut class, 0, 0);
    assert_eq!((belief.cycles, belief == Belief::new(&class)), (0, true));
}
