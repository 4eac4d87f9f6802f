//! A `Generation` as it came, checked field by field: what the engine gets is in range.

use paceline_models::TargetInfo;
use paceline_models::sample::{Sampling, noise::NoiseKey};
use paceline_process::Clock;
use paceline_proto::ids::RequestId;
use paceline_proto::internal::v1::{self as internal, Generation};
use paceline_proto::status::{Reason, Refusal};
use paceline_proto::v1;
use tonic::Status;

use crate::core::{Force, Permit, Policy, Request};

/// A request the engine can run.
#[derive(Clone, Debug)]
pub(crate) struct Checked {
    pub(crate) id: RequestId,
    pub(crate) request: Request,
    pub(crate) sampling: Sampling,
    pub(crate) noise: NoiseKey,
    /// Ids from here on are padding of the vocabulary.
    pub(crate) id_limit: u32,
    pub(crate) wants_margins: bool,
    /// Every batch says what its end would say.
    pub(crate) wants_so_far: bool,
    /// Beginnings are shared with requests of the same scope and no other.
    pub(crate) cache_scope: String,
}

/// A permit as it came, checked.
///
/// # Errors
/// There is none, or it names no lane or reason of this version.
pub(crate) fn permit(permit: Option<internal::Permit>) -> Result<Permit, Status> {
    let invalid = |field: &str, what: String| Reason::InvalidArgument.field(field, what);
    let permit = permit.ok_or_else(|| invalid("permit", "expected the supervisor's permit, found none".into()))?;
    let lane = v1::Lane::try_from(permit.lane_allowed).unwrap_or_default();
    if lane == v1::Lane::Unspecified {
        return Err(invalid("permit.lane_allowed", format!("expected a lane, found {}", permit.lane_allowed)));
    }
    let reason = v1::RouteReason::try_from(permit.reason)
        .map_err(|_| invalid("permit.reason", format!("expected a reason of this version, found {}", permit.reason)))?;
    Ok(Permit { lane, max_draft: permit.max_draft, reason })
}

/// A policy as it came from the supervisor of this term, checked: the part of it that holds in the target.
///
/// # Errors
/// There is none, or a number in it is out of range.
pub(crate) fn policy(policy: Option<internal::Policy>, term: u64) -> Result<Policy, Status> {
    let invalid = |field: &str, what: String| Reason::InvalidArgument.field(field, what);
    let policy = policy.ok_or_else(|| invalid("policy", "expected a policy, found none".into()))?;
    let force = match internal::PolicyForce::try_from(policy.force) {
        Ok(internal::PolicyForce::Auto) => Force::Auto,
        Ok(internal::PolicyForce::Plain) => Force::Plain,
        Ok(internal::PolicyForce::Speculative) => Force::Speculative,
        Ok(internal::PolicyForce::Unspecified) | Err(_) => {
            return Err(invalid("policy.force", format!("expected auto, plain or speculative, found {}", policy.force)));
        }
    };
    if !(0.0..=1.0).contains(&policy.kv_pressure) {
        return Err(invalid("policy.kv_pressure", format!("expected a share from 0 to 1, found {}", policy.kv_pressure)));
    }
    Ok(Policy { term, epoch: policy.epoch, force, kv_pressure: policy.kv_pressure })
}

/// Checks `generation` against the model.
///
/// # Errors
/// The first field that cannot be served, by name, with what was expected and found.
pub(crate) fn check(
    generation: Option<Generation>,
    permit: Option<internal::Permit>,
    model: &TargetInfo,
    clock: &Clock,
) -> Result<Checked, Status> {
    let invalid = |field: &str, what: String| Reason::InvalidArgument.field(field, what);
    let generation = generation.ok_or_else(|| invalid("generation", "expected a generation, found none".into()))?;
    let permit = self::permit(permit)?;
    let id = RequestId::parse(&generation.request_id)
        .ok_or_else(|| invalid("request_id", "expected 1 to 64 letters, digits, - or _".into()))?;

    let (prompt, context) = (generation.prompt_ids.len() as u64, model.context as u64);
    if prompt == 0 {
        return Err(invalid("prompt_ids", "expected at least one id, found none".into()));
    }
    let all = generation.prompt_ids.iter().chain(&generation.continuation_ids);
    if let Some(id) = all.copied().find(|id| *id >= model.vocab as u32) {
        return Err(invalid("prompt_ids", format!("expected ids below {}, found {id}", model.vocab)));
    }
    if generation.max_tokens == 0 || generation.continuation_ids.len() as u64 >= u64::from(generation.max_tokens) {
        let found = format!("{} with {} tokens there already", generation.max_tokens, generation.continuation_ids.len());
        return Err(invalid("max_tokens", format!("expected more than the continuation has, found {found}")));
    }
    if prompt + u64::from(generation.max_tokens) > context {
        let text = format!(
            "the prompt has {prompt} tokens and max_tokens is {}; the model's context is {context}",
            generation.max_tokens
        );
        let refusal =
            Refusal::new(Reason::PromptTooLong, text).field("prompt_ids").fact("prompt_tokens", prompt).fact("context", context);
        return Err(refusal.into());
    }

    let rule = generation.sampling.ok_or_else(|| invalid("sampling", "expected a sampling rule, found none".into()))?;
    let sampling = Sampling {
        temperature: rule.temperature,
        top_k: rule.top_k,
        top_p: rule.top_p,
        min_p: rule.min_p,
        repetition_penalty: rule.repetition_penalty,
    };
    sampling.check().map_err(|(field, what)| invalid(&format!("sampling.{field}"), what))?;

    let id_limit = match generation.tokenizer_vocab {
        0 => model.vocab as u32,
        limit => limit.min(model.vocab as u32),
    };
    let deadline = (generation.deadline_ns != 0).then(|| clock.at(generation.deadline_ns));
    Ok(Checked {
        id,
        request: Request {
            prompt: generation.prompt_ids,
            continuation: generation.continuation_ids,
            max_tokens: generation.max_tokens,
            stop_ids: generation.stop_token_ids,
            deadline,
            permit,
            class: generation.traffic_class,
        },
        sampling,
        noise: NoiseKey { seed: generation.seed, sample: generation.sample_index },
        id_limit,
        wants_margins: generation.report_margins,
        wants_so_far: generation.report_so_far,
        cache_scope: generation.cache_scope,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_proto::internal::v1::SamplingRule;
    use tonic_types::StatusExt;

    fn model() -> TargetInfo {
        let (path, architecture) = ("/m".into(), "qwen3".into());
        TargetInfo { path, architecture, vocab: 100, hidden: 8, n_layers: 1, context: 50, weight_bytes: 1 }
    }

    fn good() -> Generation {
        Generation {
            request_id: "r1".into(),
            prompt_ids: vec![1, 2, 3],
            sampling: Some(SamplingRule {
                temperature: 0.0,
                top_k: 0,
                top_p: 1.0,
                min_p: 0.0,
                repetition_penalty: 1.0,
                ..Default::default()
            }),
            max_tokens: 10,
            ..Generation::default()
        }
    }

    fn refusal(change: impl FnOnce(&mut Generation)) -> (Option<Reason>, String) {
        let mut generation = good();
        change(&mut generation);
        let permit = internal::Permit { lane_allowed: v1::Lane::Plain.into(), ..internal::Permit::default() };
        let status = check(Some(generation), Some(permit), &model(), &Clock::start()).expect_err("refused");
        let field = status.get_details_bad_request().map(|bad| bad.field_violations[0].field.clone()).unwrap_or_default();
        (Reason::of(&status), field)
    }

    #[test]
    fn each_bad_field_is_named() {
        let invalid = Some(Reason::InvalidArgument);
        assert_eq!(refusal(|g| g.request_id = "a b".into()), (invalid, "request_id".into()));
        assert_eq!(refusal(|g| g.prompt_ids.clear()), (invalid, "prompt_ids".into()));
        assert_eq!(refusal(|g| g.prompt_ids.push(100)), (invalid, "prompt_ids".into()));
        assert_eq!(refusal(|g| g.max_tokens = 0), (invalid, "max_tokens".into()));
        assert_eq!(refusal(|g| g.continuation_ids = vec![1; 10]), (invalid, "max_tokens".into()));
        assert_eq!(refusal(|g| g.sampling = None), (invalid, "sampling".into()));
        assert_eq!(refusal(|g| g.max_tokens = 48), (Some(Reason::PromptTooLong), "prompt_ids".into()));
        let sampling = |temperature, top_p, min_p| {
            Some(SamplingRule { temperature, top_k: 0, top_p, min_p, repetition_penalty: 1.0, ..Default::default() })
        };
        assert_eq!(refusal(|g| g.sampling = sampling(f32::NAN, 1.0, 0.0)), (invalid, "sampling.temperature".into()));
        assert_eq!(refusal(|g| g.sampling = sampling(-1.0, 1.0, 0.0)), (invalid, "sampling.temperature".into()));
        assert_eq!(refusal(|g| g.sampling = sampling(1.0, 0.0, 0.0)), (invalid, "sampling.top_p".into()));
        assert_eq!(refusal(|g| g.sampling = sampling(1.0, 1.0, f32::INFINITY)), (invalid, "sampling.min_p".into()));
        let penalized = |g: &mut Generation| g.sampling.as_mut().expect("set").repetition_penalty = 0.0;
        assert_eq!(refusal(penalized), (invalid, "sampling.repetition_penalty".into()));
    }

    #[test]
    fn padding_of_the_vocabulary_is_behind_the_tokenizer() {
        let permit = internal::Permit { lane_allowed: v1::Lane::Plain.into(), ..internal::Permit::default() };
        let generation = Generation { tokenizer_vocab: 90, ..good() };
        assert_eq!(check(Some(generation), Some(permit), &model(), &Clock::start()).expect("good").id_limit, 90);
        assert_eq!(check(Some(good()), Some(permit), &model(), &Clock::start()).expect("good").id_limit, 100);
    }
}
