//! [`InferenceError`]s as HTTP answers, with headers for clients that try again.

use axum::http::header::RETRY_AFTER;
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::Response;
use paceline_protocols::dialect::{Dialect, ErrorView, status};
use paceline_protocols::inference::error::InferenceError;
use paceline_protocols::paths::bounded;

use super::reply::{REQUEST_ID, json_reply};

/// `retry-after` in milliseconds, as the clients of OpenAI and Anthropic read it.
const RETRY_AFTER_MS: HeaderName = HeaderName::from_static("retry-after-ms");
/// Whether the same request may succeed later, as the same clients read it.
const SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");

/// An answer that is an error.
#[derive(Clone, Debug)]
pub struct ErrorReply {
    error: InferenceError,
    status: StatusCode,
    request_id: String,
}

impl ErrorReply {
    /// The answer for this error, with the status of its reason.
    pub fn new(error: InferenceError) -> Self {
        Self { status: status(error.kind), error: bounded(error), request_id: String::new() }
    }

    /// Replaces the status.
    pub fn status(self, status: StatusCode) -> Self {
        Self { status, ..self }
    }

    /// Adds the id of the request.
    pub fn request_id(self, request_id: &str) -> Self {
        Self { request_id: request_id.to_owned(), ..self }
    }

    /// The answer in this dialect.
    pub fn of<D: Dialect>(self) -> Response {
        let Self { error, status, request_id } = self;
        let view = ErrorView { status, error: &error, request_id: &request_id };
        let mut response = json_reply(status, &D::error(&view));
        let headers = response.headers_mut();
        if let Ok(value) = HeaderValue::from_str(&request_id)
            && !request_id.is_empty()
        {
            headers.insert(REQUEST_ID, value);
        }
        let retryable = error.kind.retryable();
        headers.insert(SHOULD_RETRY, HeaderValue::from_static(word(retryable)));
        if retryable {
            let pause_ms = error.retry_after.as_millis().min(u128::from(u32::MAX)) as u64;
            headers.insert(RETRY_AFTER, HeaderValue::from(pause_ms.div_ceil(1000)));
            headers.insert(RETRY_AFTER_MS, HeaderValue::from(pause_ms));
        }
        response
    }
}

fn word(flag: bool) -> &'static str {
    if flag { "true" } else { "false" }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use paceline_vocabulary::Reason;

    use super::*;
    use paceline_protocols::openai::error::OpenAi;

    #[test]
    fn only_reasons_that_may_pass_ask_for_another_try() {
        for reason in Reason::ALL {
            let error = InferenceError::new(*reason, "m");
            let response = ErrorReply::new(InferenceError {
                retry_after: Duration::from_millis(1200),
                ..error
            })
            .of::<OpenAi>();
            let header = |name: &str| response.headers().get(name)?.to_str().ok();
            let (status, retryable) = (response.status(), reason.retryable());
            assert!(status.is_client_error() || status.is_server_error(), "{reason:?}: {status}");
            assert_eq!(header("retry-after").is_some(), retryable, "{reason:?}");
            assert_eq!(header("x-should-retry"), Some(word(retryable)), "{reason:?}");
            if retryable {
                assert!([503, 429].contains(&status.as_u16()), "{reason:?}: {status}");
                assert_eq!(header("retry-after"), Some("2"), "whole seconds, rounded up");
                assert_eq!(header("retry-after-ms"), Some("1200"));
            }
        }
    }
}
