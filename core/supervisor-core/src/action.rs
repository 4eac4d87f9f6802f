//! Everything that the core orders.

use std::sync::Arc;

use paceline_vocabulary::state::ProcessState;
use paceline_vocabulary::{Epoch, Permit};

use crate::denial::{Denial, OrderRefusal, Outage};
use crate::drafter::{LinkEnds, RefusedDrafter};
use crate::ids::{OrderId, Ticket, WorkerId, WorkerSlot};
use crate::routing::{Decision, Policy};
use crate::worker::WorkerDescription;
use crate::{drafter, routing, worker};

/// Action that the shell is to carry out.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "fields are what their types say")]
pub enum Action {
    /// To a worker's process. Never `Abandon`: of the target it becomes `Abort`.
    Worker(WorkerId, worker::Action),
    /// Hand over both ends of a new link, the drafter's first, and answer `Connected`.
    Connect { generation: u64, slot: WorkerSlot, ends: LinkEnds },
    /// Give running requests of this epoch other permits, and answer `Repermitted`. No other
    /// `Repermit` follows before the answer.
    Repermit { epoch: Epoch, changes: Vec<(Ticket, Permit)> },
    /// Log how a request was routed.
    LogRoute { ticket: Ticket, decision: Box<Decision> },
    /// Give this epoch of the target the policy in force.
    PushPolicy { epoch: Epoch, policy: Policy },
    /// Log that the policy changed.
    LogPolicy { epoch: u64, key: &'static str, from: String, to: String, cause: &'static str },
    /// Answer an operator's order: it was carried out, or why not.
    Answer { order_id: OrderId, outcome: Result<(), OrderRefusal> },
    /// Forward this request to this epoch of the target.
    Admit { ticket: Ticket, epoch: Epoch, permit: Permit, queued_ms: u64 },
    /// Refuse this request.
    Deny { ticket: Ticket, denial: Denial },
    /// End every running stream of this epoch and of earlier ones.
    Abort { epoch: Epoch, denial: Denial },
    /// Send the gateway this notice.
    Announce(Notice),
    /// Log that time was lost.
    Overslept { ms: u64 },
    /// Log that the service's phase changed.
    LogService { from: &'static str, to: &'static str, cause: &'static str },
    /// Log that a link's stage changed.
    LogLink { slot: WorkerSlot, generation: u64, to: &'static str, cause: String },
    /// Log that a drafter of the list was refused, and the one that is tried in its place.
    LogRefusal { refused: RefusedDrafter, next: String },
    /// Log that the gateway's state changed.
    LogGateway { epoch: Epoch, from: ProcessState, to: ProcessState, cause: &'static str },
    /// Log that the target serves the model of an operator's order, and keep that for the next
    /// supervisor.
    TargetSwapped { model: String },
    /// Log an operator's order.
    LogOrder { subject: &'static str, to: String },
    /// Restart the gateway of this `Attach` stream and of earlier ones. Running requests get
    /// `grace_ms`; `None` is the gateway's usual time.
    RestartGateway { attachment: u64, grace_ms: Option<u32> },
    /// End the supervisor. With `restart` it is started again and the workers stay; without it no
    /// worker is left.
    Exit { restart: bool },
}

impl From<drafter::Action> for Action {
    fn from(action: drafter::Action) -> Self {
        match action {
            drafter::Action::Worker(slot, action) => {
                Action::Worker(WorkerId::Drafter(slot), action)
            }
            drafter::Action::Connect { generation, slot, ends } => {
                Action::Connect { generation, slot, ends }
            }
            drafter::Action::LogLink { slot, generation, to, cause } => {
                Action::LogLink { slot, generation, to, cause }
            }
            drafter::Action::LogRefusal { refused, next } => Action::LogRefusal { refused, next },
            drafter::Action::Answer { order_id, outcome } => Action::Answer { order_id, outcome },
        }
    }
}

impl From<routing::Action> for Action {
    fn from(action: routing::Action) -> Self {
        match action {
            routing::Action::Repermit { epoch, changes } => Action::Repermit { epoch, changes },
            routing::Action::LogRoute { ticket, decision } => Action::LogRoute { ticket, decision },
            routing::Action::PushPolicy { epoch, policy } => Action::PushPolicy { epoch, policy },
        }
    }
}

/// Whether requests can be served: the notice for the gateway.
#[derive(Clone, Debug, Default)]
pub struct Notice {
    /// Why not; `None` if they can.
    pub outage: Option<Outage>,
    /// An operator drained the service: interrupted requests go on unless there is a
    /// `resumed_outage`.
    pub held: bool,
    /// Why a drained service does not take interrupted requests; `None` if it does.
    pub resumed_outage: Option<Outage>,
    /// Requests are served, and a drain follows: health reports that they are not.
    pub leaving: bool,
    /// The served model, once it is known.
    pub described: Option<Arc<WorkerDescription>>,
}

impl PartialEq for Notice {
    fn eq(&self, other: &Self) -> bool {
        (&self.outage, self.leaving) == (&other.outage, other.leaving)
            && (&self.resumed_outage, self.held) == (&other.resumed_outage, other.held)
            && self.described.as_ref().map(Arc::as_ptr) == other.described.as_ref().map(Arc::as_ptr)
    }
}
