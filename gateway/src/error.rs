//! Statuses the gateway makes or passes on. Reasons, codes and details come from the one table,
//! `paceline_proto::status`.

use paceline_proto::status::{COMPLETION_TOKENS, Reason, ReasonStatus as _, Refusal};
use paceline_vocabulary::chain;
use tonic::{Code, Status};

use crate::images::ImageError;
use crate::prompt::PromptError;

/// Metadata key of the request's id, in headers and with every error.
pub const REQUEST_ID: &str = "paceline-request-id";

/// Characters of a client's own words that a message repeats: statuses travel in bounded headers.
const MAX_QUOTED_CHARS: usize = 60;

/// A client's word for a message, in quotes, cut if it is long.
pub fn quoted(text: &str) -> String {
    match text.char_indices().nth(MAX_QUOTED_CHARS) {
        None => format!("{text:?}"),
        Some((cut, _)) => format!("{:?}... ({} bytes)", &text[..cut], text.len()),
    }
}

/// A field with a value that cannot be served.
pub fn invalid(
    field: &str,
    expected: impl std::fmt::Display,
    found: impl std::fmt::Display,
) -> Status {
    Reason::InvalidArgument.field(field, format!("{field}: expected {expected}, found {found}"))
}

/// Our own mistake: a bland message for the client; `what` is for the log.
pub fn bug(what: &str) -> Status {
    tracing::error!(what, "bug"); // in the request's span, which has its id
    Reason::Bug.status("an error inside the service; the log has more under this request's id")
}

/// The client's time, or the operator's limit on it, is over.
pub fn deadline_passed() -> Status {
    let message = "the request's deadline passed before its first token; allow more time (grpc-timeout), or send a shorter prompt";
    Refusal::new(Reason::DeadlinePassed, message).fact(COMPLETION_TOKENS, 0).into()
}

/// The gateway was asked to stop and the request's grace is over.
pub fn cancelled_by_draining() -> Status {
    Reason::Draining.status("the service is stopping and ended this request; try again later")
}

impl From<PromptError> for Status {
    fn from(error: PromptError) -> Self {
        refused(error.reason(), error.field(), &error)
    }
}

impl From<ImageError> for Status {
    fn from(error: ImageError) -> Self {
        refused(error.reason(), error.field(), &error)
    }
}

/// The status of an error whose text is for the client. The text of a bug is for the log.
fn refused(reason: Reason, field: Option<&str>, error: &dyn std::error::Error) -> Status {
    if reason == Reason::Bug {
        return bug(&chain(error));
    }
    let refusal = Refusal::new(reason, error.to_string());
    match field {
        Some(field) => refusal.field(field).into(),
        None => refusal.into(),
    }
}

/// A status from below. One of ours passes as it is; what a library made of a broken connection
/// means that the supervisor is being started again.
pub fn from_below(status: Status) -> Status {
    if Reason::of(&status).is_some() {
        let mut passed = status;
        // HTTP headers of the hop below, which are not the status's own.
        for header in ["date", "content-length"] {
            passed.metadata_mut().remove(header);
        }
        return passed;
    }
    match status.code() {
        Code::Unavailable
        | Code::Unknown
        | Code::Cancelled
        | Code::Internal
        | Code::Aborted
        | Code::DataLoss => {
            tracing::warn!(code = ?status.code(), message = status.message(), "connection to the supervisor broke");
            supervisor_gone()
        }
        code => bug(&format!("the supervisor answered {code:?}: {}", status.message())),
    }
}

/// There is no supervisor to ask.
pub fn supervisor_gone() -> Status {
    Refusal::new(
        Reason::Restarting,
        "the service behind the gateway is being started again; try again shortly",
    )
    .into()
}

/// Names the request in a status.
pub fn with_request_id(mut status: Status, request_id: &str) -> Status {
    if let Ok(value) = request_id.parse() {
        status.metadata_mut().insert(REQUEST_ID, value);
    }
    status
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use paceline_proto::status::PUSHBACK;

    use super::*;

    #[test]
    fn our_statuses_pass_and_a_librarys_means_restarting() {
        let pause = Duration::from_millis(250);
        let mut ours: Status =
            Refusal::new(Reason::QueueFull, "64 wait").retry_after(pause).field("queue").into();
        ours.metadata_mut().insert("date", "today".parse().expect("a value"));
        let passed = from_below(ours.clone());
        assert_eq!(
            (passed.code(), passed.message(), passed.details()),
            (ours.code(), ours.message(), ours.details())
        );
        assert_eq!(passed.metadata().get(PUSHBACK), ours.metadata().get(PUSHBACK));
        assert!(passed.metadata().get("date").is_none());
        assert_eq!(
            Reason::of(&from_below(Status::unavailable("connection refused"))),
            Some(Reason::Restarting)
        );
        assert_eq!(
            Reason::of(&from_below(Status::unimplemented("no such method"))),
            Some(Reason::Bug)
        );
    }

    #[test]
    fn quotes_are_short() {
        assert_eq!(quoted("a\"b"), r#""a\"b""#);
        assert!(quoted(&"é".repeat(1 << 20)).len() < 160);
    }
}
