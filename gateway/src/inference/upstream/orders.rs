//! Orders of operators, sent to the supervisor and awaited.

use std::time::Duration;

use paceline_proto::ORDER_SOURCE;
use paceline_proto::v1;
use paceline_protocols::inference::error::{InferenceError, Result};
use paceline_system::Clock;
use paceline_vocabulary::Reason;
use tonic::metadata::MetadataValue;
use tonic::{Request, Status};

use super::{Upstream, wire};
use crate::service_report::orders::{RestartedProcess, ServiceOrder};

/// Time for an order. The supervisor's own default is the same.
const TIMEOUT: Duration = Duration::from_secs(120);
/// Time for a drain: as long as a request may run (`limits.deadline_s`).
const DRAIN_TIMEOUT: Duration = Duration::from_secs(600);
/// Additional time for the supervisor's answer, which names the state of the process.
const GRACE: Duration = Duration::from_secs(5);
/// Pause between two questions whether the next supervisor serves.
const SUCCESSOR_POLL: Duration = Duration::from_millis(200);

impl Upstream {
    /// Has an order carried out, and returns when it is done. `source` is the program by which it
    /// was given, for the supervisor's event. The order stands if this is dropped.
    ///
    /// # Errors
    /// The supervisor refuses the order, cannot carry it out, or does not answer in time.
    pub async fn order(&self, order: &ServiceOrder, source: &str) -> Result<()> {
        let timeout = match order {
            ServiceOrder::Drain => DRAIN_TIMEOUT,
            _ => TIMEOUT,
        };
        let sent = tokio::time::timeout(timeout + GRACE, self.send(order, source, timeout));
        let term = match sent.await {
            Ok(answer) => answer.map_err(wire::error)?,
            Err(_) => {
                let message = format!(
                    "no answer of the supervisor within {} s; the order may stand",
                    (timeout + GRACE).as_secs()
                );
                return Err(InferenceError::new(Reason::DeadlinePassed, message));
            }
        };
        match order {
            ServiceOrder::Restart(RestartedProcess::Supervisor) => self.successor_of(term).await,
            _ => Ok(()),
        }
    }

    /// Sends an order. Returns the term of the supervisor that answers a restart, else 0.
    async fn send(
        &self,
        order: &ServiceOrder,
        source: &str,
        timeout: Duration,
    ) -> Result<u64, Status> {
        let mut operations = self.operations.clone();
        let timeout_ms = u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX);
        match order {
            ServiceOrder::StartDrafter { model } => {
                let message = v1::StartDrafterRequest { model: model.clone(), timeout_ms };
                operations.start_drafter(from(source, message)).await?;
            }
            ServiceOrder::StopDrafter => {
                let message = v1::StopDrafterRequest { timeout_ms };
                operations.stop_drafter(from(source, message)).await?;
            }
            ServiceOrder::SwapDrafter { model } => {
                let message = v1::SwapDrafterRequest { model: model.clone(), timeout_ms };
                operations.swap_drafter(from(source, message)).await?;
            }
            ServiceOrder::Drain | ServiceOrder::Undrain => {
                let undo = *order == ServiceOrder::Undrain;
                operations.drain(from(source, v1::DrainRequest { undo, timeout_ms })).await?;
            }
            ServiceOrder::Restart(restarted) => {
                let message = v1::RestartRequest {
                    process: process(*restarted).into(),
                    timeout_ms,
                    ..Default::default()
                };
                return Ok(operations.restart(from(source, message)).await?.into_inner().term);
            }
        }
        Ok(0)
    }

    /// Waits for a supervisor of a later term than `term` whose target serves.
    async fn successor_of(&self, term: u64) -> Result<()> {
        let clock = Clock::start();
        while clock.now().0 < TIMEOUT.as_millis() as u64 {
            if let Some(status) = self.service().await.filter(|status| status.term > term) {
                match status.target.state {
                    v1::ProcessState::Ready => return Ok(()),
                    v1::ProcessState::Failed => {
                        let reason = status.target.reason.unwrap_or_default();
                        let message =
                            format!("the next supervisor is there, its target is failed: {reason}");
                        return Err(InferenceError::new(Reason::ProcessState, message));
                    }
                    _ => {}
                }
            }
            tokio::time::sleep(SUCCESSOR_POLL).await;
        }
        let seconds = TIMEOUT.as_secs();
        let message = format!("no next supervisor with a ready target within {seconds} s");
        Err(InferenceError::new(Reason::DeadlinePassed, message))
    }
}

fn process(process: RestartedProcess) -> v1::Process {
    match process {
        RestartedProcess::Gateway => v1::Process::Gateway,
        RestartedProcess::Supervisor => v1::Process::Supervisor,
        RestartedProcess::Target => v1::Process::Target,
        RestartedProcess::Drafter => v1::Process::Drafter,
    }
}

/// A message that names its source. Names that metadata cannot carry are left out.
fn from<T>(source: &str, message: T) -> Request<T> {
    let mut request = Request::new(message);
    if let Ok(source) = MetadataValue::try_from(source) {
        request.metadata_mut().insert(ORDER_SOURCE, source);
    }
    request
}
