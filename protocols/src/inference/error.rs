//! Why a request is refused, or ends without its whole answer. A front converts the error to its
//! own protocol.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt::Display;
use std::time::Duration;

use paceline_text::error::FieldError;
pub use paceline_text::error::quoted;
use paceline_text::images::PlaceholderError;
use paceline_text::prompt::PromptError;
use paceline_text::stream::BrokenStream;
use paceline_vocabulary::reason::COMPLETION_TOKENS;
use paceline_vocabulary::{Reason, chain};

use crate::inference::images::ImageError;

/// What may end with an [`InferenceError`].
pub type Result<T, E = InferenceError> = std::result::Result<T, E>;

/// Pause that a client is asked for before it tries again.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Why a request is refused, or ends without its whole answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct InferenceError {
    /// The kind of error. Programs match on it, never on the text.
    pub kind: Reason,
    /// The expected value, the found one, and advice for the client.
    pub message: String,
    /// The field or the limit that the error is about, by its path in the request's input or in
    /// the configuration.
    pub field: Option<String>,
    /// Facts for programs, such as a limit and the value found.
    pub facts: BTreeMap<String, String>,
    /// When to try again; of use only if [`Reason::retryable`].
    pub retry_after: Duration,
}

impl InferenceError {
    /// An error of this kind.
    pub fn new(kind: Reason, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            field: None,
            facts: BTreeMap::new(),
            retry_after: RETRY_AFTER,
        }
    }

    /// This error, about this field or limit.
    pub fn field(mut self, field: &str) -> Self {
        self.field = Some(field.to_owned());
        self
    }

    /// This error with one more fact.
    pub fn fact(mut self, key: &str, value: impl ToString) -> Self {
        self.facts.insert(key.to_owned(), value.to_string());
        self
    }

    /// A field with a value that cannot be served.
    pub fn invalid(field: &str, expected: impl Display, found: impl Display) -> Self {
        let message = format!("{field}: expected {expected}, found {found}");
        Self::new(Reason::InvalidArgument, message).field(field)
    }

    /// A mistake of the service. The client gets a message without details; `what` is logged.
    pub fn bug(what: impl Display) -> Self {
        // The request's span has its id.
        tracing::error!(%what, "bug");
        let message = "an error inside the service; the log has more under this request's id";
        Self::new(Reason::Bug, message)
    }

    /// The deadline passed before the first token.
    pub fn deadline_passed() -> Self {
        let message = "the request's deadline passed before its first token; allow more time (grpc-timeout, or limits.deadline_s of this service), or send a shorter prompt";
        Self::new(Reason::DeadlinePassed, message).fact(COMPLETION_TOKENS, 0)
    }

    /// The deadline passed after this number of tokens.
    pub fn deadline_passed_after(tokens: u32) -> Self {
        let message = format!(
            "the request's deadline passed after {tokens} tokens; allow more time, or ask for fewer"
        );
        Self::new(Reason::DeadlinePassed, message).fact(COMPLETION_TOKENS, tokens)
    }

    /// An error whose text is for the client. The text of a bug is for the log.
    fn made_of(kind: Reason, field: Option<&str>, error: &dyn Error) -> Self {
        if kind == Reason::Bug {
            return Self::bug(chain(error));
        }
        Self { field: field.map(str::to_owned), ..Self::new(kind, error.to_string()) }
    }

    /// Another model is served than the one for which the request was checked or begun.
    pub fn model_changed() -> Self {
        let message =
            "the service serves another model now than when this request began; send it again";
        Self::new(Reason::ModelChanged, message)
    }

    /// The target serves another model, whose text files are not read yet.
    pub fn reading_model() -> Self {
        let message =
            "the gateway reads the tokenizer of the model that is served now; try again shortly";
        Self::new(Reason::Restarting, message)
    }

    /// The gateway stops, and the time that running requests have for their end is over.
    pub fn draining() -> Self {
        let message = "the service is stopping and ended this request; try again later";
        Self::new(Reason::Draining, message)
    }
}

/// Refuses a request for a field with a value that cannot be served.
///
/// # Errors
/// Always: [`InferenceError::invalid`].
pub fn refuse<T>(field: &str, expected: impl Display, found: impl Display) -> Result<T> {
    Err(InferenceError::invalid(field, expected, found))
}

impl From<FieldError> for InferenceError {
    fn from(error: FieldError) -> Self {
        Self::invalid(&error.field, error.expected, error.found)
    }
}

impl From<PromptError> for InferenceError {
    fn from(error: PromptError) -> Self {
        Self::made_of(error.reason(), error.field(), &error)
    }
}

impl From<PlaceholderError> for InferenceError {
    fn from(error: PlaceholderError) -> Self {
        ImageError::from(error).into()
    }
}

impl From<ImageError> for InferenceError {
    fn from(error: ImageError) -> Self {
        Self::made_of(error.reason(), error.field(), &error)
    }
}

impl From<BrokenStream> for InferenceError {
    fn from(error: BrokenStream) -> Self {
        Self::bug(error)
    }
}
