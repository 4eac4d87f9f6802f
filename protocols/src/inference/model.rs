//! Facts of the served model, and of a prompt for it, that clients may know.

use paceline_vocabulary::report::ImageLimits;
use paceline_vocabulary::sampling::SamplingRule;

/// The served model.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelDescription {
    /// Public name of the model.
    pub name: String,
    /// `model_type` of its config.json.
    pub architecture: String,
    /// Tokens of its vocabulary.
    pub vocab_size: u32,
    /// Most tokens of prompt and answer together.
    pub context_length: u32,
    /// Most tokens of a prompt.
    pub max_prompt_tokens: u32,
    /// Most tokens of an answer.
    pub max_new_tokens: u32,
    /// Bytes of its weights.
    pub weight_bytes: u64,
    /// Whether it takes conversations.
    pub chat: bool,
    /// Whether its conversations may have tools.
    pub tools: bool,
    /// Whether it thinks before it answers.
    pub thinks: bool,
    /// Whether it fills in the middle of a text.
    pub infills: bool,
    /// Limits of the images that it reads; `None` if it reads none.
    pub images: Option<ImageLimits>,
    /// The sampling of requests that set none.
    pub default_sampling: SamplingRule,
    /// Tokens that end its answers.
    pub stop_token_ids: Vec<u32>,
}

/// The tokens of a request's prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenCount {
    /// Ids of the prompt, after the chat template and with the places of images.
    pub ids: Vec<u32>,
    /// Most tokens of prompt and answer together, for the served model.
    pub context_length: u32,
}
