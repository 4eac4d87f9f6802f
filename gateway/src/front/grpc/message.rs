//! Bounds the time between the headers of a call and the end of its message.
//!
//! A call holds a stream, memory and, once the gate lets it pass, a slot. A message that never
//! arrives must therefore end its call. [`TimedBody`] wraps the request body of every call of
//! every service, health and reflection included. It fails when no byte arrives for [`STALL`], when
//! the message takes longer than `limits.message_s` in all, when the client's own `grpc-timeout`
//! passes first, or when the gate gives the slot of the call to another one. tonic answers the call
//! with that failure and drops the request, which releases everything that the call holds.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt as _;
use http::Request;
use http_body::{Body, Frame, SizeHint};
use paceline_proto::status::{COMPLETION_TOKENS, Reason, ReasonStatus as _, Refusal};
use tokio::time::{Sleep, sleep};
use tonic::Status;

use super::timeout;
use crate::inference::admission::MessageArrival;

/// Longest time without a byte. Ten seconds outlast the retransmissions of a bad mobile network; a
/// sender that is silent for longer has lost its connection or does not mean to send.
const STALL: Duration = Duration::from_secs(10);

/// Error of a request body, in the form that tonic takes a [`Status`] out of.
type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Bounds the time of a call's message. The request's extensions get the [`MessageArrival`] for
/// the gate. `limit` is `limits.message_s`.
pub fn timed<B>(request: Request<B>, limit: Duration) -> Request<TimedBody<B>> {
    let timeout = timeout::of_headers(request.headers());
    let (mut parts, body) = request.into_parts();
    let arrival = Arc::<MessageArrival>::default();
    parts.extensions.insert(Arc::clone(&arrival));
    Request::from_parts(parts, TimedBody::new(body, arrival, limit, timeout))
}

/// A request body that fails when its message takes too long. The time begins when this is made.
#[derive(Debug)]
pub struct TimedBody<B> {
    inner: B,
    arrival: Arc<MessageArrival>,
    stall: Pin<Box<Sleep>>,
    total: Pin<Box<Sleep>>,
    /// What `total` stands for: `limits.message_s`, or the client's own deadline.
    limit: TimeLimit,
    received_bytes: u64,
    is_over: bool,
}

#[derive(Clone, Copy, Debug)]
enum TimeLimit {
    Message(Duration),
    Deadline,
}

impl<B> TimedBody<B> {
    fn new(
        inner: B,
        arrival: Arc<MessageArrival>,
        limit: Duration,
        timeout: Option<Duration>,
    ) -> Self {
        let (total, limit) = match timeout {
            Some(timeout) if timeout < limit => (timeout, TimeLimit::Deadline),
            _ => (limit, TimeLimit::Message(limit)),
        };
        let (stall, total) = (Box::pin(sleep(STALL)), Box::pin(sleep(total)));
        Self { inner, arrival, stall, total, limit, received_bytes: 0, is_over: false }
    }

    fn expired(&mut self, context: &mut Context<'_>) -> Option<Status> {
        let received_bytes = self.received_bytes;
        let late = |expected: String| {
            let message = format!(
                "message: expected {expected}, found {received_bytes} bytes and no end; send it whole, at once"
            );
            Refusal::new(Reason::MessageTimeout, message)
                .field("message")
                .fact("received_bytes", received_bytes)
                .into()
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

    fn fail(&mut self, status: Status) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        self.is_over = true;
        tracing::debug!(code = ?status.code(), reason = Reason::of(&status).map(Reason::word), "a call ended without its message");
        Poll::Ready(Some(Err(status.into())))
    }
}

impl<B> Body for TimedBody<B>
where
    B: Body<Data = Bytes> + Unpin,
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
        match Pin::new(&mut this.inner).poll_frame(context) {
            Poll::Ready(Some(Ok(frame))) => {
                let bytes = frame.data_ref().map_or(0, Bytes::len);
                if bytes > 0 {
                    this.received_bytes += bytes as u64;
                    this.stall.set(sleep(STALL));
                } else if let Some(status) = this.expired(context) {
                    // Frames without a byte can come for ever.
                    return this.fail(status);
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(None) => {
                if this.arrival.arrived() {
                    this.is_over = true;
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
                Some(status) => this.fail(status),
                None => Poll::Pending,
            },
        }
    }

    fn is_end_stream(&self) -> bool {
        // The end has to be polled: only then it is known that the call was not displaced.
        self.is_over
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

impl<B> Drop for TimedBody<B> {
    fn drop(&mut self) {
        // A dropped body is not read any more, so the call does not wait for a message.
        self.arrival.arrived();
    }
}

fn deadline_passed() -> Status {
    let message = "the request's deadline passed before its message had arrived; allow more time (grpc-timeout)";
    Refusal::new(Reason::DeadlinePassed, message).fact(COMPLETION_TOKENS, 0).into()
}

fn displaced() -> Status {
    let message = "all places for calls are taken, and the message of this one had not arrived; try again, and send the message \
                   at once";
    Refusal::new(Reason::QueueFull, message).field("message").into()
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

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
        timeout: Option<&str>,
    ) -> (u64, usize, Option<Status>) {
        let frames = (1..=count)
            .map(|at| (Box::pin(sleep(Duration::from_secs(at * pause))), bytes))
            .collect();
        let mut request = Request::new(Script { frames });
        if let Some(timeout) = timeout {
            request.headers_mut().insert("grpc-timeout", timeout.parse().expect("ASCII"));
        }
        let mut body = timed(request, LIMIT).into_body();
        let begun = sleep(Duration::ZERO).deadline();
        let mut received = 0;
        let end = loop {
            match std::future::poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
                Some(Ok(frame)) => received += frame.data_ref().map_or(0, Bytes::len),
                Some(Err(error)) => break Some(Status::from_error(error)),
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
    fn is(end: Option<Status>, reason: Reason, word: &str) {
        let status = end.expect("a failure");
        assert_eq!(
            (status.code(), Reason::of(&status)),
            (reason.code(), Some(reason)),
            "{status:?}"
        );
        assert!(status.message().contains(word), "{status:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_message_without_a_byte_ends_its_call_after_ten_seconds() {
        let (seconds, received, end) = outcome(0, 0, b"", None).await;
        assert_eq!((seconds, received), (10, 0));
        is(end, Reason::MessageTimeout, "found 0 bytes");
        // Bytes that stop coming are silence as well.
        let (seconds, received, end) = outcome(4, 3, b"ab", None).await;
        assert_eq!((seconds, received), (22, 6));
        is(end, Reason::MessageTimeout, "found 6 bytes");
    }

    #[tokio::test(start_paused = true)]
    async fn a_message_that_trickles_ends_its_call_after_sixty_seconds() {
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
        let (seconds, _, end) = outcome(1, 100, b"a", Some("3S")).await;
        assert_eq!(seconds, 3);
        is(end, Reason::DeadlinePassed, "grpc-timeout");
        // A malformed one is refused later, with the field's name; a longer one changes nothing.
        for timeout in ["soon", "2M"] {
            let (seconds, _, end) = outcome(1, 100, b"a", Some(timeout)).await;
            assert_eq!(seconds, 60);
            is(end, Reason::MessageTimeout, "limits.message_s");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_displaced_call_ends_at_once_and_one_whose_message_arrived_goes_on() {
        let mut request = timed(Request::new(Script { frames: VecDeque::new() }), LIMIT);
        let arrival: Arc<MessageArrival> = request.extensions_mut().remove().expect("for the gate");
        let mut body = request.into_body();
        let mut next =
            std::pin::pin!(std::future::poll_fn(|context| Pin::new(&mut body).poll_frame(context)));
        assert!(next.as_mut().now_or_never().is_none() && arrival.is_arriving());
        assert!(arrival.displace() && !arrival.displace(), "once");
        is(
            next.await.expect("an end").err().map(Status::from_error),
            Reason::QueueFull,
            "had not arrived",
        );

        let whole = timed(Request::new(tonic::body::Body::empty()), LIMIT);
        let arrival: Arc<MessageArrival> = whole.extensions().get().cloned().expect("for the gate");
        let mut body = whole.into_body();
        assert!(
            std::future::poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await.is_none()
        );
        assert!(!arrival.displace(), "it has arrived");
        // A body that is dropped waits for nothing.
        let dropped = timed(Request::new(tonic::body::Body::empty()), LIMIT);
        let arrival: Arc<MessageArrival> =
            dropped.extensions().get().cloned().expect("for the gate");
        drop(dropped);
        assert!(!arrival.displace());
    }
}
