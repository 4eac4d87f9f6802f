//! Parts that `selftest` and `bench` share for a service of their own: a check for another service,
//! the wait until it is ready, its snapshots, and signals of a person to stop.

use std::path::Path;
use std::time::Duration;

use paceline_process::{Clock, RuntimeDir, Signals, socket};
use paceline_proto::v1::operations_client::OperationsClient;
use paceline_proto::v1::{StatusRequest, StatusResponse};
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::ready::{Readiness, readiness};
use crate::failure::Failure;

/// Interval between two requests for the status until the service is ready.
const STATUS_POLL: Duration = Duration::from_millis(200);
/// Longest time without a change of its state until then: a start or a link may hang.
const NO_PROGRESS_MS: u64 = 180_000;
/// Longest wait for an answer of its supervisor.
const STATUS_TIMEOUT: Duration = Duration::from_secs(5);

/// Every way in which a person asks us to stop, a closed terminal included: the service must not
/// outlive us.
pub struct StopSignals {
    signals: Signals,
    hangup: Signal,
}

impl StopSignals {
    /// Watches signals from now on.
    ///
    /// # Errors
    /// The system refuses.
    pub fn new() -> Result<Self, Failure> {
        let cannot = |error| Failure::selftest(format!("cannot watch signals: {error}"));
        Ok(Self {
            signals: Signals::interactive().map_err(cannot)?,
            hangup: signal(SignalKind::hangup()).map_err(cannot)?,
        })
    }

    /// Waits for the next request to stop.
    pub async fn next(&mut self) {
        tokio::select! { () = self.signals.next() => {}, _ = self.hangup.recv() => {} }
    }
}

/// Whether the user's own service runs.
pub fn another_runs(config: Option<&Path>) -> bool {
    let Ok(loaded) = paceline_process::Loaded::find(config) else { return false };
    let Ok(dir) = RuntimeDir::locate(&loaded.config) else { return false };
    std::os::unix::net::UnixStream::connect(dir.socket("supervisor")).is_ok()
}

/// Waits until the service can be tested, and calls `passing` with each step on the way. Returns
/// whether there is a drafter.
///
/// # Errors
/// It cannot become ready, or hangs.
pub async fn until_ready(
    dir: &RuntimeDir,
    mut passing: impl FnMut(&str),
) -> Result<(StatusResponse, bool), Failure> {
    let clock = Clock::start();
    let (mut last, mut since) = (String::new(), clock.now());
    loop {
        // The supervisor may not be there yet.
        if let Some(status) = snapshot(dir).await {
            match readiness(&status) {
                Readiness::Ready { drafter } => return Ok((status, drafter)),
                Readiness::Failed(why) => return Err(Failure::selftest(why)),
                Readiness::Coming(what) if what != last => {
                    passing(&what);
                    (last, since) = (what, clock.now());
                }
                Readiness::Coming(_) => {}
            }
        }
        if clock.now() - since > NO_PROGRESS_MS {
            let what = if last.is_empty() { "starting the service" } else { &last };
            return Err(Failure::selftest(format!(
                "{what}: nothing happened for {} s",
                NO_PROGRESS_MS / 1000
            )));
        }
        tokio::time::sleep(STATUS_POLL).await;
    }
}

/// The status of the service; `None` if its supervisor does not answer.
pub async fn snapshot(dir: &RuntimeDir) -> Option<StatusResponse> {
    let mut client = OperationsClient::new(socket::channel(dir.socket("supervisor")));
    Some(
        tokio::time::timeout(STATUS_TIMEOUT, client.status(StatusRequest {}))
            .await
            .ok()?
            .ok()?
            .into_inner(),
    )
}
