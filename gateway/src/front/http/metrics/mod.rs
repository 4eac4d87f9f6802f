//! `/metrics`: the figures of the service, for Prometheus.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::routing::get;

use super::HttpFront;
use crate::metrics;

/// The paths of this protocol.
pub fn routes() -> Router<Arc<HttpFront>> {
    Router::new().route("/metrics", get(figures))
}

async fn figures(State(front): State<Arc<HttpFront>>) -> impl IntoResponse {
    let running = *front.calls.watch().borrow();
    let text = front.inference.metrics_text(running).await;
    ([(CONTENT_TYPE, metrics::CONTENT_TYPE)], text)
}
