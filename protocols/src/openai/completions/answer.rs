//! Answers of `/v1/completions`, whole and in chunks.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::answer::{AnswerExtension, CompletionUsage};
use crate::openai::logprobs::TextLogprobs;

/// A whole answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Completion {
    /// Id of the answer.
    pub id: String,
    /// `text_completion`.
    pub object: String,
    /// When the request came, in seconds since 1970.
    pub created: i64,
    /// Name of the served model.
    pub model: String,
    /// The answers, by their index.
    pub choices: Vec<CompletionChoice>,
    /// Tokens of the request.
    pub usage: CompletionUsage,
    /// Report of this service, for which the protocol has no field.
    pub paceline: AnswerExtension,
}

/// A chunk of an answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CompletionChunk {
    /// The answer's id.
    pub id: String,
    /// `text_completion`.
    pub object: String,
    /// When the request came, in seconds since 1970.
    pub created: i64,
    /// Name of the served model.
    pub model: String,
    /// One choice, or none in the chunk with the tokens.
    pub choices: Vec<CompletionChoice>,
    /// Only in streams with `include_usage`: `null`, and in the last chunk the request's tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<CompletionUsage>)]
    pub usage: Option<Option<CompletionUsage>>,
    /// Only in the last chunk: what the protocol has no field for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paceline: Option<AnswerExtension>,
}

/// One of the answers to a request, or more of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CompletionChoice {
    /// Index of the answer.
    pub index: u32,
    /// Text of the answer, or more of it.
    pub text: String,
    /// Log-probabilities of its tokens, if the request asked for them.
    pub logprobs: Option<TextLogprobs>,
    /// `stop` or `length`; in a stream only in the last chunk of the answer.
    pub finish_reason: Option<String>,
}
