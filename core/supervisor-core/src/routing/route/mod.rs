//! Which lane a request may take: request × signals × policy → [`Permit`], pure. The target decides
//! each step within the permit (`target-core/speculation`). This module decides about a request as
//! a whole, and gives the reason.

use paceline_settings::Auto;
use paceline_vocabulary::{Force, Lane, Permit, RouteReason, RouteWish};

use super::policy::Policy;

/// Requests at once that may draft, until it is measured how far speculation pays.
pub const PRIOR_CONCURRENT: u32 = 4;
/// Tokens of context likewise: the length published drafters were trained at.
const PRIOR_CONTEXT: u32 = 4_096;
/// Steps after which a bucket's figure counts as measured: fewer are a few seconds of one request.
pub const MEASURED_STEPS: u64 = 64;

/// Least gain that counts as a gain. The target's figure is a mean over kinds of text, each 1 or
/// its gain. No kind has less than half a percent of the mean, because none is impossible. If even
/// the best text gains less than the 2 % at which the target begins to draft, the bound is not
/// reached. If one kind gains more, it is reached. So no request is denied drafts that could pay,
/// and rounding of the 13 shares (one bit above 1) is no gain.
const LEAST_GAIN: f64 = 1.000_1;

/// The drafter as routing knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DrafterState {
    /// None is configured.
    Absent,
    /// One is configured and does not run: it is stopped, waits for its first use, or failed.
    Stopped,
    /// It is being started, or its link is being made.
    Loading,
    /// It sends no heartbeats, or is being ended.
    Suspect,
    /// The target refused it.
    Incompatible,
    /// It is linked, and its drafts arrive too late again and again. Requests keep their permit to
    /// draft: the target asks rarely now, and only a draft in time can show that this is over.
    /// Without permits the drafter would stay suspect for ever (I12).
    Late {
        /// Longest draft it gives, in tokens.
        max_draft: u32,
    },
    /// Drafts can arrive from it.
    Ready {
        /// Longest draft it gives, in tokens.
        max_draft: u32,
    },
}

/// Measured gain of speculation in the present range of load or context; unknown if `steps` is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Measured {
    /// Upper end of the bucket, inclusive.
    pub up_to: u32,
    /// Steps that were measured in it.
    pub steps: u64,
    /// Tokens per second as the target decides, over plain decoding.
    pub gain: f64,
}

impl Measured {
    /// Whether speculation pays here; `None` where that is not measured.
    pub fn pays(&self) -> Option<bool> {
        (self.steps >= MEASURED_STEPS).then_some(self.gain >= LEAST_GAIN)
    }
}

/// Inputs of one routing decision.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Signals {
    /// The drafter.
    pub drafter: DrafterState,
    /// The request has images.
    pub images: bool,
    /// The drafter drafts for requests with images.
    pub drafter_images: bool,
    /// The request's place among those that run, the longest running first, from 1.
    pub place: u32,
    /// Requests that run, this one included.
    pub running: u32,
    /// Tokens this request starts with.
    pub context_tokens: u32,
    /// Share of the KV budget that running requests hold.
    pub kv_pressure: f64,
    /// Gain that was measured with as many sequences at once as run now.
    pub by_sequences: Measured,
    /// Gain that was measured in contexts of this length.
    pub by_context: Measured,
    /// A probe is due: the speculative lane is tried where it is not known to pay.
    pub probe: bool,
}

/// Chooses the route. The guards, in this order: the operator's force, the client's wish, modality,
/// the drafter's state, KV pressure, concurrency and context.
///
/// - Priors and measurements bind only requests that leave the choice to the service.
/// - An operator's caps bind also clients that ask for speculation. An operator's force overrides
///   the caps.
/// - KV pressure overrides everything: the drafter's memory is given up before any request's.
/// - A prior or a cap of n lets the n longest running requests draft. A measurement concerns the
///   load as a whole and holds for all requests.
/// - A denial by a prior or a measurement is tried again from time to time (`probe`), so none lasts
///   for ever.
///
/// Longer than 60 lines, because the order of the guards is the rule and is read in one piece.
pub fn route(wish: RouteWish, signals: &Signals, policy: &Policy) -> Permit {
    let permit =
        |lane, max_draft, reason| Permit { lane, max_draft, reason, policy_epoch: policy.epoch };
    let plain = |reason| permit(Lane::Plain, 0, reason);
    if policy.force == Force::Plain || (policy.force == Force::Auto && wish == RouteWish::Plain) {
        return plain(RouteReason::Forced);
    }
    if signals.images && !signals.drafter_images {
        return plain(RouteReason::Modality);
    }
    let (max_draft, late) = match signals.drafter {
        // Also when speculation was forced or asked for: a drafter's absence costs speed, nothing
        // else (I3).
        DrafterState::Absent | DrafterState::Stopped => return plain(RouteReason::DrafterAbsent),
        DrafterState::Loading => return plain(RouteReason::DrafterLoading),
        DrafterState::Suspect => return plain(RouteReason::DrafterSuspect),
        DrafterState::Incompatible => return plain(RouteReason::DrafterIncompatible),
        DrafterState::Late { max_draft } => (max_draft, true),
        DrafterState::Ready { max_draft } => (max_draft, false),
    };
    if signals.kv_pressure > policy.kv_pressure {
        return plain(RouteReason::KvPressure);
    }
    let forced = policy.force == Force::Speculative;
    let asked = forced || wish == RouteWish::Speculative;
    let guards = [
        RouteGuard {
            cap: policy.max_concurrent,
            found: signals.place,
            all: signals.running,
            prior: PRIOR_CONCURRENT,
            measured: signals.by_sequences,
            reason: RouteReason::Concurrency,
        },
        RouteGuard {
            cap: policy.max_context,
            found: signals.context_tokens,
            all: signals.context_tokens,
            prior: PRIOR_CONTEXT,
            measured: signals.by_context,
            reason: RouteReason::Context,
        },
    ];
    let mut doubt = None;
    for guard in &guards {
        match guard.judge(asked) {
            Judged::Within => {}
            Judged::OverCap if forced => {}
            Judged::OverCap => return plain(guard.reason),
            Judged::Doubtful(reason) => doubt = doubt.or(Some(reason)),
        }
    }
    let reason = match (doubt, late, asked) {
        (Some(reason), _, _) if !signals.probe => return plain(reason),
        (Some(_), _, _) => RouteReason::Probe,
        (None, true, _) => RouteReason::DrafterLate,
        (None, false, true) => RouteReason::Forced,
        (None, false, false) if guards.iter().any(|guard| guard.measured.pays() == Some(true)) => {
            RouteReason::Benefit
        }
        (None, false, false) => RouteReason::Prior,
    };
    permit(Lane::Speculative, max_draft, reason)
}

struct RouteGuard {
    cap: Auto<u32>,
    found: u32,
    /// The bounded figure for all requests together, to which the measurement refers.
    all: u32,
    prior: u32,
    measured: Measured,
    reason: RouteReason,
}

enum Judged {
    Within,
    OverCap,
    /// By a prior or a measurement.
    Doubtful(RouteReason),
}

impl RouteGuard {
    fn judge(&self, asked: bool) -> Judged {
        match (self.cap, self.measured.pays()) {
            (Auto::Is(most), _) if self.found > most => Judged::OverCap,
            (Auto::Is(_), _) => Judged::Within,
            (Auto::Auto, _) if asked => Judged::Within,
            (Auto::Auto, Some(true)) => Judged::Within,
            // In a range that was thought good it is the pair that does not pay, elsewhere the load
            // or the length.
            (Auto::Auto, Some(false)) if self.all <= self.prior => {
                Judged::Doubtful(RouteReason::NotWorth)
            }
            (Auto::Auto, Some(false)) => Judged::Doubtful(self.reason),
            (Auto::Auto, None) if self.found > self.prior => Judged::Doubtful(self.reason),
            (Auto::Auto, None) => Judged::Within,
        }
    }
}

#[cfg(test)]
mod tests;
