//! What both ways of completing ask for besides their prompts, and the names of their fields in
//! errors.

use paceline_vocabulary::RouteWish;
use paceline_vocabulary::sampling::{OutOfRange, SamplingRule};
use serde::Deserialize;
use utoipa::ToSchema;

use super::accepted;
use crate::front::http::accepted::{Rest, check};
use crate::front::http::error::FieldName;
use crate::front::http::json::AnyJson;
use crate::front::http::number::{Biases, Count, MaxTokens, Samples, Seed, TokenId, TopLogprobs};
use crate::front::http::values::TextOr;
use crate::inference::bounds::SampleCount;
use crate::inference::error::{InferenceError, quoted};
use crate::inference::params::{GenerationParams, LogitBias, SamplingParams};

/// Options of a stream.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, ToSchema)]
pub struct StreamOptions {
    /// Whether a last chunk has the tokens of the whole request.
    pub include_usage: Option<bool>,
    /// Fields that are not served.
    #[serde(flatten)]
    #[schema(ignore)]
    pub rest: Rest,
}

/// What a request asks of this service alone.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, ToSchema)]
pub struct Extension {
    /// The lane: `auto`, `plain` or `speculative`.
    pub route: Option<String>,
    /// Variables of the chat template.
    #[schema(value_type = Option<Object>)]
    pub template_arguments: Option<AnyJson>,
    /// Fields that are not served.
    #[serde(flatten)]
    #[schema(ignore)]
    pub rest: Rest,
}

/// The penalty under its two names.
///
/// # Errors
/// Both are there and differ; the second name has a penalty that is out of its range.
pub(super) fn one_penalty(
    repetition_penalty: Option<f32>,
    repeat_penalty: Option<f32>,
) -> Result<Option<f32>, InferenceError> {
    match (repetition_penalty, repeat_penalty) {
        (Some(ours), Some(theirs)) if ours != theirs => {
            let expected = format!("{ours}, as repetition_penalty has it");
            Err(InferenceError::invalid("repeat_penalty", expected, theirs))
        }
        (Some(ours), _) => Ok(Some(ours)),
        (None, Some(theirs)) => {
            let rule = SamplingRule { repetition_penalty: theirs, ..SamplingRule::GREEDY };
            let found = |error: OutOfRange| {
                InferenceError::invalid("repeat_penalty", error.expected, error.found)
            };
            rule.check().map_err(found)?;
            Ok(Some(theirs))
        }
        (None, None) => Ok(None),
    }
}

/// The parameters of a request, in whichever of the two messages they came.
#[derive(Clone, Debug, Default)]
pub(super) struct Parameters {
    pub(super) temperature: Option<f32>,
    pub(super) top_p: Option<f32>,
    pub(super) top_k: Option<Count>,
    pub(super) min_p: Option<f32>,
    pub(super) seed: Option<Seed>,
    pub(super) repetition_penalty: Option<f32>,
    pub(super) presence_penalty: Option<f32>,
    pub(super) frequency_penalty: Option<f32>,
    pub(super) logit_bias: Option<Biases>,
    pub(super) max_tokens: Option<MaxTokens>,
    pub(super) min_tokens: Option<Count>,
    pub(super) ignore_eos: Option<bool>,
    pub(super) stop: Option<TextOr<String>>,
    pub(super) stop_token_ids: Option<Vec<TokenId>>,
    pub(super) n: Option<Samples>,
    pub(super) logprobs: Option<TopLogprobs>,
    pub(super) route: Option<String>,
}

impl Parameters {
    /// The same for the middle.
    ///
    /// # Errors
    /// A value that no part behind could read: a bias without a token, an unknown lane.
    pub(super) fn checked(self) -> Result<GenerationParams, InferenceError> {
        let stop_token_ids = self.stop_token_ids.unwrap_or_default();
        let stop = match self.stop {
            None => Vec::new(),
            Some(TextOr::Text(stop)) => vec![stop],
            Some(TextOr::List(stops)) => stops,
        };
        Ok(GenerationParams {
            // The front has checked the client's name for it.
            model: String::new(),
            sampling: SamplingParams {
                temperature: self.temperature,
                top_k: self.top_k.map(Count::get),
                top_p: self.top_p,
                min_p: self.min_p,
                seed: self.seed.map(|Seed(seed)| seed),
                repetition_penalty: self.repetition_penalty,
                presence_penalty: self.presence_penalty,
                frequency_penalty: self.frequency_penalty,
                logit_bias: biases(self.logit_bias.unwrap_or_default())?,
            },
            max_tokens: self.max_tokens.map(MaxTokens::get),
            // Agents send a fixed number, and their conversations grow until it has no room. The
            // answer is cut in either case, and its end says so.
            lower_max_tokens: true,
            drop_oldest: false,
            min_tokens: self.min_tokens.map_or(0, Count::get),
            ignore_eos: self.ignore_eos.unwrap_or(false),
            stop_token_ids: stop_token_ids.into_iter().map(TokenId::get).collect(),
            stop,
            route: self.route.map(|word| route(&word)).transpose()?,
            report_margins: false,
            report_usage: false,
            logprobs: self.logprobs.map(TopLogprobs::get),
            samples: SampleCount::checked(self.n.map_or(1, Samples::get))?,
            form: None,
        })
    }
}

fn biases(Biases(biases): Biases) -> Result<Vec<LogitBias>, InferenceError> {
    let bias = |(token, bias): (String, f32)| {
        let token_id = token.parse().map_err(|_| {
            InferenceError::invalid("logit_bias", "token ids as names", quoted(&token))
        })?;
        Ok(LogitBias { token_id, bias })
    };
    biases.into_iter().map(bias).collect()
}

/// The lane that a client asks for.
fn route(word: &str) -> Result<RouteWish, InferenceError> {
    RouteWish::from_word(word).ok_or_else(|| {
        let words: Vec<_> = RouteWish::ALL.iter().map(|wish| wish.word()).collect();
        InferenceError::invalid("paceline.route", format!("one of {words:?}"), quoted(word))
    })
}

/// Whether the stream's last chunk has the tokens of the request.
///
/// # Errors
/// There are options of a stream, and the answer is none; an option is not served.
pub(super) fn include_usage(
    stream: bool,
    options: Option<StreamOptions>,
) -> Result<bool, InferenceError> {
    let Some(StreamOptions { include_usage, rest }) = options else { return Ok(false) };
    if !stream {
        let (expected, found) = ("nothing, because `stream` is not true", "options of a stream");
        return Err(InferenceError::invalid("stream_options", expected, found));
    }
    check("stream_options.", &rest, accepted::STREAM)?;
    Ok(include_usage.unwrap_or(false))
}

/// The protocol's names of the fields of the middle's input.
pub(super) const FIELDS: &[FieldName] = &[
    FieldName { inner: "samples", outer: "n" },
    FieldName { inner: "text", outer: "prompt" },
    FieldName { inner: "token_ids.ids", outer: "prompt" },
    FieldName { inner: "template_arguments", outer: "paceline.template_arguments" },
    FieldName { inner: "sampling", outer: "" },
    FieldName { inner: "limits", outer: "" },
    FieldName { inner: "messages[].reasoning", outer: "messages[].reasoning_content" },
    FieldName {
        inner: "messages[].tool_calls[].name",
        outer: "messages[].tool_calls[].function.name",
    },
    FieldName {
        inner: "messages[].tool_calls[].arguments",
        outer: "messages[].tool_calls[].function.arguments",
    },
    FieldName { inner: "grammar.json_schema", outer: "response_format.json_schema.schema" },
    FieldName { inner: "grammar.json_object", outer: "response_format" },
    FieldName { inner: "grammar", outer: "response_format" },
    FieldName { inner: "tools[].name", outer: "tools[].function.name" },
    FieldName { inner: "tools[].description", outer: "tools[].function.description" },
    FieldName { inner: "tools[].parameters", outer: "tools[].function.parameters" },
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::front::http::error::FieldPaths;

    #[test]
    fn fields_have_the_names_of_this_protocol() {
        let paths = FieldPaths { fields: FIELDS, messages: Vec::new() };
        for (middle, here) in [
            ("limits.max_tokens", "max_tokens"),
            ("limits.stop[3]", "stop[3]"),
            ("sampling.top_p", "top_p"),
            ("samples", "n"),
            ("text", "prompt"),
            ("token_ids.ids[5]", "prompt[5]"),
            ("messages[2].content[1]", "messages[2].content[1]"),
            ("messages[2].name", "messages[2].name"),
            ("messages[2].reasoning", "messages[2].reasoning_content"),
            ("messages[2].tool_calls[0].arguments", "messages[2].tool_calls[0].function.arguments"),
            ("messages[2].tool_calls[0].id", "messages[2].tool_calls[0].id"),
            ("tools[4].parameters", "tools[4].function.parameters"),
            ("template_arguments", "paceline.template_arguments"),
            ("grammar.json_schema", "response_format.json_schema.schema"),
            ("grammar", "response_format"),
        ] {
            let error = paths.translate(InferenceError::invalid(middle, "a", "b"));
            assert_eq!(error.field.as_deref(), Some(here));
        }
    }

    #[test]
    fn a_value_that_cannot_be_read_is_refused_by_name() {
        let refused = |parameters: Parameters| {
            parameters.checked().expect_err("a broken value").field.expect("a field")
        };
        let bias = Biases(vec![("hello".to_owned(), 1.0)]);
        assert_eq!(
            refused(Parameters { logit_bias: Some(bias), ..Default::default() }),
            "logit_bias"
        );
        let route = Some("fast".to_owned());
        assert_eq!(refused(Parameters { route, ..Default::default() }), "paceline.route");
        let options = Some(StreamOptions::default());
        let error = include_usage(false, options).expect_err("no stream");
        assert_eq!(error.field.as_deref(), Some("stream_options"));
    }
}
