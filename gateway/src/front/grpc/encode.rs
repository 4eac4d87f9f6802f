//! Events, counts and descriptions of [`crate::inference`] as messages of inference.proto.

use paceline_proto::v1;

use crate::inference::TokenCount;
use crate::inference::model::ModelDescription;
use crate::sampling::SamplingRule;
use crate::stream::{AnswerEnd, AnswerEvent, FinishReason, TokenLogprobs, TopLogprob};

/// An event of the answer to this request.
pub(super) fn event(event: AnswerEvent, request_id: &str) -> v1::GenerateResponse {
    v1::GenerateResponse {
        request_id: request_id.to_owned(),
        text: event.text(),
        token_ids: event.token_ids,
        margins: event.margins,
        step_end_ns: event.step_end_ns,
        r#final: event.last.map(end),
        sample_index: event.sample_index,
        logprobs: event.logprobs.into_iter().map(logprobs).collect(),
    }
}

fn logprobs(logprobs: TokenLogprobs) -> v1::TokenLogprobs {
    let top = |TopLogprob { token_id, logprob }| v1::TopLogprob { token_id, logprob };
    v1::TokenLogprobs {
        logprob: logprobs.logprob,
        top: logprobs.top.into_iter().map(top).collect(),
    }
}

fn end(end: AnswerEnd) -> v1::Final {
    let AnswerEnd { finish_reason, stop, usage, route, speculation, timing, seed } = end;
    let finish_reason = match finish_reason {
        None => v1::FinishReason::Unspecified,
        Some(FinishReason::Stop) => v1::FinishReason::Stop,
        Some(FinishReason::Length) => v1::FinishReason::Length,
    };
    v1::Final {
        finish_reason: finish_reason.into(),
        usage: Some(v1::Usage {
            prompt_tokens: usage.prompt_tokens,
            completion_tokens: usage.completion_tokens,
            cached_tokens: usage.cached_tokens,
        }),
        route: Some(route.map(v1::Route::from).unwrap_or_default()),
        speculation: Some(v1::Speculation {
            cycles: speculation.cycles,
            drafted: speculation.drafted,
            accepted: speculation.accepted,
        }),
        timing: Some(v1::Timing {
            queue_ms: timing.queue_ms,
            ttft_ms: timing.ttft_ms,
            total_ms: timing.total_ms,
            picture_decode_ms: timing.image_decode_ms,
            picture_resize_ms: timing.image_resize_ms,
            tower_ms: timing.tower_ms,
            prefill_ms: timing.prefill_ms,
        }),
        // No request is resumed after a crash of the target: it ends with TARGET_GONE.
        resumed: 0,
        seed,
        stop,
    }
}

/// The tokens of a prompt, with their ids if the client asks for them.
pub(super) fn count(counted: TokenCount, report_ids: bool) -> v1::CountTokensResponse {
    let TokenCount { ids, context_length } = counted;
    v1::CountTokensResponse {
        prompt_tokens: u32::try_from(ids.len()).unwrap_or(u32::MAX),
        context_length,
        token_ids: if report_ids { ids } else { Vec::new() },
    }
}

/// The served model.
pub(super) fn model(model: ModelDescription) -> v1::GetModelResponse {
    v1::GetModelResponse {
        name: model.name,
        architecture: model.architecture,
        vocab_size: model.vocab_size,
        context_length: model.context_length,
        max_prompt_tokens: model.max_prompt_tokens,
        max_new_tokens: model.max_new_tokens,
        chat: model.chat,
        tools: model.tools,
        vision: model.vision,
        default_sampling: Some(sampling(model.default_sampling)),
        stop_token_ids: model.stop_token_ids,
    }
}

/// Every field set, but for the seed, which is drawn.
fn sampling(rule: SamplingRule) -> v1::Sampling {
    v1::Sampling {
        temperature: Some(rule.temperature),
        top_k: Some(rule.top_k),
        top_p: Some(rule.top_p),
        min_p: Some(rule.min_p),
        seed: None,
        repetition_penalty: Some(rule.repetition_penalty),
        presence_penalty: Some(rule.presence_penalty),
        frequency_penalty: Some(rule.frequency_penalty),
        logit_bias: Vec::new(),
    }
}
