//! Answers of `/v1/chat/completions`, whole and in chunks.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::answer::{AnswerExtension, CompletionUsage};
use crate::openai::logprobs::ChatLogprobs;

/// A whole answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ChatCompletion {
    /// Id of the answer.
    pub id: String,
    /// `chat.completion`.
    pub object: String,
    /// When the request came, in seconds since 1970.
    pub created: i64,
    /// Name of the served model.
    pub model: String,
    /// The answers, by their index.
    pub choices: Vec<ChatChoice>,
    /// Tokens of the request.
    pub usage: CompletionUsage,
    /// Report of this service, for which the protocol has no field.
    pub paceline: AnswerExtension,
}

/// One of the answers to a request.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ChatChoice {
    /// Index of the answer.
    pub index: u32,
    /// The answer.
    pub message: ChatAnswer,
    /// Log-probabilities, if the request asked for them.
    pub logprobs: Option<ChatLogprobs>,
    /// `stop`, `length` or `tool_calls`.
    pub finish_reason: String,
}

/// An answer's message.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ChatAnswer {
    /// `assistant`.
    pub role: String,
    /// The text; `null` if the answer has tool calls and no text.
    pub content: Option<String>,
    /// Always `null`: the service has no refusals.
    pub refusal: Option<String>,
    /// The reasoning before the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// Tool calls of the answer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ChatAnswerToolCall>,
}

/// A tool call.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ChatAnswerToolCall {
    /// Id of the tool call.
    pub id: String,
    /// `function`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Function that is called.
    pub function: ChatAnswerFunction,
}

/// The function of a tool call.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ChatAnswerFunction {
    /// Name of the function.
    pub name: String,
    /// A JSON object as text. With the reason `length`, those of the last tool call may be cut.
    pub arguments: String,
}

/// A chunk of an answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ChatCompletionChunk {
    /// The answer's id.
    pub id: String,
    /// `chat.completion.chunk`.
    pub object: String,
    /// When the request came, in seconds since 1970.
    pub created: i64,
    /// Name of the served model.
    pub model: String,
    /// One choice, or none in the chunk with the tokens.
    pub choices: Vec<ChatChunkChoice>,
    /// Only in streams with `include_usage`: `null`, and in the last chunk the request's tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<CompletionUsage>)]
    pub usage: Option<Option<CompletionUsage>>,
    /// Only in the last chunk: what the protocol has no field for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paceline: Option<AnswerExtension>,
}

/// More of one of the answers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ChatChunkChoice {
    /// Index of the answer.
    pub index: u32,
    /// Addition to the answer.
    pub delta: ChatDelta,
    /// Log-probabilities of the tokens since the last chunk, if the request asked for them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logprobs: Option<ChatLogprobs>,
    /// `stop`, `length` or `tool_calls` in the last chunk of the answer.
    pub finish_reason: Option<String>,
}

/// Addition to an answer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ChatDelta {
    /// `assistant`, in the first chunk of the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// More text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    /// More reasoning.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// A tool call that begins, or more of the arguments of a tool call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<Vec<ChatDeltaToolCall>>,
}

/// More of a tool call.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ChatDeltaToolCall {
    /// Index among the tool calls of the answer.
    pub index: u32,
    /// Id of the tool call, where it begins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// `function`, where the tool call begins.
    #[serde(rename = "type", default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Addition to its function.
    pub function: ChatDeltaFunction,
}

/// Addition to the function of a tool call.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ChatDeltaFunction {
    /// Name of the function, where the tool call begins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// More of its arguments.
    pub arguments: String,
}
