//! The request of `/v1/completions`.

use serde::Deserialize;
use utoipa::ToSchema;

use crate::front::http::accepted::Rest;
use crate::front::http::number::{
    Biases, Count, MaxTokens, One, Samples, Seed, TokenId, TopLogprobs,
};
use crate::front::http::openai::params::{Extension, StreamOptions};
use crate::front::http::values::{Prompt, PromptForms, TextOr};

/// A text to continue.
#[derive(Clone, Debug, PartialEq, Deserialize, ToSchema)]
pub struct CompletionRequest {
    /// The served model's name or an alias of it; the served model if it is absent.
    pub model: Option<String>,
    /// A text, a list of token ids, or a list with several of either. The answers are numbered prompt by
    /// prompt.
    #[schema(value_type = PromptForms)]
    pub prompt: Prompt,
    /// Whether the answer comes as server-sent events.
    pub stream: Option<bool>,
    /// Options of the stream.
    pub stream_options: Option<StreamOptions>,
    /// Most tokens of the answer; 16 if it is absent.
    #[schema(inline)]
    pub max_tokens: Option<MaxTokens>,
    /// Number of answers.
    #[schema(inline)]
    pub n: Option<Samples>,
    /// One: the best of more answers than are wanted is not served.
    #[schema(inline)]
    pub best_of: Option<One>,
    /// False: the prompt is not repeated in the answer.
    pub echo: Option<bool>,
    /// One or more strings that end the answer.
    pub stop: Option<TextOr<String>>,
    /// The model's own temperature if it is absent.
    #[schema(minimum = 0.0, maximum = 100.0)]
    pub temperature: Option<f32>,
    /// Probability mass of the tokens to choose from.
    #[schema(exclusive_minimum = 0.0, maximum = 1.0)]
    pub top_p: Option<f32>,
    /// The same seed gives the same answer.
    #[schema(inline)]
    pub seed: Option<Seed>,
    /// Lowers the logits of tokens that the answer has.
    #[schema(minimum = -2.0, maximum = 2.0)]
    pub presence_penalty: Option<f32>,
    /// Lowers the logits of tokens by their count in the answer.
    #[schema(minimum = -2.0, maximum = 2.0)]
    pub frequency_penalty: Option<f32>,
    /// Added to the logits of tokens, by token id.
    #[schema(inline)]
    pub logit_bias: Option<Biases>,
    /// Number of the most probable tokens that are reported beside each token.
    #[schema(inline)]
    pub logprobs: Option<TopLogprobs>,
    /// Number of the most probable tokens to choose from.
    #[schema(inline)]
    pub top_k: Option<Count>,
    /// Least probability of a token, relative to the most probable one.
    #[schema(minimum = 0.0, maximum = 1.0)]
    pub min_p: Option<f32>,
    /// Divides the logits of tokens that the prompt or the answer has.
    #[schema(minimum = 0.01, maximum = 10.0)]
    pub repetition_penalty: Option<f32>,
    /// No token ends the answer before so many.
    #[schema(inline)]
    pub min_tokens: Option<Count>,
    /// Whether the answer goes on after the model's own end.
    pub ignore_eos: Option<bool>,
    /// Further token ids that end the answer.
    pub stop_token_ids: Option<Vec<TokenId>>,
    /// Another name of `repetition_penalty`, that of Ollama and llama.cpp.
    #[schema(minimum = 0.01, maximum = 10.0)]
    pub repeat_penalty: Option<f32>,
    /// What is asked of this service alone.
    pub paceline: Option<Extension>,
    /// Fields that are not served.
    #[serde(flatten)]
    #[schema(ignore)]
    pub rest: Rest,
}
