//! The commands that the engine takes from its mailbox.

use paceline_link::Handover;
use paceline_target_core::Policy;
use paceline_vocabulary::{Millis, Permit};
use tokio::sync::oneshot;

use crate::running::RunningRequest;

/// A command to the engine.
#[derive(Debug)]
pub(crate) enum EngineCommand {
    /// Run a request.
    Run(Box<RunningRequest>),
    /// End a request at the next step border. The answer is whether the request was found.
    Cancel { request_id: String, found: oneshot::Sender<bool> },
    /// Give requests other permits. The answer is the ids of requests that were not found.
    Repermit { changes: Vec<PermitChange>, unknown: oneshot::Sender<Vec<String>> },
    /// Use another routing policy from the next cycle border on.
    SetPolicy(Policy),
    /// Start the handshake with a drafter over this link.
    Link(Handover),
    /// Let requests run until `until`, then end the rest and return.
    Stop { until: Millis },
}

/// Another permit for a request.
#[derive(Debug)]
pub(crate) struct PermitChange {
    pub(crate) request_id: String,
    pub(crate) permit: Permit,
}
