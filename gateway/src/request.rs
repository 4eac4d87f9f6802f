//! What a request must look like: every field checked against the contract in inference.proto, each
//! refusal with its own status, the field's name, what was expected and what was found. Nothing is
//! dropped in silence (I5).
//!
//! Two looks: [`Asked::generate`] and [`Asked::chat`] at the message alone, [`fit`] against the
//! served model.

mod bounds;
mod json;
mod messages;
pub mod reserved;
mod sampling;

use paceline_process::config::LimitsConfig;
use paceline_proto::internal::v1::{Generation, ModelInfo, SamplingRule};
use paceline_proto::status::{Reason, Refusal};
use paceline_proto::v1;
use tonic::Status;

use crate::error::{bug, invalid, quoted};
use crate::guard::keys::{DEFAULT_CLASS, IMAGE_CLASS, Principal};
use crate::prompt::{Language, Source};

/// A request that is well formed.
#[derive(Clone, Debug, PartialEq)]
pub struct Asked {
    /// What to continue.
    pub source: Source,
    /// How.
    pub wishes: Wishes,
}

/// What a request says besides its prompt.
#[derive(Clone, Debug, PartialEq)]
pub struct Wishes {
    /// Which model; empty means the served one.
    pub model: String,
    /// How tokens are chosen, as far as the client says.
    pub sampling: v1::Sampling,
    /// Most tokens, as far as the client says.
    pub max_tokens: Option<u32>,
    /// No token that ends the answer before so many.
    pub min_tokens: u32,
    /// Go on after the end-of-sequence token.
    pub ignore_eos: bool,
    /// Ids that end the answer besides the model's own.
    pub stop_token_ids: Vec<u32>,
    /// The lane wished for.
    pub route: v1::RouteWish,
    /// Report margins.
    pub report_margins: bool,
    /// Report log-probabilities, and of so many of the most probable tokens.
    pub logprobs: Option<u32>,
    /// How many answers, at least one.
    pub samples: u32,
    /// Strings that end an answer.
    pub stop: Vec<String>,
}

impl Asked {
    /// Looks at a Generate message.
    ///
    /// # Errors
    /// The first field that cannot be served.
    pub fn generate(message: v1::GenerateRequest) -> Result<Self, Status> {
        use v1::generate_request::Prompt;
        let v1::GenerateRequest {
            model,
            prompt,
            sampling,
            limits,
            route,
            report_margins,
            samples,
            logprobs,
        } = message;
        let source = match prompt {
            None => return Err(invalid("prompt", "text or token_ids", "neither")),
            Some(Prompt::Text(text)) if text.is_empty() => {
                return Err(invalid("text", "a prompt", "an empty one"));
            }
            Some(Prompt::TokenIds(list)) if list.ids.is_empty() => {
                return Err(invalid("token_ids.ids", "at least one token id", "none"));
            }
            Some(Prompt::Text(text)) => Source::Text(text),
            Some(Prompt::TokenIds(list)) => Source::Ids(list.ids),
        };
        Self::settings(model, source, sampling, limits, route, (report_margins, logprobs, samples))
    }

    /// Looks at a Chat message.
    ///
    /// # Errors
    /// The first field that cannot be served.
    pub fn chat(message: v1::ChatRequest) -> Result<Self, Status> {
        let v1::ChatRequest {
            model,
            messages,
            sampling,
            limits,
            route,
            report_margins,
            samples,
            logprobs,
            tools,
            template_arguments,
        } = message;
        let conversation = messages::conversation(messages, tools, &template_arguments)?;
        Self::settings(
            model,
            Source::Chat(conversation),
            sampling,
            limits,
            route,
            (report_margins, logprobs, samples),
        )
    }

    fn settings(
        model: String,
        source: Source,
        sampling: Option<v1::Sampling>,
        limits: Option<v1::Limits>,
        route: i32,
        (report_margins, logprobs, samples): (bool, Option<u32>, u32),
    ) -> Result<Self, Status> {
        let (sampling, limits) = (sampling.unwrap_or_default(), limits.unwrap_or_default());
        if limits.max_tokens == Some(0) {
            return Err(invalid("limits.max_tokens", "at least 1", "0"));
        }
        sampling::check(&sampling, &limits, logprobs)?;
        let route = v1::RouteWish::try_from(route).map_err(|_| {
            invalid("route", "a RouteWish (0 to 3)", format!("the unknown number {route}"))
        })?;
        let samples = bounds::samples(samples)?;
        let v1::Limits { max_tokens, ignore_eos, min_tokens, stop_token_ids, stop } = limits;
        let stop = bounds::stops(stop)?;
        let wishes = Wishes {
            model,
            sampling,
            max_tokens,
            min_tokens,
            ignore_eos,
            stop_token_ids,
            route,
            report_margins,
            logprobs,
            samples,
            stop,
        };
        Ok(Self { source, wishes })
    }

    /// The field the prompt came in.
    pub fn prompt_field(&self) -> &'static str {
        match self.source {
            Source::Text(_) => "text",
            Source::Ids(_) => "token_ids.ids",
            Source::Chat(_) => "messages",
        }
    }
}

/// Checks that the served model is the one asked for.
///
/// # Errors
/// NOT_FOUND.
pub fn check_model(asked: &str, served: &ModelInfo) -> Result<(), Status> {
    if asked.is_empty() || asked == served.name || asked == served.path {
        return Ok(());
    }
    let what = format!(
        "model: expected {} (the served one) or nothing, found {}",
        quoted(&served.name),
        quoted(asked)
    );
    Err(Refusal::new(Reason::UnknownModel, what).field("model").into())
}

/// What a request becomes of, besides its own fields.
#[derive(Clone, Copy, Debug)]
pub struct Setting<'a> {
    /// The served model.
    pub model: &'a ModelInfo,
    /// Its text side.
    pub language: &'a Language,
    /// The operator's limits.
    pub limits: &'a LimitsConfig,
}

/// Who a request is, for the processes below.
#[derive(Clone, Debug)]
pub struct Identity {
    /// Its id.
    pub request_id: String,
    /// Absolute, by the monotonic clock.
    pub deadline_ns: i64,
    /// What its key's name stands for.
    pub traffic_class: String,
    /// What its prefixes are shared under; of no key empty.
    pub cache_scope: String,
}

impl Identity {
    /// A request of this id, of who has that key.
    pub fn new(request_id: &str, deadline_ns: i64, principal: Option<&Principal>) -> Self {
        Self {
            request_id: request_id.to_owned(),
            deadline_ns,
            traffic_class: principal
                .map_or(DEFAULT_CLASS, |principal| &*principal.class)
                .to_owned(),
            cache_scope: principal.map_or("", |principal| &*principal.scope).to_owned(),
        }
    }

    /// Of a request with pictures: of a class of its own, unless its key has one.
    pub fn with_pictures(mut self) -> Self {
        if self.traffic_class == DEFAULT_CLASS {
            self.traffic_class = IMAGE_CLASS.to_owned();
        }
        self
    }
}

/// Checks that pictures which become so many tokens in all can fit the context, before anything is
/// done with their pixels.
///
/// # Errors
/// They cannot.
pub fn check_pictures(tokens: u64, to: Setting<'_>) -> Result<(), Status> {
    let (context, longest) =
        (to.model.context_length, to.limits.max_prompt_tokens.or(to.model.context_length));
    if tokens < u64::from(context) && tokens <= u64::from(longest) {
        return Ok(());
    }
    let most = longest.min(context.saturating_sub(1));
    let message = format!(
        "messages: expected a prompt of at most {most} tokens, found pictures that alone become {tokens}; send fewer or smaller ones"
    );
    let refusal = Refusal::new(Reason::PromptTooLong, message).field("messages");
    Err(refusal.fact("prompt_tokens", tokens).fact("context_length", context).into())
}

/// Most tokens of a prompt: with them there is room for one more in the context.
pub fn most_prompt_tokens(to: Setting<'_>) -> u32 {
    let context = to.model.context_length;
    to.limits.max_prompt_tokens.or(context).min(context.saturating_sub(1))
}

/// The refusal of a text that has more tokens than a prompt may, at least so many; it was not
/// tokenized.
pub fn too_long(field: &'static str, at_least: usize, to: Setting<'_>) -> Status {
    let (context, most) = (to.model.context_length, most_prompt_tokens(to));
    let expected = if most + 1 == context {
        format!("fewer than {context} tokens (the model's context, with room for one more)")
    } else {
        format!("at most {most} tokens (limits.max_prompt_tokens of this service)")
    };
    let message = format!(
        "{field}: expected a prompt of {expected}, found at least {at_least}; send a shorter one"
    );
    let refusal = Refusal::new(Reason::PromptTooLong, message).field(field);
    refusal.fact("prompt_tokens_at_least", at_least).fact("context_length", context).into()
}

/// A prompt and the request around it, checked against the model: what is submitted.
///
/// # Errors
/// An id outside the vocabulary, a prompt or a number of tokens that does not fit.
pub fn fit(
    wishes: &Wishes,
    field: &'static str,
    prompt_ids: Vec<u32>,
    to: Setting<'_>,
    who: Identity,
) -> Result<Generation, Status> {
    let Setting { model, language, limits } = to;
    if prompt_ids.is_empty() {
        return Err(invalid(field, "a prompt of at least one token", "none"));
    }
    if let Some((at, id)) = prompt_ids.iter().enumerate().find(|(_, id)| **id >= model.vocab_size) {
        let expected = format!("token ids below {} (the model's vocabulary)", model.vocab_size);
        return Err(match field {
            "token_ids.ids" => invalid(&format!("{field}[{at}]"), expected, id),
            // The tokenizer knows tokens the model has no row for: the text cannot be served, and
            // the client may know why.
            _ => invalid(field, expected, format!("{id}, which the tokenizer made of the text")),
        });
    }
    let context = model.context_length;
    let length = u32::try_from(prompt_ids.len()).unwrap_or(u32::MAX);
    let no_room = |reason: Reason, field: &str, message: String| -> Status {
        let refusal = Refusal::new(reason, message).field(field);
        refusal.fact("prompt_tokens", length).fact("context_length", context).into()
    };
    if length >= context {
        let expected =
            format!("fewer than {context} tokens (the model's context, with room for one more)");
        return Err(no_room(
            Reason::PromptTooLong,
            field,
            format!("{field}: expected a prompt of {expected}, found {length}"),
        ));
    }
    let longest = limits.max_prompt_tokens.or(context);
    if length > longest {
        let expected =
            format!("at most {longest} tokens (limits.max_prompt_tokens of this service)");
        return Err(no_room(
            Reason::PromptTooLong,
            field,
            format!("{field}: expected a prompt of {expected}, found {length}"),
        ));
    }
    let (room, most) = (context - length, limits.max_new_tokens.or(context));
    let max_tokens = match wishes.max_tokens {
        None => room.min(most),
        Some(wished) if wished > most => {
            let expected = format!("at most {most} (limits.max_new_tokens of this service)");
            return Err(invalid("limits.max_tokens", expected, wished));
        }
        Some(wished) if wished > room => {
            let expected = format!(
                "at most {room} behind a prompt of {length} tokens in a context of {context}"
            );
            let message = format!("limits.max_tokens: expected {expected}, found {wished}");
            return Err(no_room(Reason::InvalidArgument, "limits.max_tokens", message));
        }
        Some(wished) => wished,
    };
    sampling::fits(wishes, model.vocab_size, max_tokens)?;
    let seed = match wishes.sampling.seed {
        Some(seed) => seed,
        None => getrandom::u64().map_err(|_| bug("the system gave no random numbers"))?,
    };
    let rule = sampling::filled(&wishes.sampling, &language.sampling);
    Ok(Generation {
        request_id: who.request_id,
        prompt_ids,
        continuation_ids: Vec::new(),
        sampling: Some(wire_rule(&rule, sampling::biases(&wishes.sampling))),
        seed,
        sample_index: 0,
        max_tokens,
        stop_token_ids: sampling::stop_ids(wishes, &language.stop_ids, model.vocab_size),
        ignored_token_ids: sampling::ignored_ids(wishes, &language.stop_ids, model.vocab_size),
        min_tokens: wishes.min_tokens,
        logprobs: wishes.logprobs,
        deadline_ns: who.deadline_ns,
        traffic_class: who.traffic_class,
        cache_scope: who.cache_scope,
        route: wishes.route as i32,
        report_margins: wishes.report_margins,
        report_so_far: !wishes.stop.is_empty(),
        pictures: Vec::new(),
        tokenizer_vocab: language.tokens.vocabulary_size(),
    })
}

fn wire_rule(rule: &crate::sampling::SamplingRule, logit_bias: Vec<v1::LogitBias>) -> SamplingRule {
    SamplingRule {
        temperature: rule.temperature,
        top_k: rule.top_k,
        top_p: rule.top_p,
        min_p: rule.min_p,
        repetition_penalty: rule.repetition_penalty,
        presence_penalty: rule.presence_penalty,
        frequency_penalty: rule.frequency_penalty,
        logit_bias,
    }
}

#[cfg(test)]
mod tests;
