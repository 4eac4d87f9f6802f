//! Parameters that `/v1/chat/completions` and `/v1/completions` share, and the names of their
//! fields in errors.

use paceline_vocabulary::sampling::{LogitBias, OutOfRange, SamplingRule};

use super::accepted;
use crate::accepted::{check, objects};
use crate::inference::error::{InferenceError, Result, quoted, refuse};
use crate::json::AnyJson;
use crate::number::Biases;
use crate::paths::FieldName;

objects! {
    /// Options of a stream.
    #[derive(Default)]
    pub struct StreamOptions accepts STREAM {
        /// Whether a last chunk has the tokens of the whole request.
        pub include_usage: Option<bool>,
    }

    /// Options of a request that only this service has.
    #[derive(Default)]
    pub struct Extension {
        /// The lane: `auto`, `plain` or `speculative`.
        pub route: Option<String>,
        /// Variables of the chat template.
        #[schema(value_type = Option<Object>)]
        pub template_arguments: Option<AnyJson>,
    }
}

/// Parts of the request that the writer of an answer needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Asked {
    /// Whether the stream's last chunk has the tokens of the request.
    pub(crate) include_usage: bool,
}

/// The penalty under its two names.
///
/// # Errors
/// Both are there and differ; the second name has a penalty that is out of its range.
pub(super) fn one_penalty(
    repetition_penalty: Option<f32>,
    repeat_penalty: Option<f32>,
) -> Result<Option<f32>> {
    match (repetition_penalty, repeat_penalty) {
        (Some(ours), Some(theirs)) if ours != theirs => {
            refuse("repeat_penalty", format!("{ours}, as repetition_penalty has it"), theirs)
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

/// Adds to a request's struct the parameters that both ways of completing have. `$own` has the
/// other fields, so that a decoder takes apart all of them (I5).
macro_rules! with_parameters {
    ($(#[$meta:meta])* pub struct $name:ident: $own:ident {
        $($(#[$field_meta:meta])* pub $field:ident: $type:ty,)*
    }) => {
        /// A request without the shared parameters.
        #[expect(dead_code, reason = "a decoder names every field, also those that it does not read")]
        pub(super) struct $own { $(pub(super) $field: $type,)* }

        $(#[$meta])*
        pub struct $name {
            $($(#[$field_meta])* pub $field: $type,)*
            /// Number of answers.
            #[schema(inline)]
            pub n: Option<Samples>,
            /// One or more strings that end the answer.
            pub stop: Option<TextOr<String>>,
            /// The model's own temperature if it is absent.
            #[schema(minimum = 0.0, maximum = 100.0)]
            pub temperature: Option<f32>,
            /// Probability mass of the tokens to choose from.
            #[schema(exclusive_minimum = 0.0, maximum = 1.0)]
            pub top_p: Option<f32>,
            /// Number of the most probable tokens to choose from; all with 0 or -1.
            #[schema(inline)]
            pub top_k: Option<TopK>,
            /// Least probability of a token, relative to the most probable one.
            #[schema(minimum = 0.0, maximum = 1.0)]
            pub min_p: Option<f32>,
            /// Least probability of a token, as a multiple of the square of the most probable one's.
            #[schema(minimum = 0.0, maximum = 1.0)]
            pub top_a: Option<f32>,
            /// Seed of the random numbers. Requests with one seed give the same answer. The service
            /// draws one if it is absent or -1.
            #[schema(inline)]
            pub seed: Option<Seed>,
            /// Divides the logits of tokens that the prompt or the answer has.
            #[schema(minimum = 0.01, maximum = 10.0)]
            pub repetition_penalty: Option<f32>,
            /// Another name of `repetition_penalty`, that of Ollama and llama.cpp.
            #[schema(minimum = 0.01, maximum = 10.0)]
            pub repeat_penalty: Option<f32>,
            /// Lowers the logits of tokens that the answer has.
            #[schema(minimum = -2.0, maximum = 2.0)]
            pub presence_penalty: Option<f32>,
            /// Lowers the logits of tokens by their count in the answer.
            #[schema(minimum = -2.0, maximum = 2.0)]
            pub frequency_penalty: Option<f32>,
            /// Added to the logits of tokens, by token id.
            #[schema(inline)]
            pub logit_bias: Option<Biases>,
            /// No token ends the answer before this many.
            #[schema(inline)]
            pub min_tokens: Option<Count>,
            /// Whether the answer goes on after the model's own end.
            pub ignore_eos: Option<bool>,
            /// Further token ids that end the answer.
            pub stop_token_ids: Option<Vec<TokenId>>,
            /// False: special tokens that do not end the answer are part of its text.
            pub skip_special_tokens: Option<bool>,
        }

        impl $name {
            /// The request without its shared parameters, and those. They are an error if a bias
            /// has no token or two penalties differ.
            pub(super) fn split(self) -> ($own, Result<GenerationParams>) {
                let mut request = self;
                let parameters = request.parameters();
                ($own { $($field: request.$field,)* }, parameters)
            }

            fn parameters(&mut self) -> Result<GenerationParams> {
                let stop_token_ids = self.stop_token_ids.take().unwrap_or_default();
                let penalty = one_penalty(self.repetition_penalty, self.repeat_penalty)?;
                Ok(GenerationParams {
                    sampling: SamplingWish {
                        temperature: self.temperature,
                        top_k: self.top_k.map(TopK::or_all),
                        top_p: self.top_p,
                        min_p: self.min_p,
                        top_a: self.top_a,
                        repetition_penalty: penalty,
                        presence_penalty: self.presence_penalty,
                        frequency_penalty: self.frequency_penalty,
                    },
                    seed: self.seed.and_then(|Seed(seed)| seed),
                    logit_bias: biases(self.logit_bias.take().unwrap_or_default())?,
                    // Agents send a fixed number, and their conversations grow until it has no
                    // room. The answer is cut in either case, and its end says so.
                    lower_max_tokens: true,
                    min_tokens: self.min_tokens.map_or(0, Count::get),
                    ignore_eos: self.ignore_eos.unwrap_or(false),
                    show_special: !self.skip_special_tokens.unwrap_or(true),
                    stop_token_ids: stop_token_ids.into_iter().map(TokenId::get).collect(),
                    stop: match self.stop.take() {
                        None => Vec::new(),
                        Some(TextOr::Text(stop)) => vec![stop],
                        Some(TextOr::List(stops)) => stops,
                    },
                    samples: SampleCount::checked(self.n.map_or(1, Samples::get))?,
                    ..Default::default()
                })
            }
        }
    };
}
pub(super) use with_parameters;

/// The biases of a request.
///
/// # Errors
/// A name is no token id.
pub(super) fn biases(Biases(biases): Biases) -> Result<Vec<LogitBias>> {
    let bias = |(token, bias): (String, f32)| {
        let token_id = token.parse().map_err(|_| {
            InferenceError::invalid("logit_bias", "token ids as names", quoted(&token))
        })?;
        Ok(LogitBias { token_id, bias })
    };
    biases.into_iter().map(bias).collect()
}

/// Whether the stream's last chunk has the tokens of the request.
///
/// # Errors
/// There are options of a stream, and the answer is none; an option is not served.
pub(super) fn include_usage(stream: bool, options: Option<StreamOptions>) -> Result<bool> {
    let Some(StreamOptions { include_usage, rest }) = options else { return Ok(false) };
    if !stream {
        let (expected, found) = ("nothing, because `stream` is not true", "options of a stream");
        return refuse("stream_options", expected, found);
    }
    check("stream_options.", &rest, StreamOptions::ACCEPTED)?;
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
    use crate::paths::FieldPaths;
    use crate::values::route;

    #[test]
    fn fields_have_the_names_of_this_protocol() {
        let paths = FieldPaths::new(FIELDS);
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
        let bias = Biases(vec![("hello".to_owned(), 1.0)]);
        let error = biases(bias).expect_err("no token id");
        assert_eq!(error.field.as_deref(), Some("logit_bias"));
        let error = route("fast").expect_err("no lane");
        assert_eq!(error.field.as_deref(), Some("paceline.route"));
        let options = Some(StreamOptions::default());
        let error = include_usage(false, options).expect_err("no stream");
        assert_eq!(error.field.as_deref(), Some("stream_options"));
    }
}
