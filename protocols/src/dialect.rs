//! How the protocols of HTTP write errors, and the one table of their statuses.

use http::StatusCode;
use paceline_vocabulary::Reason;
use paceline_vocabulary::reason::GrpcCode;
use serde_json::Value;

use crate::inference::error::InferenceError;

/// An error as a protocol writes it.
#[derive(Clone, Copy, Debug)]
pub struct ErrorView<'a> {
    /// The answer's status.
    pub status: StatusCode,
    /// The error. Its field has the protocol's name.
    pub error: &'a InferenceError,
    /// The request's id; empty for a request that was refused before it had one.
    pub request_id: &'a str,
}

/// How a family of protocols writes errors.
pub trait Dialect: Send + Sync + 'static {
    /// The body of an answer that is an error.
    fn error(view: &ErrorView<'_>) -> Value;
}

/// The HTTP status of a reason: that of its gRPC code, unless HTTP has a closer one.
pub fn status(reason: Reason) -> StatusCode {
    match (reason, reason.grpc_code()) {
        (Reason::MessageTooLarge, _) => StatusCode::PAYLOAD_TOO_LARGE,
        (Reason::MessageTimeout | Reason::SlowReader, _) => StatusCode::REQUEST_TIMEOUT,
        (Reason::KvExhausted | Reason::NoVision, _)
        | (Reason::NoChatTemplate | Reason::NoTools, _)
        | (_, GrpcCode::InvalidArgument) => StatusCode::BAD_REQUEST,
        (Reason::BodiesFull | Reason::FellBehind, _) | (_, GrpcCode::Unavailable) => {
            StatusCode::SERVICE_UNAVAILABLE
        }
        (_, GrpcCode::ResourceExhausted) => StatusCode::TOO_MANY_REQUESTS,
        (_, GrpcCode::DeadlineExceeded) => StatusCode::GATEWAY_TIMEOUT,
        (_, GrpcCode::FailedPrecondition) => StatusCode::CONFLICT,
        (_, GrpcCode::NotFound) => StatusCode::NOT_FOUND,
        (_, GrpcCode::Unauthenticated) => StatusCode::UNAUTHORIZED,
        (_, GrpcCode::Cancelled) => client_closed(),
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

/// 499: the client left, or an operator cancelled. No client that waits gets it by leaving.
fn client_closed() -> StatusCode {
    StatusCode::from_u16(499).unwrap_or(StatusCode::BAD_REQUEST)
}

/// The status as the log has it; 200 for an answer that ended well.
pub fn code(reason: Option<Reason>) -> String {
    reason.map_or(StatusCode::OK, status).as_str().to_owned()
}
