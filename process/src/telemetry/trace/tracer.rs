//! The queue of ended spans, and the start and the end of the exporter's thread.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, mpsc as blocking};
use std::thread;
use std::time::Duration;

use tokio::sync::mpsc;

use super::ended::{EndedSpan, Origin};
use super::export::Exporter;
use super::wire;

/// Ended spans that wait to be sent, at most: those of some hundred requests, in two mebibytes.
pub(super) const QUEUE_SPANS: usize = 2_048;
/// Longest time for which the end of a process waits until its last spans are sent.
pub(super) const FINISH_TIMEOUT: Duration = Duration::from_secs(2);

/// The tracer of this process; none without `log.otlp`.
static TRACER: OnceLock<Tracer> = OnceLock::new();

/// The tracer of this process, if it traces.
pub(super) fn tracer() -> Option<&'static Tracer> {
    TRACER.get()
}

/// Makes this the tracer of the process. A second one (tests) is dropped.
pub(super) fn install(tracer: Tracer) {
    let _ = TRACER.set(tracer);
}

/// Takes ended spans of a process, for the exporter's thread.
#[derive(Clone, Debug)]
pub(super) struct Tracer {
    pub(super) spans: mpsc::Sender<EndedSpan>,
    /// Spans that found the queue full, until the exporter takes the number.
    pub(super) dropped: Arc<AtomicU64>,
    pub(super) finish: mpsc::Sender<blocking::SyncSender<()>>,
}

impl Tracer {
    pub(super) fn start(endpoint: &str, origin: &Origin) -> std::io::Result<Self> {
        let (spans, ended) = mpsc::channel(QUEUE_SPANS);
        let (finish, finished) = mpsc::channel(1);
        let dropped = Arc::<AtomicU64>::default();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            // Names of hosts are resolved on a thread that may block.
            .max_blocking_threads(1)
            .build()?;
        let exporter =
            Exporter::new(endpoint.to_owned(), wire::resource(origin), ended, dropped.clone());
        thread::Builder::new()
            .name("traces".into())
            .spawn(move || runtime.block_on(exporter.run(finished)))?;
        Ok(Self { spans, dropped, finish })
    }

    /// Queues a span, or drops and counts it.
    pub(super) fn take(&self, span: EndedSpan) {
        if self.spans.try_send(span).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn finish(&self) {
        let (done, wait) = blocking::sync_channel(1);
        if self.finish.try_send(done).is_ok() {
            // The exporter drops the sender when it has done what it can.
            let _ = wait.recv_timeout(FINISH_TIMEOUT);
        }
    }
}
