//! Messages in the actor's mailbox, and messages that the actor broadcasts. Types only: everything
//! that talks to the actor uses them.

use paceline_proto::internal::v1::ServiceState;
use paceline_proto::internal::v1::target_client::TargetClient;
use paceline_proto::v1::{PolicyResponse, StatusResponse};
use paceline_supervisor_core::denial::Denial;
use paceline_supervisor_core::drafter::DrafterOrder;
use paceline_supervisor_core::operations::OperatorOrder;
use paceline_supervisor_core::request::ServedRequest;
use paceline_supervisor_core::routing::PolicyChange;
use paceline_supervisor_core::tuning::Tuning;
use paceline_supervisor_core::{RequestSummary, Ticket, WorkerId, worker};
use paceline_vocabulary::report::GatewayReport;
use paceline_vocabulary::{Epoch, Permit, RequestId};
use tokio::sync::{oneshot, watch};
use tonic::Status;
use tonic::transport::Channel;

use crate::route_log::ServedLine;
use crate::target_access::TargetAccess;
use crate::target_swap::TargetSetup;

/// The end of an operator's order that waits for the outcome.
pub type OrderReply = oneshot::Sender<Result<StatusResponse, Status>>;

/// A message to the actor.
#[derive(Debug)]
pub enum Mail {
    /// A request.
    Submit {
        /// Number of the request.
        ticket: Ticket,
        /// Id of the request in every process.
        id: RequestId,
        /// Traffic class of the request.
        class: String,
        /// Facts of the request that the core uses.
        summary: RequestSummary,
        /// Where the decision goes.
        reply: oneshot::Sender<AdmissionDecision>,
    },
    /// A running request has its first tokens since its admission.
    Progressed {
        /// Number of the request.
        ticket: Ticket,
    },
    /// An event of a worker.
    Worker(WorkerId, worker::Event),
    /// Free memory of the machine was read.
    MemoryRead {
        /// Free bytes, if the system reports them.
        available_bytes: Option<u64>,
    },
    /// A link was handed over, or not.
    Connected {
        /// Number of the link.
        generation: u64,
        /// Reason of the failure.
        failure: Option<String>,
    },
    /// The target answered other permits, or did not answer in time.
    Repermitted {
        /// This epoch of the target.
        epoch: Epoch,
        /// The requests whose permits it did not take.
        missed: Vec<Ticket>,
    },
    /// An operator's order of the drafter.
    DrafterOrder {
        /// The order.
        order: DrafterOrder,
        /// Where the outcome goes.
        reply: OrderReply,
    },
    /// An operator's order of another process or of the service.
    OperatorOrder {
        /// The order.
        order: OperatorOrder,
        /// Where the outcome goes.
        reply: OrderReply,
    },
    /// An operator's order to serve another model.
    SwapTarget {
        /// What its workers are started with.
        setup: Box<TargetSetup>,
        /// Time that running requests get; `None` is the usual time.
        drain_ms: Option<u64>,
        /// Where the outcome goes.
        reply: OrderReply,
    },
    /// An operator sets a key of the policy.
    SetPolicy {
        /// The key with its value.
        change: PolicyChange,
        /// Where the policy goes then.
        reply: oneshot::Sender<Result<PolicyResponse, Status>>,
    },
    /// An operator changes settings that need no restart.
    Tune {
        /// The changed settings.
        tuning: Tuning,
        /// Where the outcome goes.
        reply: OrderReply,
    },
    /// The gateway of an `Attach` stream reported its state.
    Reported {
        /// Number of the stream.
        attachment: u64,
        /// The report.
        report: GatewayReport,
    },
    /// An `Attach` stream ended.
    Detached {
        /// Number of the stream.
        attachment: u64,
    },
    /// A request's grammar is to be compiled.
    Target {
        /// Where the target's client goes; `None`: none runs.
        reply: oneshot::Sender<Option<TargetAccess>>,
    },
    /// A question whether the actor still answers.
    Ping {
        /// Where the answer goes.
        reply: oneshot::Sender<()>,
    },
    /// An operator asks for a snapshot.
    Status {
        /// Where it goes.
        reply: oneshot::Sender<StatusResponse>,
    },
}

/// Why the service has to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// An operator, by signal: the first drains, the second cancels, the third kills.
    Asked,
    /// The process that started the supervisor is gone.
    ParentGone,
}

/// The right to run one request on one epoch of the target.
#[derive(Debug)]
pub struct AdmissionGrant {
    /// The epoch.
    pub epoch: Epoch,
    /// The request's permit.
    pub permit: Permit,
    /// How long it waited.
    pub queued_ms: u64,
    /// The client for requests to this epoch.
    pub target: TargetClient<Channel>,
}

/// The core's decision about a request.
pub type AdmissionDecision = Result<AdmissionGrant, Denial>;

/// A request is over.
#[derive(Debug)]
pub struct RequestEnd {
    /// The request.
    pub ticket: Ticket,
    /// How it was served, if it ended well.
    pub served: Option<ServedEnd>,
}

/// How a request was served.
#[derive(Clone, Debug)]
pub struct ServedEnd {
    /// For the core.
    pub request: ServedRequest,
    /// For the route log.
    pub line: ServedLine,
}

/// Running streams of epochs up to `epoch` are to end with this denial.
#[derive(Clone, Debug)]
pub struct AbortStreams {
    /// The last epoch that is meant.
    pub epoch: Epoch,
    /// The denial that clients get.
    pub denial: Denial,
}

/// The gateway of this `Attach` stream, and of earlier ones, is to end and be started again.
#[derive(Clone, Copy, Debug)]
pub struct GatewayRestart {
    /// Number of the stream.
    pub attachment: u64,
    /// Time that running requests get to end; `None` is the gateway's usual time.
    pub grace_ms: Option<u32>,
}

/// Messages that the actor broadcasts.
#[derive(Clone, Debug)]
pub struct Broadcasts {
    /// The streams that have to end.
    pub aborts: watch::Receiver<Option<AbortStreams>>,
    /// Whether requests can be served.
    pub notices: watch::Receiver<ServiceState>,
    /// The gateways that have to restart.
    pub restarts: watch::Receiver<Option<GatewayRestart>>,
}
