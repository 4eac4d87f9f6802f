//! Conversions between the gateway's own types and `paceline.internal.v1`.

use std::time::Duration;

use paceline_proto::internal::v1 as internal;
use paceline_proto::status::Refusal;
use paceline_protocols::inference::error::InferenceError;
use paceline_vocabulary::report::GatewayReport;
use paceline_vocabulary::{Epoch, Reason, Term};
use tonic::{Code, Status};

use crate::inference::standing::ServiceState;

pub(super) fn stamp(term: Term, epoch: Epoch) -> internal::Stamp {
    internal::Stamp { term: term.0, epoch: epoch.0 }
}

pub(super) fn service(state: internal::ServiceState) -> ServiceState {
    ServiceState {
        can_serve: state.can_serve,
        reason: Reason::from_word(&state.reason),
        message: state.message,
        model: state.model.map(Into::into),
        drafter_serves: state.drafter_serves,
        leaving: state.leaving,
        held: state.held,
        held_reason: Reason::from_word(&state.held_reason),
        retry_after: Duration::from_millis(state.retry_ms.into()),
        // The supervisor learns them from this process.
        images: None,
        unread_tool_calls: false,
    }
}

pub(super) fn report(report: GatewayReport) -> internal::GatewayReport {
    internal::GatewayReport {
        epoch: report.epoch.0,
        pid: report.pid,
        state: internal::GatewayState::from(report.state).into(),
        restarts: report.restarts,
        streams: report.streams,
        images: report.images.map(Into::into),
        model: report.model.map(|mark| mark.0),
        unread_tool_calls: report.unread_tool_calls,
    }
}

/// The error in a status from the supervisor. A status that a library made of a broken connection
/// means that the supervisor is being started again.
pub(super) fn error(status: Status) -> InferenceError {
    if let Some(Refusal { reason, message, field, retry_after, metadata }) = Refusal::of(&status) {
        let facts = metadata.into_iter().collect();
        return InferenceError { kind: reason, message, field, facts, retry_after };
    }
    match status.code() {
        Code::Unavailable
        | Code::Unknown
        | Code::Cancelled
        | Code::Internal
        | Code::Aborted
        | Code::DataLoss => {
            tracing::warn!(code = ?status.code(), message = status.message(), "connection to the supervisor broke");
            let message =
                "the service behind the gateway is being started again; try again shortly";
            InferenceError::new(Reason::Restarting, message)
        }
        code => {
            let message = status.message();
            InferenceError::bug(format_args!("the supervisor answered {code:?}: {message}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_the_supervisor_pass_and_those_of_a_library_mean_restarting() {
        let pause = Duration::from_millis(250);
        let refusal = Refusal::new(Reason::QueueFull, "64 wait").retry_after(pause).field("queue");
        let passed = error(refusal.fact("limit", 64).into());
        let expected = InferenceError {
            retry_after: pause,
            ..InferenceError::new(Reason::QueueFull, "64 wait").field("queue").fact("limit", 64)
        };
        assert_eq!(passed, expected);
        assert_eq!(error(Status::unavailable("connection refused")).kind, Reason::Restarting);
        assert_eq!(error(Status::unimplemented("no such method")).kind, Reason::Bug);
    }
}
