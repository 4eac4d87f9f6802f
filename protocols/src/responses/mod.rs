//! OpenAI Responses, without state: a request has the whole conversation.
//!
//! [`types`] a request · [`accepted`] fields that change nothing · [`decode`] requests for the
//! middle · [`tools`] functions, groups and tools that take any text · [`encode`] answers ·
//! [`custom_input`] the text of such a tool call · [`logprobs`] log-probabilities of a message.

pub mod accepted;
#[cfg(any(test, feature = "samples"))]
pub mod answer;
mod custom_input;
pub mod decode;
pub mod encode;
mod logprobs;
mod parts;
pub mod tools;
pub mod types;

use self::decode::decode;
use self::encode::ResponseWriter;
use self::types::ResponsesRequest;
use crate::answer::Head;
use crate::inference::error::Result;
use crate::openai::error::OpenAi;
use crate::protocol::{DecodeContext, Decoded, Protocol};

/// `/v1/responses`.
#[derive(Clone, Copy, Debug)]
pub struct Responses;

impl Protocol for Responses {
    type Dialect = OpenAi;
    type Body = ResponsesRequest;
    type Writer = ResponseWriter;
    const METHOD: &'static str = "/v1/responses";

    fn decode(
        body: ResponsesRequest,
        context: &DecodeContext<'_>,
    ) -> Result<Decoded<ResponseWriter>> {
        context.check_model(body.model.as_deref().unwrap_or_default())?;
        Ok(decode(body)?.with_writer(|asked, input| {
            let texts = input.params.logprobs.map(|_| context.token_texts());
            ResponseWriter::new(Head::of(context), asked, texts)
        }))
    }
}
