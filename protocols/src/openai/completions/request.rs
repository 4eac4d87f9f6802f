//! The request of `/v1/completions`.

use paceline_vocabulary::sampling::SamplingWish;
use serde::Deserialize;
use utoipa::ToSchema;

use crate::accepted::Rest;
use crate::inference::bounds::SampleCount;
use crate::inference::error::Result;
use crate::inference::params::GenerationParams;
use crate::number::{
    Biases, Count, MaxTokensOrNone, One, Samples, Seed, TokenId, TopK, TopLogprobs,
};
use crate::openai::params::{Extension, StreamOptions, biases, one_penalty, with_parameters};
use crate::values::{Prompt, PromptForms, TextOr};

with_parameters! {
    /// A text to continue.
    #[derive(Clone, Debug, PartialEq, Deserialize, ToSchema)]
    pub struct CompletionRequest: CompletionFields {
        /// The served model's name or an alias of it; the served model if it is absent.
        pub model: Option<String>,
        /// A text, a list of token ids, or a list with several of either. The answers are numbered prompt by
        /// prompt.
        #[schema(value_type = PromptForms)]
        pub prompt: Prompt,
        /// Text after the answer. A model whose tokenizer has markers for it fills in the middle; for
        /// another model a text is refused.
        pub suffix: Option<String>,
        /// Whether the answer comes as server-sent events.
        pub stream: Option<bool>,
        /// Options of the stream.
        pub stream_options: Option<StreamOptions>,
        /// Most tokens of the answer; 16 if it is absent, as many as fit with -1.
        #[schema(inline)]
        pub max_tokens: Option<MaxTokensOrNone>,
        /// One: the best of more answers than are wanted is not served.
        #[schema(inline)]
        pub best_of: Option<One>,
        /// False: the prompt is not repeated in the answer.
        pub echo: Option<bool>,
        /// Number of the most probable tokens that are reported beside each token.
        #[schema(inline)]
        pub logprobs: Option<TopLogprobs>,
        /// Options that only this service has.
        pub paceline: Option<Extension>,
        /// Fields that are not served.
        #[serde(flatten)]
        #[schema(ignore)]
        pub rest: Rest,
    }
}
