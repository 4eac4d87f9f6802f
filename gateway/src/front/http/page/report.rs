//! The body of `GET /status`.

use axum::http::request::Parts;
use paceline_system::clock::unix_seconds;
use serde::Serialize;
use utoipa::ToSchema;

use super::permit;
use crate::front::http::{Health, HttpFront};
use crate::guard::keys::Principal;
use crate::guard::sessions::SessionToken;
use crate::metrics::history::Throughput;
use crate::service_report::events::ServiceEvent;
use crate::service_report::orders::OrderReport;
use crate::service_report::service::ServiceReport;

/// The figures of the status page. They have no text of a request.
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
    /// Whether a session that a key began asked.
    pub session: bool,
    /// Orders by the page.
    pub orders: OrdersReport,
    /// Requests inside the gateway.
    pub calls: usize,
    /// The service as the supervisor reports it; null if none answers within 2 s.
    pub service: Option<ServiceReport>,
    /// The throughput of the last ten minutes.
    pub throughput: Throughput,
    /// The last changes of state, newest first.
    pub events: Vec<ServiceEvent>,
}

/// Orders by the status page.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct OrdersReport {
    /// Whether the client that asks may give orders.
    pub allowed: bool,
    /// Why it may not; null if it may.
    pub refusal: Option<String>,
    /// What the header `x-paceline-order-token` of an order of this session has; null without a
    /// session.
    pub token: Option<String>,
    /// The last order of each kind since the gateway's start, newest first.
    pub last: Vec<OrderReport>,
}

impl OrdersReport {
    fn of(front: &HttpFront, request: &Parts) -> Self {
        let refusal = permit(front, request).err().map(|refusal| refusal.to_string());
        let session = request.extensions.get::<SessionToken>().filter(|_| refusal.is_none());
        Self {
            allowed: refusal.is_none(),
            refusal,
            token: session.map(SessionToken::order_token),
            last: front.orders.last(),
        }
    }
}

impl StatusReport {
    /// The figures now, for the client of this request.
    pub(super) async fn of(front: &HttpFront, request: &Parts) -> Self {
        let extensions = &request.extensions;
        let session =
            extensions.get::<SessionToken>().is_some() && extensions.get::<Principal>().is_some();
        let service = front.overview.service().await;
        let standing = front.standing.borrow().clone();
        let supervisor = standing.supervisor.as_ref();
        let model = supervisor.and_then(|supervisor| supervisor.service.as_ref()?.model.as_ref());
        Self {
            time: unix_seconds(),
            version: env!("CARGO_PKG_VERSION"),
            serving: Health::of(&standing),
            model: model.map(|model| model.name.clone()),
            session,
            orders: OrdersReport::of(front, request),
            calls: *front.calls.watch().borrow(),
            service,
            throughput: front.inference.metrics.throughput(),
            events: front.overview.events(),
        }
    }
}
