//! Figures of the status page: the service as the supervisor reports it, the throughput of the last
//! ten minutes ([`history`]), and the last changes of state. All of it is bounded, none of it has a
//! text of a request (I9).
//!
//! The supervisor is asked for figures at most once a second, however many pages are open. Samples
//! and events are collected whether a page is open or not, so that a page that was just opened
//! shows the minutes before.

pub mod history;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use paceline_process::{Clock, task};
use paceline_vocabulary::Millis;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::inference::upstream::Upstream;
use crate::metrics::Metrics;
use crate::service_report::events::{EventLog, ServiceEvent};
use crate::service_report::service::ServiceReport;
use history::{History, INTERVAL, Throughput};

/// Age up to which figures are sent again: half of the page's interval between two questions, so
/// that no page shows a figure twice.
const MAX_AGE_MS: u64 = 1_000;

/// Everything that the status page shows of the service.
#[derive(Debug)]
pub struct Overview {
    upstream: Upstream,
    clock: Clock,
    /// The last answer, and when it came. The lock is held while the supervisor is asked.
    asked: tokio::sync::Mutex<Option<Asked>>,
    history: Mutex<History>,
    events: Arc<EventLog>,
}

/// An answer of the supervisor.
#[derive(Clone, Debug)]
struct Asked {
    at: Millis,
    report: Option<ServiceReport>,
}

impl Overview {
    /// Of the service behind this upstream; nothing is collected yet.
    pub fn new(upstream: Upstream) -> Self {
        Self {
            upstream,
            clock: Clock::start(),
            asked: tokio::sync::Mutex::default(),
            history: Mutex::default(),
            events: Arc::default(),
        }
    }

    /// The service as the supervisor reports it; `None` if no supervisor answers in time.
    pub async fn service(&self) -> Option<ServiceReport> {
        let mut asked = self.asked.lock().await;
        if let Some(Asked { at, report }) = &*asked
            && self.clock.now().since(*at) < MAX_AGE_MS
        {
            return report.clone();
        }
        let report = self.upstream.service().await;
        // From its end on: a supervisor that does not answer is not asked again at once.
        *asked = Some(Asked { at: self.clock.now(), report: report.clone() });
        report
    }

    /// The throughput of the last ten minutes.
    pub fn throughput(&self) -> Throughput {
        self.history().throughput()
    }

    /// The last changes of state, newest first.
    pub fn events(&self) -> Vec<ServiceEvent> {
        self.events.newest_first()
    }

    /// Where changes of state are collected.
    pub fn event_log(&self) -> Arc<EventLog> {
        Arc::clone(&self.events)
    }

    /// Takes a sample of the throughput every [`INTERVAL`] until the task is aborted.
    pub fn sample(
        self: &Arc<Self>,
        metrics: Arc<Metrics>,
        requests: watch::Receiver<usize>,
    ) -> JoinHandle<()> {
        let overview = Arc::clone(self);
        task::spawn("samples", async move {
            loop {
                let (tokens, running) = (metrics.generated_tokens(), *requests.borrow());
                overview.history().take(tokens, running, overview.clock.now());
                tokio::time::sleep(INTERVAL).await;
            }
        })
    }

    fn history(&self) -> MutexGuard<'_, History> {
        // A sample is whole, or it is not there.
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
