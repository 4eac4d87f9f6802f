//! Errors as the Anthropic API writes them.

use axum::http::StatusCode;
use paceline_vocabulary::Reason;
use serde_json::{Value, json};

use crate::front::http::error::{Dialect, ErrorView};

/// The Anthropic API.
#[derive(Clone, Copy, Debug)]
pub struct Anthropic;

impl Dialect for Anthropic {
    fn error(view: &ErrorView<'_>) -> Value {
        let kind = match view.status {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::NOT_FOUND => "not_found_error",
            StatusCode::PAYLOAD_TOO_LARGE => "request_too_large",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            StatusCode::SERVICE_UNAVAILABLE => "overloaded_error",
            StatusCode::GATEWAY_TIMEOUT => "timeout_error",
            status if status.is_server_error() => "api_error",
            _ => "invalid_request_error",
        };
        let error = view.error;
        // Clients compact their conversation when they read these words.
        let message = match error.kind {
            Reason::PromptTooLong => format!("prompt is too long: {}", error.message),
            _ => error.message.clone(),
        };
        json!({
            "type": "error",
            "error": { "type": kind, "message": message, "reason": error.kind.word() },
            "request_id": view.request_id,
        })
    }
}
