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

use crate::answer::Head;
use crate::inference::error::Result;
use crate::inference::input::RequestInput;
use crate::json;
use crate::protocol::{DecodeContext, Decoded, Protocol};

use super::error::OpenAi;
use request::CompletionRequest;
use write::{Answers, CompletionWriter};

/// The middle's input for the first prompt of a body.
pub fn input(body: CompletionRequest) -> Result<RequestInput> {
    Ok(decode::completion(body, || None)?.input)
}

/// Most numbers of a body.
pub const MAX_NUMBERS: usize = Completions::MAX_NUMBERS;

/// `/v1/completions`.
#[derive(Clone, Copy, Debug)]
pub struct Completions;

impl Protocol for Completions {
    type Dialect = OpenAi;
    type Body = CompletionRequest;
    type Writer = CompletionWriter;
    const METHOD: &'static str = "/v1/completions";
    // A prompt may be token ids, beside the numbers of every request.
    const MAX_NUMBERS: usize = limits::MAX_TOKEN_IDS as usize + json::MAX_NUMBERS;

    fn decode(
        body: CompletionRequest,
        context: &DecodeContext<'_>,
    ) -> Result<Decoded<CompletionWriter>> {
        context.check_model(body.model.as_deref().unwrap_or_default())?;
        let decoded = decode::completion(body, || context.infill())?;
        let of_prompt = decoded.input.params.samples;
        let answers = Answers { of_prompt, all: of_prompt.of_prompts(decoded.more.len() + 1)? };
        Ok(decoded.with_writer(|asked, RequestInput { params, .. }| {
            let logprobs = params.logprobs.map(|_| context.token_texts());
            CompletionWriter::new(Head::of(context), answers, asked, logprobs)
        }))
    }
}
