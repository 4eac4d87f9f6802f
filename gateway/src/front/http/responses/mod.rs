//! OpenAI Responses, without state: a request has the whole conversation.
//!
//! [`types`] a request · [`accepted`] fields that change nothing · [`decode`] requests for the
//! middle · [`tools`] functions, groups and tools that take any text · [`encode`] answers ·
//! [`custom_input`] the text of such a tool call · [`logprobs`] log-probabilities of a message.

pub mod accepted;
#[cfg(test)]
pub mod answer;
mod custom_input;
pub mod decode;
pub mod encode;
mod logprobs;
mod parts;
pub mod tools;
pub mod types;

use std::sync::Arc;

use axum::Router;
use axum::routing::post;

use self::decode::decode;
use self::encode::ResponseWriter;
use self::types::ResponsesRequest;
use super::HttpFront;
use super::answer::Head;
use super::exchange;
use super::openai::error::OpenAi;
use super::protocol::{DecodeContext, Decoded, Protocol};
use crate::inference::error::Result;

/// `/v1/responses`.
#[derive(Clone, Copy, Debug)]
pub struct Responses;

/// The paths of this protocol.
pub fn routes() -> Router<Arc<HttpFront>> {
    Router::new().route("/v1/responses", post(exchange::answer::<Responses>))
}

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
