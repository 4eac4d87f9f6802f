//! Which lane a request may take: request × signals × policy → [`Permit`], pure. Step by step the target decides inside
//! the permit (design section 7); here is what is decided once for a request, and why.

use paceline_process::config::Force;
use paceline_proto::v1::{Lane, RouteReason, RouteWish};

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

/// The drafter as routing sees it. States are added with the drafter worker; the match below then asks for their routes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drafter {
    /// There is none.
    Absent,
}

/// What routing knows of this moment. KV pressure, concurrency and context join when there is a second lane to guard.
#[derive(Clone, Copy, Debug)]
pub struct Signals {
    /// The drafter.
    pub drafter: Drafter,
}

/// What the operator has set.
#[derive(Clone, Copy, Debug)]
pub struct Policy {
    /// `routing.force`
    pub force: Force,
}

/// Chooses the route. Guards in the order of design section 7: operator's force, the caller's wish, drafter state.
pub fn route(wish: RouteWish, signals: &Signals, policy: &Policy) -> Permit {
    let plain = |reason| Permit { lane: Lane::Plain, max_draft: 0, reason };
    if policy.force == Force::Plain || (policy.force == Force::Auto && wish == RouteWish::Plain) {
        return plain(RouteReason::Forced);
    }
    match signals.drafter {
        // Also when speculation was forced or asked for: a drafter's absence costs speed, nothing else (I3).
        Drafter::Absent => plain(RouteReason::DrafterAbsent),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_drafter_everything_is_plain_and_says_why() {
        let cases = [
            (Force::Auto, RouteWish::Unspecified, RouteReason::DrafterAbsent),
            (Force::Auto, RouteWish::Auto, RouteReason::DrafterAbsent),
            (Force::Auto, RouteWish::Plain, RouteReason::Forced),
            (Force::Auto, RouteWish::Speculative, RouteReason::DrafterAbsent),
            (Force::Plain, RouteWish::Speculative, RouteReason::Forced),
            (Force::Speculative, RouteWish::Auto, RouteReason::DrafterAbsent),
            (Force::Speculative, RouteWish::Plain, RouteReason::DrafterAbsent),
        ];
        for (force, wish, reason) in cases {
            let permit = route(wish, &Signals { drafter: Drafter::Absent }, &Policy { force });
            assert_eq!(permit, Permit { lane: Lane::Plain, max_draft: 0, reason }, "{force:?} {wish:?}");
        }
    }
}
