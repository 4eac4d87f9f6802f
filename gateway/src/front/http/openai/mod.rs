//! OpenAI: models, chat completions, completions.

pub mod error;

use std::sync::Arc;

use axum::Router;

use super::HttpFront;

/// The paths of this protocol.
pub fn routes() -> Router<Arc<HttpFront>> {
    Router::new()
}
