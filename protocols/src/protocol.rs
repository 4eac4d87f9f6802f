//! The parts of a protocol: how its requests are decoded and its answers are written.

use std::sync::Arc;

use http::HeaderMap;
use paceline_text::prompt::{Infill, Language};
use paceline_text::stream::AnswerEvent;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::accepted::objects;
use super::aliases::Aliases;
use super::dialect::Dialect;
use super::json::{self, AnyObject};
use super::paths::FieldPaths;
use super::pieces::WholeAnswer;
use super::sse::{KeepAlive, SseEvent, StreamForm};
use crate::inference::error::{InferenceError, Result};
use crate::inference::input::RequestInput;
use crate::inference::model::TokenCount;

/// A protocol over HTTP: a path whose requests have a prompt.
pub trait Protocol: Send + Sync + 'static {
    /// How its errors are written.
    type Dialect: Dialect;
    /// The request's body as this protocol has it (serde, unknown fields refused).
    type Body: DeserializeOwned + Send + 'static;
    /// Writes the answer to one request, an [`AnswerWriter`]; nothing for a path that counts.
    type Writer: Send + 'static;
    /// Path of the protocol, for the log line of a request.
    const METHOD: &'static str;
    /// Most numbers in a body.
    const MAX_NUMBERS: usize = json::MAX_NUMBERS;

    /// The answer to a request that asks nothing of the model; `None` for all others.
    ///
    /// # Errors
    /// The name of the model is not served.
    fn at_once(_body: &Self::Body, _context: &DecodeContext<'_>) -> Result<Option<Value>> {
        Ok(None)
    }

    /// The request for the middle, and the writer of its answer.
    ///
    /// # Errors
    /// A field cannot be served; its name is the protocol's.
    fn decode(body: Self::Body, context: &DecodeContext<'_>) -> Result<Decoded<Self::Writer>>;
}

/// A path that counts the tokens of a request's prompt.
pub trait Counting: Protocol<Writer = ()> {
    /// The answer's body.
    fn counted(count: &TokenCount) -> Value;
}

/// A decoded request, whose writer is `W`. `R` is the middle's input, and after its checks the
/// request.
#[derive(Clone, Debug, PartialEq)]
pub struct Decoded<W, R = RequestInput> {
    /// For the middle.
    pub input: R,
    /// Requests of further prompts, for a protocol whose requests may have several.
    pub more: Vec<R>,
    /// Writes the answer, or has the parts of the request that its writer needs.
    pub writer: W,
    /// Whether the answer is streamed.
    pub stream: bool,
    /// How many tool calls the answer may have.
    pub calls: AllowedToolCalls,
    /// The protocol's names of the input's fields, for errors.
    pub paths: FieldPaths,
}

impl<W, R> Decoded<W, R> {
    /// Replaces the writer by one that `make` builds from it and the input.
    pub fn with_writer<T>(self, make: impl FnOnce(W, &R) -> T) -> Decoded<T, R> {
        let Self { input, more, writer, stream, calls, paths } = self;
        Decoded { writer: make(writer, &input), input, more, stream, calls, paths }
    }
}

objects! {
    /// Options of a request that only this service has.
    #[derive(Default)]
    pub struct Extension {
        /// The lane: `auto`, `plain` or `speculative`.
        pub route: Option<String>,
        /// Variables of the chat template.
        #[schema(value_type = Option<Object>)]
        pub template_arguments: Option<AnyObject>,
    }
}

/// How many tool calls an answer may have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AllowedToolCalls {
    /// As many as the model makes.
    #[default]
    All,
    /// One.
    One,
}

impl AllowedToolCalls {
    /// One if the client's flag is set.
    pub fn one_if(flag: bool) -> Self {
        if flag { AllowedToolCalls::One } else { AllowedToolCalls::All }
    }
}

/// Writes one answer, whole or as the events of a stream.
pub trait AnswerWriter: Send + Unpin + 'static {
    /// How the events of a stream are written.
    const FORM: StreamForm = StreamForm::ServerSentEvents;

    /// The events for the next piece of the answer, in order. What a protocol writes before the
    /// first piece is written with it.
    fn event(&mut self, event: AnswerEvent) -> Vec<SseEvent>;

    /// The events after the last piece of all samples.
    fn end(&mut self) -> Vec<SseEvent>;

    /// An error after the answer had begun. The stream ends after it.
    fn error(&mut self, error: &InferenceError) -> Vec<SseEvent>;

    /// Text that is written when nothing came for a while.
    fn keep_alive(&self) -> KeepAlive {
        KeepAlive::Comment
    }

    /// The body of an answer that is not streamed, from all its events.
    fn whole(self, events: Vec<AnswerEvent>) -> WholeAnswer;
}

/// Facts about a request that are not in its body.
#[derive(Debug)]
pub struct DecodeContext<'a> {
    /// The request's id.
    pub request_id: &'a str,
    /// When it came, in seconds since 1970.
    pub created: i64,
    /// The public name of the served model.
    pub served: &'a str,
    /// The request's headers.
    pub headers: &'a HeaderMap,
    /// The model names of clients that are served.
    pub aliases: &'a Aliases,
    /// The text side of the served model.
    pub language: &'a Arc<Language>,
}

impl DecodeContext<'_> {
    /// Checks the name of the model that the client sent; empty if it sent none. The request's
    /// input has no name then: the served model is meant.
    ///
    /// # Errors
    /// The name is not served.
    pub fn check_model(&self, asked: &str) -> Result<()> {
        self.aliases.check(asked, self.served)
    }

    /// How the model fills in the middle; `None` if its tokenizer has no markers for that.
    pub fn infill(&self) -> Option<Infill> {
        Infill::of(&self.language.tokens)
    }

    /// The texts of tokens, for log-probabilities.
    pub fn token_texts(&self) -> TokenTexts {
        TokenTexts::new(Arc::clone(self.language))
    }
}

/// The texts of the model's tokens.
#[derive(Clone, Debug)]
pub struct TokenTexts(Arc<Language>);

/// Text that a token adds to an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenText {
    /// As text; the bytes of an incomplete character become U+FFFD.
    pub text: String,
    /// As bytes.
    pub bytes: Vec<u8>,
    /// Whether it is a special token, which adds nothing to an answer's text.
    pub is_special: bool,
}

impl TokenTexts {
    /// Those of the model with this text side.
    pub fn new(language: Arc<Language>) -> Self {
        Self(language)
    }

    /// The text of one token, a special one included.
    pub fn of(&self, id: u32) -> TokenText {
        let tokens = &self.0.tokens;
        let is_special = tokens.is_skipped(id);
        let bytes = match tokens.bytes(id) {
            Some(bytes) => bytes.to_vec(),
            None if is_special => tokens.text(id).unwrap_or_default().into_bytes(),
            None => tokens.decode(&[id]).unwrap_or_default().into_bytes(),
        };
        TokenText { text: String::from_utf8_lossy(&bytes).into_owned(), bytes, is_special }
    }
}
