//! The one way from an HTTP request to an answer, for all protocols: the gate, the body, its
//! decoding and checks, the answer whole or as server-sent events, and errors.
//!
//! A protocol's path is `post(exchange::answer::<P>)` with its [`Protocol`], or
//! `post(exchange::count::<P>)` with its [`Counting`]. An error before the headers has a
//! status and a body; an error after them is an event of the stream.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request as HttpRequest, State};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::Response;
use futures::{Stream, StreamExt as _, TryFutureExt as _};
use paceline_process::clock::{monotonic_ns, unix_seconds};
use paceline_text::prompt::Language;
use paceline_text::stream::{AnswerEvent, collect};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::oneshot;
use tokio::time::sleep;

use super::error::{Dialect, ErrorReply, FieldName, FieldPaths, MessagePath, code};
use super::one_call::{AllowedCalls, CallFilter};
use super::prompts::{MorePrompts, SharedCall, of_prompt};
use super::sse::{KeepAlive, SseBody, SseEvent};
use super::whole::{self, HeldAnswer};
use super::{HttpFront, body, json};
use crate::front::connection::track::Caller;
use crate::guard::keys::Principal;
use crate::inference::admission::{CallSlot, MessageArrival};
use crate::inference::error::InferenceError;
use crate::inference::input::RequestInput;
use crate::inference::record::Method;
use crate::inference::request::Request;
use crate::inference::{Call, Sender, TokenCount};

/// Header with the id of the request, in every answer.
pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Header with the lane of an answer that is not streamed.
pub const LANE: HeaderName = HeaderName::from_static("x-paceline-lane");
/// Asks nginx not to collect a stream before it is passed on.
const ACCEL_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");

/// A protocol of answers over HTTP: how its requests are decoded and its answers are written.
pub trait Protocol: Send + Sync + 'static {
    /// How its errors are written.
    type Dialect: Dialect;
    /// The request's body as this protocol has it (serde, unknown fields refused).
    type Body: DeserializeOwned + Send + 'static;
    /// Writes the answer to one request.
    type Writer: AnswerWriter;
    /// Its path, for the log line of a request.
    const METHOD: &'static str;
    /// Its names of the fields of [`crate::inference::input`].
    const FIELDS: &'static [FieldName];
    /// Most numbers in a body.
    const MAX_NUMBERS: usize = json::MAX_NUMBERS;

    /// The request for the middle, and the writer of its answer.
    ///
    /// # Errors
    /// A field cannot be served; its name is the protocol's.
    fn decode(
        body: Self::Body,
        context: &DecodeContext<'_>,
    ) -> Result<Decoded<Self::Writer>, InferenceError>;
}

/// A path that counts the tokens of a request's prompt.
pub trait Counting: Send + Sync + 'static {
    /// How its errors are written.
    type Dialect: Dialect;
    /// The request's body.
    type Body: DeserializeOwned + Send + 'static;
    /// Its path, for the log line of a request.
    const METHOD: &'static str;
    /// Its names of the fields of [`crate::inference::input`].
    const FIELDS: &'static [FieldName];

    /// The request for the middle.
    ///
    /// # Errors
    /// A field cannot be served; its name is the protocol's.
    fn decode(body: Self::Body, context: &DecodeContext<'_>) -> Result<CountInput, InferenceError>;

    /// The answer's body.
    fn counted(count: &TokenCount) -> Value;
}

/// A decoded request.
#[derive(Debug)]
pub struct Decoded<W> {
    /// For the middle.
    pub input: RequestInput,
    /// The same with further prompts, for a protocol whose requests may have several.
    pub more: Vec<RequestInput>,
    /// Writes the answer.
    pub writer: W,
    /// Whether the answer is streamed.
    pub stream: bool,
    /// Where each message of the input stands in the body, for errors; empty if they stand there as in
    /// the input.
    pub messages: Vec<MessagePath>,
    /// How many calls of a tool the answer may have.
    pub calls: AllowedCalls,
}

/// A decoded request whose tokens are counted.
#[derive(Debug)]
pub struct CountInput {
    /// For the middle.
    pub input: RequestInput,
    /// As in [`Decoded`].
    pub messages: Vec<MessagePath>,
}

/// Writes one answer, whole or as server-sent events.
pub trait AnswerWriter: Send + Unpin + 'static {
    /// The events for the next piece of the answer, in order. What a protocol writes before the
    /// first piece is written with it.
    fn event(&mut self, event: AnswerEvent) -> Vec<SseEvent>;

    /// The events after the last piece of all samples.
    fn end(&mut self) -> Vec<SseEvent>;

    /// An error after the answer had begun. The stream ends after it.
    fn error(&mut self, error: &InferenceError) -> Vec<SseEvent>;

    /// What is written when nothing came for a while.
    fn keep_alive(&self) -> KeepAlive {
        KeepAlive::Comment
    }

    /// The body of an answer that is not streamed, from all its events.
    fn whole(self, events: Vec<AnswerEvent>) -> Value;
}

/// What is known of a request beside its body.
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
    front: &'a HttpFront,
}

impl DecodeContext<'_> {
    /// Checks the name of the model that the client sent; empty if it sent none. The request's
    /// input has no name then: the served model is meant.
    ///
    /// # Errors
    /// The name is not served.
    pub fn check_model(&self, asked: &str) -> Result<(), InferenceError> {
        self.front.aliases.check(asked, self.served)
    }

    /// The texts of tokens, for log-probabilities.
    pub fn token_texts(&self) -> TokenTexts {
        TokenTexts::new(Arc::clone(self.front.inference.prompter.language()))
    }
}

/// The texts of the model's tokens.
#[derive(Clone, Debug)]
pub struct TokenTexts(Arc<Language>);

/// What a token adds to a text.
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

/// Answers one request of this protocol.
///
/// Headers of a stream come with its first token, so that an error before it has a status. A stream
/// that is silent for [`HttpFront::keep_alive`] gets its headers then, because clients and proxies
/// give up on a connection without a byte; an error after that is an event.
pub async fn answer<P: Protocol>(
    State(front): State<Arc<HttpFront>>,
    request: HttpRequest,
) -> Response {
    let Received { call, entered, parts, body } = front.receive(P::METHOD, request);
    let request_id = call.request_id().as_str().to_owned();
    let (keep_alive, id) = (front.keep_alive, request_id.clone());
    let (held, from) = (front.hold_answer(&call), call.sender());
    let shared = SharedCall {
        method: Method { name: P::METHOD, code },
        principal: call.principal.clone(),
        slot: call.slot.clone(),
        party: call.party.clone(),
        body: call.body.clone(),
    };
    let (sender, mut receiver) = oneshot::channel();
    let reading_front = Arc::clone(&front);
    let reading = async move {
        entered?;
        let source = Source { from, parts, body, request_id: &id, numbers: P::MAX_NUMBERS };
        let checked = reading_front.read(source, P::decode_checked).await?;
        let paths = FieldPaths { fields: P::FIELDS, messages: checked.messages };
        // The receiver lives as long as the call.
        let _ = sender.send(Answering { replying: checked.rest, paths });
        checked.request
    };
    let serving = Arc::clone(&front);
    let mut answered = Box::pin(async move { serving.inference.answer(call, reading).await });
    let mut decoded: Option<Answering<P::Writer>> = None;
    let silence = async {
        decoded = (&mut receiver).await.ok();
        match &decoded {
            Some(answering) if answering.replying.stream => sleep(keep_alive).await,
            _ => std::future::pending().await,
        }
    };
    let first = tokio::select! {
        biased;
        answered = &mut answered => Some(answered),
        () = silence => None,
    };
    let decoded = decoded.or_else(|| receiver.try_recv().ok());
    let paths = decoded.as_ref().map(|answering| answering.paths.clone()).unwrap_or_default();
    let reply = match (first, decoded.map(|answering| answering.replying)) {
        (None, Some(Replying { writer, more, .. })) => {
            let events = Box::pin(answered.try_flatten_stream());
            let events = more.with_first(front, shared, events);
            Ok(stream_reply(SseBody::new(events, writer, paths.clone(), keep_alive)))
        }
        (Some(Ok(events)), Some(Replying { writer, stream: true, more })) => {
            let events = more.with_first(front, shared, events);
            Ok(stream_reply(SseBody::new(events, writer, paths.clone(), keep_alive)))
        }
        (Some(Ok(events)), Some(Replying { writer, stream: false, more })) => {
            whole_reply(more.with_first(front, shared, events), writer, held).await
        }
        (Some(Err(error)), Some(Replying { more, .. })) if !more.is_empty() => {
            Err(of_prompt(error, 0))
        }
        (Some(Err(error)), _) => Err(error),
        (_, None) => Err(InferenceError::bug("an answer to a request that was not decoded")),
    };
    finish::<P::Dialect>(reply, &paths, &request_id)
}

/// Counts the tokens of one request of this protocol.
pub async fn count<P: Counting>(
    State(front): State<Arc<HttpFront>>,
    request: HttpRequest,
) -> Response {
    let Received { call, entered, parts, body } = front.receive(P::METHOD, request);
    let (request_id, from) = (call.request_id().as_str().to_owned(), call.sender());
    let mut paths = FieldPaths::default();
    let reading = async {
        entered?;
        let numbers = json::MAX_NUMBERS;
        let source = Source { from, parts, body, request_id: &request_id, numbers };
        let decode = |body: P::Body, context: &DecodeContext<'_>| {
            let CountInput { input, messages } = P::decode(body, context)?;
            Ok(Checked { request: context.front.inference.check(input), messages, rest: () })
        };
        let checked = front.read(source, decode).await?;
        paths = FieldPaths { fields: P::FIELDS, messages: checked.messages };
        checked.request
    };
    let counted = front.inference.count(call, reading).await;
    let reply = counted.map(|count| json_reply(StatusCode::OK, &P::counted(&count)));
    finish::<P::Dialect>(reply, &paths, &request_id)
}

/// A JSON body with this status.
pub fn json_reply(status: StatusCode, body: &Value) -> Response {
    json_response(status, Body::from(body.to_string()))
}

fn json_response(status: StatusCode, body: Body) -> Response {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(CONTENT_TYPE, json);
    response
}

/// A request as its handler gets it.
struct Received {
    call: Call,
    /// Whether the gate lets it pass. An error is returned as a part of the call, so that it is
    /// logged and counted as all others.
    entered: Result<(), InferenceError>,
    parts: Parts,
    body: Body,
}

/// What a request is decoded from.
struct Source<'a> {
    from: Sender,
    parts: Parts,
    body: Body,
    request_id: &'a str,
    numbers: usize,
}

/// A request after its checks. The paths of its messages are known whether it passed or not.
struct Checked<T> {
    request: Result<Request, InferenceError>,
    messages: Vec<MessagePath>,
    rest: T,
}

/// How an answer is written.
struct Replying<W> {
    writer: CallFilter<W>,
    stream: bool,
    more: MorePrompts,
}

/// A request that was decoded: how its answer is written, and how its errors name fields.
struct Answering<W> {
    replying: Replying<W>,
    paths: FieldPaths,
}

/// The checks that [`answer`] runs where bodies are decoded.
trait DecodeChecked: Protocol {
    fn decode_checked(
        body: Self::Body,
        context: &DecodeContext<'_>,
    ) -> Result<Checked<Replying<Self::Writer>>, InferenceError> {
        let Decoded { input, more, writer, stream, messages, calls } = Self::decode(body, context)?;
        let samples = input.params.samples;
        let writer = CallFilter::new(writer, calls, samples);
        let check = |(input, at)| {
            context.front.inference.check(input).map_err(|error| of_prompt(error, at))
        };
        let several = !more.is_empty();
        let first = context.front.inference.check(input);
        let first = first.map_err(|error| if several { of_prompt(error, 0) } else { error });
        let more: Result<Vec<Request>, InferenceError> =
            more.into_iter().zip(1..).map(check).collect();
        let (request, requests) = match (first, more) {
            (Ok(first), Ok(more)) => (Ok(first), more),
            (Err(error), _) | (_, Err(error)) => (Err(error), Vec::new()),
        };
        let more = MorePrompts { requests, samples };
        Ok(Checked { request, messages, rest: Replying { writer, stream, more } })
    }
}

impl<P: Protocol> DecodeChecked for P {}

impl HttpFront {
    fn receive(&self, method: &'static str, request: HttpRequest) -> Received {
        let (mut parts, body) = request.into_parts();
        let mut call = Call::new(Method { name: method, code }, monotonic_ns());
        call.principal = parts.extensions.remove::<Principal>();
        call.body = parts.extensions.remove();
        let caller = parts.extensions.remove().map(|caller: Caller| caller.party);
        call.party = caller.unwrap_or_default();
        let entered = self.enter(call.principal.as_ref(), &parts).map(|slot| {
            call.slot = Some(slot);
        });
        Received { call, entered, parts, body }
    }

    /// What a whole answer to the call will hold.
    fn hold_answer(&self, call: &Call) -> HeldAnswer {
        HeldAnswer {
            room: self.inference.budget.hold(call.party.clone()),
            _slot: call.slot.clone(),
            limit: Duration::from_secs(self.inference.limits.unread_s),
        }
    }

    /// A place among the calls inside the gateway, before the body is read.
    fn enter(
        &self,
        principal: Option<&Principal>,
        parts: &Parts,
    ) -> Result<Arc<CallSlot>, InferenceError> {
        self.standing.borrow().open()?;
        let slot = Arc::new(self.calls.enter(principal.map(|principal| &principal.name))?);
        if let Some(message) = parts.extensions.get::<Arc<MessageArrival>>() {
            self.calls.follow(message, &slot);
        }
        Ok(slot)
    }

    /// Reads the body, then decodes and checks it.
    async fn read<B, T, D>(
        self: &Arc<Self>,
        source: Source<'_>,
        decode: D,
    ) -> Result<Checked<T>, InferenceError>
    where
        B: DeserializeOwned,
        T: Send + 'static,
        D: FnOnce(B, &DecodeContext<'_>) -> Result<Checked<T>, InferenceError> + Send + 'static,
    {
        let Source { from, parts, body, request_id, numbers } = source;
        let limit = self.inference.limits.max_message_bytes;
        let bytes = body::read(body, &parts.headers, limit).await?;
        let size = bytes.len();
        let (front, request_id) = (Arc::clone(self), request_id.to_owned());
        let work = move || {
            let body = json::decode(&bytes, numbers)?;
            // The client's copies of its data are not needed any more.
            drop(bytes);
            let served = front.inference.standing.borrow().serving()?.model.name;
            let context = DecodeContext {
                request_id: &request_id,
                created: unix_seconds(),
                served: &served,
                headers: &parts.headers,
                front: &front,
            };
            decode(body, &context)
        };
        self.decoding.run(from, size, work).await
    }
}

/// An answer as it comes.
fn stream_reply<S, W>(body: SseBody<S, W>) -> Response
where
    S: Stream<Item = Result<AnswerEvent, InferenceError>> + Send + Unpin + 'static,
    W: AnswerWriter,
{
    let mut response = Response::new(Body::new(body));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(ACCEL_BUFFERING, HeaderValue::from_static("no"));
    response
}

/// An answer as one body. Its bytes count in the budget until the client has read them.
async fn whole_reply<W: AnswerWriter>(
    mut answer: impl Stream<Item = Result<AnswerEvent, InferenceError>> + Unpin,
    writer: W,
    held: HeldAnswer,
) -> Result<Response, InferenceError> {
    let (mut events, mut bytes): (Vec<AnswerEvent>, u64) = (Vec::new(), 0);
    while let Some(event) = answer.next().await {
        let event = event?;
        bytes = bytes.saturating_add(event.written_bytes());
        held.room.grow_answer(bytes)?;
        collect(&mut events, event);
    }
    let route = events.iter().find_map(|event| event.last.as_ref()?.route);
    let written = catch_unwind(AssertUnwindSafe(move || writer.whole(events)));
    let bug = |_| InferenceError::bug("a panic while writing an answer");
    let text = written.map_err(bug)?.to_string();
    let mut response = json_response(StatusCode::OK, whole::body(text, held));
    if let Some(route) = route {
        let lane = HeaderValue::from_static(route.lane.word());
        response.headers_mut().insert(LANE, lane);
    }
    Ok(response)
}

/// The answer, or the error in the protocol's dialect, with the request's id.
fn finish<D: Dialect>(
    reply: Result<Response, InferenceError>,
    paths: &FieldPaths,
    request_id: &str,
) -> Response {
    match reply {
        Ok(mut response) => {
            if let Ok(value) = HeaderValue::from_str(request_id) {
                response.headers_mut().insert(REQUEST_ID, value);
            }
            response
        }
        Err(error) => ErrorReply::new(paths.translate(error)).request_id(request_id).of::<D>(),
    }
}
