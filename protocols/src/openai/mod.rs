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

use paceline_vocabulary::generation::FinishReason;
use serde::Serialize;
use serde_json::json;

use self::error::ErrorBody;
use crate::dialect::{self, ErrorView};
use crate::inference::error::InferenceError;
use crate::sse::SseEvent;

/// Data of a stream's last event.
const DONE: &str = "[DONE]";

/// The events of some chunks.
fn events<C: Serialize>(chunks: impl IntoIterator<Item = C>) -> Vec<SseEvent> {
    chunks.into_iter().map(|chunk| SseEvent::data(json!(chunk).to_string())).collect()
}

/// The event of an error after the answer had begun.
fn error_event(error: &InferenceError, request_id: &str) -> SseEvent {
    let status = dialect::status(error.kind);
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
