//! Which lane a request may take: request × signals × policy → [`Permit`], pure. Step by step the target decides inside
//! the permit (design section 7); here is what is decided once for a request, and why.

use paceline_process::config::{Auto, Force};
use paceline_proto::v1::{Lane, RouteReason, RouteWish};

/// Requests at once up to which speculation is assumed to pay, until it is measured.
const PRIOR_CONCURRENT: u32 = 4;
/// Tokens of context likewise: the length published drafters were trained at.
const PRIOR_CONTEXT: u32 = 4_096;

/// The supervisor's route for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permit {
    /// The faster lane it may take.
    pub lane: Lane,
    /// Longest draft in tokens; 0 in the plain lane.
    pub max_draft: u32,
    /// Why.
    pub reason: RouteReason,
}

/// The drafter as routing sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drafter {
    /// None is configured.
    Absent,
    /// There is one, and it does not run: stopped, waiting for its first use, or fallen.
    Stopped,
    /// It is being started, or its link is being made.
    Loading,
    /// It gives no sign of life, or is being ended.
    Suspect,
    /// The target refused it.
    Incompatible,
    /// It is linked, and its drafts come too late again and again. Requests keep their permit to draft: the target asks
    /// rarely now, and only by a draft in time can it see that this is over. Without permits the doubt would last for
    /// ever (I12).
    Late {
        /// Longest draft it gives, in tokens.
        max_draft: u32,
    },
    /// Drafts can come from it.
    Ready {
        /// Longest draft it gives, in tokens.
        max_draft: u32,
    },
}

/// What routing knows of this moment.
#[derive(Clone, Copy, Debug)]
pub struct Signals {
    /// The drafter.
    pub drafter: Drafter,
    /// Requests that run, this one included.
    pub running: u32,
    /// Tokens this request starts with.
    pub context_tokens: u32,
    /// Share of the KV budget that running requests hold.
    pub kv_pressure: f64,
}

/// What the operator has set.
#[derive(Clone, Copy, Debug)]
pub struct Policy {
    /// `routing.force`
    pub force: Force,
    /// `routing.max_concurrent`
    pub max_concurrent: Auto<u32>,
    /// `routing.max_context`
    pub max_context: Auto<u32>,
    /// `routing.kv_pressure`
    pub kv_pressure: f64,
}

/// Chooses the route. Guards in the order of design section 7: operator's force, the caller's wish, drafter state, KV
/// pressure, concurrency and context. Priors bind only requests that leave the choice to us; an operator's numbers bind
/// callers who wish for speculation too, and an operator's force goes over the operator's numbers. Memory goes over all:
/// a drafter's goes before any request's.
pub fn route(wish: RouteWish, signals: &Signals, policy: &Policy) -> Permit {
    let plain = |reason| Permit { lane: Lane::Plain, max_draft: 0, reason };
    if policy.force == Force::Plain || (policy.force == Force::Auto && wish == RouteWish::Plain) {
        return plain(RouteReason::Forced);
    }
    let (max_draft, late) = match signals.drafter {
        // Also when speculation was forced or asked for: a drafter's absence costs speed, nothing else (I3).
        Drafter::Absent | Drafter::Stopped => return plain(RouteReason::DrafterAbsent),
        Drafter::Loading => return plain(RouteReason::DrafterLoading),
        Drafter::Suspect => return plain(RouteReason::DrafterSuspect),
        Drafter::Incompatible => return plain(RouteReason::DrafterIncompatible),
        Drafter::Late { max_draft } => (max_draft, true),
        Drafter::Ready { max_draft } => (max_draft, false),
    };
    if signals.kv_pressure > policy.kv_pressure {
        return plain(RouteReason::KvPressure);
    }
    let forced = policy.force == Force::Speculative;
    let asked = forced || wish == RouteWish::Speculative;
    let above = |found: u32, limit: Auto<u32>, prior: u32| match limit {
        Auto::Is(most) => !forced && found > most,
        Auto::Auto => !asked && found > prior,
    };
    if above(signals.running, policy.max_concurrent, PRIOR_CONCURRENT) {
        return plain(RouteReason::Concurrency);
    }
    if above(signals.context_tokens, policy.max_context, PRIOR_CONTEXT) {
        return plain(RouteReason::Context);
    }
    let reason = match (late, asked) {
        (true, _) => RouteReason::DrafterSuspect,
        (false, true) => RouteReason::Forced,
        (false, false) => RouteReason::Prior,
    };
    Permit { lane: Lane::Speculative, max_draft, reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: Policy = Policy { force: Force::Auto, max_concurrent: Auto::Auto, max_context: Auto::Auto, kv_pressure: 0.85 };
    const LATE: Drafter = Drafter::Late { max_draft: 15 };
    const CALM: Signals = Signals { drafter: Drafter::Ready { max_draft: 15 }, running: 1, context_tokens: 10, kv_pressure: 0.1 };

    fn word(permit: Permit) -> String {
        assert_eq!(permit.lane == Lane::Speculative, permit.max_draft > 0, "a plain permit drafts nothing: {permit:?}");
        let lane = if permit.lane == Lane::Plain { "plain" } else { "speculative" };
        format!("{lane} {}", permit.reason.as_str_name().trim_start_matches("ROUTE_REASON_").to_lowercase())
    }

    #[test]
    fn without_a_drafter_everything_is_plain_and_says_why() {
        let states = [
            (Drafter::Absent, "plain drafter_absent"),
            (Drafter::Stopped, "plain drafter_absent"),
            (Drafter::Loading, "plain drafter_loading"),
            (Drafter::Suspect, "plain drafter_suspect"),
            (Drafter::Incompatible, "plain drafter_incompatible"),
        ];
        for (drafter, expected) in states {
            for force in [Force::Auto, Force::Speculative, Force::Plain] {
                for wish in [RouteWish::Unspecified, RouteWish::Auto, RouteWish::Plain, RouteWish::Speculative] {
                    let forced = force == Force::Plain || (force == Force::Auto && wish == RouteWish::Plain);
                    let permit = route(wish, &Signals { drafter, ..CALM }, &Policy { force, ..POLICY });
                    assert_eq!(word(permit), if forced { "plain forced" } else { expected }, "{force:?} {wish:?}");
                }
            }
        }
    }

    #[test]
    fn the_guards_stand_in_their_order() {
        let (auto, wished) = (RouteWish::Auto, RouteWish::Speculative);
        let busy = Signals { running: 5, ..CALM };
        let long = Signals { context_tokens: 4_097, ..CALM };
        let full = Signals { kv_pressure: 0.86, ..CALM };
        let capped = Policy { max_concurrent: Auto::Is(2), max_context: Auto::Is(100), ..POLICY };
        let speculative = Policy { force: Force::Speculative, ..POLICY };
        let both = Policy { force: Force::Speculative, ..capped };
        let plain = Policy { force: Force::Plain, ..POLICY };
        let cases = [
            (auto, CALM, POLICY, "speculative prior"),
            (RouteWish::Unspecified, CALM, POLICY, "speculative prior"),
            (wished, CALM, POLICY, "speculative forced"),
            (auto, CALM, speculative, "speculative forced"),
            (RouteWish::Plain, CALM, speculative, "speculative forced"),
            (wished, CALM, plain, "plain forced"),
            (auto, busy, POLICY, "plain concurrency"),
            (auto, Signals { running: 4, ..CALM }, POLICY, "speculative prior"),
            (wished, busy, POLICY, "speculative forced"),
            (auto, long, POLICY, "plain context"),
            (auto, Signals { context_tokens: 4_096, ..CALM }, POLICY, "speculative prior"),
            (wished, long, POLICY, "speculative forced"),
            (auto, Signals { running: 3, ..CALM }, capped, "plain concurrency"),
            (wished, Signals { running: 3, ..CALM }, capped, "plain concurrency"),
            (wished, Signals { context_tokens: 101, ..CALM }, capped, "plain context"),
            (wished, Signals { running: 3, context_tokens: 101, ..CALM }, both, "speculative forced"),
            (auto, Signals { drafter: LATE, ..CALM }, POLICY, "speculative drafter_suspect"),
            (wished, Signals { drafter: LATE, ..CALM }, POLICY, "speculative drafter_suspect"),
            (auto, Signals { drafter: LATE, ..busy }, POLICY, "plain concurrency"),
            (auto, full, POLICY, "plain kv_pressure"),
            (wished, full, POLICY, "plain kv_pressure"),
            (auto, full, both, "plain kv_pressure"),
            (auto, Signals { kv_pressure: 0.85, ..CALM }, POLICY, "speculative prior"),
        ];
        for (number, (wish, signals, policy, expected)) in cases.into_iter().enumerate() {
            assert_eq!(word(route(wish, &signals, &policy)), expected, "case {number}");
        }
    }
}
