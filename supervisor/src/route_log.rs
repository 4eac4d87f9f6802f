//! The route log: how each request was routed and what came of it, as JSON lines. No text of a
//! request is ever in it, for none comes here (I9).
//!
//! Its file is one of [`crate::lines`].

use paceline_proto::v1::RouteWish;
use paceline_vocabulary::{RequestId, Term};
use serde::{Deserialize, Serialize};

use crate::core::route::{Policy, Signals};
use crate::core::routing::Decision;

/// Largest file.
pub const MAX_BYTES: u64 = 16 << 20;

/// One line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "lowercase", deny_unknown_fields)]
pub enum Line {
    /// A request was routed.
    Decided(Box<Decided>),
    /// A request ended.
    Ended(Ended),
}

/// A route as it was decided.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Decided {
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
    /// What was known.
    pub signals: Signals,
    /// What was decided.
    pub permit: RouteLine,
}

/// How a request ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ended {
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

/// What a finished request came to.
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

impl PolicyLine {
    fn of(policy: &Policy) -> Self {
        let [force, max_concurrent, max_context, kv_pressure] =
            policy.settings().map(|(_, value)| value);
        Self { epoch: policy.epoch, force, max_concurrent, max_context, kv_pressure }
    }
}

impl Decided {
    /// The line of a decision.
    pub fn of(decision: &Decision, request: &RequestId, class: &str, term: Term) -> Self {
        let permit = &decision.permit;
        let wish =
            if decision.wish == RouteWish::Unspecified { RouteWish::Auto } else { decision.wish };
        Self {
            time: now(),
            request: request.as_str().to_owned(),
            term: term.0,
            class: class.to_owned(),
            wish: wish.word(),
            again: decision.again,
            policy: PolicyLine::of(&decision.policy),
            signals: decision.signals,
            permit: RouteLine {
                lane: permit.lane.word(),
                reason: permit.reason.word(),
                max_draft: permit.max_draft,
            },
        }
    }
}

impl Ended {
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
