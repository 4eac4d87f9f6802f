//! Figures of the page: the service as the supervisor reports it, and the last changes of
//! state. All of it is bounded, none of it has a text of a request (I9).
//!
//! The supervisor is asked for figures at most once a second, however many pages are open. Events
//! are collected whether a page is open or not, so that a page that was just opened shows the
//! minutes before.

use std::sync::Arc;
use std::time::Duration;

use crate::inference::upstream::Upstream;
use crate::service_report::events::{EventLog, ServiceEvent};
use crate::service_report::service::ServiceReport;
use crate::shared_answer::SharedAnswer;

/// Age up to which figures are sent again: half of the page's interval between two questions, so
/// that no page shows a figure twice.
const MAX_AGE: Duration = Duration::from_secs(1);

/// What the page shows of the service.
#[derive(Debug)]
pub struct Overview {
    upstream: Upstream,
    service: SharedAnswer<Option<ServiceReport>>,
    events: Arc<EventLog>,
}

impl Overview {
    /// Of the service behind this upstream; nothing is collected yet.
    pub fn new(upstream: Upstream) -> Self {
        Self { upstream, service: SharedAnswer::new(MAX_AGE), events: Arc::default() }
    }

    /// The service as the supervisor reports it; `None` if no supervisor answers in time.
    pub async fn service(&self) -> Option<ServiceReport> {
        self.service.get(async { self.upstream.service().await.map(ServiceReport::from) }).await
    }

    /// The last changes of state, newest first.
    pub fn events(&self) -> Vec<ServiceEvent> {
        self.events.newest_first()
    }

    /// Where changes of state are collected.
    pub fn event_log(&self) -> Arc<EventLog> {
        Arc::clone(&self.events)
    }
}
