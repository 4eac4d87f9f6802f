//! `/v1/chat/completions`: conversations.
//!
//! [`request`] the request's fields · [`decode`] makes the middle's input of it · `thinking` its
//! fields about thinking · [`answer`] the fields of answers · [`write`] makes them of events.

pub mod answer;
mod decode;
pub mod request;
mod thinking;
pub(crate) mod write;

#[cfg(test)]
mod decode_tests;
#[cfg(test)]
mod write_tests;

use crate::front::http::answer::Head;
use crate::front::http::error::FieldName;
use crate::front::http::exchange::{DecodeContext, Decoded, Protocol};
use crate::inference::error::InferenceError;
use crate::inference::input::RequestInput;

use super::error::OpenAi;
use super::params::FIELDS;
use decode::DecodedChat;
use request::ChatCompletionRequest;
use write::ChatWriter;

/// The middle's input in a body.
pub(in crate::front::http) fn input(
    body: ChatCompletionRequest,
) -> Result<RequestInput, InferenceError> {
    Ok(decode::chat(body)?.input)
}

/// `/v1/chat/completions`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chat;

impl Protocol for Chat {
    type Dialect = OpenAi;
    type Body = ChatCompletionRequest;
    type Writer = ChatWriter;
    const METHOD: &'static str = "/v1/chat/completions";
    const FIELDS: &'static [FieldName] = FIELDS;

    fn decode(
        body: ChatCompletionRequest,
        context: &DecodeContext<'_>,
    ) -> Result<Decoded<ChatWriter>, InferenceError> {
        context.check_model(body.model.as_deref().unwrap_or_default())?;
        let DecodedChat { input, stream, include_usage, calls } = decode::chat(body)?;
        let params = &input.params;
        let logprobs = params.logprobs.map(|_| context.token_texts());
        let writer = ChatWriter::new(Head::of(context), params.samples, include_usage, logprobs);
        let (more, messages) = (Vec::new(), Vec::new());
        Ok(Decoded { input, more, writer, stream, messages, calls })
    }
}
