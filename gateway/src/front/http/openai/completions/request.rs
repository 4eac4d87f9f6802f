//! The request of `/v1/completions`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::front::http::accepted::Rest;
use crate::front::http::openai::params::{Extension, StreamOptions};
use crate::front::http::values::{Prompt, Seed, TextOr};

/// A text to continue.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CompletionRequest {
    /// The served model's name or an alias of it; the served model if it is absent.
    pub model: Option<String>,
    /// A text, or a list of token ids. A list with one of either is one prompt; several prompts in
    /// one request are not served.
    pub prompt: Prompt,
    /// Whether the answer comes as server-sent events.
    pub stream: Option<bool>,
    /// Options of the stream.
    pub stream_options: Option<StreamOptions>,
    /// Most tokens of the answer; 16 if it is absent.
    pub max_tokens: Option<u32>,
    /// Number of answers.
    pub n: Option<u32>,
    /// One: the best of more answers than are wanted is not served.
    pub best_of: Option<u32>,
    /// False: the prompt is not repeated in the answer.
    pub echo: Option<bool>,
    /// One or more strings that end the answer.
    pub stop: Option<TextOr<String>>,
    /// The model's own temperature if it is absent.
    pub temperature: Option<f32>,
    /// Probability mass of the tokens to choose from.
    pub top_p: Option<f32>,
    /// The same seed gives the same answer.
    #[schema(value_type = Option<i64>)]
    pub seed: Option<Seed>,
    /// Lowers the logits of tokens that the answer has.
    pub presence_penalty: Option<f32>,
    /// Lowers the logits of tokens by their count in the answer.
    pub frequency_penalty: Option<f32>,
    /// Added to the logits of tokens, by token id.
    pub logit_bias: Option<BTreeMap<String, f32>>,
    /// Number of the most probable tokens that are reported beside each token.
    pub logprobs: Option<u32>,
    /// Number of the most probable tokens to choose from.
    pub top_k: Option<u32>,
    /// Least probability of a token, relative to the most probable one.
    pub min_p: Option<f32>,
    /// Divides the logits of tokens that the prompt or the answer has.
    pub repetition_penalty: Option<f32>,
    /// No token ends the answer before so many.
    pub min_tokens: Option<u32>,
    /// Whether the answer goes on after the model's own end.
    pub ignore_eos: Option<bool>,
    /// Further token ids that end the answer.
    pub stop_token_ids: Option<Vec<u32>>,
    /// What is asked of this service alone.
    pub paceline: Option<Extension>,
    /// Fields that are not served.
    #[serde(flatten)]
    #[schema(ignore)]
    pub rest: Rest,
}
