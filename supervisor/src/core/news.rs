//! What the core is told, what it orders, and the bounds it keeps.

use std::sync::Arc;

use paceline_proto::internal::v1::GatewayReport;
use paceline_proto::v1::ProcessState;
use paceline_vocabulary::Epoch;

use super::admission::{Ask, Ticket};
use super::denial::{Denial, Outage, Refused};
use super::drafter::{Call, Order};
use super::link::Ends;
use super::operations::Command;
use super::route::{Permit, Policy};
use super::routing::{Decision, Served};
use super::seat::{Seat, WorkerId};
use super::worker::{self, Described, Patience};

/// Every bound of the core, in milliseconds and counts.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Places in the queue.
    pub places: usize,
    /// Longest wait in it.
    pub queue_wait_ms: u64,
    /// Requests that one API key runs at once; its others wait.
    pub streams_per_key: usize,
    /// Restarts allowed in any `restart_period_ms`.
    pub restarts: u32,
    /// Also how long a life has to last until earlier falls are forgotten.
    pub restart_period_ms: u64,
    /// Bounds of a worker's life.
    pub patience: Patience,
    /// What running requests get when the service is asked to stop.
    pub drain_ms: u64,
    /// The same when whoever started us is gone.
    pub orphan_drain_ms: u64,
    /// For cancelled requests to end.
    pub cancel_ms: u64,
    /// A deadline seen so much too late means that we were not awake, so that others' silence
    /// proves nothing.
    pub late_ms: u64,
    /// The operator's routing.
    pub policy: Policy,
    /// Routes are logged.
    pub log_routes: bool,
}

/// What happened.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "fields are what their types say")]
pub enum Event {
    /// The service starts.
    Begun,
    /// To a worker's process.
    Worker(WorkerId, worker::Event),
    /// Both workers have their ends of this link, or why not.
    Connected { generation: u64, failure: Option<String> },
    /// An operator ordered something of the drafter.
    Ordered { call: Call, order: Order },
    /// An operator ordered something of another process, or of the whole service.
    Commanded { call: Call, command: Command },
    /// The last `Repermit` of this life of the target was answered, or not in time: it took all but
    /// these.
    Repermitted { epoch: Epoch, missed: Vec<Ticket> },
    /// A request came.
    Submitted { ticket: Ticket, ask: Ask },
    /// A request ended well; its end follows.
    Served { ticket: Ticket, served: Served },
    /// An operator sets a key of the policy, in the configuration's form.
    PolicySet { call: Call, key: String, value: String },
    /// Free memory of the machine was read.
    MemoryRead { available_bytes: Option<u64> },
    /// A request is over, or its client is gone; also of one that was denied.
    Ended { ticket: Ticket },
    /// The gateway said how it is.
    Reported { attachment: u64, report: GatewayReport },
    /// The gateway's stream ended.
    Detached { attachment: u64 },
    /// An operator wants the service to stop: the first drains, the second cancels, the third
    /// kills.
    StopAsked,
    /// Whoever started us is gone.
    ParentGone,
    /// We were not run for so long: what was said meanwhile is still to be read.
    Starved { ms: u64 },
    /// [`super::Supervisor::next_deadline`] was reached.
    TimePassed,
}

/// What is to be done.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "fields are what their types say")]
pub enum Action {
    /// To a worker's process. Never `Abandon`, which becomes a `Cut`, or nothing.
    Worker(WorkerId, worker::Action),
    /// Hand both ends of a new link over, the drafter's first, and answer `Connected`.
    Connect { generation: u64, seat: Seat, ends: Ends },
    /// Give running requests of this life other permits, and answer `Repermitted`; until then no
    /// other follows.
    Repermit { epoch: Epoch, changes: Vec<(Ticket, Permit)> },
    /// Say how a request was routed.
    LogRoute { ticket: Ticket, decision: Box<Decision> },
    /// Give this life of the target the policy in force.
    PushPolicy { epoch: Epoch, policy: Policy },
    /// Say that the policy changed.
    LogPolicy { epoch: u64, key: &'static str, from: String, to: String, cause: &'static str },
    /// Tell an operator how the order ended.
    Answer { call: Call, outcome: Result<(), Refused> },
    /// Forward this request to this life of the target.
    Admit { ticket: Ticket, epoch: Epoch, permit: Permit, queued_ms: u64 },
    /// Refuse this request.
    Deny { ticket: Ticket, denial: Denial },
    /// End every running stream of this life and of earlier ones.
    Cut { epoch: Epoch, denial: Denial },
    /// Tell the gateway.
    Announce(Notice),
    /// Say that time was lost.
    Overslept { ms: u64 },
    /// Say that the service's state changed.
    LogService { from: &'static str, to: &'static str, cause: &'static str },
    /// Say that a link's state changed.
    LogLink { seat: Seat, generation: u64, to: &'static str, cause: String },
    /// Say that the gateway's state changed.
    LogGateway { epoch: u64, from: ProcessState, to: ProcessState, cause: &'static str },
    /// Say that an operator ordered this of that.
    LogOrder { subject: &'static str, to: String },
    /// Tell the gateway of this `Attach` stream, or of an earlier one, to end and be started again;
    /// what running requests get to end by themselves, if not the usual time.
    RestartGateway { attachment: u64, grace_ms: Option<u32> },
    /// End. To be started again (`restart`) the workers are left where they are, else they are
    /// gone.
    Exit { restart: bool },
}

/// Whether requests can be served, as the gateway is told.
#[derive(Clone, Debug, Default)]
pub struct Notice {
    /// Why not; `None` if they can.
    pub outage: Option<Outage>,
    /// The served model, once it is known.
    pub described: Option<Arc<Described>>,
}

impl PartialEq for Notice {
    fn eq(&self, other: &Self) -> bool {
        self.outage == other.outage
            && self.described.as_ref().map(Arc::as_ptr) == other.described.as_ref().map(Arc::as_ptr)
    }
}
