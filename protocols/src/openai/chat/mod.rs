//! `/v1/chat/completions`: conversations.
//!
//! [`request`] the request's fields · [`decode`] makes the middle's input of it · `thinking` its
//! fields about thinking · [`answer`] the fields of answers · [`write`] makes them of events.

pub mod answer;
mod decode;
pub mod request;
mod thinking;
pub(crate) mod write;

use crate::answer::Head;
use crate::inference::error::Result;
use crate::inference::input::RequestInput;
use crate::protocol::{DecodeContext, Decoded, Protocol};

use super::error::OpenAi;
use request::ChatCompletionRequest;
use write::ChatWriter;

/// The middle's input in a body.
pub fn input(body: ChatCompletionRequest) -> Result<RequestInput> {
    Ok(decode::chat(body)?.input)
}

/// `/v1/chat/completions`.
#[derive(Clone, Copy, Debug)]
pub struct Chat;

impl Protocol for Chat {
    type Dialect = OpenAi;
    type Body = ChatCompletionRequest;
    type Writer = ChatWriter;
    const METHOD: &'static str = "/v1/chat/completions";

    fn decode(
        body: ChatCompletionRequest,
        context: &DecodeContext<'_>,
    ) -> Result<Decoded<ChatWriter>> {
        context.check_model(body.model.as_deref().unwrap_or_default())?;
        Ok(decode::chat(body)?.with_writer(|asked, RequestInput { params, .. }| {
            let logprobs = params.logprobs.map(|_| context.token_texts());
            ChatWriter::new(Head::of(context), params.samples, asked, logprobs)
        }))
    }
}
