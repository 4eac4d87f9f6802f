//! gRPC as [`crate::front::connection`] needs to know it.

use std::sync::Arc;
use std::time::Duration;

use http::header::AUTHORIZATION;
use http::request::Parts;
use http::{HeaderMap, Response};
use paceline_proto::status::Reason;
use paceline_protocols::inference::error::InferenceError;
use rustls::ServerConfig;
use tonic::body::Body;
use tonic::service::Routes;

use super::{status, timeout};
use crate::front::connection::intake::BodyLength;
use crate::front::connection::places::AnswerKind;
use crate::front::connection::{BoxError, WireProtocol};
use crate::guard::keys::Principal;
use crate::guard::{Guard, KeySource, UnknownKey};

/// The only service that needs no key.
const OPEN: &str = "/grpc.health.v1.Health/";

/// The services with long messages, one in each request. The others bound theirs themselves.
const LONG: [&str; 2] = ["/paceline.v1.Inference/", "/vllm.grpc.engine.VllmEngine/"];

/// gRPC with these services.
#[derive(Clone, Debug)]
pub struct GrpcWire {
    routes: Routes,
}

impl GrpcWire {
    /// Prepares the services in `routes` once for all connections.
    pub fn new(routes: Routes) -> Self {
        Self { routes: routes.prepare() }
    }
}

impl WireProtocol for GrpcWire {
    type Body = Body;
    type Service = Routes;

    const HTTP1: bool = false;

    fn service(&self) -> Routes {
        self.routes.clone()
    }

    fn tls(guard: &Guard) -> Option<Arc<ServerConfig>> {
        guard.tls.as_ref().map(|tls| Arc::clone(&tls.http2))
    }

    fn is_open(path: &str) -> bool {
        path.starts_with(OPEN)
    }

    fn principal(guard: &Guard, request: &mut Parts) -> Result<Option<Principal>, UnknownKey> {
        let principal = guard.principal(&request.headers, KeySource::Bearer);
        request.headers.remove(AUTHORIZATION);
        principal
    }

    fn timeout(headers: &HeaderMap) -> Option<Duration> {
        timeout::of_headers(headers)
    }

    fn answer_kind(path: &str) -> AnswerKind {
        match path {
            "/paceline.v1.Inference/Generate"
            | "/paceline.v1.Inference/Chat"
            | "/vllm.grpc.engine.VllmEngine/Generate" => AnswerKind::Model,
            "/grpc.health.v1.Health/Check"
            | "/vllm.grpc.engine.VllmEngine/HealthCheck"
            | "/vllm.grpc.engine.VllmEngine/Abort" => AnswerKind::Small,
            "/grpc.health.v1.Health/Watch" => AnswerKind::Watch,
            "/vllm.grpc.engine.VllmEngine/SubscribeKvEvents" => AnswerKind::Loads,
            "/vllm.grpc.engine.VllmEngine/GetTokenizer" => AnswerKind::Archive,
            _ => AnswerKind::Other,
        }
    }

    fn unread(error: InferenceError) -> Result<HeaderMap, BoxError> {
        let mut trailers = HeaderMap::new();
        status::of(error).add_header(&mut trailers)?;
        Ok(trailers)
    }

    fn body_length(request: &Parts) -> BodyLength {
        let is_long = LONG.iter().any(|service| request.uri.path().starts_with(service));
        if is_long { BodyLength::Message } else { BodyLength::Short }
    }

    fn refused(error: InferenceError, _path: &str) -> Response<Body> {
        status::of(error).into_http()
    }

    fn body_error(error: InferenceError) -> BoxError {
        // tonic takes a status out of the error of a body.
        status::of(error).into()
    }

    fn unknown_key() -> InferenceError {
        let message = "an API key is needed; send it as metadata, authorization: Bearer KEY";
        InferenceError::new(Reason::Unauthenticated, message)
    }
}
