//! The one way from an HTTP request to an answer, for all protocols: the gate, the body, its
//! decoding and checks, the answer whole or as server-sent events, and errors.
//!
//! A protocol's path is `post(exchange::answer::<P>)` with its [`Protocol`], or
//! `post(exchange::count::<P>)` with its [`Counting`]. An error before the headers has a
//! status and a body; an error after them is an event of the stream.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request as HttpRequest, State};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::request::Parts;
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::Response;
use futures::future::Either;
use futures::{Stream, StreamExt as _, TryFutureExt as _};
use paceline_process::telemetry::trace;
use paceline_protocols::dialect::{Dialect, code};
use paceline_protocols::inference::error::{InferenceError, Result};
use paceline_protocols::inference::input::RequestInput;
use paceline_protocols::inference::request::Request;
use paceline_protocols::json;
use paceline_protocols::protocol::{
    AllowedToolCalls, AnswerWriter, Counting, DecodeContext, Decoded, Protocol,
};
use paceline_protocols::tool_call_filter::ToolCallFilter;
use paceline_protocols::vllm::encode::AnswerRoom as _;
use paceline_system::clock::{monotonic_ns, unix_seconds};
use paceline_text::stream::{AnswerEvent, collect};
use paceline_vocabulary::trace::TRACEPARENT;
use serde_json::Value;
use tokio::time::timeout;

use super::error::ErrorReply;
use super::prompts::{MorePrompts, SharedContext, of_prompt};
use super::reply::{REQUEST_ID, json_reply, json_response};
use super::streamed::StreamedBody;
use super::whole::{self, HeldAnswer};
use super::{HttpFront, body};
use crate::front::connection::track::Caller;
use crate::front::decoding::Decoding;
use crate::guard::keys::Principal;
use crate::inference::admission::{MessageArrival, RequestSlot};
use crate::inference::open::OpenRequest;
use crate::inference::record::Method;
use crate::inference::{Inference, RequestContext, Sender, Served};

/// Header with the lane of an answer that is not streamed.
const LANE: HeaderName = HeaderName::from_static("x-paceline-lane");
/// Asks nginx not to collect a stream before it is passed on.
const ACCEL_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");

/// Answers one request of this protocol.
pub async fn answer<P: Protocol<Writer: AnswerWriter>>(
    State(front): State<Arc<HttpFront>>,
    request: HttpRequest,
) -> Response {
    let received = front.receive(P::METHOD, request);
    let request_id = received.context.request_id().as_str().to_owned();
    finish::<P::Dialect>(answered::<P>(front, received).await, &request_id)
}

/// Counts the tokens of one request of this protocol.
pub async fn count<P: Counting>(
    State(front): State<Arc<HttpFront>>,
    request: HttpRequest,
) -> Response {
    let Received { context, source } = front.receive(P::METHOD, request);
    let request_id = context.request_id().as_str().to_owned();
    let counted = async {
        let mut open = front.inference.open(context);
        match front.read::<P>(&mut open, source).await? {
            ReadRequest::Model(decoded) => {
                let Decoded { input, paths, .. } = *decoded;
                let count = open.count(input).await.map_err(|error| paths.translate(error))?;
                Ok(P::counted(&count))
            }
            ReadRequest::Nothing(body) => Ok(body),
        }
    };
    let reply = counted.await.map(|body| json_reply(StatusCode::OK, &body));
    finish::<P::Dialect>(reply, &request_id)
}

/// The answer to a request.
///
/// Headers of a stream come with its first token, so that an error before it has a status. A stream
/// that is silent for [`HttpFront::keep_alive`] gets its headers then, because clients and proxies
/// give up on a connection without a byte; an error after that is an event.
async fn answered<P: Protocol<Writer: AnswerWriter>>(
    front: Arc<HttpFront>,
    received: Received,
) -> Result<Response> {
    let Received { context, source } = received;
    let (shared, held) = (SharedContext::of(&context, P::METHOD), front.hold_answer(&context));
    let mut open = front.inference.open(context);
    let decoded = match front.read::<P>(&mut open, source).await? {
        ReadRequest::Model(decoded) => *decoded,
        ReadRequest::Nothing(body) => {
            open.answered();
            return Ok(json_reply(StatusCode::OK, &body));
        }
    };
    let Decoded { input, more, writer, stream, calls, paths } = decoded;
    let (keep_alive, samples) = (front.keep_alive, input.params.samples);
    let writer = ToolCallFilter::new(writer, calls, samples);
    let more = MorePrompts { requests: more, samples };
    let replied = async {
        let mut answered = Box::pin(open.answer(input));
        let first = match stream {
            true => timeout(keep_alive, &mut answered).await.ok(),
            false => Some(answered.as_mut().await),
        };
        let events = match first {
            Some(begun) => Either::Left(begun.map_err(|error| more.of_first(error))?),
            None => Either::Right(answered.try_flatten_stream()),
        };
        let decoding = front.decoding.clone();
        let events = more.with_first(front, shared, events);
        match stream {
            true => Ok(streamed(StreamedBody::new(events, writer, paths.clone(), keep_alive))),
            false => whole_reply(events, writer, held, &decoding).await,
        }
    };
    replied.await.map_err(|error| paths.translate(error))
}

/// A request that was read.
enum ReadRequest<W> {
    /// The model is asked.
    Model(Box<Decoded<W, Request>>),
    /// Nothing is asked of the model. This is the answer's body.
    Nothing(Value),
}

/// A request as its handler gets it.
struct Received {
    context: RequestContext,
    source: Source,
}

/// Head and body from which a request is decoded.
struct Source {
    /// Outcome of admission. Kept as a value, so that a refusal is logged and counted like every
    /// error.
    entered: Result<()>,
    parts: Parts,
    body: Body,
}

impl HttpFront {
    fn receive(&self, method: &'static str, request: HttpRequest) -> Received {
        let (mut parts, body) = request.into_parts();
        let client = trace::of_values(parts.headers.get_all(TRACEPARENT));
        let method = Method { name: method, code };
        let mut context = RequestContext::new(method, monotonic_ns(), client);
        context.principal = parts.extensions.remove::<Principal>();
        context.body = parts.extensions.remove();
        let caller = parts.extensions.remove().map(|caller: Caller| caller.party);
        context.party = caller.unwrap_or_default();
        let entered = self.enter(context.principal.as_ref(), &parts).map(|slot| {
            context.slot = Some(slot);
        });
        Received { context, source: Source { entered, parts, body } }
    }

    /// Budget and slot that a whole answer to the request will hold.
    fn hold_answer(&self, context: &RequestContext) -> HeldAnswer {
        HeldAnswer {
            room: self.inference.budget.hold(context.party.clone()),
            party: context.party.clone(),
            _slot: context.slot.clone(),
        }
    }

    /// A place among the requests inside the gateway, before the body is read.
    fn enter(&self, principal: Option<&Principal>, parts: &Parts) -> Result<Arc<RequestSlot>> {
        self.standing.borrow().open()?;
        let slot = Arc::new(self.calls.enter(principal.map(|principal| &principal.name))?);
        if let Some(message) = parts.extensions.get::<Arc<MessageArrival>>() {
            self.calls.follow(message, &slot);
        }
        Ok(slot)
    }

    /// Reads the body of a request, then decodes and checks it, within the request's time.
    async fn read<P: Protocol>(
        self: &Arc<Self>,
        open: &mut OpenRequest,
        source: Source,
    ) -> Result<ReadRequest<P::Writer>> {
        let Source { entered, parts, body } = source;
        let (front, from) = (Arc::clone(self), open.sender());
        let request_id = open.request_id().clone();
        open.within(async {
            entered?;
            let limit = self.inference.limits.max_message_bytes;
            let bytes = body::read(body, &parts.headers, limit).await?;
            let size = bytes.len();
            let Served { serving, language } = self.inference.service().await?;
            let work = move || {
                let body = json::decode(&bytes, P::MAX_NUMBERS)?;
                // The client's copies of its data are not needed any more.
                drop(bytes);
                let context = DecodeContext {
                    request_id: request_id.as_str(),
                    created: unix_seconds(),
                    served: &serving.model.name,
                    headers: &parts.headers,
                    aliases: &front.aliases,
                    language: &language.language,
                };
                if let Some(answer) = P::at_once(&body, &context)? {
                    return Ok(ReadRequest::Nothing(answer));
                }
                let decoded = checked(P::decode(body, &context)?, &front.inference)?;
                Ok(ReadRequest::Model(decoded.into()))
            };
            self.decoding.run(from, size, work).await
        })
        .await
    }
}

/// A decoded request whose prompts are all checked.
fn checked<W>(decoded: Decoded<W>, inference: &Inference) -> Result<Decoded<W, Request>> {
    let Decoded { input, more, writer, stream, calls, paths } = decoded;
    let several = !more.is_empty();
    let check = |(mut input, at): (RequestInput, u32)| {
        input.params.shape.one_call = calls == AllowedToolCalls::One;
        let error = |error| if several { of_prompt(error, at) } else { error };
        inference.check(input).map_err(|cause| paths.translate(error(cause)))
    };
    let input = check((input, 0))?;
    let more = more.into_iter().zip(1..).map(check).collect::<Result<_, _>>()?;
    Ok(Decoded { input, more, writer, stream, calls, paths })
}

/// An answer as it comes.
fn streamed<S, W>(body: StreamedBody<S, W>) -> Response
where
    S: Stream<Item = Result<AnswerEvent>> + Send + Unpin + 'static,
    W: AnswerWriter,
{
    let mut response = Response::new(Body::new(body));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(W::FORM.content_type()));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(ACCEL_BUFFERING, HeaderValue::from_static("no"));
    response
}

/// An answer as one body. A large one is written where large bodies are decoded. Its bytes count in
/// the budget until the client has read them.
async fn whole_reply<W: AnswerWriter>(
    mut answer: impl Stream<Item = Result<AnswerEvent>> + Unpin,
    writer: W,
    held: HeldAnswer,
    decoding: &Decoding,
) -> Result<Response> {
    let (mut events, mut bytes): (Vec<AnswerEvent>, u64) = (Vec::new(), 0);
    while let Some(event) = answer.next().await {
        let event = event?;
        bytes = bytes.saturating_add(event.written_bytes());
        held.room.grow_answer(bytes)?;
        collect(&mut events, event);
    }
    let route = events.iter().find_map(|event| event.last.as_ref()?.route);
    let from = Sender { party: held.party.clone(), body: None };
    let write = move || {
        let written = catch_unwind(AssertUnwindSafe(move || writer.whole(events).pieces()));
        written.map_err(|_| InferenceError::bug("a panic while writing an answer"))
    };
    let size = usize::try_from(bytes).unwrap_or(usize::MAX);
    let text = decoding.run(from, size, write).await?;
    let mut response = json_response(StatusCode::OK, whole::body(text, held));
    if let Some(route) = route {
        let lane = HeaderValue::from_static(route.lane.word());
        response.headers_mut().insert(LANE, lane);
    }
    Ok(response)
}

/// The answer, or the error in the protocol's dialect, with the request's id.
pub(super) fn finish<D: Dialect>(reply: Result<Response>, request_id: &str) -> Response {
    match reply {
        Ok(mut response) => {
            if let Ok(value) = HeaderValue::from_str(request_id) {
                response.headers_mut().insert(REQUEST_ID, value);
            }
            response
        }
        Err(error) => ErrorReply::new(error).request_id(request_id).of::<D>(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use serde_json::json;

    use super::*;
    use crate::front::decoding::LARGE_BYTES;
    use crate::inference::admission::ByteBudget;
    use crate::turns::Party;
    use paceline_protocols::pieces::{LongList, WholeAnswer};
    use paceline_protocols::sse::SseEvent;

    /// Writes an answer when it may.
    struct Waiting(mpsc::Receiver<()>);

    impl AnswerWriter for Waiting {
        fn event(&mut self, _event: AnswerEvent) -> Vec<SseEvent> {
            Vec::new()
        }

        fn end(&mut self) -> Vec<SseEvent> {
            Vec::new()
        }

        fn error(&mut self, _error: &InferenceError) -> Vec<SseEvent> {
            Vec::new()
        }

        fn whole(self, _events: Vec<AnswerEvent>) -> WholeAnswer {
            let list = LongList::new("/a".to_owned(), 1, move |_| {
                self.0.recv_timeout(Duration::from_secs(30)).expect("the other answer is out");
                Value::Null
            });
            WholeAnswer::new(json!({"a": []}), vec![list])
        }
    }

    #[tokio::test]
    async fn other_answers_go_out_while_a_large_one_is_written() {
        let (budget, decoding) = (ByteBudget::new(64 << 20), Decoding::new(1));
        let reply = async |bytes: usize, may_write| {
            let (room, party) = (budget.hold(Party::default()), Party::default());
            let held = HeldAnswer { room, party, _slot: None };
            let event = AnswerEvent { token_ids: vec![1; bytes], ..Default::default() };
            let events = futures::stream::iter([Ok(event)]);
            let reply = whole_reply(events, Waiting(may_write), held, &decoding).await;
            let body = reply.expect("written").into_body();
            axum::body::to_bytes(body, 100).await.expect("read")
        };
        let ((allow, large_may), (at_once, small_may)) =
            (mpsc::sync_channel(1), mpsc::sync_channel(1));
        at_once.send(()).expect("open");
        let small = async {
            let body = reply(1, small_may).await;
            allow.send(()).expect("the large one is being written");
            body
        };
        let (large, small) = futures::join!(reply(LARGE_BYTES, large_may), small);
        assert_eq!((large, small.as_ref()), (small.clone(), &br#"{"a":[null]}"#[..]));
    }
}
