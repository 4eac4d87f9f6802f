//! Errors as the OpenAI API writes them.

use http::StatusCode;
use paceline_vocabulary::Reason;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;

use crate::dialect::{Dialect, ErrorView};

/// The OpenAI API: models, chat completions, completions, Responses.
#[derive(Clone, Copy, Debug)]
pub struct OpenAi;

/// The body of an answer that is an error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorBody {
    /// The error.
    pub error: ErrorObject,
}

/// An error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorObject {
    /// The expected and the found value, and advice for the client.
    pub message: String,
    /// The protocol's class of the error.
    #[serde(rename = "type")]
    pub kind: String,
    /// Path of the field that the error is about.
    pub param: Option<String>,
    /// The protocol's word for the error where clients match on one, else the reason.
    pub code: String,
    /// The service's reason, the same as in gRPC.
    pub reason: String,
    /// The request's id, if it has one. The service's logs have it too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
}

impl Dialect for OpenAi {
    fn error(view: &ErrorView<'_>) -> Value {
        json!(ErrorBody::of(view))
    }
}

impl ErrorBody {
    /// The body of this error.
    pub fn of(view: &ErrorView<'_>) -> Self {
        let ErrorView { status, error, request_id } = view;
        let reason = error.kind.word();
        let code = code(error.kind).map_or_else(|| reason.to_ascii_lowercase(), str::to_owned);
        let message = match (error.kind, error.facts.get("context_length")) {
            // Clients that shorten their conversation find the reason by these words.
            (Reason::PromptTooLong, Some(length)) => {
                let limit = format!("this model's maximum context length is {length} tokens");
                format!("{}; {limit}", error.message)
            }
            _ => error.message.clone(),
        };
        Self {
            error: ErrorObject {
                message,
                kind: kind(*status).to_owned(),
                param: error.field.clone(),
                code,
                reason: reason.to_owned(),
                request_id: (!request_id.is_empty()).then(|| (*request_id).to_owned()),
            },
        }
    }
}

/// The protocol's class of a status.
fn kind(status: StatusCode) -> &'static str {
    match status {
        StatusCode::UNAUTHORIZED => "authentication_error",
        StatusCode::FORBIDDEN => "permission_error",
        StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
        status if status.is_server_error() => "server_error",
        _ => "invalid_request_error",
    }
}

/// The protocol's word for a reason that clients match on.
fn code(reason: Reason) -> Option<&'static str> {
    match reason {
        Reason::PromptTooLong => Some("context_length_exceeded"),
        Reason::UnknownModel => Some("model_not_found"),
        Reason::Unauthenticated => Some("invalid_api_key"),
        Reason::QueueFull | Reason::QueueWait | Reason::TooManyStreams => {
            Some("rate_limit_exceeded")
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inference::error::InferenceError;

    fn body(error: &InferenceError) -> ErrorObject {
        let status = crate::dialect::status(error.kind);
        ErrorBody::of(&ErrorView { status, error, request_id: "r1" }).error
    }

    #[test]
    fn an_error_has_its_field_and_our_reason() {
        let found = body(&InferenceError::invalid("max_tokens", "at least 1", 0));
        assert_eq!(found.message, "max_tokens: expected at least 1, found 0");
        assert_eq!(found.param.as_deref(), Some("max_tokens"));
        assert_eq!(found.kind, "invalid_request_error");
        assert_eq!(found.code, "invalid_argument");
        assert_eq!(
            (found.reason.as_str(), found.request_id.as_deref()),
            ("INVALID_ARGUMENT", Some("r1"))
        );
    }

    #[test]
    fn a_prompt_that_is_too_long_has_the_words_that_clients_search_for() {
        let error = InferenceError::new(Reason::PromptTooLong, "messages: too long");
        let found = body(&error.field("messages").fact("context_length", 4096));
        assert_eq!(
            (found.code.as_str(), found.reason.as_str()),
            ("context_length_exceeded", "PROMPT_TOO_LONG")
        );
        assert!(
            found.message.contains("maximum context length is 4096 tokens"),
            "{}",
            found.message
        );
    }
}
