//! How tokens are chosen and which of them end an answer, as a request says it: checked against
//! inference.proto, then filled with the model's own.

use std::collections::HashSet;

use paceline_proto::v1;
use tonic::Status;

use super::Wishes;
use crate::error::invalid;
use crate::sampling::{OutOfRange, SamplingRule};

/// Most biases of a request.
const MOST_BIASES: usize = 1024;
/// Most stop token ids of a request.
const MOST_STOP_IDS: usize = 64;
/// Most of the most probable tokens that are reported at a place.
const MOST_LOGPROBS: u32 = 20;

/// Looks at the fields alone.
///
/// # Errors
/// The first that is out of its range, by name.
pub(super) fn check(
    sampling: &v1::Sampling,
    limits: &v1::Limits,
    logprobs: Option<u32>,
) -> Result<(), Status> {
    if let Err(OutOfRange { name, expected, found }) =
        filled(sampling, &SamplingRule::GREEDY).check()
    {
        return Err(invalid(&format!("sampling.{name}"), expected, found));
    }
    let biases = &sampling.logit_bias;
    if biases.len() > MOST_BIASES {
        return Err(invalid(
            "sampling.logit_bias",
            format!("at most {MOST_BIASES} of them"),
            biases.len(),
        ));
    }
    let mut seen = HashSet::new();
    for (at, one) in biases.iter().enumerate() {
        let field = |name: &str| format!("sampling.logit_bias[{at}].{name}");
        if !(-100.0..=100.0).contains(&one.bias) {
            return Err(invalid(&field("bias"), "a number from -100 to 100", one.bias));
        }
        if !seen.insert(one.token_id) {
            return Err(invalid(
                &field("token_id"),
                "each id at most once",
                format!("{} again", one.token_id),
            ));
        }
    }
    if limits.stop_token_ids.len() > MOST_STOP_IDS {
        let expected = format!("at most {MOST_STOP_IDS} of them");
        return Err(invalid("limits.stop_token_ids", expected, limits.stop_token_ids.len()));
    }
    if let Some(most) = limits.max_tokens {
        check_min_tokens(limits.min_tokens, most)?;
    }
    match logprobs {
        Some(count) if count > MOST_LOGPROBS => {
            Err(invalid("logprobs", format!("0 to {MOST_LOGPROBS}"), count))
        }
        _ => Ok(()),
    }
}

/// Looks at what the model decides: ids must be of its vocabulary, and all tokens that are asked
/// for must have room.
///
/// # Errors
/// The first field that does not go with it, by name.
pub(super) fn fits(wishes: &Wishes, vocab_size: u32, max_tokens: u32) -> Result<(), Status> {
    let biased = wishes.sampling.logit_bias.iter().map(|one| one.token_id).enumerate();
    let biased = biased.map(|(at, id)| (format!("sampling.logit_bias[{at}].token_id"), id));
    let stops = wishes.stop_token_ids.iter().copied().enumerate();
    let stops = stops.map(|(at, id)| (format!("limits.stop_token_ids[{at}]"), id));
    if let Some((field, id)) = biased.chain(stops).find(|(_, id)| *id >= vocab_size) {
        return Err(invalid(
            &field,
            format!("a token id below {vocab_size} (the model's vocabulary)"),
            id,
        ));
    }
    check_min_tokens(wishes.min_tokens, max_tokens)
}

fn check_min_tokens(least: u32, most: u32) -> Result<(), Status> {
    if least > most {
        let expected = format!("at most {most}, the most tokens this request can have");
        return Err(invalid("limits.min_tokens", expected, least));
    }
    Ok(())
}

/// Behind which ids the answer ends: the model's `own` unless the client goes on after them, and
/// the request's; each once.
pub(super) fn stop_ids(wishes: &Wishes, own: &[u32], vocab_size: u32) -> Vec<u32> {
    let own = own.iter().copied().filter(|id| !wishes.ignore_eos && *id < vocab_size);
    let mut seen = HashSet::new();
    own.chain(wishes.stop_token_ids.iter().copied()).filter(|id| seen.insert(*id)).collect()
}

/// Behind which of the model's `own` ids the client has the answer go on.
pub(super) fn ignored_ids(wishes: &Wishes, own: &[u32], vocab_size: u32) -> Vec<u32> {
    let goes_on =
        |id: &u32| wishes.ignore_eos && *id < vocab_size && !wishes.stop_token_ids.contains(id);
    own.iter().copied().filter(goes_on).collect()
}

/// The client's sampling with the model's own where the client says nothing.
pub(super) fn filled(sampling: &v1::Sampling, own: &SamplingRule) -> SamplingRule {
    SamplingRule {
        temperature: sampling.temperature.unwrap_or(own.temperature),
        top_k: sampling.top_k.unwrap_or(own.top_k),
        top_p: sampling.top_p.unwrap_or(own.top_p),
        min_p: sampling.min_p.unwrap_or(own.min_p),
        repetition_penalty: sampling.repetition_penalty.unwrap_or(own.repetition_penalty),
        presence_penalty: sampling.presence_penalty.unwrap_or(own.presence_penalty),
        frequency_penalty: sampling.frequency_penalty.unwrap_or(own.frequency_penalty),
    }
}

/// The client's biases, in ascending order of their tokens.
pub(super) fn biases(sampling: &v1::Sampling) -> Vec<v1::LogitBias> {
    let mut biases = sampling.logit_bias.clone();
    biases.sort_by_key(|one| one.token_id);
    biases
}

#[cfg(test)]
mod tests {
    use paceline_proto::status::{Reason, ReasonStatus as _};
    use tonic_types::StatusExt as _;

    use super::*;

    fn bias(list: &[(u32, f32)]) -> Vec<v1::LogitBias> {
        list.iter()
            .map(|(token_id, bias)| v1::LogitBias { token_id: *token_id, bias: *bias })
            .collect()
    }

    #[track_caller]
    fn is(outcome: Result<(), Status>, field: &str, words: &[&str]) {
        let status = outcome.expect_err("a broken request");
        assert_eq!(Reason::of(&status), Some(Reason::InvalidArgument), "{status:?}");
        let named =
            status.get_details_bad_request().map(|bad| bad.field_violations[0].field.clone());
        assert_eq!(named.as_deref(), Some(field));
        words.iter().for_each(|word| {
            assert!(status.message().contains(word), "{word:?} in {}", status.message())
        });
    }

    #[test]
    fn the_ends_of_each_range_are_in_it() {
        let sampled = |sampling: v1::Sampling| {
            check(&sampling, &v1::Limits::default(), None).expect("in its range")
        };
        // As low as a temperature can be is the same as 0 and no mistake.
        for temperature in [0.0, f32::from_bits(1), 1e-39, 100.0] {
            sampled(v1::Sampling { temperature: Some(temperature), ..Default::default() });
        }
        for repetition_penalty in [0.01, 10.0] {
            sampled(v1::Sampling {
                repetition_penalty: Some(repetition_penalty),
                ..Default::default()
            });
        }
        for end in [-2.0, 2.0] {
            sampled(v1::Sampling {
                presence_penalty: Some(end),
                frequency_penalty: Some(end),
                ..Default::default()
            });
            sampled(v1::Sampling { logit_bias: bias(&[(3, 50.0 * end)]), ..Default::default() });
        }
        for (top_p, min_p) in [(f32::from_bits(1), 1.0), (1.0, 0.0)] {
            sampled(v1::Sampling { top_p: Some(top_p), min_p: Some(min_p), ..Default::default() });
        }
    }

    #[test]
    fn each_field_out_of_its_range_is_named() {
        let sampled = |sampling: v1::Sampling| check(&sampling, &v1::Limits::default(), None);
        for value in [f32::NAN, -2.01, 2.01, f32::INFINITY] {
            let expected = ["from -2 to 2", &value.to_string()];
            let presence = v1::Sampling { presence_penalty: Some(value), ..Default::default() };
            is(sampled(presence), "sampling.presence_penalty", &expected);
            let frequency = v1::Sampling { frequency_penalty: Some(value), ..Default::default() };
            is(sampled(frequency), "sampling.frequency_penalty", &expected);
            let biased = v1::Sampling {
                logit_bias: bias(&[(3, 100.0), (4, value * 50.0)]),
                ..Default::default()
            };
            is(sampled(biased), "sampling.logit_bias[1].bias", &["from -100 to 100"]);
        }
        let twice = v1::Sampling {
            logit_bias: bias(&[(3, 1.0), (4, 1.0), (3, 1.0)]),
            ..Default::default()
        };
        is(sampled(twice), "sampling.logit_bias[2].token_id", &["once", "3 again"]);
        let many: Vec<(u32, f32)> = (0..1025).map(|id| (id, 0.0)).collect();
        let most = v1::Sampling { logit_bias: bias(&many[1..]), ..Default::default() };
        sampled(most).expect("as many as may be");
        let many = v1::Sampling { logit_bias: bias(&many), ..Default::default() };
        is(sampled(many), "sampling.logit_bias", &["at most 1024", "1025"]);

        let limited = |limits: v1::Limits| check(&v1::Sampling::default(), &limits, None);
        let stops =
            |count: u32| v1::Limits { stop_token_ids: (0..count).collect(), ..Default::default() };
        limited(stops(64)).expect("as many as may be");
        is(limited(stops(65)), "limits.stop_token_ids", &["at most 64", "65"]);
        let least =
            |min_tokens| v1::Limits { max_tokens: Some(5), min_tokens, ..Default::default() };
        limited(least(5)).expect("exactly so many");
        is(limited(least(6)), "limits.min_tokens", &["at most 5", "found 6"]);
        let reported = |count| check(&v1::Sampling::default(), &v1::Limits::default(), Some(count));
        reported(0).expect("the chosen ones alone");
        reported(20).expect("as many as may be");
        is(reported(21), "logprobs", &["0 to 20", "21"]);
    }

    fn wishes(ignore_eos: bool) -> Wishes {
        Wishes {
            model: String::new(),
            sampling: v1::Sampling {
                logit_bias: bias(&[(9, 1.0), (4, -100.0)]),
                ..Default::default()
            },
            max_tokens: None,
            min_tokens: 8,
            ignore_eos,
            stop_token_ids: vec![7, 2, 7],
            route: v1::RouteWish::Auto,
            report_margins: false,
            logprobs: None,
            samples: 1,
            stop: vec![],
        }
    }

    #[test]
    fn ids_and_counts_must_fit_the_model() {
        fits(&wishes(false), 10, 8).expect("fits");
        is(fits(&wishes(false), 9, 8), "sampling.logit_bias[0].token_id", &["below 9", "found 9"]);
        let stops = Wishes { sampling: v1::Sampling::default(), ..wishes(false) };
        is(fits(&stops, 7, 8), "limits.stop_token_ids[0]", &["below 7", "found 7"]);
        is(fits(&wishes(false), 10, 7), "limits.min_tokens", &["at most 7", "found 8"]);
    }

    #[test]
    fn the_models_own_stands_where_the_client_says_nothing() {
        assert_eq!(stop_ids(&wishes(false), &[2, 3, 99], 10), [2, 3, 7]);
        assert_eq!(stop_ids(&wishes(true), &[2, 3, 99], 10), [7, 2], "the request's own stay");
        assert_eq!(
            (
                ignored_ids(&wishes(false), &[2, 3, 99], 10),
                ignored_ids(&wishes(true), &[2, 3, 99], 10)
            ),
            (vec![], vec![3])
        );
        let own =
            SamplingRule { presence_penalty: 1.5, frequency_penalty: 0.5, ..SamplingRule::GREEDY };
        let said = v1::Sampling { presence_penalty: Some(0.0), ..wishes(false).sampling };
        let rule = filled(&said, &own);
        assert_eq!((rule.presence_penalty, rule.frequency_penalty), (0.0, 0.5));
        assert_eq!(biases(&said), bias(&[(4, -100.0), (9, 1.0)]), "in ascending order");
    }
}
