//! HTTP with JSON, for the clients that people have, and a page for people. How each protocol's
//! requests, answers and errors are read and written is in `paceline_protocols`. All have one way
//! from a request to an answer: [`exchange`].
//!
//! - `served`: the paths of the protocols, and the served model; [`ollama`] those of Ollama
//! - [`exchange`]: from a request to its answer
//! - [`page`]: the page, its figures and its chat
//! - `site`: which pages of browsers may send requests
//! - `encoding`: no compressed bodies
//! - [`reply`]: answers with a JSON body
//! - `streamed`: a body of server-sent events, `whole` a body that comes at once
//! - [`error`]: errors as answers
//! - `prompts`: requests with several prompts

mod body;
mod cors;
mod encoding;
pub mod error;
pub mod exchange;
pub mod metrics;
pub mod ollama;
#[cfg(test)]
mod openapi;
pub mod page;
mod prompts;
pub mod reply;
mod served;
mod site;
mod streamed;
mod whole;
mod wire;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware;
use axum::response::Response;
use axum::routing::get;
use paceline_protocols::aliases::Aliases;
use paceline_protocols::anthropic::error::Anthropic;
use paceline_protocols::dialect;
use paceline_protocols::inference::error::{InferenceError, quoted};
use paceline_protocols::ollama::error::Ollama;
use paceline_protocols::openai::error::OpenAi;
use serde::Serialize;
use serde_json::json;
use tokio::sync::watch;
use utoipa::ToSchema;

use self::error::ErrorReply;
use self::reply::json_reply;
use crate::front::decoding::Decoding;
use crate::guard::Guard;
use crate::inference::Inference;
use crate::inference::admission::RequestSlots;
use crate::inference::standing::Standing;
use crate::overview::Overview;

pub use cors::Cors;
pub use site::Sites;
pub use wire::HttpWire;

/// Path of the page.
pub const PAGE: &str = "/";

/// State that the handlers of all HTTP protocols share.
#[derive(Debug)]
pub struct HttpFront {
    /// Serves requests.
    pub inference: Arc<Inference>,
    /// The requests inside the gateway, those of other fronts included.
    pub calls: RequestSlots,
    /// Whether the gateway takes new requests.
    pub standing: watch::Receiver<Standing>,
    /// Decodes and checks bodies, large ones on threads of their own.
    pub decoding: Decoding,
    /// The model names of clients that are served.
    pub aliases: Aliases,
    /// The service's state and figures for the page.
    pub overview: Arc<Overview>,
    /// Begins and ends sessions of the page.
    pub guard: Guard,
    /// Time without an event after which a stream gets a keep-alive.
    pub keep_alive: Duration,
}

/// Every path of the HTTP address. `serves_ollama`: those of Ollama's API as well.
pub fn router(front: Arc<HttpFront>, serves_ollama: bool) -> Router {
    let ollama = if serves_ollama { ollama::routes() } else { Router::new() };
    Router::new()
        .route("/health", get(health))
        .merge(served::routes())
        .merge(ollama)
        .merge(metrics::routes())
        .merge(page::routes(serves_ollama))
        .fallback(no_such_path)
        .method_not_allowed_fallback(no_such_method)
        .layer(middleware::from_fn(encoding::check))
        .with_state(front)
}

/// The answer of `/health`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct Health {
    /// `serving` or `not_serving`.
    pub status: &'static str,
    /// Why it is not served, the same word as in gRPC.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<&'static str>,
    /// The reason in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

impl Health {
    /// Health of the service at this instant.
    pub(crate) fn of(standing: &Standing) -> Self {
        match standing.healthy() {
            Ok(_) => Self { status: "serving", reason: None, message: None },
            Err(error) => Self {
                status: "not_serving",
                reason: Some(error.kind.word()),
                message: Some(error.message),
            },
        }
    }
}

/// Answers 200 if a request would be served at this instant and no drain follows, as gRPC's health
/// does.
async fn health(State(front): State<Arc<HttpFront>>) -> Response {
    let standing = front.standing.borrow().clone();
    let code =
        standing.healthy().map_or_else(|error| dialect::status(error.kind), |()| StatusCode::OK);
    json_reply(code, &json!(Health::of(&standing)))
}

async fn no_such_path(request: Request) -> Response {
    let path = request.uri().path();
    let error = InferenceError::invalid("path", "a path of this service", quoted(path));
    of_path(ErrorReply::new(error).status(StatusCode::NOT_FOUND), path)
}

async fn no_such_method(request: Request) -> Response {
    let (path, method) = (request.uri().path(), request.method().as_str());
    let expected = format!("a method that {path} has");
    let error = InferenceError::invalid("method", expected, quoted(method));
    of_path(ErrorReply::new(error).status(StatusCode::METHOD_NOT_ALLOWED), path)
}

/// The error in the dialect of a path, for requests that reach no protocol's handler.
fn of_path(reply: ErrorReply, path: &str) -> Response {
    let rest = path.strip_prefix("/v1/messages");
    match rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/')) {
        true => reply.of::<Anthropic>(),
        false if path.starts_with(ollama::PREFIX) => reply.of::<Ollama>(),
        false => reply.of::<OpenAi>(),
    }
}

#[cfg(test)]
mod tests {
    use paceline_vocabulary::Reason;
    use serde_json::Value;

    use super::*;

    #[tokio::test]
    async fn a_path_decides_the_dialect_of_an_error_without_a_protocol() {
        let typed = async |path| {
            let error = InferenceError::new(Reason::Bug, "m");
            let body = of_path(ErrorReply::new(error), path).into_body();
            let body = axum::body::to_bytes(body, 1 << 10).await.expect("whole");
            let body: Value = serde_json::from_slice(&body).expect("JSON");
            body.get("type").is_some()
        };
        assert!(typed("/v1/messages").await && typed("/v1/messages/count_tokens").await);
        for path in ["/v1/messagesx", "/v1/chat/completions", "/"] {
            assert!(!typed(path).await, "{path}");
        }
    }
}
