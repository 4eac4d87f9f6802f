//! The check of stamps, and the service that every worker offers: heartbeats, and the order to end.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use paceline_proto::internal::v1::worker_server::Worker;
use paceline_proto::internal::v1::{Heartbeat, Stamp, StopRequest, StopResponse, WatchRequest};
use paceline_proto::status::{Reason, ReasonStatus as _};
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt};
use tonic::{Request, Response, Status};

use super::Pulse;

/// Checks the stamp of every message to a worker (I7).
#[derive(Clone, Debug)]
pub struct Gate {
    epoch: u64,
    /// Highest term of a message so far. Messages of an older supervisor are refused.
    term: Arc<AtomicU64>,
}

impl Gate {
    /// A gate of life `epoch`, started by the supervisor of `term`.
    pub fn new(epoch: u64, term: u64) -> Self {
        Self { epoch, term: Arc::new(AtomicU64::new(term)) }
    }

    /// Number of this life.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Refuses messages of an earlier supervisor or for another life.
    ///
    /// # Errors
    /// No stamp, a stale term, another epoch.
    pub fn check_stamp(&self, stamp: Option<Stamp>) -> Result<Stamp, Status> {
        let missing =
            || Reason::InvalidArgument.field("stamp", "expected term and epoch, found none");
        let stamp = stamp.ok_or_else(missing)?;
        if stamp.epoch != self.epoch {
            return Err(Reason::StaleEpoch.status(format!(
                "this is worker epoch {}, the message is for {}",
                self.epoch, stamp.epoch
            )));
        }
        let highest = self.term.fetch_max(stamp.term, SeqCst);
        if stamp.term < highest {
            return Err(Reason::StaleTerm.status(format!(
                "the message is of term {}, a supervisor of term {highest} has taken over",
                stamp.term
            )));
        }
        Ok(stamp)
    }
}

/// Orders a worker's engine to end within this many milliseconds. Returns whether the engine takes
/// the order.
pub type StopOrder = Arc<dyn Fn(u64) -> bool + Send + Sync>;

/// The service every worker offers.
#[derive(Clone)]
pub struct WorkerService {
    pub(super) gate: Gate,
    pub(super) pulse: Pulse,
    pub(super) stop: StopOrder,
}

#[tonic::async_trait]
impl Worker for WorkerService {
    type WatchStream = Pin<Box<dyn Stream<Item = Result<Heartbeat, Status>> + Send>>;

    async fn watch(
        &self,
        request: Request<WatchRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let stamp = self.gate.check_stamp(request.into_inner().stamp)?;
        tracing::info!(term = stamp.term, "watched by a supervisor");
        Ok(Response::new(Box::pin(ReceiverStream::new(self.pulse.watch(stamp.term)).map(Ok))))
    }

    async fn stop(&self, request: Request<StopRequest>) -> Result<Response<StopResponse>, Status> {
        let message = request.into_inner();
        self.gate.check_stamp(message.stamp)?;
        tracing::info!(cause = message.cause, grace_ms = message.grace_ms, "asked to stop");
        match (self.stop)(u64::from(message.grace_ms)) {
            true => Ok(Response::new(StopResponse {})),
            false => Err(Reason::Draining
                .status("the worker is stopping, or takes no more commands at the moment")),
        }
    }
}
