//! The one table of reasons: what can go wrong with a request, the gRPC code it has, and whether to
//! retry.
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

/// Trailer that tells a retrying client how long to wait, in milliseconds; negative means do not
/// retry.
pub const PUSHBACK: &str = "grpc-retry-pushback-ms";

/// Fact of a request that ended early: how many tokens of its answer there were.
pub const COMPLETION_TOKENS: &str = "completion_tokens";

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $word:literal, $code:ident, $retry:literal;)*) => {
        /// Why a request was refused or ended without its answer.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Reason { $($(#[$doc])* $name,)* }

        impl Reason {
            /// Every reason, for table tests.
            pub const ALL: &[Reason] = &[$(Reason::$name,)*];

            /// The word in `ErrorInfo.reason`.
            pub fn word(self) -> &'static str {
                match self { $(Reason::$name => $word,)* }
            }

            /// The gRPC code.
            pub fn code(self) -> Code {
                match self { $(Reason::$name => Code::$code,)* }
            }

            /// Whether the same request may succeed later; then `RetryInfo` and the pushback
            /// trailer are sent.
            pub fn retryable(self) -> bool {
                match self { $(Reason::$name => $retry,)* }
            }

            /// The reason with this word, as in [`Reason::word`].
            pub fn from_word(word: &str) -> Option<Reason> {
                match word { $($word => Some(Reason::$name),)* _ => None }
            }
        }
    };
}

reasons! {
    /// The target's weights are not there yet.
    TargetLoading = "TARGET_LOADING", Unavailable, true;
    /// The target ended, or its stream broke, while the request ran.
    TargetGone = "TARGET_GONE", Unavailable, true;
    /// The target or the supervisor is being started again.
    Restarting = "RESTARTING", Unavailable, true;
    /// The service was asked to stop and takes nothing new.
    Draining = "DRAINING", Unavailable, true;
    /// The target's restart budget is spent; the message names the next try.
    CrashLoop = "CRASH_LOOP", Unavailable, true;
    /// The admission queue is full.
    QueueFull = "QUEUE_FULL", ResourceExhausted, true;
    /// The request waited its whole time in the queue.
    QueueWait = "QUEUE_WAIT", ResourceExhausted, true;
    /// The KV budget can never hold this request.
    KvExhausted = "KV_EXHAUSTED", ResourceExhausted, false;
    /// The client did not read its stream for too long.
    SlowReader = "SLOW_READER", ResourceExhausted, false;
    /// The client has as many streams as it may have.
    TooManyStreams = "TOO_MANY_STREAMS", ResourceExhausted, true;
    /// A message is over the size limit.
    MessageTooLarge = "MESSAGE_TOO_LARGE", ResourceExhausted, false;
    /// The message of a call did not arrive in time after the headers.
    MessageTimeout = "MESSAGE_TIMEOUT", DeadlineExceeded, false;
    /// The connection is being closed to make room for another one; the call was not begun.
    ConnectionClosing = "CONNECTION_CLOSING", Unavailable, true;
    /// A field has a value that cannot be served.
    InvalidArgument = "INVALID_ARGUMENT", InvalidArgument, false;
    /// The prompt does not fit the context.
    PromptTooLong = "PROMPT_TOO_LONG", InvalidArgument, false;
    /// The chat template refused the conversation.
    Template = "TEMPLATE", InvalidArgument, false;
    /// A picture was sent to a model without a vision tower.
    NoVision = "NO_VISION", FailedPrecondition, false;
    /// A picture that cannot be decoded or is over a limit; the message says which.
    BadImage = "BAD_IMAGE", InvalidArgument, false;
    /// A conversation was sent to a model without a chat template.
    NoChatTemplate = "NO_CHAT_TEMPLATE", FailedPrecondition, false;
    /// Tools were sent to a model whose chat template knows none.
    NoTools = "NO_TOOLS", FailedPrecondition, false;
    /// The message belongs to an earlier supervisor (I7).
    StaleTerm = "STALE_TERM", FailedPrecondition, false;
    /// The message belongs to an earlier life of the worker (I7).
    StaleEpoch = "STALE_EPOCH", FailedPrecondition, false;
    /// The drafter's weights are not there yet.
    DrafterLoading = "DRAFTER_LOADING", Unavailable, true;
    /// The drafter did not come up; the message says why.
    DrafterFailed = "DRAFTER_FAILED", Unavailable, false;
    /// Target and drafter do not go together; the message says why.
    DrafterIncompatible = "DRAFTER_INCOMPATIBLE", FailedPrecondition, false;
    /// What is asked of the drafter cannot be done in the state it is in.
    DrafterState = "DRAFTER_STATE", FailedPrecondition, false;
    /// What is asked of a process cannot be done in the state it is in.
    ProcessState = "PROCESS_STATE", FailedPrecondition, false;
    /// Somebody who follows events did not read them in time.
    FellBehind = "FELL_BEHIND", ResourceExhausted, false;
    /// No such model here.
    UnknownModel = "UNKNOWN_MODEL", NotFound, false;
    /// The request's deadline passed.
    DeadlinePassed = "DEADLINE_PASSED", DeadlineExceeded, false;
    /// The first token would come behind the request's deadline; refused at arrival.
    DeadlineInfeasible = "DEADLINE_INFEASIBLE", DeadlineExceeded, false;
    /// No API key, or one that is not known.
    Unauthenticated = "UNAUTHENTICATED", Unauthenticated, false;
    /// The client or an operator cancelled.
    Cancelled = "CANCELLED", Cancelled, false;
    /// The model's numbers for this request were not finite; other requests are not affected.
    Numerics = "NUMERICS", Internal, false;
    /// Our bug.
    Bug = "BUG", Internal, false;
}

impl Reason {
    /// The reason a status of ours carries; `None` for a status made by a library or another
    /// program.
    pub fn of(status: &Status) -> Option<Reason> {
        let info = status.get_details_error_info()?;
        (info.domain == DOMAIN).then(|| Reason::from_word(&info.reason)).flatten()
    }

    /// A fact that a status of ours carries (`ErrorInfo.metadata`).
    pub fn fact(status: &Status, key: &str) -> Option<String> {
        status.get_details_error_info().filter(|info| info.domain == DOMAIN)?.metadata.remove(key)
    }

    /// The status of this reason with a message that says what was expected, what was found and
    /// what to do. A retryable reason asks for a pause of one second; see [`Refusal::retry_after`].
    pub fn status(self, message: impl Into<String>) -> Status {
        Refusal::new(self, message).into()
    }

    /// The status of this reason, about one field of the request.
    pub fn field(self, field: &str, message: impl Into<String>) -> Status {
        Refusal::new(self, message).field(field).into()
    }
}

/// A status under construction.
#[derive(Clone, Debug)]
pub struct Refusal {
    reason: Reason,
    message: String,
    field: Option<String>,
    retry_after: Duration,
    metadata: HashMap<String, String>,
}

impl Refusal {
    /// A refusal for `reason`.
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self {
            reason,
            message: message.into(),
            field: None,
            retry_after: Duration::from_secs(1),
            metadata: HashMap::new(),
        }
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
    fn the_table_is_the_contract() {
        use Code::{
            Cancelled, DeadlineExceeded, FailedPrecondition, Internal, InvalidArgument, NotFound,
            ResourceExhausted, Unauthenticated, Unavailable,
        };
        let table = [
            ("TARGET_LOADING", Unavailable, true),
            ("TARGET_GONE", Unavailable, true),
            ("RESTARTING", Unavailable, true),
            ("DRAINING", Unavailable, true),
            ("CRASH_LOOP", Unavailable, true),
            ("QUEUE_FULL", ResourceExhausted, true),
            ("QUEUE_WAIT", ResourceExhausted, true),
            ("KV_EXHAUSTED", ResourceExhausted, false),
            ("SLOW_READER", ResourceExhausted, false),
            ("TOO_MANY_STREAMS", ResourceExhausted, true),
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
