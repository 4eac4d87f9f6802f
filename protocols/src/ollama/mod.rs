//! Ollama: conversations, texts, and the served model.
//!
//! [`request`] requests · [`accepted`] fields that change nothing · [`decode`] requests for the
//! middle · [`encode`] answers · [`error`] errors · [`models`] the served model.
//!
//! Source: Ollama's documentation of its API, and the requests of its clients.

pub mod accepted;
pub mod decode;
pub mod encode;
pub mod error;
pub mod models;
pub mod request;

use std::borrow::Cow;

use serde_json::Value;

use self::decode::is_empty;
use self::encode::{OllamaPath, OllamaWriter, loaded};
use self::error::Ollama;
use self::request::{OllamaChatRequest, OllamaGenerateRequest};
use crate::answer::Head;
use crate::inference::error::{InferenceError, Result};
use crate::inference::input::RequestInput;
use crate::protocol::{DecodeContext, Decoded, Protocol};

/// The version of Ollama whose API this is. Clients refuse versions that are too old for them.
pub const VERSION: &str = "0.33.0";
/// The tag of a name without one.
const LATEST: &str = ":latest";

/// `/api/chat`.
#[derive(Clone, Copy, Debug)]
pub struct OllamaChat;

/// `/api/generate`.
#[derive(Clone, Copy, Debug)]
pub struct OllamaGenerate;

/// The served model's name as this protocol's clients see it: with a tag.
pub fn tagged(served: &str) -> String {
    if served.contains(':') { served.to_owned() } else { format!("{served}{LATEST}") }
}

/// The name that a client asks for, without the tag that stands for none.
///
/// # Errors
/// There is no name.
pub fn untagged<'a>(asked: Option<&'a str>, served: &str) -> Result<Cow<'a, str>> {
    match asked.unwrap_or_default() {
        "" => Err(InferenceError::invalid("model", "the name of a model", "none")),
        name if name == served => Ok(name.into()),
        name => Ok(name.strip_suffix(LATEST).unwrap_or(name).into()),
    }
}

/// Checks the name of a request's model.
fn check_model(asked: Option<&str>, context: &DecodeContext<'_>) -> Result<()> {
    context.check_model(&untagged(asked, context.served)?)
}

/// The writer of an answer on one of the paths.
fn with_writer(
    decoded: Decoded<()>,
    form: OllamaPath,
    context: &DecodeContext<'_>,
) -> Decoded<OllamaWriter> {
    decoded.with_writer(|(), RequestInput { params, .. }| {
        let logprobs = params.logprobs.map(|_| context.token_texts());
        OllamaWriter::new(Head::of(context), form, logprobs)
    })
}

impl Protocol for OllamaChat {
    type Dialect = Ollama;
    type Body = OllamaChatRequest;
    type Writer = OllamaWriter;
    const METHOD: &'static str = "/api/chat";

    fn at_once(body: &OllamaChatRequest, context: &DecodeContext<'_>) -> Result<Option<Value>> {
        check_model(body.model.as_deref(), context)?;
        let asks = body.messages.as_ref().is_some_and(|messages| !messages.is_empty());
        let empty = is_empty(body.keep_alive, asks);
        Ok(empty.map(|keep| loaded(&Head::of(context), OllamaPath::Chat, keep)))
    }

    fn decode(
        body: OllamaChatRequest,
        context: &DecodeContext<'_>,
    ) -> Result<Decoded<OllamaWriter>> {
        check_model(body.model.as_deref(), context)?;
        Ok(with_writer(decode::chat(body)?, OllamaPath::Chat, context))
    }
}

impl Protocol for OllamaGenerate {
    type Dialect = Ollama;
    type Body = OllamaGenerateRequest;
    type Writer = OllamaWriter;
    const METHOD: &'static str = "/api/generate";

    fn at_once(body: &OllamaGenerateRequest, context: &DecodeContext<'_>) -> Result<Option<Value>> {
        check_model(body.model.as_deref(), context)?;
        let texts = [&body.prompt, &body.suffix].into_iter().flatten();
        let mut given = texts.chain(body.images.iter().flatten());
        let empty = is_empty(body.keep_alive, given.any(|text| !text.is_empty()));
        Ok(empty.map(|keep| loaded(&Head::of(context), OllamaPath::Generate, keep)))
    }

    fn decode(
        body: OllamaGenerateRequest,
        context: &DecodeContext<'_>,
    ) -> Result<Decoded<OllamaWriter>> {
        check_model(body.model.as_deref(), context)?;
        Ok(with_writer(decode::generate(body, || context.infill())?, OllamaPath::Generate, context))
    }
}
