//! `/v1/completions`: text that the model continues.
//!
//! [`request`] the request's fields · [`decode`] makes the middle's input of it · [`answer`] the
//! fields of answers · [`write`] makes them of events.

pub mod answer;
mod decode;
pub mod request;
mod write;

#[cfg(test)]
mod tests;

use paceline_proto::limits;

use crate::front::http::answer::Head;
use crate::front::http::error::FieldName;
use crate::front::http::exchange::{DecodeContext, Decoded, Protocol};
use crate::front::http::json;
use crate::front::http::one_call::AllowedCalls;
use crate::inference::error::InferenceError;
use crate::inference::input::RequestInput;

use super::error::OpenAi;
use super::params::FIELDS;
use decode::DecodedCompletion;
use request::CompletionRequest;
use write::{Answers, CompletionWriter};

/// The middle's input for the first prompt of a body.
pub(in crate::front::http) fn input(
    body: CompletionRequest,
) -> Result<RequestInput, InferenceError> {
    let inputs = decode::completion(body)?.inputs;
    let no_prompt = || InferenceError::invalid("prompt", "at least one prompt", "none");
    inputs.into_iter().next().ok_or_else(no_prompt)
}

/// Most numbers of a body.
pub(in crate::front::http) const MAX_NUMBERS: usize = Completions::MAX_NUMBERS;

/// `/v1/completions`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Completions;

impl Protocol for Completions {
    type Dialect = OpenAi;
    type Body = CompletionRequest;
    type Writer = CompletionWriter;
    const METHOD: &'static str = "/v1/completions";
    const FIELDS: &'static [FieldName] = FIELDS;
    // A prompt may be token ids, beside the numbers of every request.
    const MAX_NUMBERS: usize = limits::MAX_TOKEN_IDS as usize + json::MAX_NUMBERS;

    fn decode(
        body: CompletionRequest,
        context: &DecodeContext<'_>,
    ) -> Result<Decoded<CompletionWriter>, InferenceError> {
        context.check_model(body.model.as_deref().unwrap_or_default())?;
        let DecodedCompletion { inputs, stream, include_usage } = decode::completion(body)?;
        let mut inputs = inputs.into_iter();
        let no_prompt = || InferenceError::invalid("prompt", "at least one prompt", "none");
        let input = inputs.next().ok_or_else(no_prompt)?;
        let more: Vec<_> = inputs.collect();
        let params = &input.params;
        let logprobs = params.logprobs.map(|_| context.token_texts());
        let answers =
            Answers { of_prompt: params.samples, all: params.samples.of_prompts(more.len() + 1)? };
        let writer = CompletionWriter::new(Head::of(context), answers, include_usage, logprobs);
        let calls = AllowedCalls::All;
        Ok(Decoded { input, more, writer, stream, messages: Vec::new(), calls })
    }
}
