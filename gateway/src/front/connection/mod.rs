//! Connections of all listening sockets: they are accepted, bounded in number, opened within a
//! few seconds, and closed in order.
//!
//! A request passes two layers before its protocol's service. [`key`] asks for its key. [`track`]
//! counts the connection's requests, and bounds the time of their messages and what their answers
//! hold. The sockets differ only in their [`WireProtocol`].
//!
//! [`listener`] accepting and serving · [`opening`] the first bytes · [`connections`] the table of
//! connections, one for all sockets · [`timed`] bounds of a message's time · [`intake`] its bytes in
//! the budget · [`places`] places of answers · [`layer`] layers.

pub mod connections;
pub mod intake;
pub mod key;
pub mod layer;
pub mod listener;
pub mod opening;
pub mod places;
pub mod timed;
pub mod track;

use std::convert::Infallible;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, Request, Response};
use http_body::Body;
use hyper::body::Incoming;
use paceline_protocols::inference::error::InferenceError;
use rustls::ServerConfig;
use tower::Service;

use crate::guard::keys::Principal;
use crate::guard::{Guard, UnknownKey};
use intake::BodyLength;
use places::AnswerKind;
use timed::TimedBody;

/// An error of a body.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A body of requests that connections can read.
pub trait RequestBody: Body<Data = Bytes> + Unpin + Send + 'static {}

impl<B: Body<Data = Bytes> + Unpin + Send + 'static> RequestBody for B {}

/// The protocol of one listening socket, as its connections need it.
pub trait WireProtocol: Clone + Debug + Send + Sync + 'static {
    /// Body of its responses.
    type Body: Body<Data = Bytes, Error: Into<BoxError>> + Unpin + Send + 'static;
    /// Serves its requests.
    type Service: Service<
            Request<TimedBody<Incoming>>,
            Response = Response<Self::Body>,
            Error = Infallible,
            Future: Send + 'static,
        > + Clone
        + Send
        + 'static;

    /// Whether connections may speak HTTP/1 as well as HTTP/2.
    const HTTP1: bool;

    /// Serves the requests of one connection.
    fn service(&self) -> Self::Service;

    /// TLS for its connections, where it is set.
    fn tls(guard: &Guard) -> Option<Arc<ServerConfig>>;

    /// Whether requests of this path need no key.
    fn is_open(path: &str) -> bool;

    /// The owner of the key in a request's headers; `None` if no keys are set. The key is removed: no
    /// layer or service after this one needs it.
    ///
    /// # Errors
    /// There is no key, or one that is not known.
    fn principal(guard: &Guard, request: &mut Parts) -> Result<Option<Principal>, UnknownKey>;

    /// The client's own limit on the time of a request.
    fn timeout(headers: &HeaderMap) -> Option<Duration>;

    /// Whose bound the answer to a request of this path counts in (I14).
    fn answer_kind(path: &str) -> AnswerKind;

    /// The end of an answer that was not read in time: trailers, or the error of its body.
    ///
    /// # Errors
    /// The protocol has no trailers.
    fn unread(error: InferenceError) -> Result<HeaderMap, BoxError>;

    /// How long the body of a request with this head is.
    fn body_length(request: &Parts) -> BodyLength;

    /// The refusal of a request that a page of another site may have made a browser send. It is asked
    /// for where no keys are set.
    fn foreign(&self, _request: &Parts) -> Option<Response<Self::Body>> {
        None
    }

    /// The answer to a request that is for no service, such as a browser's question about CORS.
    fn preflight(
        &self,
        _method: &http::Method,
        _headers: &HeaderMap,
    ) -> Option<Response<Self::Body>> {
        None
    }

    /// Headers that each answer gets to a request with these headers.
    fn answer_headers(&self, _headers: &HeaderMap) -> HeaderMap {
        HeaderMap::new()
    }

    /// The answer to a request of this path that reaches no service.
    fn refused(error: InferenceError, path: &str) -> Response<Self::Body>;

    /// The error that the service finds in a body that took too long.
    fn body_error(error: InferenceError) -> BoxError;

    /// The one refusal of all requests without a known key.
    fn unknown_key() -> InferenceError;
}
