//! HTTP as [`crate::front::connection`] needs to know it.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use http::header::{AUTHORIZATION, COOKIE, WWW_AUTHENTICATE};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode};
use paceline_protocols::inference::error::InferenceError;
use paceline_vocabulary::Reason;
use rustls::ServerConfig;

use super::error::ErrorReply;
use super::page::{self, session};
use super::site::Sites;
use super::{PAGE, of_path};
use crate::front::connection::intake::BodyLength;
use crate::front::connection::places::AnswerKind;
use crate::front::connection::{BoxError, WireProtocol};
use crate::guard::keys::Principal;
use crate::guard::{API_KEY, Guard, KeySource, UnknownKey};

/// The paths that need no key. The page has no figures of its own: it asks for them.
const OPEN: &[&str] = &["/health", PAGE];

/// The paths whose answers a model writes.
const MODEL: &[&str] = &[
    "/v1/chat/completions",
    page::CHAT,
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/api/chat",
    "/api/generate",
];

/// HTTP with these paths.
#[derive(Clone, Debug)]
pub struct HttpWire {
    router: Router,
    sites: Arc<Sites>,
}

impl HttpWire {
    /// Serves `router`, to pages of browsers as `sites` allows.
    pub fn new(router: Router, sites: Sites) -> Self {
        Self { router, sites: Arc::new(sites) }
    }
}

impl WireProtocol for HttpWire {
    type Body = Body;
    type Service = Router;

    const HTTP1: bool = true;

    fn service(&self) -> Router {
        self.router.clone()
    }

    fn tls(guard: &Guard) -> Option<Arc<ServerConfig>> {
        guard.tls.as_ref().map(|tls| Arc::clone(&tls.any_http))
    }

    fn is_open(path: &str) -> bool {
        OPEN.contains(&path)
    }

    fn principal(guard: &Guard, request: &mut Parts) -> Result<Option<Principal>, UnknownKey> {
        let session = session::offered(request, guard.session_cookie());
        let principal = guard.principal(&request.headers, KeySource::BearerOrApiKey);
        for secret in [AUTHORIZATION, API_KEY, COOKIE] {
            request.headers.remove(secret);
        }
        match (principal, session) {
            (Err(UnknownKey), Some(token)) => {
                let owner = guard.session(&token).ok_or(UnknownKey)?;
                request.extensions.insert(token);
                Ok(Some(owner))
            }
            (principal, _) => principal,
        }
    }

    fn timeout(_headers: &HeaderMap) -> Option<Duration> {
        None
    }

    fn answer_kind(path: &str) -> AnswerKind {
        match path {
            "/health" => AnswerKind::Small,
            path if MODEL.contains(&path) => AnswerKind::Model,
            _ => AnswerKind::Other,
        }
    }

    fn unread(error: InferenceError) -> Result<HeaderMap, BoxError> {
        Err(error.into())
    }

    fn body_length(request: &Parts) -> BodyLength {
        BodyLength::of(&request.headers)
    }

    fn preflight(&self, method: &Method, headers: &HeaderMap) -> Option<Response<Body>> {
        let allowed = self.sites.cors().preflight(method, headers)?;
        let mut reply = Response::new(Body::empty());
        *reply.status_mut() = StatusCode::NO_CONTENT;
        *reply.headers_mut() = allowed;
        Some(reply)
    }

    fn foreign(&self, request: &Parts) -> Option<Response<Body>> {
        let error = self.sites.check(request).err()?;
        tracing::debug!(%error, "a request that a page of another site may have sent is refused");
        let path = request.uri.path();
        Some(of_path(ErrorReply::new(error).status(StatusCode::FORBIDDEN), path))
    }

    fn answer_headers(&self, headers: &HeaderMap) -> HeaderMap {
        self.sites.cors().answer(headers)
    }

    fn refused(error: InferenceError, path: &str) -> Response<Body> {
        let is_about_key = error.kind == Reason::Unauthenticated;
        let mut reply = of_path(ErrorReply::new(error), path);
        if is_about_key {
            reply.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        reply
    }

    fn body_error(error: InferenceError) -> BoxError {
        error.into()
    }

    fn unknown_key() -> InferenceError {
        let message =
            "an API key is needed; send it as authorization: Bearer KEY, or as x-api-key: KEY";
        InferenceError::new(Reason::Unauthenticated, message)
    }
}
