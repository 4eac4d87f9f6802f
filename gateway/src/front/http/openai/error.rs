//! Errors as the OpenAI API writes them.

use axum::http::StatusCode;
use serde_json::{Value, json};

use crate::front::http::error::{Dialect, ErrorView};

/// The OpenAI API: chat completions, completions, Responses.
#[derive(Clone, Copy, Debug)]
pub struct OpenAi;

impl Dialect for OpenAi {
    fn error(view: &ErrorView<'_>) -> Value {
        let kind = match view.status {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::NOT_FOUND => "not_found_error",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            status if status.is_server_error() => "server_error",
            _ => "invalid_request_error",
        };
        let error = view.error;
        json!({
            "error": {
                "message": error.message,
                "type": kind,
                "param": error.field,
                "code": error.kind.word().to_ascii_lowercase(),
            }
        })
    }
}
