//! The form of an answer that is not streamed, for `docs/openapi.json`. The writer makes an answer
//! field by field as its parts come; a test compares its answers with these types.

use serde::Deserialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::answer::AnswerExtension;
use crate::openai::logprobs::ChatTokenLogprob;
use crate::values::ToolChoice;

/// An answer of `/v1/responses`.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ResponsesAnswer {
    /// Id of the answer.
    pub id: String,
    /// `response`.
    pub object: String,
    /// When the request came, in seconds since 1970.
    pub created_at: i64,
    /// `completed`, or `incomplete` if the answer was cut.
    pub status: String,
    /// Always `null`: an error has a body of its own.
    pub error: Option<String>,
    /// Why the answer is incomplete.
    pub incomplete_details: Option<ResponsesIncomplete>,
    /// Name of the served model.
    pub model: String,
    /// The items of the answer, in order.
    pub output: Vec<ResponsesOutput>,
    /// Always `null`: the service keeps no conversation.
    pub previous_response_id: Option<String>,
    /// Always false.
    pub store: bool,
    /// Format of the text, as in the request.
    #[schema(value_type = Object)]
    pub text: Map<String, Value>,
    /// As in the request; `auto` if it is absent there.
    pub tool_choice: ToolChoice,
    /// Always empty: the request's tools are not repeated.
    #[schema(value_type = Vec<Object>)]
    pub tools: Vec<Value>,
    /// As in the request; `disabled` if it is absent there.
    pub truncation: String,
    /// Tokens of the request.
    pub usage: ResponsesUsage,
    /// As in the request.
    pub max_output_tokens: Option<u32>,
    /// As in the request.
    #[schema(value_type = Object)]
    pub metadata: Map<String, Value>,
    /// As in the request; true if it is absent there.
    pub parallel_tool_calls: bool,
    /// The request's amount of thinking.
    #[schema(value_type = Object)]
    pub reasoning: Map<String, Value>,
    /// As in the request.
    pub temperature: Option<f32>,
    /// As in the request.
    pub top_p: Option<f32>,
    /// Report of this service, for which the protocol has no field.
    pub paceline: AnswerExtension,
}

/// Why an answer is incomplete.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ResponsesIncomplete {
    /// `max_output_tokens`.
    pub reason: String,
}

/// An item of an answer.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum ResponsesOutput {
    /// Text.
    Message {
        /// Id of the item.
        id: String,
        /// `assistant`.
        role: String,
        /// `completed`, or `incomplete` if the limit of tokens cut it.
        status: String,
        /// Parts of the text.
        content: Vec<ResponsesOutputPart>,
    },
    /// A thought.
    Reasoning {
        /// Id of the item.
        id: String,
        /// `completed`, or `incomplete` if the limit of tokens cut it.
        status: String,
        /// Parts of the thought.
        content: Vec<ResponsesOutputPart>,
        /// Always empty: thoughts come whole and not as a summary.
        summary: Vec<ResponsesOutputPart>,
        /// The thought in the form that a client resends, if the request includes it.
        encrypted_content: Option<String>,
    },
    /// A tool call of a function.
    FunctionCall {
        /// Id of the item.
        id: String,
        /// Id of the tool call, for the function's answer.
        call_id: String,
        /// The function.
        name: String,
        /// Group of the function, if it has one.
        namespace: Option<String>,
        /// A JSON object as text; a beginning of one if the tool call is incomplete.
        arguments: String,
        /// `completed`, or `incomplete` if the limit of tokens cut it.
        status: String,
    },
    /// A search of the client for tools.
    ToolSearchCall {
        /// Id of the item.
        id: String,
        /// Id of the tool call, for the tools that it finds.
        call_id: String,
        /// `client`.
        execution: String,
        /// Arguments of the search; a text if the tool call is incomplete.
        #[schema(value_type = Object)]
        arguments: Value,
        /// `completed`, or `incomplete` if the limit of tokens cut it.
        status: String,
    },
    /// A tool call with any text.
    CustomToolCall {
        /// Id of the item.
        id: String,
        /// Id of the tool call, for the tool's answer.
        call_id: String,
        /// The tool.
        name: String,
        /// Group of the tool, if it has one.
        namespace: Option<String>,
        /// The text.
        input: String,
        /// `completed`, or `incomplete` if the limit of tokens cut it.
        status: String,
    },
}

/// A part of an item.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum ResponsesOutputPart {
    /// Text of the answer.
    OutputText {
        /// The text.
        text: String,
        /// Always empty.
        #[schema(value_type = Vec<Object>)]
        annotations: Vec<Value>,
        /// One entry for each token, if the request asked for them.
        logprobs: Vec<ChatTokenLogprob>,
    },
    /// Text of a thought.
    ReasoningText {
        /// The text.
        text: String,
    },
}

/// Tokens of a request.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ResponsesUsage {
    /// Tokens of the prompt.
    pub input_tokens: u64,
    /// More about the prompt.
    pub input_tokens_details: ResponsesInputDetails,
    /// Tokens of the answer.
    pub output_tokens: u64,
    /// More about the answer.
    pub output_tokens_details: ResponsesOutputDetails,
    /// The sum.
    pub total_tokens: u64,
}

/// More about the tokens of a prompt.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ResponsesInputDetails {
    /// Tokens that came from the prefix cache.
    pub cached_tokens: u64,
    /// Always 0: the protocol counts writes that cost money.
    pub cache_write_tokens: u64,
}

/// More about the tokens of an answer.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ResponsesOutputDetails {
    /// Tokens of thoughts.
    pub reasoning_tokens: u64,
}
