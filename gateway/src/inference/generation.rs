//! A request as the gateway submits it.

use paceline_text::grammar::Grammar;
use paceline_vocabulary::RouteWish;

use super::params::LogitBias;
use crate::guard::keys::{DEFAULT_CLASS, IMAGE_CLASS, Principal};
use crate::images::PromptImage;
use paceline_vocabulary::sampling::SamplingRule;

/// A request as the gateway submits it, every field set.
#[derive(Clone, Debug, PartialEq)]
pub struct Generation {
    /// Its id.
    pub request_id: String,
    /// The prompt.
    pub prompt_ids: Vec<u32>,
    /// Index in the prompt at which the last turn of a conversation begins, if that is known.
    pub last_turn: Option<u32>,
    /// How tokens are chosen.
    pub sampling: SamplingRule,
    /// What is added to logits, in ascending order of the tokens.
    pub logit_bias: Vec<LogitBias>,
    /// The seed of the random numbers.
    pub seed: u64,
    /// Which of the request's samples.
    pub sample_index: u32,
    /// Most tokens of the answer.
    pub max_tokens: u32,
    /// Tokens that end the answer.
    pub stop_token_ids: Vec<u32>,
    /// Tokens that end answers of this model, and not this one.
    pub ignored_token_ids: Vec<u32>,
    /// No token ends the answer before so many.
    pub min_tokens: u32,
    /// Whether log-probabilities are reported, and of how many of the most probable tokens.
    pub logprobs: Option<u32>,
    /// Absolute, by the monotonic clock.
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
    /// Tokens of the tokenizer.
    pub tokenizer_vocab: u32,
    /// What the answer is held to.
    pub grammar: Option<Grammar>,
}

/// What marks a request for the processes upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestLabels {
    /// Its id.
    pub request_id: String,
    /// Absolute, by the monotonic clock.
    pub deadline_ns: i64,
    /// The class that speculation is measured by.
    pub traffic_class: String,
    /// Prefixes are shared among requests of one scope; empty without a key.
    pub cache_scope: String,
}

impl RequestLabels {
    /// The labels of a request of this key's owner.
    pub fn new(request_id: &str, deadline_ns: i64, principal: Option<&Principal>) -> Self {
        let class = principal.map_or(DEFAULT_CLASS, |principal| &*principal.class);
        let scope = principal.map_or("", |principal| &*principal.scope);
        Self {
            request_id: request_id.to_owned(),
            deadline_ns,
            traffic_class: class.to_owned(),
            cache_scope: scope.to_owned(),
        }
    }

    /// The labels of the same request with images: it has a class of its own, unless its key has
    /// one.
    pub fn with_images(mut self) -> Self {
        if self.traffic_class == DEFAULT_CLASS {
            self.traffic_class = IMAGE_CLASS.to_owned();
        }
        self
    }
}
