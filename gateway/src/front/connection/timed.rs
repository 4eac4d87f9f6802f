//! Bounds the time between the headers of a request and the end of its message.
//!
//! A request holds a stream, memory and, once the gate lets it pass, a slot. A message that never
//! arrives must therefore end its request. [`TimedBody`] wraps the body of every request to every
//! service, health included. It fails when no byte arrives for [`STALL`], when the message takes
//! longer than `limits.message_s` in all, when the client's own deadline passes first, or when
//! the gate gives the slot of the request to another one. The service answers with that failure
//! and drops the request, which releases everything that the request holds.
//!
//! A long body waits here until the budget has room for it ([`super::intake`]). Meanwhile no byte is
//! read, and silence of the sender does not count. The wait may take `limits.message_s`; after it
//! the message has its whole time.
//!
//! A connection of HTTP/1 is closed after an answer that came before the end of its request. If
//! bytes of the request are unread then, the system resets the connection, and the client may lose
//! the answer. [`drain`] therefore reads on for a moment.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt as _;
use http::Request;
use http::Version;
use http_body::{Body, Frame, SizeHint};
use paceline_process::task;
use paceline_protocols::inference::error::{InferenceError, Result};
use paceline_vocabulary::Reason;
use paceline_vocabulary::reason::COMPLETION_TOKENS;
use tokio::time::{Sleep, sleep, timeout};

use super::intake::Intake;
use super::{BoxError, RequestBody, WireProtocol};
use crate::inference::admission::{ByteBudget, MessageArrival, bodies_full};
use crate::turns::Party;

/// Longest time without a byte. Ten seconds outlast the retransmissions of a bad mobile network; a
/// sender that is silent for longer has lost its connection or does not mean to send.
const STALL: Duration = Duration::from_secs(10);

/// Longest time in which the rest of a refused request is read. A client that is sending finds the
/// answer within it; one that sends on for longer is cut.
const DRAIN: Duration = Duration::from_secs(2);
/// Most bytes of it that are read: twice the largest message that is served by default.
const MAX_DRAIN_BYTES: u64 = 32 << 20;

/// The bounds of messages.
#[derive(Clone, Debug)]
pub struct MessageBounds {
    /// The time that a message may take to arrive (`limits.message_s`).
    pub time: Duration,
    /// The longest message that is served (`limits.max_message_bytes`).
    pub bytes: u64,
    /// The budget of all bodies and answers.
    pub budget: ByteBudget,
}

/// Bounds the time of a request's message, and counts its bytes as the party's. Its extensions
/// get the [`MessageArrival`] for the gate, and the [`crate::inference::admission::ByteHold`] of the
/// message, which gives its bytes back when the last copy is dropped.
pub fn timed<P: WireProtocol, B: RequestBody>(
    request: Request<B>,
    bounds: &MessageBounds,
    party: Party,
) -> Request<TimedBody<B>> {
    let timeout = P::timeout(request.headers());
    let (mut parts, body) = request.into_parts();
    let arrival = Arc::<MessageArrival>::default();
    parts.extensions.insert(Arc::clone(&arrival));
    let hold = bounds.budget.hold(party);
    parts.extensions.insert(Arc::clone(&hold));
    let intake = Intake::new(hold, P::body_length(&parts), bounds.bytes);
    let drains = is_http1(parts.version);
    let mut body = TimedBody::new(body, arrival, intake, bounds.time, timeout, P::body_error);
    body.drains = drains;
    Request::from_parts(parts, body)
}

/// The request, if its connection needs that its rest is read after the answer. Else it is dropped,
/// with what has come of its body.
pub fn undrained<B>(request: Request<B>) -> Option<Request<B>> {
    Some(request).filter(|request| is_http1(request.version()))
}

/// Reads the rest of a request that was answered, if its connection needs that.
pub fn drain<B: RequestBody>(request: Request<B>) {
    if is_http1(request.version()) {
        drain_body(request.into_body());
    }
}

fn is_http1(version: Version) -> bool {
    version < Version::HTTP_2
}

fn drain_body<B: RequestBody>(mut body: B) {
    // A body may be dropped when its runtime has ended.
    if body.is_end_stream() || tokio::runtime::Handle::try_current().is_err() {
        return;
    }
    let reading = async move {
        let mut left = MAX_DRAIN_BYTES;
        let mut body = Pin::new(&mut body);
        while let Some(Ok(frame)) =
            std::future::poll_fn(|context| body.as_mut().poll_frame(context)).await
        {
            let bytes = frame.data_ref().map_or(0, Bytes::len) as u64;
            let Some(rest) = left.checked_sub(bytes) else { return };
            left = rest;
        }
    };
    task::spawn("drain", async move {
        // What is not read by then stays unread.
        let _ = timeout(DRAIN, reading).await;
    });
}

/// A request body that fails when its message takes too long. The time begins when this is made.
#[derive(Debug)]
pub struct TimedBody<B: RequestBody> {
    /// `None` only while this is dropped.
    inner: Option<B>,
    /// Whether the rest is read when this is dropped before its end.
    drains: bool,
    /// The error as the service takes it.
    body_error: fn(InferenceError) -> BoxError,
    arrival: Arc<MessageArrival>,
    intake: Intake,
    stall: Pin<Box<Sleep>>,
    total: Pin<Box<Sleep>>,
    /// Meaning of `total`: `limits.message_s`, or the client's own deadline.
    limit: TimeLimit,
    received_bytes: u64,
    /// Whether it waits for room in the budget.
    waits: bool,
    is_over: bool,
}

#[derive(Clone, Copy, Debug)]
enum TimeLimit {
    Message(Duration),
    Deadline,
}

impl<B: RequestBody> TimedBody<B> {
    fn new(
        inner: B,
        arrival: Arc<MessageArrival>,
        intake: Intake,
        limit: Duration,
        timeout: Option<Duration>,
        body_error: fn(InferenceError) -> BoxError,
    ) -> Self {
        let (total, limit) = match timeout {
            Some(timeout) if timeout < limit => (timeout, TimeLimit::Deadline),
            _ => (limit, TimeLimit::Message(limit)),
        };
        let (stall, total) = (Box::pin(sleep(STALL)), Box::pin(sleep(total)));
        Self {
            inner: Some(inner),
            drains: false,
            body_error,
            arrival,
            intake,
            stall,
            total,
            limit,
            received_bytes: 0,
            waits: false,
            is_over: false,
        }
    }

    fn expired(&mut self, context: &mut Context<'_>) -> Option<InferenceError> {
        let received_bytes = self.received_bytes;
        let late = |expected: String| {
            let message = format!(
                "message: expected {expected}, found {received_bytes} bytes and no end; send it whole, at once"
            );
            InferenceError::new(Reason::MessageTimeout, message)
                .field("message")
                .fact("received_bytes", received_bytes)
        };
        if self.total.poll_unpin(context).is_ready() {
            return Some(match self.limit {
                TimeLimit::Message(limit) => late(format!(
                    "its end within {} s of the headers (limits.message_s)",
                    limit.as_secs()
                )),
                TimeLimit::Deadline => deadline_passed(),
            });
        }
        let stalled = self.stall.poll_unpin(context).is_ready();
        stalled.then(|| late(format!("at least a byte every {} s", STALL.as_secs())))
    }

    /// Waits for room in the budget. The error of a message that waited for its whole time.
    fn poll_room(&mut self, context: &mut Context<'_>) -> Poll<Result<()>> {
        if self.intake.poll_ready(context).is_ready() {
            if std::mem::take(&mut self.waits) {
                self.stall.set(sleep(STALL));
                if let TimeLimit::Message(limit) = self.limit {
                    self.total.set(sleep(limit));
                }
            }
            return Poll::Ready(Ok(()));
        }
        self.waits = true;
        std::task::ready!(self.total.poll_unpin(context));
        Poll::Ready(Err(match self.limit {
            TimeLimit::Message(_) => bodies_full(),
            TimeLimit::Deadline => deadline_passed(),
        }))
    }

    fn fail(&mut self, error: InferenceError) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        self.is_over = true;
        tracing::debug!(reason = error.kind.word(), "a request ended without its message");
        Poll::Ready(Some(Err((self.body_error)(error))))
    }
}

impl<B> Body for TimedBody<B>
where
    B: RequestBody,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        if this.is_over {
            return Poll::Ready(None);
        }
        // Before the state is read, so that a change after that wakes this task.
        this.arrival.wake_on_displacement(context.waker());
        if this.arrival.is_displaced() {
            return this.fail(displaced());
        }
        if let Err(error) = std::task::ready!(this.poll_room(context)) {
            return this.fail(error);
        }
        let Some(inner) = &mut this.inner else { return Poll::Ready(None) };
        match Pin::new(inner).poll_frame(context) {
            Poll::Ready(Some(Ok(frame))) => {
                let bytes = frame.data_ref().map_or(0, Bytes::len);
                if bytes > 0 {
                    this.received_bytes += bytes as u64;
                    this.stall.set(sleep(STALL));
                    let data = frame.data_ref().map_or(&[][..], |data| data);
                    if let Err(error) = this.intake.received(data) {
                        return this.fail(error);
                    }
                } else if let Some(error) = this.expired(context) {
                    // Frames without a byte can come for ever.
                    return this.fail(error);
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(None) => {
                this.drains = false;
                if this.arrival.arrived() {
                    this.is_over = true;
                    this.intake.ended();
                    Poll::Ready(None)
                } else {
                    this.fail(displaced())
                }
            }
            Poll::Ready(Some(Err(error))) => {
                this.is_over = true;
                Poll::Ready(Some(Err(error.into())))
            }
            Poll::Pending => match this.expired(context) {
                Some(error) => this.fail(error),
                None => Poll::Pending,
            },
        }
    }

    fn is_end_stream(&self) -> bool {
        // The end has to be polled: only then it is known that the request was not displaced.
        self.is_over
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.as_ref().map_or_else(SizeHint::default, Body::size_hint)
    }
}

impl<B: RequestBody> Drop for TimedBody<B> {
    fn drop(&mut self) {
        // A dropped body is not read any more, so the request does not wait for a message.
        self.arrival.arrived();
        if let Some(inner) = self.inner.take().filter(|_| self.drains) {
            drain_body(inner);
        }
    }
}

fn deadline_passed() -> InferenceError {
    let message = "the request's deadline passed before its message had arrived; allow more time (grpc-timeout)";
    InferenceError::new(Reason::DeadlinePassed, message).fact(COMPLETION_TOKENS, 0)
}

fn displaced() -> InferenceError {
    let message = "all places for requests are taken, and the message of this one had not arrived; try again, and send the message \
                   at once";
    InferenceError::new(Reason::QueueFull, message).field("message")
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;
    use crate::front::connection::intake::BodyLength;
    use crate::inference::admission::ByteKind;

    const LIMIT: Duration = Duration::from_secs(60);

    /// A body whose frames come after these pauses, and which then stays open.
    struct Script {
        frames: VecDeque<(Pin<Box<Sleep>>, &'static [u8])>,
    }

    impl Body for Script {
        type Data = Bytes;
        type Error = std::convert::Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
            let Some((pause, bytes)) = self.frames.front_mut() else { return Poll::Pending };
            std::task::ready!(pause.poll_unpin(context));
            let bytes = Bytes::from_static(bytes);
            self.frames.pop_front();
            Poll::Ready(Some(Ok(Frame::data(bytes))))
        }
    }

    /// Sends `bytes` every `pause` seconds, `count` times; returns how long the body lasted, its
    /// bytes and its end.
    async fn outcome(
        pause: u64,
        count: u64,
        bytes: &'static [u8],
        timeout: Option<u64>,
    ) -> (u64, usize, Option<InferenceError>) {
        let frames = (1..=count)
            .map(|at| (Box::pin(sleep(Duration::from_secs(at * pause))), bytes))
            .collect();
        let timeout = timeout.map(Duration::from_secs);
        let mut body = of(Script { frames }, Arc::default(), timeout);
        let begun = sleep(Duration::ZERO).deadline();
        let mut received = 0;
        let end = loop {
            match std::future::poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
                Some(Ok(frame)) => received += frame.data_ref().map_or(0, Bytes::len),
                Some(Err(error)) => break Some(ours(error)),
                None => break None,
            }
        };
        let seconds = (sleep(Duration::ZERO).deadline() - begun).as_secs();
        assert!(
            std::future::poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await.is_none(),
            "it ends once"
        );
        (seconds, received, end)
    }

    #[track_caller]
    fn is(end: Option<InferenceError>, reason: Reason, word: &str) {
        let error = end.expect("a failure");
        assert_eq!(error.kind, reason, "{error:?}");
        assert!(error.message.contains(word), "{error:?}");
    }

    fn followed<B: RequestBody>(inner: B) -> (TimedBody<B>, Arc<MessageArrival>) {
        let arrival = Arc::<MessageArrival>::default();
        (of(inner, Arc::clone(&arrival), None), arrival)
    }

    fn of<B: RequestBody>(
        inner: B,
        arrival: Arc<MessageArrival>,
        timeout: Option<Duration>,
    ) -> TimedBody<B> {
        let hold = ByteBudget::new(256 << 20).hold(Party::default());
        let intake = Intake::new(hold, BodyLength::Declared(None), 16 << 20);
        TimedBody::new(inner, arrival, intake, LIMIT, timeout, |error| error.into())
    }

    fn ours(error: BoxError) -> InferenceError {
        *error.downcast().expect("an error of ours")
    }

    #[tokio::test(start_paused = true)]
    async fn a_message_without_a_byte_ends_its_request_after_ten_seconds() {
        let (seconds, received, end) = outcome(0, 0, b"", None).await;
        assert_eq!((seconds, received), (10, 0));
        is(end, Reason::MessageTimeout, "found 0 bytes");
        // Bytes that stop coming are silence as well.
        let (seconds, received, end) = outcome(4, 3, b"ab", None).await;
        assert_eq!((seconds, received), (22, 6));
        is(end, Reason::MessageTimeout, "found 6 bytes");
    }

    #[tokio::test(start_paused = true)]
    async fn a_message_that_trickles_ends_its_request_after_sixty_seconds() {
        let (seconds, received, end) = outcome(9, 100, b"a", None).await;
        assert_eq!((seconds, received), (60, 6));
        is(end, Reason::MessageTimeout, "limits.message_s");
    }

    #[tokio::test(start_paused = true)]
    async fn empty_frames_are_no_bytes() {
        let (seconds, received, end) = outcome(1, 100, b"", None).await;
        assert_eq!((seconds, received), (10, 0));
        is(end, Reason::MessageTimeout, "a byte every 10 s");
    }

    #[tokio::test(start_paused = true)]
    async fn the_clients_own_deadline_ends_it_earlier() {
        let (seconds, _, end) = outcome(1, 100, b"a", Some(3)).await;
        assert_eq!(seconds, 3);
        is(end, Reason::DeadlinePassed, "grpc-timeout");
        // A longer one changes nothing.
        let (seconds, _, end) = outcome(1, 100, b"a", Some(120)).await;
        assert_eq!(seconds, 60);
        is(end, Reason::MessageTimeout, "limits.message_s");
    }

    #[tokio::test(start_paused = true)]
    async fn a_displaced_request_ends_at_once_and_one_whose_message_arrived_goes_on() {
        let (mut arriving, arrival) = followed(Script { frames: VecDeque::new() });
        let mut next = std::pin::pin!(std::future::poll_fn(|context| {
            Pin::new(&mut arriving).poll_frame(context)
        }));
        assert!(next.as_mut().now_or_never().is_none() && arrival.is_arriving());
        assert!(arrival.displace() && !arrival.displace(), "once");
        is(next.await.expect("an end").err().map(ours), Reason::QueueFull, "had not arrived");

        let (mut empty, arrival) = followed(tonic::body::Body::empty());
        assert!(
            std::future::poll_fn(|context| Pin::new(&mut empty).poll_frame(context))
                .await
                .is_none()
        );
        assert!(!arrival.displace(), "it has arrived");
        // A body that is dropped waits for nothing.
        let (dropped, arrival) = followed(tonic::body::Body::empty());
        drop(dropped);
        assert!(!arrival.displace());
    }

    /// A body of 2 MiB that comes at once, or after a wait for room in a budget that is full until
    /// `frees` seconds have passed. Returns how long it took, and its end.
    async fn beside_a_full_budget(
        frees: u64,
        timeout: Option<u64>,
    ) -> (u64, Option<InferenceError>) {
        let budget = ByteBudget::new(16 << 20);
        let full = budget.hold(Party::of_key("other"));
        full.take(ByteKind::Large, 4 << 20).await;
        let hold = budget.hold(Party::of_key("own"));
        let intake = Intake::new(hold, BodyLength::Declared(Some(3 << 20)), 4 << 20);
        let frames = VecDeque::from([(Box::pin(sleep(Duration::ZERO)), &b"ab"[..])]);
        let timeout = timeout.map(Duration::from_secs);
        let script = Script { frames };
        let mut body =
            TimedBody::new(script, Arc::default(), intake, LIMIT, timeout, |error| error.into());
        let begun = sleep(Duration::ZERO).deadline();
        task::spawn("other", async move {
            sleep(Duration::from_secs(frees)).await;
            drop(full);
        });
        let end = loop {
            match std::future::poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
                Some(Ok(_)) => {}
                Some(Err(error)) => break Some(ours(error)),
                None => break None,
            }
        };
        ((sleep(Duration::ZERO).deadline() - begun).as_secs(), end)
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_waits_for_room_within_its_time_and_has_its_whole_time_after_it() {
        // Silence counts from the room on: ten seconds after it.
        let (seconds, end) = beside_a_full_budget(50, None).await;
        assert_eq!(seconds, 60);
        is(end, Reason::MessageTimeout, "found 2 bytes");
        let (seconds, end) = beside_a_full_budget(1_000, None).await;
        assert_eq!(seconds, 60);
        is(end, Reason::BodiesFull, "limits.body_bytes");
        let (seconds, end) = beside_a_full_budget(1_000, Some(7)).await;
        assert_eq!(seconds, 7);
        is(end, Reason::DeadlinePassed, "grpc-timeout");
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_waits_for_room_can_be_displaced() {
        let budget = ByteBudget::new(16 << 20);
        let full = budget.hold(Party::of_key("other"));
        full.take(ByteKind::Large, 4 << 20).await;
        let hold = budget.hold(Party::of_key("own"));
        let intake = Intake::new(hold, BodyLength::Declared(Some(3 << 20)), 4 << 20);
        let arrival = Arc::<MessageArrival>::default();
        let script = Script { frames: VecDeque::new() };
        let mut body =
            TimedBody::new(script, Arc::clone(&arrival), intake, LIMIT, None, |error| error.into());
        let mut next = std::pin::pin!(std::future::poll_fn(|context| {
            Pin::new(&mut body).poll_frame(context)
        }));
        assert!(next.as_mut().now_or_never().is_none());
        assert!(arrival.displace());
        is(next.await.expect("an end").err().map(ours), Reason::QueueFull, "had not arrived");
    }
}
