//! The second layer of a connection, after the [`super::door`]: counts the connection's open calls,
//! and bounds the time of their messages.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body as HttpBody, Frame, SizeHint};
use tonic::Status;
use tonic::body::Body;

use super::connections::{ConnectionHandle, OpenCall};
use super::layer::{CallLayer, Passed, Refused};
use super::message::{TimedBody, timed};
use crate::guard::keys::Principal;

/// Counts and bounds the calls of one connection.
#[derive(Clone, Debug)]
pub(super) struct TrackCalls {
    /// The connection.
    pub(super) connection: ConnectionHandle,
    /// Whether calls need a key. Without keys every call counts as authenticated.
    pub(super) has_keys: bool,
    /// Time from a call's headers to the end of its message: `limits.message_s`.
    pub(super) message_limit: Duration,
}

impl<B> CallLayer<B> for TrackCalls {
    type Body = TimedBody<B>;
    type Call = OpenCall;

    fn before(&self, request: Request<B>) -> Result<Passed<TimedBody<B>, OpenCall>, Refused> {
        let authenticated = !self.has_keys || request.extensions().get::<Principal>().is_some();
        match self.connection.begin(authenticated) {
            Ok(call) => Ok(Passed { request: timed(request, self.message_limit), call }),
            Err(refusal) => Err(Box::pin(async { Status::from(refusal).into_http() })),
        }
    }

    fn after(call: OpenCall, response: Response<Body>) -> Response<Body> {
        response.map(|inner| Body::new(TrackedBody { inner, _call: call }))
    }
}

/// The body of a response. The call is open until it is dropped.
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
