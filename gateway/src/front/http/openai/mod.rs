//! OpenAI's protocol: the model, conversations and texts.
//!
//! [`models`] the served model · [`chat`] conversations · [`completions`] texts · [`accepted`]
//! fields that are accepted and not read · [`params`] fields of both requests · [`logprobs`] a field
//! of both answers · [`error`] errors.

pub mod accepted;
pub mod chat;
pub mod completions;
pub mod error;
pub mod logprobs;
pub mod models;
pub mod params;

use std::sync::Arc;

use axum::Router;
use axum::routing::{get, post};
use paceline_system::clock::unix_seconds;
use paceline_vocabulary::generation::FinishReason;
use serde::Serialize;
use serde_json::json;

use self::chat::Chat;
use self::completions::Completions;
use self::error::ErrorBody;
use super::error::ErrorView;
use super::sse::SseEvent;
use super::{HttpFront, error as statuses, exchange};
use crate::inference::error::InferenceError;

/// Data of a stream's last event.
const DONE: &str = "[DONE]";

/// The paths of this protocol.
pub fn routes() -> Router<Arc<HttpFront>> {
    let since = unix_seconds();
    Router::new()
        .route("/v1/models", get(move |front, headers| models::list(front, headers, since)))
        .route("/v1/models/", get(move |front, headers| models::list(front, headers, since)))
        // A model's name may have slashes.
        .route(
            "/v1/models/{*name}",
            get(move |front, headers, name| models::one(front, headers, name, since)),
        )
        .route("/v1/chat/completions", post(exchange::answer::<Chat>))
        .route("/v1/completions", post(exchange::answer::<Completions>))
}

/// The events of some chunks.
fn events<C: Serialize>(chunks: impl IntoIterator<Item = C>) -> Vec<SseEvent> {
    chunks.into_iter().map(|chunk| SseEvent::data(json!(chunk).to_string())).collect()
}

/// The event of an error after the answer had begun.
fn error_event(error: &InferenceError, request_id: &str) -> SseEvent {
    let status = statuses::status(error.kind);
    let body = ErrorBody::of(&ErrorView { status, error, request_id });
    SseEvent::data(json!(body).to_string())
}

/// The protocol's word for the end of an answer.
pub(crate) fn finish_reason(reason: Option<FinishReason>, calls: bool) -> &'static str {
    match reason {
        Some(FinishReason::Length) => "length",
        // The protocol has no word for an end without a reason.
        Some(FinishReason::Stop) | None if calls => "tool_calls",
        Some(FinishReason::Stop) | None => "stop",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_was_cut_is_never_a_tool_call() {
        assert_eq!(finish_reason(Some(FinishReason::Length), true), "length");
        assert_eq!(finish_reason(Some(FinishReason::Stop), true), "tool_calls");
        assert_eq!(finish_reason(Some(FinishReason::Stop), false), "stop");
        assert_eq!(finish_reason(None, false), "stop");
    }
}
