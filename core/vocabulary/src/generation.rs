//! A request between our processes and its answer, as plain data. `paceline_proto::convert` makes
//! messages of it and back.

use crate::sampling::{LogitBias, SamplingRule};
use crate::{Route, RouteWish};

/// A request as the gateway submits it, every field set.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Generation {
    /// Id of the request.
    pub request_id: String,
    /// The prompt.
    pub prompt_ids: Vec<u32>,
    /// Tokens of the answer that the client already has.
    pub continuation_ids: Vec<u32>,
    /// Index in the prompt at which the last turn of a conversation begins, if that is known.
    pub last_turn: Option<u32>,
    /// How tokens are chosen.
    pub sampling: SamplingRule,
    /// Biases that are added to logits, in ascending order of the tokens.
    pub logit_bias: Vec<LogitBias>,
    /// The seed of the random numbers.
    pub seed: u64,
    /// Index of the sample in its request.
    pub sample_index: u32,
    /// Most tokens of the answer, the continuation included.
    pub max_tokens: u32,
    /// Tokens that end the answer.
    pub stop_token_ids: Vec<u32>,
    /// Tokens that end answers of this model, and not this one.
    pub ignored_token_ids: Vec<u32>,
    /// No token ends the answer before this many.
    pub min_tokens: u32,
    /// Number of the most probable tokens whose log-probabilities are reported beside the chosen
    /// token's. Absent: none are reported.
    pub logprobs: Option<u32>,
    /// Absolute, by the monotonic clock; 0: none.
    pub deadline_ns: i64,
    /// The class that speculation is measured by.
    pub traffic_class: String,
    /// Prefixes are shared among requests of one scope.
    pub cache_scope: String,
    /// The lane that the client asks for.
    pub route: Option<RouteWish>,
    /// Whether margins are reported.
    pub report_margins: bool,
    /// Whether each batch has the figures so far, because a stop string may end the answer or the
    /// client gets the usage before the end.
    pub report_so_far: bool,
    /// The images of the prompt.
    pub images: Vec<PromptImage>,
    /// Tokens of the tokenizer: ids from this one on are padding; 0: none are.
    pub tokenizer_vocab: u32,
    /// The grammar of the answer. Absent: any text.
    pub grammar: Option<Grammar>,
    /// Bound of the thought before the answer. Absent: it has none.
    pub thought: Option<ThoughtBudget>,
}

/// Bound of the tokens of a thought, and the ids that end it there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ThoughtBudget {
    /// Tokens after the tag that opens the thought, at most.
    pub max_tokens: u32,
    /// The id that opens a thought. Absent: the prompt has opened it.
    pub open_id: Option<u32>,
    /// The ids that end a thought, one after another; any id of a step will do.
    pub end: Vec<Vec<u32>>,
    /// As many of the last steps of `end` are the end of a thought in any case.
    pub marks: u32,
}

impl ThoughtBudget {
    /// Whether all its ids are of a vocabulary of this size.
    pub fn is_of(&self, vocab_size: u32) -> bool {
        self.end.iter().flatten().chain(&self.open_id).all(|id| *id < vocab_size)
    }
}

/// A grammar as the target takes it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Grammar {
    /// Lark, with references to the parts.
    pub frame: String,
    /// The client's schemas and grammars, by the numbers in their references.
    pub parts: Vec<GrammarPart>,
    /// Ids that end the answer.
    pub end_ids: Vec<u32>,
}

/// A part of a grammar.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct GrammarPart {
    /// Field of the request.
    pub field: String,
    /// Any JSON object serves if the schema cannot be enforced.
    pub lenient: bool,
    /// The form of its text.
    pub content: TextForm,
}

/// A form of text.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum TextForm {
    /// JSON of this schema, as text.
    JsonSchema(String),
    /// Any JSON object.
    JsonObject,
    /// Text that this regular expression matches as a whole.
    Regex(String),
    /// Text of this grammar in Lark syntax.
    Lark(String),
}

/// An image of a prompt, as the target gets it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PromptImage {
    /// Name of the file in the runtime directory's folder `images`.
    pub file: String,
    /// Size of the file.
    pub bytes: u64,
    /// SHA-256 digest of the size in patches, the scale, the bias and the pixels.
    pub digest: Vec<u8>,
    /// Index of its first placeholder in the prompt's ids.
    pub start: u32,
    /// Size in patches.
    pub grid: PatchGrid,
    /// Factors of red, green and blue: the vision tower gets `byte · scale + bias`.
    pub scale: Vec<f32>,
    /// Summands of red, green and blue.
    pub bias: Vec<f32>,
}

/// Size of an image in patches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PatchGrid {
    /// From top to bottom.
    pub rows: u32,
    /// From left to right.
    pub columns: u32,
}

/// Tokens of one sample, as the target generated them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TokenBatch {
    /// Index of the first token in the answer.
    pub first_index: u32,
    /// The tokens.
    pub ids: Vec<u32>,
    /// The margin of each token, if the request asked for margins.
    pub margins: Vec<f32>,
    /// The log-probabilities at each token, if the request asked for them.
    pub logprobs: Vec<TokenLogprobs>,
    /// End of the step that made the last token, by the monotonic clock.
    pub step_end_ns: i64,
    /// The end of the answer, in its last batch.
    pub done: Option<Done>,
    /// The figures so far, in each batch but the last of a request that asked for them.
    pub so_far: Option<Figures>,
}

/// The end of an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Done {
    /// Reason of the end; absent if the target did not report one.
    pub finish_reason: Option<FinishReason>,
    /// Figures of the whole answer.
    pub figures: Figures,
}

/// Figures of an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Figures {
    /// Tokens of the prompt that came from the prefix cache.
    pub cached_tokens: u32,
    /// The lane and its reason; absent if the target did not report one.
    pub route: Option<Route>,
    /// Counts of drafts.
    pub speculation: Speculation,
    /// Time in the queue, in milliseconds.
    pub queue_ms: f64,
    /// Time of the vision tower, in milliseconds.
    pub tower_ms: f64,
    /// Time of the prefill, in milliseconds.
    pub prefill_ms: f64,
}

/// Reason for the end of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// A token or a string that ends the answer.
    Stop,
    /// The answer has as many tokens as it may have.
    Length,
}

/// Counts of an answer's drafts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Speculation {
    /// Draft, verify, accept: one cycle.
    pub cycles: u64,
    /// Drafted tokens.
    pub drafted: u64,
    /// Drafted tokens that were accepted.
    pub accepted: u64,
}

/// Log-probabilities at one token of an answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TokenLogprobs {
    /// Of the token.
    pub logprob: f32,
    /// The most probable tokens there, most probable first.
    pub top: Vec<TopLogprob>,
}

/// One of the most probable tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TopLogprob {
    /// The token.
    pub token_id: u32,
    /// Log-probability of the token.
    pub logprob: f32,
}
