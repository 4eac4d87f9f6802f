//! The form of an answer that is not streamed, for `docs/openapi.json`. The writer makes an answer
//! field by field as its parts come; a test compares its answers with these types.

use serde::Deserialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::answer::AnswerExtension;

/// An answer of `/v1/messages`.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MessagesAnswer {
    /// Id of the answer.
    pub id: String,
    /// `message`.
    #[serde(rename = "type")]
    pub kind: String,
    /// `assistant`.
    pub role: String,
    /// Name of the served model.
    pub model: String,
    /// The blocks of the answer, in order.
    pub content: Vec<MessagesAnswerBlock>,
    /// `end_turn`, `tool_use`, `stop_sequence`, `max_tokens` or `model_context_window_exceeded`.
    pub stop_reason: String,
    /// The text of `stop_sequences` that ended the answer.
    pub stop_sequence: Option<String>,
    /// Tokens of the request.
    pub usage: MessagesUsage,
    /// Report of this service, for which the protocol has no field.
    pub paceline: AnswerExtension,
}

/// A block of an answer.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum MessagesAnswerBlock {
    /// Text.
    Text {
        /// The text.
        text: String,
    },
    /// A thought.
    Thinking {
        /// Text of the thought; empty if the request wants it omitted.
        thinking: String,
        /// `unsigned`: thoughts are not signed here, and clients expect a signature.
        signature: String,
    },
    /// A tool call.
    ToolUse {
        /// Id of the tool call.
        id: String,
        /// The tool.
        name: String,
        /// Arguments of the tool call; if it was cut, their text in `incomplete`.
        #[schema(value_type = Object)]
        input: Map<String, Value>,
    },
}

/// Tokens of a request.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MessagesUsage {
    /// Tokens of the prompt that did not come from the prefix cache.
    pub input_tokens: u64,
    /// Always 0: the protocol counts writes that cost money.
    pub cache_creation_input_tokens: u64,
    /// Tokens of the prompt that came from the prefix cache.
    pub cache_read_input_tokens: u64,
    /// Tokens of the answer.
    pub output_tokens: u64,
}
