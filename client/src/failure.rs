//! Why a command failed: its exit code, and the message for people and programs.

use std::error::Error as _;
use std::fmt;

use paceline_process::runtime_dir::RuntimeDirError;
use paceline_process::{ConfigError, chain};
use serde::Serialize;
use serde_json::{Value, json};
use tonic::{Code, Status};
use tonic_types::StatusExt as _;

/// Exit code: the service refused.
pub const REFUSED: u8 = 1;
/// Exit code: an argument, or a file that it names, cannot be used.
pub const USAGE: u8 = 2;
/// Exit code: no service answers.
pub const UNREACHABLE: u8 = 3;
/// Exit code: the person at the terminal stopped it (128 + SIGINT).
pub const INTERRUPTED: u8 = 130;

/// Reason of failures of `paceline selftest`.
pub const SELFTEST: &str = "SELFTEST";
/// Reason of failures of `paceline bench`.
pub const BENCH: &str = "BENCH";
/// Reason of failures of `paceline run`, and of fetching a model before a start.
pub const RUN: &str = "RUN";

/// Why a command failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Failure {
    /// Exit code of the process.
    #[serde(skip)]
    pub exit: u8,
    /// Name of the gRPC code ("UNAVAILABLE").
    pub code: &'static str,
    /// Word of the reason table ("TARGET_GONE"), or the reason why nothing was sent.
    pub reason: String,
    /// Text for a person: the expected, the found, and the remedy. Empty if it was shown already.
    pub message: String,
    /// When to try again.
    pub retry_after_ms: Option<u64>,
}

impl Failure {
    fn new(exit: u8, code: Code, reason: &str, message: impl Into<String>) -> Self {
        Self {
            exit,
            code: code_name(code),
            reason: reason.to_owned(),
            message: message.into(),
            retry_after_ms: None,
        }
    }

    /// An argument, or a file that it names, cannot be used.
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(USAGE, Code::InvalidArgument, "USAGE", message)
    }

    /// The command [`SELFTEST`], [`BENCH`] or [`RUN`] found a fault, or could not run.
    pub fn measuring(reason: &str, message: impl Into<String>) -> Self {
        Self::new(REFUSED, Code::FailedPrecondition, reason, message)
    }

    /// A command that needs no service could not be carried out.
    pub fn refused_here(message: impl Into<String>) -> Self {
        Self::new(REFUSED, Code::FailedPrecondition, "", message)
    }

    /// An order was accepted and not carried out.
    pub fn said_no(message: impl Into<String>) -> Self {
        Self::new(REFUSED, Code::DeadlineExceeded, "", message)
    }

    /// No service answers.
    pub fn unreachable(message: impl Into<String>) -> Self {
        Self::new(UNREACHABLE, Code::Unavailable, "NOT_REACHABLE", message)
    }

    /// The person at the terminal stopped it.
    pub fn interrupted() -> Self {
        Self::new(INTERRUPTED, Code::Cancelled, "INTERRUPTED", "")
    }

    /// The reader of standard output is gone, so no message is shown.
    pub fn output_closed() -> Self {
        Self::new(REFUSED, Code::Cancelled, "OUTPUT_CLOSED", "")
    }

    /// The service's own refusal. A status without our reason is shown with its gRPC code alone.
    pub fn refused(status: &Status) -> Self {
        let reason = status.get_details_error_info().map(|info| info.reason).unwrap_or_default();
        let pause = status.get_details_retry_info().and_then(|info| info.retry_delay);
        Self {
            exit: REFUSED,
            code: code_name(status.code()),
            reason,
            message: if status.message().is_empty() {
                code_name(status.code()).to_lowercase()
            } else {
                status.message().to_owned()
            },
            retry_after_ms: pause.map(|pause| pause.as_millis() as u64),
        }
    }

    /// A status that came before any answer. A failure of the connection means that the service is
    /// not reachable.
    pub fn before_answer(status: &Status, address: &str) -> Self {
        match connection_error(status) {
            Some(cause) => Self::unreachable(no_service_at(address, &cause)),
            None => Self::refused(status),
        }
    }

    /// JSON object of the failure for `--json`.
    pub fn object(&self) -> Value {
        json!({ "error": self })
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.exit, self.reason.as_str()) {
            (REFUSED, "NOT_YET" | SELFTEST | BENCH | RUN) => write!(f, "{}", self.message)?,
            (REFUSED, "") => write!(f, "{}: {}", self.code, self.message)?,
            (REFUSED, reason) if reason == self.code => {
                write!(f, "{reason}: {}", self.message)?;
            }
            (REFUSED, reason) => write!(f, "{} ({reason}): {}", self.code, self.message)?,
            _ => write!(f, "{}", self.message)?,
        }
        match self.retry_after_ms {
            // Most messages contain it.
            Some(pause) if !self.message.contains("try again") => {
                write!(f, "; try again in {:.1} s", pause as f64 / 1e3)
            }
            _ => Ok(()),
        }
    }
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        Self::usage(chain(&error))
    }
}

impl From<RuntimeDirError> for Failure {
    fn from(error: RuntimeDirError) -> Self {
        Self::usage(chain(&error))
    }
}

/// The message if no service answers at `address`.
pub fn no_service_at(address: &str, cause: &str) -> String {
    format!("no service at {address} ({cause}); `paceline serve` starts it")
}

/// The innermost cause of an error: "Connection refused (os error 111)", not "transport error".
pub fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}

/// The cause, if `status` was made by the connection here and not by the service.
fn connection_error(status: &Status) -> Option<String> {
    let source = status.source()?;
    source.downcast_ref::<tonic::transport::Error>().map(|error| root_cause(error))
}

/// A gRPC code as its documents write it.
fn code_name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_proto::status::{Reason, ReasonStatus as _};

    #[test]
    fn a_refusal_carries_code_reason_and_pause() {
        let failure = Failure::refused(&Reason::TargetGone.status("the target ended"));
        assert_eq!(
            (failure.exit, failure.code, failure.reason.as_str()),
            (REFUSED, "UNAVAILABLE", "TARGET_GONE")
        );
        assert_eq!(
            failure.to_string(),
            "UNAVAILABLE (TARGET_GONE): the target ended; try again in 1.0 s"
        );
        let object = failure.object();
        assert_eq!(object["error"]["retry_after_ms"], 1000);
        assert_eq!(object["error"].as_object().map(serde_json::Map::len), Some(4));
    }

    #[test]
    fn a_reason_that_is_the_code_is_shown_once() {
        let status = Reason::InvalidArgument.field("model", "expected a model that fits");
        let shown = Failure::refused(&status).to_string();
        assert!(shown.starts_with("INVALID_ARGUMENT: "), "{shown}");
    }

    #[test]
    fn a_status_without_a_reason_is_shown_by_its_code() {
        assert_eq!(Failure::refused(&Status::internal("oops")).to_string(), "INTERNAL: oops");
    }
}
