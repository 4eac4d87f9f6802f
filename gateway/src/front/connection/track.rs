//! The second layer of a connection, after the [`super::key`]: counts the connection's open calls,
//! and bounds the time of their messages.

use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body, Frame, SizeHint};

use super::connections::{ConnectionHandle, OpenCall};
use super::layer::{CallLayer, Entered, Passed};
use super::timed::{TimedBody, timed};
use super::{RequestBody, WireProtocol};
use crate::guard::keys::Principal;

/// Counts and bounds the calls of one connection.
#[derive(Debug)]
pub struct TrackCalls<P> {
    connection: ConnectionHandle,
    has_keys: bool,
    message_limit: Duration,
    protocol: PhantomData<fn() -> P>,
}

impl<P> TrackCalls<P> {
    /// For the calls of `connection`. Without keys every call counts as authenticated.
    /// `message_limit` is the time from a call's headers to the end of its message:
    /// `limits.message_s`.
    pub fn new(connection: ConnectionHandle, has_keys: bool, message_limit: Duration) -> Self {
        Self { connection, has_keys, message_limit, protocol: PhantomData }
    }
}

impl<P> Clone for TrackCalls<P> {
    fn clone(&self) -> Self {
        Self::new(self.connection.clone(), self.has_keys, self.message_limit)
    }
}

impl<P: WireProtocol, B: RequestBody> CallLayer<B> for TrackCalls<P> {
    type Body = TimedBody<B>;
    type Answer = P::Body;
    type Reply = TrackedBody<P::Body>;
    type Call = OpenCall;

    fn before(&self, request: Request<B>) -> Entered<Self, B> {
        let authenticated = !self.has_keys || request.extensions().get::<Principal>().is_some();
        match self.connection.begin(authenticated) {
            Ok(call) => Ok(Passed { request: timed::<P, B>(request, self.message_limit), call }),
            Err(error) => {
                let reply = P::refused(error, request.uri().path()).map(TrackedBody::untracked);
                Err(Box::pin(std::future::ready(reply)))
            }
        }
    }

    fn after(call: OpenCall, response: Response<P::Body>) -> Response<Self::Reply> {
        response.map(|inner| TrackedBody { inner, _call: Some(call) })
    }
}

/// The body of a response. The call is open until it is dropped.
#[derive(Debug)]
pub struct TrackedBody<B> {
    inner: B,
    _call: Option<OpenCall>,
}

impl<B> TrackedBody<B> {
    /// The body of the response to a request that is no call.
    pub fn untracked(inner: B) -> Self {
        Self { inner, _call: None }
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for TrackedBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        Pin::new(&mut self.inner).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
