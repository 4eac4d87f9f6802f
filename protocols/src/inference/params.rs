//! Parameters of a request besides its prompt: how tokens are chosen, and when an answer ends. They
//! are checked against inference.proto, then completed with the model's own sampling.

use std::collections::HashSet;

use paceline_text::grammar::check_form;
use paceline_text::shape::AnswerShape;
use paceline_vocabulary::RouteWish;
use paceline_vocabulary::sampling::{LogitBias, OutOfRange, SamplingRule, SamplingWish};

use super::bounds::{self, SampleCount};
use super::error::{Result, refuse};

/// Largest bias, and with the other sign the smallest.
pub const MAX_BIAS: f32 = 100.0;
/// Most biases of a request.
pub const MAX_BIASES: usize = 1024;
/// Most stop token ids of a request.
const MAX_STOP_IDS: usize = 64;
/// Upper bound of `logprobs`: alternatives reported for a token.
pub const MAX_LOGPROBS: u32 = 20;

/// Parameters of a request besides its prompt.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GenerationParams {
    /// Name of the model; empty means the served one.
    pub model: String,
    /// How tokens are chosen, as far as the client sets it.
    pub sampling: SamplingWish,
    /// The seed of the random numbers; drawn if it is absent.
    pub seed: Option<u64>,
    /// Summands of logits.
    pub logit_bias: Vec<LogitBias>,
    /// Most tokens; as many as fit if the client sets none.
    pub max_tokens: Option<u32>,
    /// Whether a `max_tokens` that has no room is served with as many tokens as fit. Otherwise it
    /// is refused.
    pub lower_max_tokens: bool,
    /// Whether the oldest messages of a conversation are left out if its prompt does not fit.
    pub drop_oldest: bool,
    /// Number of tokens before which no token ends the answer.
    pub min_tokens: u32,
    /// Whether the answer goes on after the end-of-sequence token.
    pub ignore_eos: bool,
    /// Whether special tokens are part of the answer's text, but for those that end it.
    pub show_special: bool,
    /// Ids that end the answer besides the model's own.
    pub stop_token_ids: Vec<u32>,
    /// Strings that end the answer.
    pub stop: Vec<String>,
    /// The lane that the client asks for.
    pub route: Option<RouteWish>,
    /// Whether margins are reported.
    pub report_margins: bool,
    /// Whether each event has the usage so far, so that it is known before the end.
    pub report_usage: bool,
    /// Whether log-probabilities are reported, and of how many of the most probable tokens.
    pub logprobs: Option<u32>,
    /// How many samples.
    pub samples: SampleCount,
    /// What is asked of text, thoughts and tool calls.
    pub shape: AnswerShape,
}

impl GenerationParams {
    /// Checks the fields alone.
    ///
    /// # Errors
    /// The first field that is out of its range.
    pub fn check(self) -> Result<Self> {
        if self.max_tokens == Some(0) {
            return refuse("limits.max_tokens", "at least 1", "0");
        }
        self.check_sampling()?;
        if self.stop_token_ids.len() > MAX_STOP_IDS {
            let (expected, found) =
                (format!("at most {MAX_STOP_IDS} of them"), self.stop_token_ids.len());
            return refuse("limits.stop_token_ids", expected, found);
        }
        if let Some(most) = self.max_tokens {
            check_min_tokens(self.min_tokens, most)?;
        }
        if let Some(count) = self.logprobs
            && count > MAX_LOGPROBS
        {
            return refuse("logprobs", format!("0 to {MAX_LOGPROBS}"), count);
        }
        bounds::stops(&self.stop)?;
        if let Some(text) = &self.shape.text {
            check_form(text)?;
            self.check_held()?;
        }
        Ok(self)
    }

    /// Checks an answer that is held to a form: it ends where the form does.
    ///
    /// # Errors
    /// The client has it go on, or not end before a number of tokens.
    pub fn check_held(&self) -> Result<()> {
        const WHY: &str = "because an answer that is held to a form ends where the form does";
        if self.ignore_eos {
            return refuse("limits.ignore_eos", format!("false, {WHY}"), "true");
        }
        if self.min_tokens > 0 {
            return refuse("limits.min_tokens", format!("0, {WHY}"), self.min_tokens);
        }
        Ok(())
    }

    /// Checks what the model decides: ids must be of its vocabulary, and all tokens that are asked
    /// for must have room.
    ///
    /// # Errors
    /// The first field that does not fit the model.
    pub fn check_fit(&self, vocab_size: u32, max_tokens: u32) -> Result<()> {
        let biased = self.logit_bias.iter().map(|one| one.token_id).enumerate();
        let biased = biased.map(|(at, id)| (format!("sampling.logit_bias[{at}].token_id"), id));
        let stops = self.stop_token_ids.iter().copied().enumerate();
        let stops = stops.map(|(at, id)| (format!("limits.stop_token_ids[{at}]"), id));
        if let Some((field, id)) = biased.chain(stops).find(|(_, id)| *id >= vocab_size) {
            let expected = format!("a token id below {vocab_size} (the model's vocabulary)");
            return refuse(&field, expected, id);
        }
        check_min_tokens(self.min_tokens, max_tokens)
    }

    /// The ids that end the answer: the model's `own` unless the client has the answer go on after
    /// them, and the request's; each once.
    pub fn stop_ids(&self, own: &[u32], vocab_size: u32) -> Vec<u32> {
        let own = own.iter().copied().filter(|id| !self.ignore_eos && *id < vocab_size);
        let mut seen = HashSet::new();
        own.chain(self.stop_token_ids.iter().copied()).filter(|id| seen.insert(*id)).collect()
    }

    /// The model's `own` ids after which the client has the answer go on.
    pub fn ignored_ids(&self, own: &[u32], vocab_size: u32) -> Vec<u32> {
        let goes_on =
            |id: &u32| self.ignore_eos && *id < vocab_size && !self.stop_token_ids.contains(id);
        own.iter().copied().filter(goes_on).collect()
    }

    /// Checks the parameters by which tokens are chosen.
    fn check_sampling(&self) -> Result<()> {
        if let Err(OutOfRange { name, expected, found }) =
            self.sampling.completed(&SamplingRule::GREEDY).check()
        {
            return refuse(&format!("sampling.{name}"), expected, found);
        }
        let biases = &self.logit_bias;
        if biases.len() > MAX_BIASES {
            let expected = format!("at most {MAX_BIASES} of them");
            return refuse("sampling.logit_bias", expected, biases.len());
        }
        let mut seen = HashSet::new();
        for (at, one) in biases.iter().enumerate() {
            let field = |name: &str| format!("sampling.logit_bias[{at}].{name}");
            if !(-MAX_BIAS..=MAX_BIAS).contains(&one.bias) {
                let expected = format!("a number from -{MAX_BIAS} to {MAX_BIAS}");
                return refuse(&field("bias"), expected, one.bias);
            }
            if !seen.insert(one.token_id) {
                let found = format!("{} again", one.token_id);
                return refuse(&field("token_id"), "each id at most once", found);
            }
        }
        Ok(())
    }

    /// The biases, in ascending order of their tokens.
    pub fn sorted_biases(&self) -> Vec<LogitBias> {
        let mut biases = self.logit_bias.clone();
        biases.sort_by_key(|one| one.token_id);
        biases
    }
}

fn check_min_tokens(least: u32, most: u32) -> Result<()> {
    if least > most {
        let expected = format!("at most {most}, the most tokens this request can have");
        return refuse("limits.min_tokens", expected, least);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use paceline_vocabulary::Reason;
    use paceline_vocabulary::generation::TextForm;

    use super::*;
    use crate::inference::error::InferenceError;

    fn bias(list: &[(u32, f32)]) -> Vec<LogitBias> {
        list.iter().map(|(token_id, bias)| LogitBias { token_id: *token_id, bias: *bias }).collect()
    }

    #[track_caller]
    fn is<T: std::fmt::Debug>(outcome: Result<T, InferenceError>, field: &str, words: &[&str]) {
        let error = outcome.expect_err("a broken request");
        assert_eq!((error.kind, error.field.as_deref()), (Reason::InvalidArgument, Some(field)));
        for word in words {
            assert!(error.message.contains(word), "{word:?} in {error}");
        }
    }

    fn sampled(sampling: SamplingWish) -> Result<GenerationParams, InferenceError> {
        GenerationParams { sampling, ..Default::default() }.check()
    }

    fn biased(list: &[(u32, f32)]) -> Result<GenerationParams, InferenceError> {
        GenerationParams { logit_bias: bias(list), ..Default::default() }.check()
    }

    #[test]
    fn the_ends_of_each_range_are_in_it() {
        let sampled = |sampling| sampled(sampling).expect("in its range");
        // As low as a temperature can be is the same as 0 and no mistake.
        for temperature in [0.0, f32::from_bits(1), 1e-39, 100.0] {
            sampled(SamplingWish { temperature: Some(temperature), ..Default::default() });
        }
        for repetition_penalty in [0.01, 10.0] {
            sampled(SamplingWish {
                repetition_penalty: Some(repetition_penalty),
                ..Default::default()
            });
        }
        for end in [-2.0, 2.0] {
            sampled(SamplingWish {
                presence_penalty: Some(end),
                frequency_penalty: Some(end),
                ..Default::default()
            });
            biased(&[(3, 50.0 * end)]).expect("in its range");
        }
        for (top_p, min_p) in [(f32::from_bits(1), 1.0), (1.0, 0.0)] {
            sampled(SamplingWish { top_p: Some(top_p), min_p: Some(min_p), ..Default::default() });
        }
    }

    #[test]
    fn each_field_out_of_its_range_is_named() {
        for value in [f32::NAN, -2.01, 2.01, f32::INFINITY] {
            let expected = ["from -2 to 2", &value.to_string()];
            let presence = SamplingWish { presence_penalty: Some(value), ..Default::default() };
            is(sampled(presence), "sampling.presence_penalty", &expected);
            let frequency = SamplingWish { frequency_penalty: Some(value), ..Default::default() };
            is(sampled(frequency), "sampling.frequency_penalty", &expected);
            let biased = biased(&[(3, 100.0), (4, value * 50.0)]);
            is(biased, "sampling.logit_bias[1].bias", &["from -100 to 100"]);
        }
        let twice = biased(&[(3, 1.0), (4, 1.0), (3, 1.0)]);
        is(twice, "sampling.logit_bias[2].token_id", &["once", "3 again"]);
        let many: Vec<(u32, f32)> = (0..1025).map(|id| (id, 0.0)).collect();
        biased(&many[1..]).expect("as many as may be");
        is(biased(&many), "sampling.logit_bias", &["at most 1024", "1025"]);

        let stops = |count: u32| {
            let stop_token_ids = (0..count).collect();
            GenerationParams { stop_token_ids, ..Default::default() }.check()
        };
        stops(64).expect("as many as may be");
        is(stops(65), "limits.stop_token_ids", &["at most 64", "65"]);
        let least = |min_tokens| {
            GenerationParams { max_tokens: Some(5), min_tokens, ..Default::default() }.check()
        };
        least(5).expect("the exact number");
        is(least(6), "limits.min_tokens", &["at most 5", "found 6"]);
        let reported =
            |count| GenerationParams { logprobs: Some(count), ..Default::default() }.check();
        reported(0).expect("the chosen ones alone");
        reported(20).expect("as many as may be");
        is(reported(21), "logprobs", &["0 to 20", "21"]);
    }

    fn params(ignore_eos: bool) -> GenerationParams {
        let logit_bias = bias(&[(9, 1.0), (4, -100.0)]);
        GenerationParams {
            logit_bias,
            min_tokens: 8,
            ignore_eos,
            stop_token_ids: vec![7, 2, 7],
            ..Default::default()
        }
    }

    #[test]
    fn ids_and_counts_must_fit_the_model() {
        params(false).check_fit(10, 8).expect("fits");
        is(
            params(false).check_fit(9, 8),
            "sampling.logit_bias[0].token_id",
            &["below 9", "found 9"],
        );
        let stops = GenerationParams { logit_bias: vec![], ..params(false) };
        is(stops.check_fit(7, 8), "limits.stop_token_ids[0]", &["below 7", "found 7"]);
        is(params(false).check_fit(10, 7), "limits.min_tokens", &["at most 7", "found 8"]);
    }

    #[test]
    fn the_models_own_sampling_completes_the_clients() {
        let own = [2, 3, 99];
        assert_eq!(params(false).stop_ids(&own, 10), [2, 3, 7]);
        assert_eq!(params(true).stop_ids(&own, 10), [7, 2], "the request's own stay");
        assert_eq!(params(false).ignored_ids(&own, 10), [0; 0]);
        assert_eq!(params(true).ignored_ids(&own, 10), [3]);
        let own =
            SamplingRule { presence_penalty: 1.5, frequency_penalty: 0.5, ..SamplingRule::GREEDY };
        let asked = SamplingWish { presence_penalty: Some(0.0), ..params(false).sampling };
        let rule = asked.completed(&own);
        assert_eq!((rule.presence_penalty, rule.frequency_penalty), (0.0, 0.5));
        assert_eq!(
            params(false).sorted_biases(),
            bias(&[(4, -100.0), (9, 1.0)]),
            "in ascending order"
        );
    }

    #[test]
    fn an_answer_that_is_held_to_a_form_ends_where_the_form_does() {
        let check = |change: fn(&mut GenerationParams)| {
            let mut params = GenerationParams::default();
            params.shape.text = Some(TextForm::JsonObject);
            change(&mut params);
            params.check().map(|_| ()).map_err(|error| error.field.expect("a field"))
        };
        assert_eq!(check(|_| {}), Ok(()));
        assert_eq!(check(|params| params.ignore_eos = true), Err("limits.ignore_eos".into()));
        assert_eq!(check(|params| params.min_tokens = 1), Err("limits.min_tokens".into()));
        let large = |params: &mut GenerationParams| {
            params.shape.text = Some(TextForm::Regex("a".repeat(20 << 10)));
        };
        assert_eq!(check(large), Err("grammar.regex".into()));
    }
}
