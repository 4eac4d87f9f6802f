//! The route log: how each request was routed and how it ended, as JSON lines. It never contains a
//! request's text, because none comes here (I9).
//!
//! The log's file is one of [`crate::lines`].

use paceline_supervisor_core::routing::{
    Decision, DrafterState, Measured, Policy, PolicyChange, Signals,
};
use paceline_vocabulary::{RequestId, Term};
use serde::{Deserialize, Serialize};

/// Largest file.
pub const MAX_BYTES: u64 = 16 << 20;

/// One line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "lowercase", deny_unknown_fields)]
pub enum RouteLogLine {
    /// A request was routed.
    Decided(Box<DecidedLine>),
    /// A request ended.
    Ended(EndedLine),
}

/// A route as it was decided.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DecidedLine {
    /// RFC 3339, UTC.
    pub time: String,
    /// Id of the request.
    pub request: String,
    /// The supervisor's life.
    pub term: u64,
    /// Traffic class.
    pub class: String,
    /// "auto", "plain" or "speculative".
    pub wish: String,
    /// It ran already: load, the drafter or the policy had changed.
    pub again: bool,
    /// The policy in force.
    pub policy: PolicyLine,
    /// Signals at the time of the decision.
    #[serde(with = "SignalsLine")]
    pub signals: Signals,
    /// Route that was decided.
    pub permit: RouteLine,
}

/// How a request ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EndedLine {
    /// RFC 3339, UTC.
    pub time: String,
    /// Id of the request.
    pub request: String,
    /// The supervisor's life.
    pub term: u64,
    /// Milliseconds from its route to its end.
    pub duration_ms: u64,
    /// How it was served; none if it was broken off.
    pub served: Option<ServedLine>,
}

/// Outcome of a finished request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServedLine {
    /// "plain" or "speculative".
    pub lane: String,
    /// Word of the list of reasons.
    pub reason: String,
    /// Draft-and-verify rounds.
    pub cycles: u64,
    /// Tokens proposed.
    pub drafted: u64,
    /// Proposed tokens equal to the target's choice.
    pub accepted: u64,
    /// Tokens generated, counted by this supervisor.
    pub completion_tokens: u64,
}

/// A policy, each key in the configuration's form.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "as in the configuration")]
pub struct PolicyLine {
    pub epoch: u64,
    pub force: String,
    pub max_concurrent: String,
    pub max_context: String,
    pub kv_pressure: String,
}

/// Lane and reason.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RouteLine {
    /// "plain" or "speculative".
    pub lane: String,
    /// Word of the list of reasons.
    pub reason: String,
    /// Longest draft.
    pub max_draft: u32,
}

/// The form of [`Signals`].
#[derive(Serialize, Deserialize)]
#[serde(remote = "Signals", deny_unknown_fields)]
struct SignalsLine {
    #[serde(with = "DrafterLine")]
    drafter: DrafterState,
    images: bool,
    drafter_images: bool,
    place: u32,
    running: u32,
    context_tokens: u32,
    kv_pressure: f64,
    #[serde(with = "MeasuredLine")]
    by_sequences: Measured,
    #[serde(with = "MeasuredLine")]
    by_context: Measured,
    probe: bool,
}

/// The form of [`DrafterState`].
#[derive(Serialize, Deserialize)]
#[serde(remote = "DrafterState", rename_all = "lowercase")]
enum DrafterLine {
    Absent,
    Stopped,
    Loading,
    Suspect,
    Incompatible,
    Late { max_draft: u32 },
    Ready { max_draft: u32 },
}

/// The form of [`Measured`].
#[derive(Serialize, Deserialize)]
#[serde(remote = "Measured")]
struct MeasuredLine {
    up_to: u32,
    steps: u64,
    gain: f64,
}

impl PolicyLine {
    fn of(policy: &Policy) -> Self {
        let [force, max_concurrent, max_context, kv_pressure] =
            policy.settings().map(PolicyChange::value);
        Self { epoch: policy.epoch, force, max_concurrent, max_context, kv_pressure }
    }
}

impl DecidedLine {
    /// The line of a decision.
    pub fn of(decision: &Decision, request: &RequestId, class: &str, term: Term) -> Self {
        let permit = &decision.permit;
        Self {
            time: now(),
            request: request.as_str().to_owned(),
            term: term.0,
            class: class.to_owned(),
            wish: decision.wish.word().to_owned(),
            again: decision.again,
            policy: PolicyLine::of(&decision.policy),
            signals: decision.signals,
            permit: RouteLine {
                lane: permit.lane.word().to_owned(),
                reason: permit.reason.word().to_owned(),
                max_draft: permit.max_draft,
            },
        }
    }
}

impl EndedLine {
    /// The line of an end.
    pub fn of(
        request: &RequestId,
        term: Term,
        duration_ms: u64,
        served: Option<ServedLine>,
    ) -> Self {
        Self {
            time: now(),
            request: request.as_str().to_owned(),
            term: term.0,
            duration_ms,
            served,
        }
    }
}

/// Wall clock, for people who read the log.
#[expect(clippy::disallowed_methods, reason = "a stamp for people")]
fn now() -> String {
    jiff::Timestamp::now().to_string()
}
