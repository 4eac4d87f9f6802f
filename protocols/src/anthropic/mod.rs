//! Anthropic: messages, and the count of their tokens.
//!
//! [`types`] a request · [`accepted`] fields that change nothing · [`decode`] and `conversation`
//! requests for the middle · [`encode`] answers · [`error`] errors · [`models`] the served model.

pub mod accepted;
#[cfg(any(test, feature = "samples"))]
pub mod answer;
mod blocks;
mod conversation;
pub mod decode;
pub mod encode;
pub mod error;
pub mod models;
mod tools;
pub mod types;

use serde::Serialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use self::decode::{Asked, Purpose, decode};
use self::encode::MessageWriter;
use self::error::Anthropic;
use self::types::MessagesRequest;
use crate::inference::error::Result;
use crate::inference::model::TokenCount;
use crate::protocol::{Counting, DecodeContext, Decoded, Protocol};

/// `/v1/messages`.
#[derive(Clone, Copy, Debug)]
pub struct Messages;

/// `/v1/messages/count_tokens`.
#[derive(Clone, Copy, Debug)]
pub struct CountTokens;

/// The answer of `/v1/messages/count_tokens`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct CountedTokens {
    /// Tokens of the prompt.
    pub input_tokens: u64,
}

/// The request for the middle.
fn decoded(
    body: MessagesRequest,
    context: &DecodeContext<'_>,
    purpose: Purpose,
) -> Result<Decoded<Asked>> {
    context.check_model(&body.model)?;
    decode(body, purpose)
}

impl Protocol for Messages {
    type Dialect = Anthropic;
    type Body = MessagesRequest;
    type Writer = MessageWriter;
    const METHOD: &'static str = "/v1/messages";

    fn decode(
        body: MessagesRequest,
        context: &DecodeContext<'_>,
    ) -> Result<Decoded<MessageWriter>> {
        let writer = |asked, _: &_| MessageWriter::new(context.request_id, context.served, asked);
        Ok(decoded(body, context, Purpose::Answer)?.with_writer(writer))
    }
}

impl Protocol for CountTokens {
    type Dialect = Anthropic;
    type Body = MessagesRequest;
    type Writer = ();
    const METHOD: &'static str = "/v1/messages/count_tokens";

    fn decode(body: MessagesRequest, context: &DecodeContext<'_>) -> Result<Decoded<()>> {
        Ok(decoded(body, context, Purpose::Count)?.with_writer(|_, _| ()))
    }
}

impl Counting for CountTokens {
    fn counted(count: &TokenCount) -> Value {
        json!(CountedTokens { input_tokens: count.ids.len() as u64 })
    }
}
