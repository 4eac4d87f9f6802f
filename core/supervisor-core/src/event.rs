//! Everything that comes into the core.

use paceline_vocabulary::Epoch;
use paceline_vocabulary::report::GatewayReport;

use crate::drafter::DrafterOrder;
use crate::ids::{OrderId, Ticket, WorkerId};
use crate::operations::OperatorOrder;
use crate::request::{RequestSummary, ServedRequest};
use crate::routing::PolicyChange;
use crate::tuning::Tuning;
use crate::worker;

/// Event that the core receives.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "fields are what their types say")]
pub enum Event {
    /// The service starts.
    Begun,
    /// An event of a worker's process.
    Worker(WorkerId, worker::Event),
    /// Both workers have their ends of this link, or why not.
    Connected { generation: u64, failure: Option<String> },
    /// An operator ordered something of the drafter.
    DrafterOrdered { order_id: OrderId, order: DrafterOrder },
    /// An operator ordered something of another process, or of the whole service.
    Ordered { order_id: OrderId, order: OperatorOrder },
    /// The last `Repermit` of this epoch of the target was answered, or was not answered in time:
    /// the target took all permits but these.
    Repermitted { epoch: Epoch, missed: Vec<Ticket> },
    /// A request arrived.
    Submitted { ticket: Ticket, summary: RequestSummary },
    /// A running request has its first tokens since its admission.
    Progressed { ticket: Ticket },
    /// A request ended well; its `Ended` follows.
    Served { ticket: Ticket, served: ServedRequest },
    /// An operator sets a key of the policy.
    PolicySet { order_id: OrderId, change: PolicyChange },
    /// An operator changes settings that need no restart.
    Tuned { order_id: OrderId, tuning: Tuning },
    /// Free memory of the machine was read.
    MemoryRead { available_bytes: Option<u64> },
    /// A request is over, or its client is gone; also of a request that was denied.
    Ended { ticket: Ticket },
    /// The gateway reported its state.
    Reported { attachment: u64, report: GatewayReport },
    /// The gateway's stream ended.
    Detached { attachment: u64 },
    /// The service was asked to stop: the first time it drains, the second time it aborts, the
    /// third time it kills.
    StopAsked,
    /// The process that started the supervisor is gone.
    ParentGone,
    /// The supervisor was not run for this time: messages of that time are still to be read.
    Starved { ms: u64 },
    /// [`crate::Supervisor::next_deadline`] was reached.
    TimePassed,
}
