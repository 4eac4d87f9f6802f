//! Errors of requests, as statuses. The only place of this crate that chooses their reasons.

use paceline_proto::status::{Reason, ReasonStatus as _, Refusal};
use paceline_target_core::{EndReason, LedgerError, SchedulerError};
use tonic::Status;

/// The status of a request that the scheduler can never take; `None` if it cannot take it now.
pub(crate) fn refused(error: &SchedulerError) -> Option<Status> {
    let text = error.to_string();
    match error {
        SchedulerError::Ledger(LedgerError::Never { needed, budget }) => {
            let refusal = Refusal::new(Reason::KvExhausted, text).field("kv.budget_bytes");
            Some(refusal.fact("needed_bytes", needed).fact("budget_bytes", budget).into())
        }
        SchedulerError::Ledger(LedgerError::TooLong { .. }) => {
            Some(Reason::PromptTooLong.field("prompt", text))
        }
        SchedulerError::Full(_) => None,
    }
}

/// The request's deadline passed.
pub(crate) fn deadline_passed() -> Status {
    Reason::DeadlinePassed.status("the request's deadline passed before it was finished")
}

/// The client left more of its answer unread than may be pending.
pub(crate) fn slow_reader() -> Status {
    let message = "the client did not read its answer and more of it waits than may; read streams as they come";
    Reason::SlowReader.field("limits.unread_s", message)
}

/// An operator cancelled the request.
pub(crate) fn cancelled() -> Status {
    Refusal::new(Reason::Cancelled, "the request was cancelled by an operator")
        .fact("by", "operator")
        .into()
}

/// The model's logits are not finite, so no token can be chosen.
pub(crate) fn numerics() -> Status {
    let message = "the model's numbers for this request were not finite, so no token could be chosen; other requests are not \
                   affected. Change the prompt, the images or the sampling parameters; if it happens with other prompts too, \
                   check the checkpoint (paceline selftest)";
    Reason::Numerics.status(message)
}

/// The request's grammar needs more in the middle of the answer than the bounds allow.
pub(crate) fn grammar(why: &str) -> Status {
    let message = format!(
        "grammar: expected one whose masks can be computed within the service's bounds, found: {why}; make \
         it simpler"
    );
    Reason::InvalidArgument.field("grammar", message)
}

/// The status of a sequence that the scheduler ended; `None` if it ended well.
pub(crate) fn ended(ended: EndReason) -> Option<Status> {
    match ended {
        EndReason::Completed(_) => None,
        EndReason::DeadlinePassed => Some(deadline_passed()),
        EndReason::Cancelled => Some(cancelled()),
    }
}
