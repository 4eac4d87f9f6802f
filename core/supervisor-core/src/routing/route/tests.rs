use super::*;

const POLICY: Policy = Policy {
    epoch: 7,
    force: Force::Auto,
    max_concurrent: Auto::Auto,
    max_context: Auto::Auto,
    kv_pressure: 0.85,
};
const LATE: DrafterState = DrafterState::Late { max_draft: 15 };
const UNKNOWN: Measured = Measured { up_to: 0, steps: 0, gain: 0.0 };
const PAYS: Measured = Measured { up_to: 8, steps: MEASURED_STEPS, gain: 1.2 };
const DOES_NOT: Measured = Measured { up_to: 8, steps: MEASURED_STEPS, gain: 1.0 };
const CALM: Signals = Signals {
    drafter: DrafterState::Ready { max_draft: 15 },
    images: false,
    drafter_images: false,
    place: 1,
    running: 1,
    context_tokens: 10,
    kv_pressure: 0.1,
    by_sequences: UNKNOWN,
    by_context: UNKNOWN,
    probe: false,
};

fn word(permit: Permit) -> String {
    assert_eq!(
        permit.lane == Lane::Speculative,
        permit.max_draft > 0,
        "a plain permit drafts nothing: {permit:?}"
    );
    assert_eq!(permit.policy_epoch, 7);
    let lane = if permit.lane == Lane::Plain { "plain" } else { "speculative" };
    format!("{lane} {}", permit.reason.word())
}

fn among(running: u32) -> Signals {
    Signals { place: running, running, ..CALM }
}

#[test]
fn the_priors_are_those_of_the_configuration() {
    assert_eq!(Policy { epoch: 7, ..Policy::default() }, POLICY);
}

#[test]
fn without_a_drafter_every_route_is_plain_with_its_reason() {
    let states = [
        (DrafterState::Absent, "plain drafter_absent"),
        (DrafterState::Stopped, "plain drafter_absent"),
        (DrafterState::Loading, "plain drafter_loading"),
        (DrafterState::Suspect, "plain drafter_suspect"),
        (DrafterState::Incompatible, "plain drafter_incompatible"),
    ];
    for (drafter, expected) in states {
        for force in [Force::Auto, Force::Speculative, Force::Plain] {
            for wish in [RouteWish::Auto, RouteWish::Plain, RouteWish::Speculative] {
                let forced =
                    force == Force::Plain || (force == Force::Auto && wish == RouteWish::Plain);
                let permit = route(wish, &Signals { drafter, ..CALM }, &Policy { force, ..POLICY });
                assert_eq!(
                    word(permit),
                    if forced { "plain forced" } else { expected },
                    "{force:?} {wish:?}"
                );
            }
        }
    }
}

#[test]
fn the_first_guard_that_denies_gives_the_reason() {
    let (auto, wished) = (RouteWish::Auto, RouteWish::Speculative);
    let busy = among(5);
    let long = Signals { context_tokens: 4_097, ..CALM };
    let full = Signals { kv_pressure: 0.86, ..CALM };
    let images = Signals { images: true, ..CALM };
    let capped = Policy { max_concurrent: Auto::Is(2), max_context: Auto::Is(100), ..POLICY };
    let speculative = Policy { force: Force::Speculative, ..POLICY };
    let both = Policy { force: Force::Speculative, ..capped };
    let plain = Policy { force: Force::Plain, ..POLICY };
    let cases = [
        (auto, CALM, POLICY, "speculative prior"),
        (wished, CALM, POLICY, "speculative forced"),
        (auto, CALM, speculative, "speculative forced"),
        (RouteWish::Plain, CALM, speculative, "speculative forced"),
        (wished, CALM, plain, "plain forced"),
        // Force and wish to go plainly stand before modality, modality before the drafter's state.
        (auto, images, POLICY, "plain modality"),
        (wished, images, speculative, "plain modality"),
        (RouteWish::Plain, images, POLICY, "plain forced"),
        (auto, Signals { drafter: DrafterState::Loading, ..images }, POLICY, "plain modality"),
        (auto, Signals { drafter_images: true, ..images }, POLICY, "speculative prior"),
        (auto, busy, POLICY, "plain concurrency"),
        (auto, among(4), POLICY, "speculative prior"),
        // Of many the first four draft.
        (auto, Signals { place: 4, running: 16, ..CALM }, POLICY, "speculative prior"),
        (wished, busy, POLICY, "speculative forced"),
        (auto, long, POLICY, "plain context"),
        (auto, Signals { context_tokens: 4_096, ..CALM }, POLICY, "speculative prior"),
        (wished, long, POLICY, "speculative forced"),
        (auto, Signals { place: 5, running: 5, ..long }, POLICY, "plain concurrency"),
        (auto, among(3), capped, "plain concurrency"),
        (wished, among(3), capped, "plain concurrency"),
        (wished, Signals { context_tokens: 101, ..CALM }, capped, "plain context"),
        (wished, Signals { context_tokens: 101, ..among(3) }, both, "speculative forced"),
        (auto, Signals { drafter: LATE, ..CALM }, POLICY, "speculative drafter_late"),
        (wished, Signals { drafter: LATE, ..CALM }, POLICY, "speculative drafter_late"),
        (auto, Signals { drafter: LATE, ..busy }, POLICY, "plain concurrency"),
        (auto, full, POLICY, "plain kv_pressure"),
        (wished, full, POLICY, "plain kv_pressure"),
        (auto, full, both, "plain kv_pressure"),
        (auto, Signals { kv_pressure: 0.85, ..CALM }, POLICY, "speculative prior"),
        (auto, Signals { probe: true, ..full }, POLICY, "plain kv_pressure"),
    ];
    for (number, (wish, signals, policy, expected)) in cases.into_iter().enumerate() {
        assert_eq!(word(route(wish, &signals, &policy)), expected, "case {number}");
    }
}

#[test]
fn measurements_replace_priors_but_not_caps() {
    let (auto, wished) = (RouteWish::Auto, RouteWish::Speculative);
    let capped = Policy { max_concurrent: Auto::Is(2), ..POLICY };
    let load = |running, by_sequences| Signals { by_sequences, ..among(running) };
    let length = |context_tokens, by_context| Signals { context_tokens, by_context, ..CALM };
    let few = Measured { steps: MEASURED_STEPS - 1, ..PAYS };
    let cases = [
        // Concurrency.
        (auto, load(1, PAYS), POLICY, "speculative benefit"),
        (auto, load(16, PAYS), POLICY, "speculative benefit"),
        (auto, load(16, few), POLICY, "plain concurrency"),
        (auto, load(1, DOES_NOT), POLICY, "plain not_worth"),
        (auto, load(4, DOES_NOT), POLICY, "plain not_worth"),
        (auto, load(5, DOES_NOT), POLICY, "plain concurrency"),
        // What was measured is the load as a whole: the first of many is not better off.
        (auto, Signals { place: 1, ..load(16, DOES_NOT) }, POLICY, "plain concurrency"),
        (
            auto,
            load(1, Measured { steps: MEASURED_STEPS - 1, ..DOES_NOT }),
            POLICY,
            "speculative prior",
        ),
        // Context.
        (auto, length(100_000, PAYS), POLICY, "speculative benefit"),
        (auto, length(100_000, DOES_NOT), POLICY, "plain context"),
        (auto, length(100, DOES_NOT), POLICY, "plain not_worth"),
        (auto, length(100_000, few), POLICY, "plain context"),
        // Each limit has its own say.
        (auto, Signals { by_sequences: PAYS, ..length(5_000, UNKNOWN) }, POLICY, "plain context"),
        (
            auto,
            Signals { by_sequences: PAYS, ..length(5_000, PAYS) },
            POLICY,
            "speculative benefit",
        ),
        (auto, Signals { by_sequences: DOES_NOT, ..length(10, PAYS) }, POLICY, "plain not_worth"),
        // An operator's number is a cap whatever was measured; inside it the target decides.
        (auto, load(3, PAYS), capped, "plain concurrency"),
        (auto, load(2, DOES_NOT), capped, "speculative prior"),
        // A request that asks for drafts is not held back by measurements.
        (wished, load(16, DOES_NOT), POLICY, "speculative forced"),
        (wished, load(3, PAYS), capped, "plain concurrency"),
        // Now and then what was denied is tried again; a cap is not.
        (auto, Signals { probe: true, ..load(1, DOES_NOT) }, POLICY, "speculative probe"),
        (auto, Signals { probe: true, ..load(16, UNKNOWN) }, POLICY, "speculative probe"),
        (auto, Signals { probe: true, ..length(5_000, DOES_NOT) }, POLICY, "speculative probe"),
        (auto, Signals { probe: true, ..load(3, UNKNOWN) }, capped, "plain concurrency"),
        (auto, Signals { probe: true, ..CALM }, POLICY, "speculative prior"),
        (auto, Signals { drafter: LATE, ..load(1, PAYS) }, POLICY, "speculative drafter_late"),
    ];
    for (number, (wish, signals, policy, expected)) in cases.into_iter().enumerate() {
        assert_eq!(word(route(wish, &signals, &policy)), expected, "case {number}");
    }
}

/// The target's figure where this is what each kind of text gains, poor text was met and nothing is
/// held to be impossible.
fn figure(gains: [f64; 13]) -> Measured {
    let share = |kind: usize| if kind < 4 { 0.94 / 4.0 + 0.06 / 13.0 } else { 0.06 / 13.0 };
    Measured { gain: gains.iter().enumerate().map(|(kind, gain)| share(kind) * gain).sum(), ..PAYS }
}

#[test]
fn a_range_pays_if_some_text_gains_there() {
    let but = |last: &[f64]| {
        let mut gains = [1.0; 13];
        gains[13 - last.len()..].copy_from_slice(last);
        figure(gains).pays()
    };
    assert_eq!(but(&[]), Some(false));
    // The same added up in another order, or with other shares.
    assert_eq!(Measured { gain: 1.0 + f64::EPSILON, ..PAYS }.pays(), Some(false));
    assert_eq!(but(&[1.01]), Some(false), "less than the target begins at");
    assert_eq!(but(&[1.03]), Some(true), "only the best text, and not much");
    assert_eq!(but(&[1.03, 1.09, 1.15, 1.22]), Some(true), "8 at once on a processor");
    assert_eq!(but(&[1.06, 1.13, 1.2, 1.29, 1.39, 1.5]), Some(true));
}

#[test]
fn only_denials_that_may_pass_are_held_back() {
    for (reason, expected) in [
        (RouteReason::Concurrency, true),
        (RouteReason::Context, true),
        (RouteReason::KvPressure, true),
        (RouteReason::NotWorth, true),
        (RouteReason::Forced, false),
        (RouteReason::Modality, false),
        (RouteReason::DrafterAbsent, false),
    ] {
        let permit = Permit { lane: Lane::Plain, max_draft: 0, reason, policy_epoch: 0 };
        assert_eq!(permit.is_held_back(), expected, "{reason:?}");
    }
}
