//! Lanes, the reasons for them, and what an operator or a client asks for.

use crate::words::worded;

worded! {
    /// How a sequence decodes.
    Lane {
        /// One token per step.
        Plain = "plain",
        /// Drafted blocks, verified by the target.
        Speculative = "speculative",
    }
}

worded! {
    /// Lane that a client asks for.
    RouteWish {
        /// The service decides.
        Auto = "auto",
        /// Without the drafter.
        Plain = "plain",
        /// With the drafter. Served plainly, with the reason, if there is none.
        Speculative = "speculative",
    }
}

worded! {
    /// An operator's override of the route (`routing.force`).
    Force {
        /// No override.
        Auto = "auto",
        /// Everything without the drafter.
        Plain = "plain",
        /// Everything with the drafter, if there is one.
        Speculative = "speculative",
    }
}

worded! {
    /// Why a lane was chosen: a fixed list, the same in the last message, the route log and the
    /// metrics. The supervisor decides on most of them per request, the target on the others per
    /// step.
    RouteReason {
        /// The client or the operator asked for this lane.
        Forced = "forced",
        /// Measurements say that the speculative lane is faster.
        Benefit = "benefit",
        /// The lane is tried in order to measure it.
        Probe = "probe",
        /// No measurements yet: published figures decide.
        Prior = "prior",
        /// Drafts of this sequence do not pay.
        NotWorth = "not_worth",
        /// Too many sequences decode at once.
        Concurrency = "concurrency",
        /// The KV memory is nearly full.
        KvPressure = "kv_pressure",
        /// The context is too long.
        Context = "context",
        /// The drafter cannot serve the request's images.
        Modality = "modality",
        /// There is no drafter.
        DrafterAbsent = "drafter_absent",
        /// The drafter's weights are not there yet.
        DrafterLoading = "drafter_loading",
        /// The drafter does not answer.
        DrafterSuspect = "drafter_suspect",
        /// The drafter's drafts come too late.
        DrafterLate = "drafter_late",
        /// Target and drafter do not go together.
        DrafterIncompatible = "drafter_incompatible",
        /// The drafter has not read the sequence's context yet.
        DrafterBehind = "drafter_behind",
    }
}

/// The lane that served a request, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// The lane.
    pub lane: Lane,
    /// Why.
    pub reason: RouteReason,
}

/// The supervisor's route for a request: within it the target chooses per step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permit {
    /// The fastest lane that the request may take.
    pub lane: Lane,
    /// Longest draft in tokens; 0 in the plain lane.
    pub max_draft: u32,
    /// Why.
    pub reason: RouteReason,
    /// Number of the policy that decided.
    pub policy_epoch: u64,
}

impl Permit {
    /// Whether drafts may be requested for the request.
    pub fn may_draft(&self) -> bool {
        self.lane == Lane::Speculative && self.max_draft > 0
    }

    /// Whether load, length or memory alone denies the speculative lane. These pass, so the request
    /// is routed again when they may have passed (I12).
    pub fn is_held_back(&self) -> bool {
        use RouteReason::{Concurrency, Context, KvPressure, NotWorth};
        self.lane == Lane::Plain
            && matches!(self.reason, Concurrency | Context | KvPressure | NotWorth)
    }
}
