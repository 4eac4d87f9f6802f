//! `Generation`, `Permit` and `Policy` messages, checked field by field, as words of the core.

use std::collections::HashSet;

use paceline_models::TargetInfo;
use paceline_models::sample::noise::NoiseKey;
use paceline_models::vision::VisionInfo;
use paceline_proto::internal::v1 as internal;
use paceline_proto::status::{Reason, ReasonStatus as _, Refusal};
use paceline_proto::v1;
use paceline_system::Clock;
use paceline_target_core::{Image, Policy, Request};
use paceline_vocabulary::generation::{Generation, ThoughtBudget};
use paceline_vocabulary::sampling::{LogitBias, SamplingRule};
use paceline_vocabulary::{Force, Lane, Permit, RequestId, RouteReason};
use tonic::Status;

use super::images::{self, CheckedImages, ImageContext};
use crate::grammar::GrammarSource;
use crate::image_files::AnnouncedImage;
use crate::request::ValidRequest;

/// Most log-probabilities that a request may ask for besides the chosen token's (inference.proto).
const MAX_LOGPROBS: u32 = 20;

/// Traffic class of requests with images that name none.
const IMAGE_CLASS: &str = "image";

/// A request, and what is to be made before the engine runs it.
#[derive(Clone, Debug)]
pub(crate) struct CheckedRequest {
    pub(crate) request: ValidRequest,
    /// Images whose pixels are to be loaded.
    pub(crate) announced: Vec<AnnouncedImage>,
    /// The grammar that is to be compiled.
    pub(crate) grammar: Option<GrammarSource>,
}

/// Context of the checks of requests.
#[derive(Clone, Copy)]
pub(crate) struct RequestContext<'a> {
    pub(crate) model: &'a TargetInfo,
    /// The model's vision tower; `None` if it has none.
    pub(crate) vision: Option<&'a VisionInfo>,
    pub(crate) clock: &'a Clock,
}

fn invalid(field: &str, what: impl Into<String>) -> Status {
    Reason::InvalidArgument.field(field, what)
}

/// Checks a permit.
///
/// # Errors
/// There is none, or it names no lane or reason of this version.
pub(crate) fn permit(permit: Option<internal::Permit>) -> Result<Permit, Status> {
    let permit =
        permit.ok_or_else(|| invalid("permit", "expected the supervisor's permit, found none"))?;
    let lane = v1::Lane::try_from(permit.lane_allowed).unwrap_or_default();
    let lane = Lane::try_from(lane).map_err(|_| {
        let what = format!("expected a lane, found {}", permit.lane_allowed);
        invalid("permit.lane_allowed", what)
    })?;
    let reason = v1::RouteReason::try_from(permit.reason).unwrap_or_default();
    let reason = RouteReason::try_from(reason).map_err(|_| {
        let what = format!("expected a reason of this version, found {}", permit.reason);
        invalid("permit.reason", what)
    })?;
    Ok(Permit { lane, max_draft: permit.max_draft, reason, policy_epoch: permit.policy_epoch })
}

/// Checks a policy of the supervisor of this term. Only the part that the target applies remains.
///
/// # Errors
/// There is none, or a number in it is out of range.
pub(crate) fn policy(policy: Option<internal::Policy>, term: u64) -> Result<Policy, Status> {
    let policy = policy.ok_or_else(|| invalid("policy", "expected a policy, found none"))?;
    let force = internal::PolicyForce::try_from(policy.force).unwrap_or_default();
    let force = Force::try_from(force).map_err(|_| {
        let what = format!("expected auto, plain or speculative, found {}", policy.force);
        invalid("policy.force", what)
    })?;
    if !(0.0..=1.0).contains(&policy.kv_pressure) {
        return Err(invalid(
            "policy.kv_pressure",
            format!("expected a share from 0 to 1, found {}", policy.kv_pressure),
        ));
    }
    Ok(Policy {
        term,
        epoch: policy.epoch,
        force,
        kv_pressure: policy.kv_pressure,
        max_context: policy.max_context,
    })
}

/// Checks a request against the model. The engine can run it once its images are loaded.
///
/// # Errors
/// The first field that cannot be served, by name, with the expected and the found value.
pub(crate) fn request(
    generation: Option<internal::Generation>,
    permit: Option<internal::Permit>,
    context: RequestContext<'_>,
) -> Result<CheckedRequest, Status> {
    let mut message =
        generation.ok_or_else(|| invalid("generation", "expected a generation, found none"))?;
    let permit = self::permit(permit)?;
    let grammar = message.grammar.take();
    let generation =
        Generation::try_from(message).map_err(|cause| invalid(cause.field, cause.to_string()))?;
    let RequestContext { model, vision, clock } = context;
    let id = RequestId::parse(&generation.request_id)
        .ok_or_else(|| invalid("request_id", "expected 1 to 64 letters, digits, - or _"))?;
    check_lengths(&generation, model)?;
    check_sampling(&generation.sampling)?;
    let bias = bias(&generation.logit_bias, model)?;
    let id_limit = match generation.tokenizer_vocab {
        0 => model.vocab as u32,
        limit => limit.min(model.vocab as u32),
    };
    check_stops(&generation, model, id_limit)?;
    let grammar = grammar.map(|grammar| self::grammar(grammar, &generation, model)).transpose()?;
    if let Some(thought) = &generation.thought {
        check_thought(thought, id_limit)?;
    }
    if let Some(count) = generation.logprobs.filter(|count| *count > MAX_LOGPROBS) {
        let what = format!("expected at most {MAX_LOGPROBS}, found {count}");
        return Err(invalid("logprobs", what));
    }
    let CheckedImages { announced, images } = images::check(
        &generation.images,
        ImageContext {
            prompt: &generation.prompt_ids,
            cache_scope: &generation.cache_scope,
            vision,
            architecture: &model.architecture,
        },
    )?;
    let request = ValidRequest {
        id,
        trace: None,
        sampling: generation.sampling,
        bias,
        min_tokens: generation.min_tokens,
        logprobs: generation.logprobs,
        noise: NoiseKey { seed: generation.seed, sample: generation.sample_index },
        id_limit,
        wants_margins: generation.report_margins,
        wants_so_far: generation.report_so_far,
        images: vec![],
        thought: generation.thought.clone(),
        scheduling: scheduling(generation, permit, images, clock),
    };
    Ok(CheckedRequest { request, announced, grammar })
}

/// Checks a grammar, and that the request ends where its grammar does.
fn grammar(
    grammar: internal::Grammar,
    generation: &Generation,
    model: &TargetInfo,
) -> Result<GrammarSource, Status> {
    if generation.min_tokens > 0 {
        let what = format!("expected 0 beside a grammar, found {}", generation.min_tokens);
        return Err(invalid("min_tokens", what));
    }
    let goes_on = |id: &&u32| !generation.stop_token_ids.contains(id);
    if let Some(id) = grammar.end_ids.iter().find(goes_on) {
        let what = format!("expected ids of stop_token_ids, found {id}");
        return Err(invalid("grammar.end_ids", what));
    }
    GrammarSource::of_message(grammar, model.vocab as usize)
}

/// The part of a checked request that the scheduler gets.
fn scheduling(
    generation: Generation,
    permit: Permit,
    images: Vec<Image>,
    clock: &Clock,
) -> Request {
    let deadline = (generation.deadline_ns != 0).then(|| clock.at(generation.deadline_ns));
    let class = match generation.traffic_class {
        none if none.is_empty() && !images.is_empty() => IMAGE_CLASS.into(),
        class => class,
    };
    Request {
        prompt: generation.prompt_ids,
        continuation: generation.continuation_ids,
        max_tokens: generation.max_tokens,
        stop_ids: generation.stop_token_ids,
        ignored_ids: generation.ignored_token_ids,
        deadline,
        permit,
        class,
        cache_scope: generation.cache_scope,
        images: images.into(),
        last_turn: generation.last_turn.map(|place| place as usize),
    }
}

/// Checks the prompt, the continuation and the number of tokens to generate.
fn check_lengths(generation: &Generation, model: &TargetInfo) -> Result<(), Status> {
    let Generation { prompt_ids, continuation_ids, max_tokens, last_turn, .. } = generation;
    let (prompt, context) = (prompt_ids.len() as u64, model.context as u64);
    if prompt == 0 {
        return Err(invalid("prompt_ids", "expected at least one id, found none"));
    }
    if let Some(place) = last_turn.filter(|place| u64::from(*place) > prompt) {
        let what = format!("expected a place in the prompt of {prompt} ids, found {place}");
        return Err(invalid("last_turn", what));
    }
    let mut all = prompt_ids.iter().chain(continuation_ids);
    if let Some(id) = all.find(|id| **id >= model.vocab as u32) {
        let what = format!("expected ids below {}, found {id}", model.vocab);
        return Err(invalid("prompt_ids", what));
    }
    if *max_tokens == 0 || continuation_ids.len() as u64 >= u64::from(*max_tokens) {
        let found = format!("{max_tokens} with {} tokens there already", continuation_ids.len());
        let what = format!("expected more than the continuation has, found {found}");
        return Err(invalid("max_tokens", what));
    }
    if prompt + u64::from(*max_tokens) > context {
        let text = format!(
            "the prompt has {prompt} tokens and max_tokens is {max_tokens}; the model's context is \
             {context}"
        );
        let refusal = Refusal::new(Reason::PromptTooLong, text)
            .field("prompt_ids")
            .fact("prompt_tokens", prompt)
            .fact("context", context);
        return Err(refusal.into());
    }
    Ok(())
}

fn check_sampling(rule: &SamplingRule) -> Result<(), Status> {
    rule.check().map_err(|wrong| {
        let what = format!("expected {}, found {}", wrong.expected, wrong.found);
        invalid(&format!("sampling.{}", wrong.name), what)
    })
}

/// Checks the ids that end the request, and the number of tokens before which they do not.
fn check_stops(generation: &Generation, model: &TargetInfo, id_limit: u32) -> Result<(), Status> {
    let Generation { stop_token_ids, min_tokens, max_tokens, .. } = generation;
    if let Some(id) = stop_token_ids.iter().find(|id| **id >= model.vocab as u32) {
        let what = format!("expected ids below {}, found {id}", model.vocab);
        return Err(invalid("stop_token_ids", what));
    }
    if min_tokens > max_tokens {
        let what =
            format!("expected at most max_tokens, which is {max_tokens}, found {min_tokens}");
        return Err(invalid("min_tokens", what));
    }
    let stops = || stop_token_ids.iter().collect::<HashSet<_>>().len();
    if *min_tokens > 0 && stops() >= id_limit as usize {
        let what = "expected at least one id that ends nothing before min_tokens, found none";
        return Err(invalid("stop_token_ids", what));
    }
    Ok(())
}

/// Checks the bound of a thought.
fn check_thought(thought: &ThoughtBudget, id_limit: u32) -> Result<(), Status> {
    /// Steps of a thought's end, and ids of a step, at most.
    const MOST: usize = 8;
    let ThoughtBudget { max_tokens, open_id, end, marks } = thought;
    if *max_tokens == 0 {
        return Err(invalid("thought.max_tokens", "expected at least 1, found 0"));
    }
    if end.iter().any(|ids| !(1..=MOST).contains(&ids.len())) || end.len() > MOST {
        let what = format!("expected at most {MOST} steps with 1 to {MOST} ids each, found others");
        return Err(invalid("thought.end", what));
    }
    if !thought.is_of(id_limit) {
        let what = format!("expected ids below {id_limit}, found {open_id:?} and {end:?}");
        return Err(invalid("thought.end", what));
    }
    if *marks == 0 || *marks as usize > end.len() {
        let what = format!("expected 1 to {}, the steps of the end, found {marks}", end.len());
        return Err(invalid("thought.marks", what));
    }
    Ok(())
}

/// Checks biases of logits.
fn bias(list: &[LogitBias], model: &TargetInfo) -> Result<Vec<(u32, f32)>, Status> {
    let invalid = |what: String| Err(Reason::InvalidArgument.field("sampling.logit_bias", what));
    if let Some(pair) = list.windows(2).find(|pair| pair[0].token_id >= pair[1].token_id) {
        return invalid(format!(
            "expected ids in ascending order, found {} before {}",
            pair[0].token_id, pair[1].token_id
        ));
    }
    if let Some(one) = list.iter().find(|one| one.token_id >= model.vocab as u32) {
        return invalid(format!("expected ids below {}, found {}", model.vocab, one.token_id));
    }
    // NaN is in no range.
    if let Some(one) = list.iter().find(|one| !(-100.0..=100.0).contains(&one.bias)) {
        return invalid(format!("expected numbers from -100 to 100, found {}", one.bias));
    }
    Ok(list.iter().map(|one| (one.token_id, one.bias)).collect())
}

#[cfg(test)]
mod tests {
    use paceline_vocabulary::SamplingRule as Rule;

    use super::*;
    use paceline_proto::internal::v1::{Generation, SamplingRule};
    use tonic_types::StatusExt;

    fn model() -> TargetInfo {
        let (path, architecture) = ("/m".into(), "qwen3".into());
        TargetInfo {
            path,
            architecture,
            vocab: 100,
            hidden: 8,
            n_layers: 1,
            context: 50,
            weight_bytes: 1,
            products: paceline_models::Products::Float,
        }
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

    fn checked(generation: Generation, permit: internal::Permit) -> Result<ValidRequest, Status> {
        let (model, clock) = (model(), Clock::start());
        let context = RequestContext { model: &model, vision: None, clock: &clock };
        request(Some(generation), Some(permit), context).map(|checked| checked.request)
    }

    fn refusal(change: impl FnOnce(&mut Generation)) -> (Option<Reason>, String) {
        let mut generation = good();
        change(&mut generation);
        let permit = internal::Permit {
            lane_allowed: v1::Lane::Plain.into(),
            reason: v1::RouteReason::DrafterAbsent.into(),
            ..internal::Permit::default()
        };
        let status = checked(generation, permit).expect_err("refused");
        let field = status
            .get_details_bad_request()
            .map(|bad| bad.field_violations[0].field.clone())
            .unwrap_or_default();
        (Reason::of(&status), field)
    }

    #[test]
    fn each_bad_field_is_named() {
        let invalid = Some(Reason::InvalidArgument);
        assert_eq!(refusal(|g| g.request_id = "a b".into()), (invalid, "request_id".into()));
        assert_eq!(refusal(|g| g.prompt_ids.clear()), (invalid, "prompt_ids".into()));
        assert_eq!(refusal(|g| g.prompt_ids.push(100)), (invalid, "prompt_ids".into()));
        assert_eq!(refusal(|g| g.last_turn = Some(4)), (invalid, "last_turn".into()));
        assert_eq!(refusal(|g| g.max_tokens = 0), (invalid, "max_tokens".into()));
        assert_eq!(refusal(|g| g.continuation_ids = vec![1; 10]), (invalid, "max_tokens".into()));
        assert_eq!(refusal(|g| g.sampling = None), (invalid, "sampling".into()));
        assert_eq!(
            refusal(|g| g.max_tokens = 48),
            (Some(Reason::PromptTooLong), "prompt_ids".into())
        );
        assert_eq!(
            refusal(|g| g.stop_token_ids = vec![3, 100]),
            (invalid, "stop_token_ids".into())
        );
        let thought = |max_tokens, ids: &[u32], marks| {
            let end = vec![internal::ThoughtEndStep { ids: ids.to_vec() }];
            internal::ThoughtBudget { max_tokens, open_id: None, end, marks }
        };
        for (thought, field) in [
            (thought(0, &[5], 1), "thought.max_tokens"),
            (thought(1, &[], 1), "thought.end"),
            (thought(1, &[100], 1), "thought.end"),
            (internal::ThoughtBudget { open_id: Some(100), ..thought(1, &[5], 1) }, "thought.end"),
            (thought(1, &[5], 0), "thought.marks"),
            (thought(1, &[5], 2), "thought.marks"),
        ] {
            assert_eq!(refusal(|g| g.thought = Some(thought)), (invalid, field.into()));
        }
        assert_eq!(refusal(|g| g.min_tokens = 11), (invalid, "min_tokens".into()));
        let stops = |g: &mut Generation| (g.min_tokens, g.stop_token_ids) = (1, (0..100).collect());
        assert_eq!(refusal(stops), (invalid, "stop_token_ids".into()));
        assert_eq!(refusal(|g| g.logprobs = Some(21)), (invalid, "logprobs".into()));
    }

    #[test]
    fn each_bad_sampling_field_is_named() {
        let invalid = Some(Reason::InvalidArgument);
        let sampling = |temperature, top_p, min_p| {
            Some(SamplingRule {
                temperature,
                top_k: 0,
                top_p,
                min_p,
                repetition_penalty: 1.0,
                ..Default::default()
            })
        };
        assert_eq!(
            refusal(|g| g.sampling = sampling(f32::NAN, 1.0, 0.0)),
            (invalid, "sampling.temperature".into())
        );
        assert_eq!(
            refusal(|g| g.sampling = sampling(-1.0, 1.0, 0.0)),
            (invalid, "sampling.temperature".into())
        );
        assert_eq!(
            refusal(|g| g.sampling = sampling(1.0, 0.0, 0.0)),
            (invalid, "sampling.top_p".into())
        );
        assert_eq!(
            refusal(|g| g.sampling = sampling(1.0, 1.0, f32::INFINITY)),
            (invalid, "sampling.min_p".into())
        );
        for value in [f32::NAN, 0.0, 1e-39, 0.009, 10.5, f32::INFINITY] {
            let penalized =
                |g: &mut Generation| g.sampling.as_mut().expect("set").repetition_penalty = value;
            assert_eq!(
                refusal(penalized),
                (invalid, "sampling.repetition_penalty".into()),
                "{value}"
            );
        }
        for value in [f32::NAN, -2.1, 2.1, f32::INFINITY] {
            let presence =
                |g: &mut Generation| g.sampling.as_mut().expect("set").presence_penalty = value;
            assert_eq!(refusal(presence), (invalid, "sampling.presence_penalty".into()));
            let frequency =
                |g: &mut Generation| g.sampling.as_mut().expect("set").frequency_penalty = value;
            assert_eq!(refusal(frequency), (invalid, "sampling.frequency_penalty".into()));
        }
    }

    #[test]
    fn each_bad_logit_bias_is_named() {
        let invalid = Some(Reason::InvalidArgument);
        for broken in [
            vec![(100, 1.0)],
            vec![(3, f32::NAN)],
            vec![(3, 100.5)],
            vec![(3, 1.0), (3, 1.0)],
            vec![(4, 1.0), (3, 1.0)],
        ] {
            let list = broken
                .into_iter()
                .map(|(token_id, bias)| v1::LogitBias { token_id, bias })
                .collect();
            let biased = |g: &mut Generation| g.sampling.as_mut().expect("set").logit_bias = list;
            assert_eq!(refusal(biased), (invalid, "sampling.logit_bias".into()));
        }
    }

    #[test]
    fn ids_beyond_the_tokenizer_are_padding() {
        let permit = internal::Permit {
            lane_allowed: v1::Lane::Plain.into(),
            reason: v1::RouteReason::DrafterAbsent.into(),
            ..internal::Permit::default()
        };
        let generation = Generation { tokenizer_vocab: 90, ..good() };
        assert_eq!(checked(generation, permit).expect("good").id_limit, 90);
        assert_eq!(checked(good(), permit).expect("good").id_limit, 100);
    }

    #[test]
    fn every_sampling_field_reaches_the_engine() {
        let permit = internal::Permit {
            lane_allowed: v1::Lane::Plain.into(),
            reason: v1::RouteReason::DrafterAbsent.into(),
            ..internal::Permit::default()
        };
        let logit_bias = vec![
            v1::LogitBias { token_id: 2, bias: -100.0 },
            v1::LogitBias { token_id: 99, bias: 1.5 },
        ];
        let rule = SamplingRule {
            presence_penalty: 0.5,
            frequency_penalty: -0.25,
            logit_bias,
            ..good().sampling.expect("set")
        };
        let generation = Generation {
            sampling: Some(rule),
            min_tokens: 10,
            stop_token_ids: vec![7],
            logprobs: Some(20),
            ..good()
        };
        let checked = checked(generation, permit).expect("good");
        let expected = Rule { presence_penalty: 0.5, frequency_penalty: -0.25, ..Rule::GREEDY };
        assert_eq!((checked.sampling, checked.bias), (expected, vec![(2, -100.0), (99, 1.5)]));
        assert_eq!(
            (checked.min_tokens, checked.logprobs, checked.scheduling.stop_ids),
            (10, Some(20), vec![7])
        );
    }
}
