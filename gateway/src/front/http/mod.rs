//! HTTP with JSON, for the clients that people have. Each protocol is a folder: its paths, its
//! types, and how answers and errors are written. All have one way from a request to an answer:
//! [`exchange`].
//!
//! [`exchange`] requests and answers · [`sse`] answers as server-sent events · [`error`] reasons as
//! HTTP statuses · [`json`] bounds of JSON · [`aliases`] the model names that are served ·
//! [`accepted`] fields that are accepted and not read · [`values`] values of requests with several
//! forms · [`answer`] fields of all answers.

pub mod accepted;
pub mod aliases;
pub mod answer;
pub mod anthropic;
mod body;
mod cors;
pub mod error;
pub mod exchange;
pub mod json;
pub mod metrics;
pub mod openai;
#[cfg(test)]
mod openapi;
pub mod responses;
pub mod sse;
pub mod values;
mod wire;

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::get;
use serde_json::json;
use tokio::sync::watch;

use self::aliases::Aliases;
use self::error::ErrorReply;
use crate::front::decoding::Decoding;
use crate::inference::Inference;
use crate::inference::admission::Calls;
use crate::inference::error::{InferenceError, quoted};
use crate::inference::standing::Standing;

pub use cors::Cors;
pub use wire::HttpWire;

/// What the handlers of all HTTP protocols share.
#[derive(Debug)]
pub struct HttpFront {
    /// Serves requests.
    pub inference: Arc<Inference>,
    /// The calls inside the gateway, those of other fronts included.
    pub calls: Calls,
    /// Whether the gateway takes new calls.
    pub standing: watch::Receiver<Standing>,
    /// Decodes and checks bodies, large ones on threads of their own.
    pub decoding: Decoding,
    /// Which model names of clients are served.
    pub aliases: Aliases,
}

/// Every path of the HTTP address.
pub fn router(front: Arc<HttpFront>) -> Router {
    Router::new()
        .route("/health", get(health))
        .merge(openai::routes())
        .merge(responses::routes())
        .merge(anthropic::routes())
        .merge(metrics::routes())
        .fallback(no_such_path)
        .method_not_allowed_fallback(no_such_method)
        .with_state(front)
}

/// Answers 200 exactly when a request would be served at this instant, as gRPC's health does.
async fn health(State(front): State<Arc<HttpFront>>) -> Response {
    let serving = front.standing.borrow().serving();
    match serving {
        Ok(_) => exchange::json_reply(StatusCode::OK, &json!({ "status": "serving" })),
        Err(error) => {
            let body = json!({
                "status": "not_serving",
                "reason": error.kind.word(),
                "message": error.message,
            });
            exchange::json_reply(error::status(error.kind), &body)
        }
    }
}

async fn no_such_path(request: Request) -> Response {
    let path = request.uri().path();
    let error = InferenceError::invalid("path", "a path of this service", quoted(path));
    ErrorReply::new(error).status(StatusCode::NOT_FOUND).of_path(path)
}

async fn no_such_method(request: Request) -> Response {
    let (path, method) = (request.uri().path(), request.method().as_str());
    let expected = format!("a method that {path} has");
    let error = InferenceError::invalid("method", expected, quoted(method));
    ErrorReply::new(error).status(StatusCode::METHOD_NOT_ALLOWED).of_path(path)
}
