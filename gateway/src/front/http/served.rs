//! The paths of the protocols: [`exchange`] answers them, but `/v1/models`, which is answered here
//! in the protocol's list and in the list that Codex CLI reads.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use axum::routing::{get, post};
use paceline_protocols::anthropic::error::Anthropic;
use paceline_protocols::anthropic::models::{MessagesModel, MessagesModelList};
use paceline_protocols::anthropic::{CountTokens, Messages};
use paceline_protocols::dialect::Dialect;
use paceline_protocols::inference::error::Result;
use paceline_protocols::openai::chat::Chat;
use paceline_protocols::openai::completions::Completions;
use paceline_protocols::openai::error::OpenAi;
use paceline_protocols::openai::models::{ModelList, ModelObject};
use paceline_protocols::responses::Responses;
use paceline_system::clock::unix_seconds;
use serde_json::{Value, json};

use super::HttpFront;
use super::exchange::{self, finish};
use super::reply::json_reply;

/// The paths of all protocols.
pub fn routes() -> Router<Arc<HttpFront>> {
    let since = unix_seconds();
    Router::new()
        .route("/v1/models", get(move |front, headers| list(front, headers, since)))
        .route("/v1/models/", get(move |front, headers| list(front, headers, since)))
        // A model's name may have slashes.
        .route(
            "/v1/models/{*name}",
            get(move |front, headers, name| one(front, headers, name, since)),
        )
        .route("/v1/chat/completions", post(exchange::answer::<Chat>))
        .route("/v1/completions", post(exchange::answer::<Completions>))
        .route("/v1/responses", post(exchange::answer::<Responses>))
        .route("/v1/messages", post(exchange::answer::<Messages>))
        .route("/v1/messages/count_tokens", post(exchange::count::<CountTokens>))
}

/// Answers with the served model, since this second, in a list.
async fn list(State(front): State<Arc<HttpFront>>, headers: HeaderMap, since: i64) -> Response {
    let found = front.inference.model("");
    match is_of_anthropic(&headers) {
        true => reply::<Anthropic>(found.map(|model| json!(MessagesModelList::of(&model, since)))),
        false => reply::<OpenAi>(found.map(|model| json!(ModelList::of(&model, since)))),
    }
}

/// Answers with the model of this name, which may be an alias.
async fn one(
    State(front): State<Arc<HttpFront>>,
    headers: HeaderMap,
    Path(name): Path<String>,
    since: i64,
) -> Response {
    let found = front.inference.model("").and_then(|model| {
        front.aliases.check(&name, &model.name)?;
        Ok(model)
    });
    match is_of_anthropic(&headers) {
        true => reply::<Anthropic>(found.map(|model| json!(MessagesModel::of(&model, since)))),
        false => reply::<OpenAi>(found.map(|model| json!(ModelObject::of(&model, since)))),
    }
}

/// Whether a client of Anthropic's API asks. Both APIs have the same path, and only clients of this
/// one send the header.
fn is_of_anthropic(headers: &HeaderMap) -> bool {
    headers.contains_key("anthropic-version")
}

fn reply<D: Dialect>(found: Result<Value>) -> Response {
    let request_id = paceline_proto::ids::draw_request_id();
    finish::<D>(found.map(|body| json_reply(StatusCode::OK, &body)), request_id.as_str())
}
