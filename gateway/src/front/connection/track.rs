//! The second layer of a connection, after the [`super::key`]: counts the connection's open
//! requests, bounds the time of their messages, and bounds their answers (I14).
//!
//! Each answer of every service passes [`TrackedBody`], so no method can leave the rule out. An answer
//! that no model writes has a place before its service begins ([`super::places`]). Each answer goes
//! to the connection in pieces of at most [`PIECE_BYTES`]. If the client takes none for
//! `limits.unread_s`, the answer is dropped with its place and all that it holds, and its connection
//! is closed after the other requests on it: hyper has no way to end a stream whose window is full.

use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body::{Body, Frame, SizeHint};
use paceline_process::task;
use paceline_protocols::inference::error::InferenceError;
use paceline_vocabulary::Reason;
use tokio::task::AbortHandle;

use super::connections::{CLOSE_GRACE, ConnectionHandle, TrackedRequest};
use super::layer::{Entered, Passed, RequestLayer};
pub use super::places::Caller;
use super::places::{AnswerKind, AnswerPlace, AnswerPlaces};
use super::timed::{self, MessageBounds, TimedBody, timed};
use super::{BoxError, RequestBody, WireProtocol};
use crate::guard::keys::Principal;
use crate::inference::admission::ByteHold;
use crate::lock::lock;
use crate::turns::Party;

/// Most bytes of a piece. A stream holds two: one in hyper and one in h2. It is the length of a
/// frame of HTTP/2, into which a longer piece would be cut anyway.
const PIECE_BYTES: usize = 16 << 10;
/// Most bytes of the last piece. hyper drops a body when it gives the last piece to h2, which holds
/// it uncounted until the client reads. All but [`UNSENT_BYTES`] of the pieces before are sent then.
const LAST_BYTES: usize = 2 << 10;
/// Bytes of a stream's pieces beyond which h2 takes no further one. With the last piece that is what
/// an answer can leave behind that nothing counts.
pub const UNSENT_BYTES: usize = 4 << 10;
/// Looks at an unread answer within `limits.unread_s`: it ends at most a quarter late.
const LOOKS: u32 = 4;

/// The bounds of answers.
#[derive(Clone, Debug)]
pub struct AnswerBounds {
    /// Places of answers that no model writes.
    pub places: AnswerPlaces,
    /// How long a client may take none of an answer (`limits.unread_s`).
    pub unread: Duration,
}

/// Counts and bounds the requests of one connection.
#[derive(Debug)]
pub struct TrackRequests<P> {
    connection: ConnectionHandle,
    has_keys: bool,
    messages: MessageBounds,
    answers: AnswerBounds,
    protocol: PhantomData<fn() -> P>,
}

impl<P> TrackRequests<P> {
    /// For the requests of `connection`. Without keys every request counts as authenticated.
    /// `messages` are the bounds of a request's message, from its headers on.
    pub fn new(
        connection: ConnectionHandle,
        has_keys: bool,
        messages: MessageBounds,
        answers: AnswerBounds,
    ) -> Self {
        Self { connection, has_keys, messages, answers, protocol: PhantomData }
    }
}

impl<P> Clone for TrackRequests<P> {
    fn clone(&self) -> Self {
        let Self { connection, has_keys, messages, answers, .. } = self;
        Self::new(connection.clone(), *has_keys, messages.clone(), answers.clone())
    }
}

/// What a request holds until its answer is read.
#[derive(Debug)]
pub struct OpenRequest {
    request: TrackedRequest,
    _place: Option<AnswerPlace>,
    /// Bytes of the answer in the budget, if its service counted them.
    _bytes: Option<Arc<ByteHold>>,
    /// How long the client may take none of the answer.
    limit: Duration,
}

impl<P: WireProtocol, B: RequestBody> RequestLayer<B> for TrackRequests<P> {
    type Body = TimedBody<B>;
    type Answer = P::Body;
    type Reply = TrackedBody<P::Body>;
    type Kept = OpenRequest;

    fn before(&self, mut request: Request<B>) -> Entered<Self, B> {
        let principal = request.extensions().get::<Principal>();
        let is_authenticated = !self.has_keys || principal.is_some();
        let party = principal.map(|owner| Party::of_key(&owner.name));
        let party = party.unwrap_or_else(|| self.connection.party());
        let caller = Caller { party: party.clone(), is_authenticated };
        let path = request.uri().path();
        let kind = P::answer_kind(path);
        let entered = self.connection.begin(is_authenticated).and_then(|request| {
            let place = self.answers.places.enter(kind, &caller, path)?;
            // A model's own answer is ended first, with the reason.
            let grace = if kind == AnswerKind::Model { CLOSE_GRACE } else { Duration::ZERO };
            let limit = self.answers.unread + grace;
            Ok(OpenRequest { request, _place: place, _bytes: None, limit })
        });
        match entered {
            Ok(open) => {
                request.extensions_mut().insert(caller);
                let request = timed::<P, B>(request, &self.messages, party);
                Ok(Passed { request, kept: open })
            }
            Err(error) => {
                let reply = P::refused(error, path).map(TrackedBody::untracked);
                timed::drain(request);
                Err(Box::pin(std::future::ready(reply)))
            }
        }
    }

    fn after(open: OpenRequest, mut response: Response<P::Body>) -> Response<Self::Reply> {
        let open = OpenRequest { _bytes: response.extensions_mut().remove(), ..open };
        response.map(|inner| TrackedBody::tracked::<P>(inner, open))
    }
}

/// The body of a response. The request is open until the body is dropped, or was not read in time.
#[derive(Debug)]
pub struct TrackedBody<B> {
    answer: Arc<Mutex<Answer<B>>>,
    /// Ends an unread answer; `None` for a refusal, which holds nothing.
    watcher: Option<AbortHandle>,
}

#[derive(Debug)]
struct Answer<B> {
    /// `None` if the answer was not read in time.
    inner: Option<B>,
    /// Bytes of the last frame that the connection has not taken.
    rest: Bytes,
    open: Option<OpenRequest>,
    /// How often the connection asked for a piece.
    asked: u64,
    /// Whether the connection waits for the next frame.
    waits: bool,
    /// The end for a client that reads too late: trailers, or an error.
    late: Option<Result<HeaderMap, BoxError>>,
}

impl<B> TrackedBody<B> {
    /// The body of the response to a request that is not counted.
    pub fn untracked(inner: B) -> Self {
        let answer = Answer {
            inner: Some(inner),
            rest: Bytes::new(),
            open: None,
            asked: 0,
            waits: false,
            late: None,
        };
        Self { answer: Arc::new(Mutex::new(answer)), watcher: None }
    }
}

impl<B: Body + Send + 'static> TrackedBody<B> {
    fn tracked<P: WireProtocol>(inner: B, open: OpenRequest) -> Self {
        let limit = open.limit;
        // Headers alone are not held back by a window.
        let is_empty = inner.is_end_stream();
        let mut body = Self::untracked(inner);
        lock(&body.answer).open = Some(open);
        if !is_empty {
            let watched = Arc::downgrade(&body.answer);
            let watcher = task::spawn("unread", end_unread(watched, limit, P::unread));
            body.watcher = Some(watcher.abort_handle());
        }
        body
    }
}

/// Drops an answer of which the client has taken nothing for `limit`, with all that it holds.
async fn end_unread<B>(
    watched: Weak<Mutex<Answer<B>>>,
    limit: Duration,
    late: fn(InferenceError) -> Result<HeaderMap, BoxError>,
) {
    let (mut seen, mut looks) = (0, 0);
    while looks < LOOKS {
        tokio::time::sleep(limit / LOOKS).await;
        let Some(answer) = watched.upgrade() else { return };
        let answer = lock(&answer);
        looks = if answer.waits || answer.asked != seen { 0 } else { looks + 1 };
        seen = answer.asked;
    }
    let Some(answer) = watched.upgrade() else { return };
    let (inner, rest, open) = {
        let mut answer = lock(&answer);
        answer.late = Some(late(slow_reader()));
        (answer.inner.take(), std::mem::take(&mut answer.rest), answer.open.take())
    };
    tracing::debug!("an answer was not read in time");
    // Outside the lock: the answer is dropped with all that it holds.
    drop((inner, rest));
    if let Some(open) = open {
        open.request.unread();
    }
}

fn slow_reader() -> InferenceError {
    let message = "the client did not read its answer in time (limits.unread_s), so the answer was ended; read answers as they come";
    InferenceError::new(Reason::SlowReader, message).field("limits.unread_s")
}

/// Bytes of the next piece of a frame that has this many left.
fn piece_bytes(left: usize) -> usize {
    if left <= LAST_BYTES { left } else { PIECE_BYTES.min(left - LAST_BYTES / 2) }
}

impl<B> Body for TrackedBody<B>
where
    B: Body<Data = Bytes, Error: Into<BoxError>> + Unpin,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let mut answer = lock(&self.answer);
        answer.asked += 1;
        answer.waits = false;
        if answer.rest.is_empty() {
            let Some(inner) = &mut answer.inner else {
                let late = answer.late.take();
                return Poll::Ready(late.map(|late| late.map(Frame::trailers)));
            };
            let frame = Pin::new(inner).poll_frame(context);
            answer.waits = frame.is_pending();
            match ready!(frame).map(|frame| frame.map_err(Into::into).map(Frame::into_data)) {
                Some(Ok(Ok(data))) => answer.rest = data,
                Some(Ok(Err(other))) => return Poll::Ready(Some(Ok(other))),
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => return Poll::Ready(None),
            }
        }
        let piece = piece_bytes(answer.rest.len());
        Poll::Ready(Some(Ok(Frame::data(answer.rest.split_to(piece)))))
    }

    fn is_end_stream(&self) -> bool {
        let answer = lock(&self.answer);
        let is_over = answer.inner.as_ref().map_or(answer.late.is_none(), Body::is_end_stream);
        answer.rest.is_empty() && is_over
    }

    fn size_hint(&self) -> SizeHint {
        let answer = lock(&self.answer);
        match &answer.inner {
            Some(inner) if answer.rest.is_empty() => inner.size_hint(),
            _ => SizeHint::default(),
        }
    }
}

impl<B> Drop for TrackedBody<B> {
    fn drop(&mut self) {
        self.watcher.iter().for_each(AbortHandle::abort);
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::net::IpAddr;

    use futures::FutureExt as _;
    use paceline_process::config::LimitsConfig;
    use paceline_proto::status::ReasonStatus as _;
    use tonic::Status;
    use tonic::body::Body as GrpcBody;

    use super::super::connections::{ConnectionSlot, Connections};
    use super::*;
    use crate::front::grpc::GrpcWire;

    const LIMIT: Duration = Duration::from_secs(60);

    fn answer(bytes: usize) -> GrpcBody {
        let text: Vec<u8> = (0..bytes).map(|at| at as u8).collect();
        GrpcBody::new(axum::body::Body::from(text))
    }

    /// An answer on a connection of its own.
    fn tracked(inner: GrpcBody) -> (TrackedBody<GrpcBody>, ConnectionSlot) {
        let connections = Connections::new(&LimitsConfig::default());
        let slot = connections.enter(IpAddr::from([127, 0, 0, 1])).expect("room");
        let request = slot.handle().begin(true).expect("open");
        let open = OpenRequest { request, _place: None, _bytes: None, limit: LIMIT };
        (TrackedBody::tracked::<GrpcWire>(inner, open), slot)
    }

    async fn next(body: &mut TrackedBody<GrpcBody>) -> Option<Result<Frame<Bytes>, BoxError>> {
        poll_fn(|context| Pin::new(&mut *body).poll_frame(context)).await
    }

    #[tokio::test]
    async fn an_answer_goes_out_in_pieces_and_its_last_piece_is_short() {
        for bytes in [1, 2_048, 2_049, PIECE_BYTES, PIECE_BYTES + 1_025, 1 << 20] {
            let (mut body, _slot) = tracked(answer(bytes));
            assert_eq!(body.size_hint().exact(), Some(bytes as u64));
            let (mut text, mut last) = (Vec::new(), 0);
            while let Some(frame) = next(&mut body).await {
                let piece = frame.expect("fine").into_data().expect("data");
                assert!((1..=PIECE_BYTES).contains(&piece.len()), "{} of {bytes}", piece.len());
                text.extend_from_slice(&piece);
                last = piece.len();
                assert_eq!(body.is_end_stream(), text.len() == bytes);
            }
            assert!(last <= LAST_BYTES, "{last} of {bytes}");
            assert!(text.iter().enumerate().all(|(at, byte)| *byte == at as u8));
            assert_eq!(text.len(), bytes);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_is_not_read_is_dropped_and_its_connection_leaves() {
        let (mut body, slot) = tracked(answer(100_000));
        assert!(next(&mut body).await.expect("begun").is_ok());
        tokio::time::sleep(LIMIT - Duration::from_secs(1)).await;
        assert!(lock(&body.answer).inner.is_some() && slot.leaves().now_or_never().is_none());
        tokio::time::sleep(LIMIT / 2).await;
        {
            let answer = lock(&body.answer);
            assert!(answer.inner.is_none() && answer.rest.is_empty() && answer.open.is_none());
        }
        slot.leaves().now_or_never().expect("it has to be closed");
        let trailers = next(&mut body).await.expect("an end").expect("no error");
        let trailers = trailers.into_trailers().expect("trailers");
        let status = Status::from_header_map(&trailers).expect("a status");
        assert_eq!(Reason::of(&status), Some(Reason::SlowReader));
        assert!(next(&mut body).await.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_is_read_slowly_or_waits_for_its_service_stays() {
        let (mut body, slot) = tracked(answer(100_000));
        while let Some(frame) = next(&mut body).await {
            assert!(frame.is_ok());
            tokio::time::sleep(LIMIT - Duration::from_secs(1)).await;
        }
        drop(body);
        let silent = futures::stream::pending::<Result<Bytes, std::io::Error>>();
        let (mut body, other) = tracked(GrpcBody::new(axum::body::Body::from_stream(silent)));
        assert!(next(&mut body).now_or_never().is_none());
        tokio::time::sleep(LIMIT * 10).await;
        assert!(lock(&body.answer).inner.is_some());
        for slot in [slot, other] {
            assert!(slot.leaves().now_or_never().is_none());
        }
    }
}
