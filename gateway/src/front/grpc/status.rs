//! [`InferenceError`]s as gRPC statuses, and back. Codes and details come from the one table,
//! `paceline_proto::status`.

use paceline_proto::status::{Reason, ReasonStatus as _, Refusal};
use paceline_protocols::inference::error::InferenceError;
use tonic::{Code, Status};

use crate::inference::record::Method;

/// Metadata key of the request's id, in headers and with every error.
pub const REQUEST_ID: &str = "paceline-request-id";

/// The status of an error.
pub fn of(error: InferenceError) -> Status {
    let InferenceError { kind, message, field, facts, retry_after } = error;
    let metadata = facts.into_iter().collect();
    Refusal { reason: kind, message, field, retry_after, metadata }.into()
}

/// The error in a status of ours. A status without a reason is a mistake of the service.
pub fn error(status: &Status) -> InferenceError {
    match Refusal::of(status) {
        Some(Refusal { reason, message, field, retry_after, metadata }) => {
            let facts = metadata.into_iter().collect();
            InferenceError { kind: reason, message, field, facts, retry_after }
        }
        None => InferenceError::bug(format_args!("a status without a reason: {status}")),
    }
}

/// The status with the id of its request.
pub fn with_request_id(mut status: Status, request_id: &str) -> Status {
    if let Ok(value) = request_id.parse() {
        status.metadata_mut().insert(REQUEST_ID, value);
    }
    status
}

/// A method of this protocol, for the log line of its requests.
pub fn method(name: &'static str) -> Method {
    let code = |reason: Option<Reason>| format!("{:?}", reason.map_or(Code::Ok, Reason::code));
    Method { name, code }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn an_error_survives_the_way_to_a_status_and_back() {
        let expected = InferenceError {
            retry_after: Duration::from_millis(250),
            ..InferenceError::new(Reason::QueueFull, "64 wait").field("queue").fact("limit", 64)
        };
        let status = of(expected.clone());
        assert_eq!((status.code(), status.message()), (Code::ResourceExhausted, "64 wait"));
        assert_eq!(error(&status), expected);
        assert_eq!(error(&Status::not_found("a library's")).kind, Reason::Bug);
    }
}
