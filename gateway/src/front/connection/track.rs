//! The second layer of a connection, after the [`super::key`]: counts the connection's open
//! requests, and bounds the time of their messages.

use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body, Frame, SizeHint};

use super::connections::{ConnectionHandle, TrackedRequest};
use super::layer::{Entered, Passed, RequestLayer};
use super::timed::{MessageBounds, TimedBody, timed};
use super::{RequestBody, WireProtocol};
use crate::guard::keys::Principal;
use crate::turns::Party;

/// The client of a request, in the request's extensions.
#[derive(Clone, Debug)]
pub struct Caller {
    /// Party whose turns and bytes the request counts as.
    pub party: Party,
    /// Whether the request has a right key, if it needs one.
    pub is_authenticated: bool,
}

/// Counts and bounds the requests of one connection.
#[derive(Debug)]
pub struct TrackRequests<P> {
    connection: ConnectionHandle,
    has_keys: bool,
    bounds: MessageBounds,
    protocol: PhantomData<fn() -> P>,
}

impl<P> TrackRequests<P> {
    /// For the requests of `connection`. Without keys every request counts as authenticated.
    /// `bounds` are those of a request's message, from its headers on.
    pub fn new(connection: ConnectionHandle, has_keys: bool, bounds: MessageBounds) -> Self {
        Self { connection, has_keys, bounds, protocol: PhantomData }
    }
}

impl<P> Clone for TrackRequests<P> {
    fn clone(&self) -> Self {
        Self::new(self.connection.clone(), self.has_keys, self.bounds.clone())
    }
}

impl<P: WireProtocol, B: RequestBody> RequestLayer<B> for TrackRequests<P> {
    type Body = TimedBody<B>;
    type Answer = P::Body;
    type Reply = TrackedBody<P::Body>;
    type Kept = TrackedRequest;

    fn before(&self, mut request: Request<B>) -> Entered<Self, B> {
        let principal = request.extensions().get::<Principal>();
        let is_authenticated = !self.has_keys || principal.is_some();
        let party = principal.map(|owner| Party::of_key(&owner.name));
        let party = party.unwrap_or_else(|| self.connection.party());
        match self.connection.begin(is_authenticated) {
            Ok(tracked) => {
                let caller = Caller { party: party.clone(), is_authenticated };
                request.extensions_mut().insert(caller);
                Ok(Passed { request: timed::<P, B>(request, &self.bounds, party), kept: tracked })
            }
            Err(error) => {
                let reply = P::refused(error, request.uri().path()).map(TrackedBody::untracked);
                Err(Box::pin(std::future::ready(reply)))
            }
        }
    }

    fn after(tracked: TrackedRequest, response: Response<P::Body>) -> Response<Self::Reply> {
        response.map(|inner| TrackedBody { inner, _request: Some(tracked) })
    }
}

/// The body of a response. The request is open until the body is dropped.
#[derive(Debug)]
pub struct TrackedBody<B> {
    inner: B,
    _request: Option<TrackedRequest>,
}

impl<B> TrackedBody<B> {
    /// The body of the response to a request that is not counted.
    pub fn untracked(inner: B) -> Self {
        Self { inner, _request: None }
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
