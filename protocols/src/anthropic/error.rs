//! Errors as the Anthropic API writes them.

use http::StatusCode;
use paceline_vocabulary::Reason;
use serde::Serialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use crate::dialect::{Dialect, ErrorView};
use crate::inference::error::InferenceError;

/// The body of an answer that is an error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct MessagesErrorBody {
    /// `error`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The error.
    pub error: MessagesError,
    /// The request's id; empty if it has none. The service's logs have it too.
    pub request_id: String,
}

/// An error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct MessagesError {
    /// The protocol's class of the error.
    #[serde(rename = "type")]
    pub kind: String,
    /// The expected and the found value, and advice for the client.
    pub message: String,
    /// The service's reason, the same as in gRPC.
    pub reason: String,
    /// Path of the field that the error is about.
    pub field: Option<String>,
    /// A code on which clients of the protocol act.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub details: Option<MessagesErrorDetails>,
}

/// A code on which clients of the protocol act.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct MessagesErrorDetails {
    /// The code.
    pub error_code: String,
}

/// The fact of an error that holds such a code.
pub(super) const ERROR_CODE: &str = "error_code";

/// The Anthropic API.
#[derive(Clone, Copy, Debug)]
pub struct Anthropic;

impl Dialect for Anthropic {
    fn error(view: &ErrorView<'_>) -> Value {
        let kind = match view.status {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::FORBIDDEN => "permission_error",
            StatusCode::NOT_FOUND => "not_found_error",
            StatusCode::PAYLOAD_TOO_LARGE => "request_too_large",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            StatusCode::SERVICE_UNAVAILABLE => "overloaded_error",
            StatusCode::GATEWAY_TIMEOUT => "timeout_error",
            status if status.is_server_error() => "api_error",
            _ => "invalid_request_error",
        };
        let error = view.error;
        let message = match error.kind {
            Reason::PromptTooLong => too_long(error),
            _ => error.message.clone(),
        };
        json!(MessagesErrorBody {
            kind: "error".to_owned(),
            error: MessagesError {
                kind: kind.to_owned(),
                message,
                reason: error.kind.word().to_owned(),
                field: error.field.clone(),
                details: error
                    .facts
                    .get(ERROR_CODE)
                    .map(|code| MessagesErrorDetails { error_code: code.clone() }),
            },
            request_id: view.request_id.to_owned(),
        })
    }
}

/// The words and numbers by which Claude Code knows that it must shorten the conversation.
fn too_long(error: &InferenceError) -> String {
    let fact = |name: &str| error.facts.get(name);
    let found = fact("prompt_tokens").or_else(|| fact("prompt_tokens_at_least"));
    match (found, fact("context_length")) {
        (Some(found), Some(most)) => {
            format!("prompt is too long: {found} tokens > {most} maximum ({})", error.message)
        }
        _ => format!("prompt is too long: {}", error.message),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect::status;

    fn body(error: &InferenceError) -> Value {
        Anthropic::error(&ErrorView { status: status(error.kind), error, request_id: "r1" })
    }

    #[test]
    fn each_reason_has_the_protocols_type() {
        for (reason, kind) in [
            (Reason::InvalidArgument, "invalid_request_error"),
            (Reason::PromptTooLong, "invalid_request_error"),
            (Reason::NoTools, "invalid_request_error"),
            (Reason::Unauthenticated, "authentication_error"),
            (Reason::UnknownModel, "not_found_error"),
            (Reason::MessageTooLarge, "request_too_large"),
            (Reason::QueueFull, "rate_limit_error"),
            (Reason::TooManyStreams, "rate_limit_error"),
            (Reason::TargetLoading, "overloaded_error"),
            (Reason::Draining, "overloaded_error"),
            (Reason::DeadlinePassed, "timeout_error"),
            (Reason::Bug, "api_error"),
            (Reason::Numerics, "api_error"),
        ] {
            let body = body(&InferenceError::new(reason, "m"));
            assert_eq!(body["error"]["type"], kind, "{reason:?}");
            assert_eq!(body["error"]["reason"], reason.word());
            assert_eq!((&body["type"], &body["request_id"]), (&json!("error"), &json!("r1")));
        }
    }

    #[test]
    fn a_code_that_clients_know_is_in_the_details() {
        let error = InferenceError::invalid("thread", "no thread", "one");
        assert_eq!(body(&error)["error"].get("details"), None);
        let details = &body(&error.fact(ERROR_CODE, "c"))["error"]["details"];
        assert_eq!(*details, json!({"error_code": "c"}));
    }

    #[test]
    fn a_prompt_that_is_too_long_has_the_words_that_clients_look_for() {
        let error = InferenceError::new(Reason::PromptTooLong, "messages: expected less");
        let error = error.fact("context_length", 4096);
        let message = |error| body(&error)["error"]["message"].as_str().expect("text").to_owned();
        let exact = message(error.clone().fact("prompt_tokens", 5000));
        assert!(exact.starts_with("prompt is too long: 5000 tokens > 4096 maximum"), "{exact}");
        let least = message(error.fact("prompt_tokens_at_least", 9000));
        assert!(least.starts_with("prompt is too long: 9000 tokens > 4096 maximum"), "{least}");
    }
}
