//! Conversions between protobuf and the words of this crate and of the core. Every message is
//! converted here and nowhere else, except for those of the link (`drafting`).

mod images;
mod request;

use paceline_models::exact_lanes::exact_lanes;
use paceline_models::products::instructions;
use paceline_models::sample::Logprobs;
use paceline_proto::internal::v1 as internal;
use paceline_proto::v1;
use paceline_target_core::scheduler::ServedFigures;
use paceline_target_core::{Emission, Finish};
use paceline_vocabulary::generation::{
    Done, Figures, FinishReason, Speculation, TokenBatch, TokenLogprobs, TopLogprob,
};

use crate::loaded_model::LoadedModel;
use crate::request::ValidRequest;
use crate::running::FirstTokenTimes;

pub(crate) use request::{CheckedRequest, RequestContext, permit, policy, request};

/// A step's tokens of one request, as a message without stamp and time.
pub(crate) fn token_batch(
    emission: &Emission,
    logprobs: Vec<Logprobs>,
    request: &ValidRequest,
    times: FirstTokenTimes,
) -> internal::TokenBatch {
    let figures = figures(&emission.served, times);
    let margins = || emission.tokens.iter().map(|token| token.margin).collect();
    let batch = TokenBatch {
        first_index: emission.index,
        ids: emission.tokens.iter().map(|token| token.id).collect(),
        margins: if request.wants_margins { margins() } else { vec![] },
        // A stop id in a block ends the stream before the last chosen tokens.
        logprobs: logprobs.into_iter().take(emission.tokens.len()).map(token_logprobs).collect(),
        step_end_ns: 0,
        done: emission
            .end
            .as_ref()
            .map(|end| Done { finish_reason: Some(finish_reason(end.finish)), figures }),
        so_far: (emission.end.is_none() && request.wants_so_far).then_some(figures),
    };
    batch.into()
}

fn finish_reason(finish: Finish) -> FinishReason {
    match finish {
        Finish::Stop => FinishReason::Stop,
        Finish::Length => FinishReason::Length,
    }
}

fn figures(served: &ServedFigures, times: FirstTokenTimes) -> Figures {
    Figures {
        cached_tokens: served.cached_tokens,
        route: Some(served.route),
        speculation: Speculation {
            cycles: served.counts.cycles,
            drafted: served.counts.drafted,
            accepted: served.counts.accepted,
        },
        // The supervisor fills it in.
        queue_ms: 0.0,
        tower_ms: times.tower_ms(),
        prefill_ms: times.prefill_ms(),
    }
}

fn token_logprobs(logprobs: Logprobs) -> TokenLogprobs {
    let one = |(token_id, logprob)| TopLogprob { token_id, logprob };
    TokenLogprobs { logprob: logprobs.chosen, top: logprobs.top.into_iter().map(one).collect() }
}

/// The model that this target serves, as a message.
pub(crate) fn model_info(loaded: &LoadedModel) -> internal::ModelInfo {
    internal::ModelInfo {
        name: loaded.name.clone(),
        path: loaded.info.path.display().to_string(),
        architecture: loaded.info.architecture.clone(),
        context_length: loaded.info.context as u32,
        vocab_size: loaded.info.vocab as u32,
        weight_bytes: loaded.info.weight_bytes,
        vision: loaded.vision.is_some(),
        exact_lanes: exact_lanes(),
        logit_unit: loaded.logit_unit,
        products: v1::Products::from(loaded.info.products).into(),
        instructions: instructions().unwrap_or_default().to_owned(),
    }
}
