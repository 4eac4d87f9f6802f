//! Orders of operators about the drafter, and the goals that the orders wait for.

use paceline_vocabulary::Epoch;

use crate::ids::{OrderId, WorkerSlot};

/// An operator's order. Directories are absolute; an empty one is that of the current drafter, or
/// of the last.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "`model` is as above")]
pub enum DrafterOrder {
    /// One is to run.
    Start { model: String },
    /// None is to run.
    Stop,
    /// Another is to take over.
    Swap { model: String },
    /// The one that runs is ended and started again.
    Renew,
}

impl DrafterOrder {
    /// In words, for the events.
    pub fn words(&self) -> String {
        let with = |verb: &str, model: &str| {
            if model.is_empty() { verb.to_owned() } else { format!("{verb} {model}") }
        };
        match self {
            DrafterOrder::Start { model } => with("start", model),
            DrafterOrder::Stop => "stop".to_owned(),
            DrafterOrder::Swap { model } => with("swap", model),
            DrafterOrder::Renew => "restart".to_owned(),
        }
    }
}

/// Goal that an order waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OrderGoal {
    /// The drafter is linked.
    Up,
    /// No drafter is left.
    Gone,
    /// The successor is linked.
    Swapped,
    /// The drafter in this slot, which was replaced, is gone.
    Replaced(WorkerSlot),
    /// The drafter is linked, in a later epoch than this.
    Renewed(Epoch),
}

/// An order that is not carried out yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct OpenOrder {
    pub(super) order_id: OrderId,
    pub(super) goal: OrderGoal,
}
