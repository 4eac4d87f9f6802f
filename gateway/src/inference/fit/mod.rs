//! Checks a request against the served model: its name, its context, its vocabulary, and the
//! operator's limits.

use std::sync::Arc;

use paceline_process::config::{Auto, LimitsConfig};
use paceline_protocols::inference::error::{InferenceError, Result, quoted, refuse};
use paceline_protocols::inference::params::GenerationParams;
use paceline_text::prompt::Language;
use paceline_vocabulary::Reason;
use paceline_vocabulary::generation::Generation;
use paceline_vocabulary::report::ModelInfo;

use super::labels::RequestLabels;

/// Model, language and limits that a request is checked against.
#[derive(Clone, Copy, Debug)]
pub struct ModelContext<'a> {
    /// The served model.
    pub model: &'a ModelInfo,
    /// Tokenizer and template of the model.
    pub language: &'a Arc<Language>,
    /// The operator's limits.
    pub limits: &'a LimitsConfig,
}

impl ModelContext<'_> {
    /// Most tokens of a prompt: the context then has room for one more.
    pub fn max_prompt_tokens(&self) -> u32 {
        let context = self.model.context_length;
        self.limits.max_prompt_tokens.or(context).min(context.saturating_sub(1))
    }

    /// What bounds the context.
    fn whose_context(&self) -> &'static str {
        if self.limits.context_tokens == Auto::Is(self.model.context_length) {
            "limits.context_tokens of this service"
        } else {
            "the model's context"
        }
    }

    /// Most tokens of a prompt from which messages are left out: the answer then has room for as
    /// many tokens as the request allows, but for no more than half of the context.
    pub fn max_prompt_tokens_before(&self, max_tokens: Option<u32>) -> u32 {
        let context = self.model.context_length;
        let room = max_tokens.unwrap_or(0).min(context / 2);
        self.max_prompt_tokens().min(context - room)
    }

    /// The error of a text that was not tokenized. It has at least `at_least` tokens, more than a
    /// prompt may have.
    pub fn too_long(&self, field: &'static str, at_least: usize) -> InferenceError {
        let (context, most) = (self.model.context_length, self.max_prompt_tokens());
        let expected = if most + 1 == context {
            format!(
                "fewer than {context} tokens ({}, with room for one more)",
                self.whose_context()
            )
        } else {
            format!("at most {most} tokens (limits.max_prompt_tokens of this service)")
        };
        let message = format!(
            "{field}: expected a prompt of {expected}, found at least {at_least}; send a shorter one"
        );
        let error = InferenceError::new(Reason::PromptTooLong, message).field(field);
        error.fact("prompt_tokens_at_least", at_least).fact("context_length", context)
    }

    /// Checks that images of `tokens` tokens in all can fit the context, before any image is
    /// decoded.
    ///
    /// # Errors
    /// They cannot fit.
    pub fn check_images(&self, tokens: u64) -> Result<()> {
        let context = self.model.context_length;
        let longest = self.limits.max_prompt_tokens.or(context);
        if tokens < u64::from(context) && tokens <= u64::from(longest) {
            return Ok(());
        }
        let most = longest.min(context.saturating_sub(1));
        let message = format!(
            "messages: expected a prompt of at most {most} tokens, found images that alone become {tokens}; send fewer or smaller ones"
        );
        let error = InferenceError::new(Reason::PromptTooLong, message).field("messages");
        Err(error.fact("prompt_tokens", tokens).fact("context_length", context))
    }

    /// Makes the request that is submitted, and checks that it fits the model. `field` is the field
    /// of the prompt.
    ///
    /// # Errors
    /// An id outside the vocabulary; a prompt or a number of tokens that does not fit.
    pub fn fit(
        &self,
        params: &GenerationParams,
        field: &'static str,
        prompt_ids: Vec<u32>,
        labels: RequestLabels,
    ) -> Result<Generation> {
        let Self { model, language, limits: _ } = *self;
        self.check_ids(field, &prompt_ids)?;
        let length = u32::try_from(prompt_ids.len()).unwrap_or(u32::MAX);
        self.check_length(field, length)?;
        let max_tokens = self.max_tokens(params, length)?;
        params.check_fit(model.vocab_size, max_tokens)?;
        let seed = match params.seed {
            Some(seed) => seed,
            None => getrandom::u64()
                .map_err(|_| InferenceError::bug("the system gave no random numbers"))?,
        };
        Ok(Generation {
            request_id: labels.request_id,
            prompt_ids,
            continuation_ids: Vec::new(),
            last_turn: None,
            sampling: params.sampling.completed(&language.sampling),
            logit_bias: params.sorted_biases(),
            seed,
            sample_index: 0,
            max_tokens,
            stop_token_ids: params.stop_ids(&language.stop_ids, model.vocab_size),
            ignored_token_ids: params.ignored_ids(&language.stop_ids, model.vocab_size),
            min_tokens: params.min_tokens,
            logprobs: params.logprobs,
            deadline_ns: labels.deadline_ns,
            traffic_class: labels.traffic_class,
            cache_scope: labels.cache_scope,
            route: params.route,
            report_margins: params.report_margins,
            report_so_far: params.report_usage || !params.stop.is_empty() || params.shape.one_call,
            images: Vec::new(),
            tokenizer_vocab: language.tokens.vocabulary_size(),
            grammar: None,
            thought: None,
        })
    }

    fn check_ids(&self, field: &'static str, ids: &[u32]) -> Result<()> {
        if ids.is_empty() {
            return refuse(field, "a prompt of at least one token", "none");
        }
        let vocab_size = self.model.vocab_size;
        let Some((at, id)) = ids.iter().enumerate().find(|(_, id)| **id >= vocab_size) else {
            return Ok(());
        };
        let expected = format!("token ids below {vocab_size} (the model's vocabulary)");
        Err(match field {
            "token_ids.ids" => InferenceError::invalid(&format!("{field}[{at}]"), expected, id),
            // The tokenizer knows tokens that the model has no row for. The text cannot be served,
            // and the client may know why.
            _ => {
                let found = format!("{id}, which the tokenizer made of the text");
                InferenceError::invalid(field, expected, found)
            }
        })
    }

    fn check_length(&self, field: &'static str, length: u32) -> Result<()> {
        let context = self.model.context_length;
        let longest = self.limits.max_prompt_tokens.or(context);
        let expected = if length >= context {
            format!(
                "fewer than {context} tokens ({}, with room for one more)",
                self.whose_context()
            )
        } else if length > longest {
            format!("at most {longest} tokens (limits.max_prompt_tokens of this service)")
        } else {
            return Ok(());
        };
        let message = format!("{field}: expected a prompt of {expected}, found {length}");
        Err(self.no_room(Reason::PromptTooLong, field, message, length))
    }

    /// Most tokens of an answer after a prompt of this length, which the context has room for.
    fn max_tokens(&self, params: &GenerationParams, length: u32) -> Result<u32> {
        const FIELD: &str = "limits.max_tokens";
        let context = self.model.context_length;
        let (room, most) = (context - length, self.limits.max_new_tokens.or(context));
        match params.max_tokens {
            None => Ok(room.min(most)),
            Some(asked) if params.lower_max_tokens => Ok(asked.min(room).min(most)),
            Some(asked) if asked > most => {
                let expected = format!("at most {most} (limits.max_new_tokens of this service)");
                refuse(FIELD, expected, asked)
            }
            Some(asked) if asked > room => {
                let expected = format!(
                    "at most {room} behind a prompt of {length} tokens in a context of {context}"
                );
                let message = format!("{FIELD}: expected {expected}, found {asked}");
                Err(self.no_room(Reason::InvalidArgument, FIELD, message, length))
            }
            Some(asked) => Ok(asked),
        }
    }

    fn no_room(&self, kind: Reason, field: &str, message: String, length: u32) -> InferenceError {
        let error = InferenceError::new(kind, message).field(field).fact("prompt_tokens", length);
        error.fact("context_length", self.model.context_length)
    }
}

/// Checks that the served model is the one that a client asks for.
///
/// # Errors
/// It is another one.
pub fn check_model(asked: &str, served: &ModelInfo) -> Result<()> {
    if asked.is_empty() || asked == served.name || asked == served.path {
        return Ok(());
    }
    let what = format!(
        "model: expected {} (the served one) or nothing, found {}",
        quoted(&served.name),
        quoted(asked)
    );
    Err(InferenceError::new(Reason::UnknownModel, what).field("model"))
}

#[cfg(test)]
mod tests;
