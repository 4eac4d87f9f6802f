//! What stands before every service of a connection, behind the key: counts the connection's open
//! calls, and bounds the time of their messages.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Request, Response};
use http_body::{Body as HttpBody, Frame, SizeHint};
use tonic::Status;
use tonic::body::Body;
use tower::Service;

use super::connections::{ConnectionHandle, OpenCall};
use super::message::{TimedBody, timed};
use crate::guard::keys::Principal;

/// Counts and bounds the calls of one connection.
#[derive(Clone, Debug)]
pub struct TrackCalls<S> {
    inner: S,
    connection: ConnectionHandle,
    /// Without keys every call counts as authenticated.
    has_keys: bool,
    /// Time from a call's headers to the end of its message: `limits.message_s`.
    message_limit: Duration,
}

impl<S> TrackCalls<S> {
    /// Before `inner`, for the calls of this connection.
    pub fn new(
        inner: S,
        connection: ConnectionHandle,
        has_keys: bool,
        message_limit: Duration,
    ) -> Self {
        Self { inner, connection, has_keys, message_limit }
    }
}

impl<S, B> Service<Request<B>> for TrackCalls<S>
where
    S: Service<Request<TimedBody<B>>, Response = Response<Body>, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let authenticated = !self.has_keys || request.extensions().get::<Principal>().is_some();
        let call = match self.connection.begin(authenticated) {
            Ok(call) => call,
            Err(refusal) => return Box::pin(async { Ok(Status::from(refusal).into_http()) }),
        };
        let answer = self.inner.call(timed(request, self.message_limit));
        Box::pin(async move {
            Ok(answer.await?.map(|inner| Body::new(TrackedBody { inner, _call: call })))
        })
    }
}

/// The body of an answer. The call is open until it is dropped.
struct TrackedBody {
    inner: Body,
    _call: OpenCall,
}

impl HttpBody for TrackedBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        Pin::new(&mut self.inner).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
