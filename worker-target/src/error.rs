//! What the core and the engine say, as statuses. The one place.

use paceline_proto::status::{Reason, Refusal};
use tonic::Status;

use crate::core::{Ended, LedgerError, SchedulerError};

/// A request the scheduler cannot take.
pub(crate) fn refused(error: &SchedulerError) -> Status {
    let text = error.to_string();
    match error {
        SchedulerError::Ledger(LedgerError::Never { needed, budget }) => Refusal::new(Reason::KvExhausted, text)
            .field("kv.budget_bytes")
            .fact("needed_bytes", needed)
            .fact("budget_bytes", budget)
            .into(),
        SchedulerError::Ledger(LedgerError::TooLong { .. }) => Reason::PromptTooLong.field("prompt", text),
        // The supervisor admits by the same figures, so this is a race with a request that is just ending.
        SchedulerError::Ledger(LedgerError::NotNow { .. }) => Reason::QueueWait.field("kv.budget_bytes", text),
        SchedulerError::Full(_) => Reason::QueueFull.field("sequences", text),
    }
}

/// A sequence that ended without its answer.
pub(crate) fn ended(ended: Ended) -> Option<Status> {
    match ended {
        Ended::Well(_) => None,
        Ended::DeadlinePassed => Some(Reason::DeadlinePassed.status("the request's deadline passed before it was finished")),
        Ended::Cancelled => Some(Reason::Cancelled.status("the request was cancelled")),
    }
}
