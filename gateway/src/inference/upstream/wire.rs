//! Conversions between the gateway's own types and `paceline.internal.v1`.

use paceline_proto::internal::v1 as internal;
use paceline_proto::status::Refusal;
use paceline_proto::v1;
use paceline_text::grammar::{Grammar, GrammarPart, TextForm};
use paceline_text::stream::{
    Done, Figures, FinishReason, Speculation, TokenBatch, TokenLogprobs, TopLogprob,
};
use paceline_vocabulary::report::{GatewayReport, ModelInfo};
use paceline_vocabulary::{Epoch, Reason, Route, Term};
use tonic::{Code, Status};

use crate::images::PromptImage;
use crate::inference::error::InferenceError;
use crate::inference::generation::Generation;
use crate::inference::params::LogitBias;
use crate::inference::standing::ServiceState;
use paceline_vocabulary::sampling::SamplingRule;

pub(super) fn stamp(term: Term, epoch: Epoch) -> internal::Stamp {
    internal::Stamp { term: term.0, epoch: epoch.0 }
}

pub(super) fn generation(generation: Generation) -> internal::Generation {
    let route = generation.route.map_or(v1::RouteWish::Unspecified, v1::RouteWish::from);
    internal::Generation {
        request_id: generation.request_id,
        prompt_ids: generation.prompt_ids,
        continuation_ids: Vec::new(),
        sampling: Some(sampling(generation.sampling, generation.logit_bias)),
        seed: generation.seed,
        sample_index: generation.sample_index,
        max_tokens: generation.max_tokens,
        stop_token_ids: generation.stop_token_ids,
        ignored_token_ids: generation.ignored_token_ids,
        min_tokens: generation.min_tokens,
        logprobs: generation.logprobs,
        deadline_ns: generation.deadline_ns,
        traffic_class: generation.traffic_class,
        cache_scope: generation.cache_scope,
        route: route.into(),
        report_margins: generation.report_margins,
        report_so_far: generation.report_so_far,
        pictures: generation.images.into_iter().map(image).collect(),
        tokenizer_vocab: generation.tokenizer_vocab,
        last_turn: generation.last_turn,
        grammar: generation.grammar.map(grammar),
    }
}

fn grammar(grammar: Grammar) -> internal::Grammar {
    let Grammar { frame, parts, end_ids } = grammar;
    internal::Grammar { frame, parts: parts.into_iter().map(grammar_part).collect(), end_ids }
}

fn grammar_part(part: GrammarPart) -> internal::GrammarPart {
    use internal::grammar_part::Content;
    let GrammarPart { field, lenient, content } = part;
    let content = match content {
        TextForm::JsonSchema(text) => Content::JsonSchema(text),
        TextForm::JsonObject => Content::JsonSchema(r#"{"type": "object"}"#.to_owned()),
        TextForm::Regex(text) => Content::Regex(text),
        TextForm::Lark(text) => Content::Lark(text),
    };
    internal::GrammarPart { field, lenient, content: Some(content) }
}

fn sampling(rule: SamplingRule, biases: Vec<LogitBias>) -> internal::SamplingRule {
    let bias = |LogitBias { token_id, bias }| v1::LogitBias { token_id, bias };
    internal::SamplingRule {
        temperature: rule.temperature,
        top_k: rule.top_k,
        top_p: rule.top_p,
        min_p: rule.min_p,
        repetition_penalty: rule.repetition_penalty,
        presence_penalty: rule.presence_penalty,
        frequency_penalty: rule.frequency_penalty,
        logit_bias: biases.into_iter().map(bias).collect(),
    }
}

fn image(image: PromptImage) -> internal::Picture {
    internal::Picture {
        file: image.file,
        bytes: image.bytes,
        digest: image.digest,
        first: image.start,
        rows: image.grid.rows,
        columns: image.grid.columns,
        scale: image.scale.to_vec(),
        bias: image.bias.to_vec(),
    }
}

pub(super) fn batch(batch: internal::TokenBatch) -> TokenBatch {
    TokenBatch {
        first_index: batch.first_index,
        ids: batch.ids,
        margins: batch.margins,
        logprobs: batch.logprobs.into_iter().map(logprobs).collect(),
        step_end_ns: batch.step_end_ns,
        done: batch.done.map(done),
        so_far: batch.so_far.map(|done| figures(&done)),
    }
}

fn logprobs(logprobs: v1::TokenLogprobs) -> TokenLogprobs {
    let top = |one: v1::TopLogprob| TopLogprob { token_id: one.token_id, logprob: one.logprob };
    TokenLogprobs { logprob: logprobs.logprob, top: logprobs.top.into_iter().map(top).collect() }
}

fn done(done: internal::Done) -> Done {
    let finish_reason = match done.finish_reason() {
        v1::FinishReason::Unspecified => None,
        v1::FinishReason::Stop => Some(FinishReason::Stop),
        v1::FinishReason::Length => Some(FinishReason::Length),
    };
    Done { finish_reason, figures: figures(&done) }
}

fn figures(done: &internal::Done) -> Figures {
    let speculation = done.speculation.unwrap_or_default();
    Figures {
        cached_tokens: done.cached_tokens,
        route: done.route.as_ref().and_then(route),
        speculation: Speculation {
            cycles: speculation.cycles,
            drafted: speculation.drafted,
            accepted: speculation.accepted,
        },
        queue_ms: done.queue_ms,
        tower_ms: done.tower_ms,
        prefill_ms: done.prefill_ms,
    }
}

fn route(route: &v1::Route) -> Option<Route> {
    let (lane, reason) = (route.lane().try_into().ok()?, route.reason().try_into().ok()?);
    Some(Route { lane, reason })
}

pub(super) fn service(state: internal::ServiceState) -> ServiceState {
    ServiceState {
        can_serve: state.can_serve,
        reason: Reason::from_word(&state.reason),
        message: state.message,
        model: state.model.map(model),
        drafter_serves: state.drafter_serves,
    }
}

fn model(model: internal::ModelInfo) -> ModelInfo {
    ModelInfo {
        name: model.name,
        path: model.path,
        architecture: model.architecture,
        context_length: model.context_length,
        vocab_size: model.vocab_size,
        weight_bytes: model.weight_bytes,
        vision: model.vision,
    }
}

pub(super) fn report(report: GatewayReport) -> internal::GatewayReport {
    internal::GatewayReport {
        epoch: report.epoch.0,
        pid: report.pid,
        state: internal::GatewayState::from(report.state).into(),
        restarts: report.restarts,
        streams: report.streams,
    }
}

/// The error in a status from the supervisor. A status that a library made of a broken connection
/// means that the supervisor is being started again.
pub(super) fn error(status: Status) -> InferenceError {
    if let Some(Refusal { reason, message, field, retry_after, metadata }) = Refusal::of(&status) {
        let facts = metadata.into_iter().collect();
        return InferenceError { kind: reason, message, field, facts, retry_after };
    }
    match status.code() {
        Code::Unavailable
        | Code::Unknown
        | Code::Cancelled
        | Code::Internal
        | Code::Aborted
        | Code::DataLoss => {
            tracing::warn!(code = ?status.code(), message = status.message(), "connection to the supervisor broke");
            let message =
                "the service behind the gateway is being started again; try again shortly";
            InferenceError::new(Reason::Restarting, message)
        }
        code => {
            let message = status.message();
            InferenceError::bug(format_args!("the supervisor answered {code:?}: {message}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn errors_of_the_supervisor_pass_and_those_of_a_library_mean_restarting() {
        let pause = Duration::from_millis(250);
        let refusal = Refusal::new(Reason::QueueFull, "64 wait").retry_after(pause).field("queue");
        let passed = error(refusal.fact("limit", 64).into());
        let expected = InferenceError {
            retry_after: pause,
            ..InferenceError::new(Reason::QueueFull, "64 wait").field("queue").fact("limit", 64)
        };
        assert_eq!(passed, expected);
        assert_eq!(error(Status::unavailable("connection refused")).kind, Reason::Restarting);
        assert_eq!(error(Status::unimplemented("no such method")).kind, Reason::Bug);
    }
}
