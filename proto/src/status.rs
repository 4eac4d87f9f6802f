//! Reasons as statuses of gRPC: what can go wrong with a request, and whether to retry.
//!
//! A status crosses processes with its reason in `google.rpc.ErrorInfo`; the next process matches
//! on [`Reason::of`], never on text. Codes follow gRPC's guide to status codes
//! (grpc.io/docs/guides/status-codes).

use std::collections::HashMap;
use std::time::Duration;

use tonic::{Code, Status};
use tonic_types::{ErrorDetails, FieldViolation, PreconditionViolation, QuotaViolation, StatusExt};

/// Domain of every `ErrorInfo` we send.
pub const DOMAIN: &str = "paceline.dev";

/// Trailer with the time that a retrying client should wait, in milliseconds; negative means do not
/// retry.
pub const PUSHBACK: &str = "grpc-retry-pushback-ms";

pub use paceline_vocabulary::Reason;
pub use paceline_vocabulary::reason::COMPLETION_TOKENS;

/// The gRPC form of a [`Reason`].
pub trait ReasonStatus: Sized {
    /// The gRPC code.
    fn code(self) -> Code;

    /// The reason that a status of ours carries; `None` for a status made by a library or another
    /// program.
    fn of(status: &Status) -> Option<Self>;

    /// A fact that a status of ours carries (`ErrorInfo.metadata`).
    fn fact(status: &Status, key: &str) -> Option<String>;

    /// The status of this reason with a message that says what was expected, what was found and
    /// what to do. A retryable reason asks for a pause of one second; see
    /// [`Refusal::retry_after`].
    fn status(self, message: impl Into<String>) -> Status;

    /// The status of this reason, about one field of the request.
    fn field(self, field: &str, message: impl Into<String>) -> Status;
}

impl ReasonStatus for Reason {
    fn code(self) -> Code {
        Code::from_i32(self.grpc_code() as i32)
    }

    fn of(status: &Status) -> Option<Reason> {
        let info = status.get_details_error_info()?;
        (info.domain == DOMAIN).then(|| Reason::from_word(&info.reason)).flatten()
    }

    fn fact(status: &Status, key: &str) -> Option<String> {
        status.get_details_error_info().filter(|info| info.domain == DOMAIN)?.metadata.remove(key)
    }

    fn status(self, message: impl Into<String>) -> Status {
        Refusal::new(self, message).into()
    }

    fn field(self, field: &str, message: impl Into<String>) -> Status {
        Refusal::new(self, message).field(field).into()
    }
}

/// Content of a status of ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The reason.
    pub reason: Reason,
    /// Message: what was expected, what was found and what to do.
    pub message: String,
    /// The request's field, or what a precondition or quota is about.
    pub field: Option<String>,
    /// When to try again; used only if the reason is retryable.
    pub retry_after: Duration,
    /// Facts for programs.
    pub metadata: HashMap<String, String>,
}

/// Pause that a retryable reason asks for unless [`Refusal::retry_after`] sets another.
const RETRY_AFTER: Duration = Duration::from_secs(1);

impl Refusal {
    /// A refusal for `reason`.
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self {
            reason,
            message: message.into(),
            field: None,
            retry_after: RETRY_AFTER,
            metadata: HashMap::new(),
        }
    }

    /// Reads a status; `None` for a status made by a library or another program. A field is lost if
    /// the reason's code has no detail for it.
    pub fn of(status: &Status) -> Option<Self> {
        let reason = Reason::of(status)?;
        let details = status.get_error_details();
        let metadata = details.error_info().map(|info| info.metadata.clone());
        let field = match reason.code() {
            Code::InvalidArgument => details
                .bad_request()
                .and_then(|bad| bad.field_violations.first().map(|one| one.field.clone())),
            Code::FailedPrecondition => details
                .precondition_failure()
                .and_then(|failure| failure.violations.first().map(|one| one.subject.clone())),
            Code::ResourceExhausted => details
                .quota_failure()
                .and_then(|failure| failure.violations.first().map(|one| one.subject.clone())),
            Code::NotFound => details.resource_info().map(|info| info.resource_name.clone()),
            _ => None,
        };
        let retry_after = details.retry_info().and_then(|info| info.retry_delay);
        Some(Self {
            reason,
            message: status.message().to_owned(),
            field: field.filter(|field| !field.is_empty()),
            retry_after: retry_after.unwrap_or(RETRY_AFTER),
            metadata: metadata.unwrap_or_default(),
        })
    }

    /// Names the request's field (`BadRequest.field_violations`), or what a precondition or quota
    /// is about.
    pub fn field(mut self, field: &str) -> Self {
        self.field = Some(field.to_owned());
        self
    }

    /// When to try again; used only if the reason is retryable.
    pub fn retry_after(mut self, pause: Duration) -> Self {
        self.retry_after = pause;
        self
    }

    /// A fact for programs (`ErrorInfo.metadata`), such as a limit and the value found.
    pub fn fact(mut self, key: &str, value: impl ToString) -> Self {
        self.metadata.insert(key.to_owned(), value.to_string());
        self
    }
}

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Status {
        let Refusal { reason, message, field, retry_after, metadata } = refusal;
        let mut details = ErrorDetails::new();
        details.set_error_info(reason.word(), DOMAIN, metadata);
        let subject = field.unwrap_or_default();
        match reason.code() {
            Code::InvalidArgument => {
                details.set_bad_request(vec![FieldViolation::new(subject, message.clone())]);
            }
            Code::FailedPrecondition => {
                details.set_precondition_failure(vec![PreconditionViolation::new(
                    reason.word(),
                    subject,
                    message.clone(),
                )]);
            }
            Code::ResourceExhausted => {
                details.set_quota_failure(vec![QuotaViolation::new(subject, message.clone())]);
            }
            Code::NotFound => {
                details.set_resource_info("model", subject, "", message.clone());
            }
            _ => {}
        }
        if reason.retryable() {
            details.set_retry_info(Some(retry_after));
        }
        let mut status = Status::with_error_details(reason.code(), message, details);
        if reason.retryable() {
            status.metadata_mut().insert(PUSHBACK, (retry_after.as_millis() as u64).into());
        }
        status
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_survives_a_crossing() {
        for &reason in Reason::ALL {
            let status = reason.field("prompt", "expected x, found y");
            assert_eq!(status.code(), reason.code());
            assert_eq!(Reason::of(&status), Some(reason));
            assert_eq!(status.get_details_retry_info().is_some(), reason.retryable(), "{reason:?}");
            assert_eq!(status.metadata().contains_key(PUSHBACK), reason.retryable(), "{reason:?}");
        }
    }

    /// Every row, as the status-code guide has it: code, whether to retry, and the detail its code
    /// calls for. A row that is changed here is a change of the contract.
    #[test]
    // More than 60 lines: a table, one case a row.
    fn the_table_is_the_contract() {
        use Code::{
            Cancelled, DeadlineExceeded, FailedPrecondition, Internal, InvalidArgument, NotFound,
            ResourceExhausted, Unauthenticated, Unavailable,
        };
        let table = [
            ("TARGET_LOADING", Unavailable, true),
            ("TARGET_GONE", Unavailable, true),
            ("REPLAY_LOST", Unavailable, true),
            ("MODEL_CHANGED", Unavailable, true),
            ("POISON_SUSPECT", Internal, false),
            ("RESTARTING", Unavailable, true),
            ("DRAINING", Unavailable, true),
            ("CRASH_LOOP", Unavailable, true),
            ("HOST_MEMORY_STRANDED", Unavailable, false),
            ("QUEUE_FULL", ResourceExhausted, true),
            ("QUEUE_WAIT", ResourceExhausted, true),
            ("KV_EXHAUSTED", ResourceExhausted, false),
            ("SLOW_READER", ResourceExhausted, false),
            ("TOO_MANY_STREAMS", ResourceExhausted, true),
            ("BODIES_FULL", ResourceExhausted, true),
            ("MESSAGE_TOO_LARGE", ResourceExhausted, false),
            ("MESSAGE_TIMEOUT", DeadlineExceeded, false),
            ("CONNECTION_CLOSING", Unavailable, true),
            ("INVALID_ARGUMENT", InvalidArgument, false),
            ("PROMPT_TOO_LONG", InvalidArgument, false),
            ("TEMPLATE", InvalidArgument, false),
            ("NO_VISION", FailedPrecondition, false),
            ("BAD_IMAGE", InvalidArgument, false),
            ("NO_CHAT_TEMPLATE", FailedPrecondition, false),
            ("NO_TOOLS", FailedPrecondition, false),
            ("STALE_TERM", FailedPrecondition, false),
            ("STALE_EPOCH", FailedPrecondition, false),
            ("DRAFTER_LOADING", Unavailable, true),
            ("DRAFTER_FAILED", Unavailable, false),
            ("DRAFTER_INCOMPATIBLE", FailedPrecondition, false),
            ("DRAFTER_STATE", FailedPrecondition, false),
            ("PROCESS_STATE", FailedPrecondition, false),
            ("FELL_BEHIND", ResourceExhausted, false),
            ("UNKNOWN_MODEL", NotFound, false),
            ("DEADLINE_PASSED", DeadlineExceeded, false),
            ("DEADLINE_INFEASIBLE", DeadlineExceeded, false),
            ("UNAUTHENTICATED", Unauthenticated, false),
            ("CANCELLED", Cancelled, false),
            ("NUMERICS", Internal, false),
            ("BUG", Internal, false),
        ];
        assert_eq!(
            table.map(|(word, ..)| word).to_vec(),
            Reason::ALL.iter().map(|reason| reason.word()).collect::<Vec<_>>()
        );
        for (word, code, retryable) in table {
            let reason = Reason::from_word(word).expect("a row");
            let pause = Duration::from_millis(1_234);
            let refusal = Refusal::new(reason, "expected x, found y")
                .field("a.field")
                .retry_after(pause)
                .fact("limit", 7);
            let status = Status::from(refusal);
            assert_eq!((status.code(), Reason::of(&status)), (code, Some(reason)), "{word}");
            let details = status.get_error_details();
            assert_eq!(details.error_info().expect(word).metadata["limit"], "7", "{word}");
            assert_eq!(details.bad_request().is_some(), code == InvalidArgument, "{word}");
            assert_eq!(
                details.precondition_failure().is_some(),
                code == FailedPrecondition,
                "{word}"
            );
            assert_eq!(details.quota_failure().is_some(), code == ResourceExhausted, "{word}");
            assert_eq!(details.resource_info().is_some(), code == NotFound, "{word}");
            assert_eq!(
                details.retry_info().and_then(|info| info.retry_delay),
                retryable.then_some(pause),
                "{word}"
            );
            let pushback =
                status.metadata().get(PUSHBACK).map(|value| value.to_str().expect("digits"));
            assert_eq!(pushback, retryable.then_some("1234"), "{word}");
        }
    }

    #[test]
    fn a_status_gives_its_refusal_back() {
        for &reason in Reason::ALL {
            let refusal = Refusal::new(reason, "expected x, found y").fact("limit", 7);
            let whole = refusal.clone().field("a.field").retry_after(Duration::from_millis(250));
            let found = Refusal::of(&whole.clone().into()).expect("a status of ours");
            let has_field = matches!(
                reason.code(),
                Code::InvalidArgument
                    | Code::FailedPrecondition
                    | Code::ResourceExhausted
                    | Code::NotFound
            );
            let expected = Refusal {
                field: whole.field.clone().filter(|_| has_field),
                retry_after: if reason.retryable() { whole.retry_after } else { RETRY_AFTER },
                ..whole
            };
            assert_eq!(found, expected);
            assert_eq!(Status::from(found).details(), Status::from(expected).details());
            assert_eq!(Refusal::of(&refusal.clone().into()), Some(refusal));
        }
        assert_eq!(Refusal::of(&Status::unavailable("connection refused")), None);
    }

    #[test]
    fn a_field_is_named() {
        let status =
            Reason::InvalidArgument.field("limits.max_tokens", "expected at least 1, found 0");
        let violations = status
            .get_details_bad_request()
            .expect("an invalid argument names its field")
            .field_violations;
        assert_eq!(violations[0].field, "limits.max_tokens");
    }

    #[test]
    fn a_foreign_status_has_no_reason() {
        assert_eq!(Reason::of(&Status::unavailable("connection refused")), None);
    }
}
