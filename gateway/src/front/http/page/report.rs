//! The body of `GET /status`.

use axum::http::Extensions;
use paceline_protocols::openai::models::ImageBounds;
use paceline_system::clock::unix_seconds;
use serde::Serialize;
use utoipa::ToSchema;

use crate::front::http::{Health, HttpFront};
use crate::guard::sessions::SessionToken;
use crate::metrics::history::Throughput;
use crate::service_report::events::ServiceEvent;
use crate::service_report::service::ServiceReport;

/// The figures of the page. They have no text of a request.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct StatusReport {
    /// When it was made, in seconds since 1970.
    pub time: i64,
    /// Version of the gateway.
    pub version: &'static str,
    /// Whether a request would be served now, as `/health` says.
    pub serving: Health,
    /// Name of the served model; null before it is known.
    pub model: Option<String>,
    /// Limits of the images of a request; null if the model reads none, or before it is known.
    pub images: Option<ImageBounds>,
    /// Whether a session that a key began asked.
    pub session: bool,
    /// Requests inside the gateway.
    pub calls: usize,
    /// The service as the supervisor reports it; null if none answers within 2 s.
    pub service: Option<ServiceReport>,
    /// The throughput of the last ten minutes.
    pub throughput: Throughput,
    /// The last changes of state, newest first.
    pub events: Vec<ServiceEvent>,
}

impl StatusReport {
    /// The figures now, for the client of a request with these extensions.
    pub(super) async fn of(front: &HttpFront, extensions: &Extensions) -> Self {
        let session = extensions.get::<SessionToken>().is_some();
        let service = front.overview.service().await;
        let standing = front.standing.borrow().clone();
        let supervisor = standing.supervisor.as_ref();
        let state = supervisor.and_then(|supervisor| supervisor.service.as_ref());
        let model = state.and_then(|state| state.model.as_ref());
        Self {
            time: unix_seconds(),
            version: env!("CARGO_PKG_VERSION"),
            serving: Health::of(&standing),
            model: model.map(|model| model.name.clone()),
            images: state.and_then(|state| state.images).map(ImageBounds::from),
            session,
            calls: *front.calls.watch().borrow(),
            service,
            throughput: front.inference.metrics.throughput(),
            events: front.overview.events(),
        }
    }
}
