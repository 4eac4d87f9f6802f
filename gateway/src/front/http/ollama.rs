//! Ollama's API: its answers by [`exchange`], and the served model in its lists and with its facts.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::{get, post};
use paceline_protocols::inference::error::{InferenceError, Result};
use paceline_protocols::inference::model::ModelDescription;
use paceline_protocols::json;
use paceline_protocols::ollama::error::Ollama;
use paceline_protocols::ollama::models::{running, show, tags, version};
use paceline_protocols::ollama::request::OllamaShowRequest;
use paceline_protocols::ollama::{OllamaChat, OllamaGenerate, untagged};
use paceline_system::clock::unix_seconds;
use serde_json::Value;

use super::exchange::{self, finish};
use super::reply::json_reply;
use super::{HttpFront, body};

/// Paths of this API begin so.
pub const PREFIX: &str = "/api/";
/// What Ollama says at `/`.
pub const GREETING: &str = "Ollama is running";
/// Most bytes of a question about a model: a name.
const MAX_QUESTION_BYTES: u64 = 64 << 10;

/// The paths of the API.
pub fn routes() -> Router<Arc<HttpFront>> {
    let since = unix_seconds();
    Router::new()
        .route("/api/chat", post(exchange::answer::<OllamaChat>))
        .route("/api/generate", post(exchange::answer::<OllamaGenerate>))
        .route("/api/tags", get(move |front| of_model(front, move |model| tags(model, since))))
        .route("/api/ps", get(|front| of_model(front, running)))
        .route("/api/show", post(move |front, request| shown(front, request, since)))
        .route("/api/version", get(async || json_reply(StatusCode::OK, &version())))
}

/// Answers with something about the served model.
async fn of_model(
    State(front): State<Arc<HttpFront>>,
    answer: impl FnOnce(&ModelDescription) -> Value,
) -> Response {
    reply(front.inference.model("").map(|model| answer(&model)))
}

/// Answers with the facts of the model that the body names.
async fn shown(State(front): State<Arc<HttpFront>>, request: Request, since: i64) -> Response {
    let (parts, body) = request.into_parts();
    let found = async {
        let bytes = body::read(body, &parts.headers, MAX_QUESTION_BYTES).await?;
        let asked: OllamaShowRequest = json::decode(&bytes, json::MAX_NUMBERS)?;
        let name = asked.name()?;
        let model = front.inference.model("")?;
        front.aliases.check(&untagged(name.as_deref(), &model.name)?, &model.name)?;
        Ok(show(&model, since))
    };
    reply(found.await)
}

fn reply(found: Result<Value, InferenceError>) -> Response {
    let request_id = paceline_proto::ids::draw_request_id();
    finish::<Ollama>(found.map(|body| json_reply(StatusCode::OK, &body)), request_id.as_str())
}
