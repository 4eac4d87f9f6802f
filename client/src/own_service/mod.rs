//! A service of our own, on which `selftest` and `bench` measure and which `run` asks once:
//! `paceline serve` with the user's settings, on ports and in a directory of its own. It is used
//! like any service.
//!
//! [`settings`] of the service │ `stage` its process │ `ready` its way to ready │ [`subject`] and
//! [`report`] of a measurement. This file has the order: start, use, stop.

mod ready;
pub mod report;
pub mod settings;
mod stage;
pub mod subject;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use paceline_process::{Config, RuntimeDir, socket};
use paceline_proto::v1::inference_client::InferenceClient;
use paceline_proto::v1::operations_client::OperationsClient;
use paceline_proto::v1::{StartDrafterRequest, StatusRequest, StatusResponse, StopDrafterRequest};
use paceline_system::Clock;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tonic::Status;
use tonic::transport::Channel;

pub use self::stage::remove_own_dir;

use self::ready::{Readiness, readiness, serving};
use self::settings::Settings;
use self::stage::Stage;
use crate::channel;
use crate::failure::{Failure, RUN};
use crate::screen::Screen;

/// Interval between two requests for the status until the service is ready.
const STATUS_POLL: Duration = Duration::from_millis(200);
/// Longest time without a change of its state until then: a start or a link may hang.
const NO_PROGRESS_MS: u64 = 180_000;
/// Longest wait for an answer of its supervisor.
const STATUS_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest wait until a drafter is loaded and linked, or ended.
const DRAFTER_CHANGE_TIMEOUT: Duration = Duration::from_secs(300);

/// Starts a service with these settings, runs `work` on it and stops it in any case. `command` is
/// the reason of its failures. Returns the duration in seconds too.
///
/// # Errors
/// Those of `work`; the service cannot be started or ends, or a person stops the command.
pub async fn run<R>(
    command: &'static str,
    settings: &Settings,
    screen: &mut Screen,
    work: impl AsyncFnOnce(OwnService, &mut Screen) -> Result<R, Failure>,
) -> Result<(R, f64), Failure> {
    let takes_interrupts = Arc::new(AtomicBool::new(false));
    let mut stops = StopSignals::new(command, Arc::clone(&takes_interrupts))?;
    let measures = command != RUN;
    if measures && another_runs(&settings.config) {
        screen.note("another service runs on this machine: it shares the cores, and the speeds below will show it");
    }
    let clock = Clock::start();
    let mut stage = Stage::start(command, settings)?;
    let (address, dir) = (stage.address.clone(), stage.dir.clone());
    let service =
        OwnService { command, address, dir, takes_interrupts: Arc::clone(&takes_interrupts) };
    let outcome = tokio::select! {
        biased;
        () = stops.next() => Err(Failure::interrupted()),
        failure = stage.end() => Err(failure),
        outcome = work(service, screen) => outcome,
    };
    takes_interrupts.store(false, Relaxed);
    if measures && outcome.is_err() {
        screen.note("stopping the service");
    }
    stage.stop(async || stops.next().await).await;
    outcome.map(|report| (report, clock.now().0 as f64 / 1e3))
}

/// Every way in which a person asks us to stop, a closed terminal included: the service must not
/// outlive us.
struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
    /// Whether Ctrl-C is for the work.
    leaves_interrupts: Arc<AtomicBool>,
}

impl StopSignals {
    fn new(command: &str, leaves_interrupts: Arc<AtomicBool>) -> Result<Self, Failure> {
        let watched = |kind| {
            signal(kind).map_err(|error| {
                Failure::measuring(command, format!("cannot watch signals: {error}"))
            })
        };
        Ok(Self {
            terminate: watched(SignalKind::terminate())?,
            interrupt: watched(SignalKind::interrupt())?,
            hangup: watched(SignalKind::hangup())?,
            leaves_interrupts,
        })
    }

    async fn next(&mut self) {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return,
                _ = self.hangup.recv() => return,
                _ = self.interrupt.recv() => {
                    if !self.leaves_interrupts.load(Relaxed) {
                        return;
                    }
                }
            }
        }
    }
}

/// Whether the user's own service runs.
fn another_runs(config: &Config) -> bool {
    let Ok(dir) = RuntimeDir::locate(config) else { return false };
    std::os::unix::net::UnixStream::connect(dir.socket("supervisor")).is_ok()
}

/// A service of our own that was started.
pub struct OwnService {
    command: &'static str,
    address: String,
    dir: RuntimeDir,
    takes_interrupts: Arc<AtomicBool>,
}

impl OwnService {
    /// From now on Ctrl-C is for the work alone, until the work ends. A terminal that is closed, and
    /// SIGTERM, still stop the service.
    pub fn take_interrupts(&self) {
        self.takes_interrupts.store(true, Relaxed);
    }

    /// Waits until the service can be measured, and passes each step on the way to `passing`.
    /// Returns whether there is a drafter.
    ///
    /// # Errors
    /// It cannot become ready, or hangs.
    pub async fn until_ready(
        &self,
        passing: impl FnMut(&str),
    ) -> Result<(StatusResponse, bool), Failure> {
        self.until(readiness, passing).await
    }

    /// Waits until the service answers requests, and passes each step on the way to `passing`. A
    /// drafter may come later.
    ///
    /// # Errors
    /// As [`OwnService::until_ready`], of the target and the gateway alone.
    pub async fn until_serving(&self, passing: impl FnMut(&str)) -> Result<(), Failure> {
        self.until(serving, passing).await.map(drop)
    }

    async fn until(
        &self,
        read: fn(&StatusResponse) -> Readiness,
        mut passing: impl FnMut(&str),
    ) -> Result<(StatusResponse, bool), Failure> {
        let clock = Clock::start();
        let (mut last, mut since) = (String::new(), clock.now());
        loop {
            // The supervisor may not be there yet.
            if let Some(status) = self.snapshot().await {
                match read(&status) {
                    Readiness::Ready { drafter } => return Ok((status, drafter)),
                    Readiness::Failed(why) => return Err(Failure::measuring(self.command, why)),
                    Readiness::Coming(what) if what != last => {
                        passing(&what);
                        (last, since) = (what, clock.now());
                    }
                    Readiness::Coming(_) => {}
                }
            }
            if clock.now() - since > NO_PROGRESS_MS {
                let what = if last.is_empty() { "starting the service" } else { &last };
                let seconds = NO_PROGRESS_MS / 1000;
                let message = format!("{what}: nothing happened for {seconds} s");
                return Err(Failure::measuring(self.command, message));
            }
            tokio::time::sleep(STATUS_POLL).await;
        }
    }

    /// `host:port` of the service.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Status of the service; `None` if its supervisor does not answer.
    pub async fn snapshot(&self) -> Option<StatusResponse> {
        let mut client = self.operations();
        let answer = tokio::time::timeout(STATUS_TIMEOUT, client.status(StatusRequest {})).await;
        Some(answer.ok()?.ok()?.into_inner())
    }

    /// A connection for requests.
    ///
    /// # Errors
    /// No process listens there.
    pub async fn connect(&self) -> Result<InferenceClient<Channel>, Failure> {
        channel::connect(&self.address).await
    }

    /// Starts a drafter, and returns when it drafts. An empty model is the one of before.
    ///
    /// # Errors
    /// The supervisor's refusal.
    pub async fn start_drafter(&self, model: String) -> Result<(), Status> {
        let timeout_ms = DRAFTER_CHANGE_TIMEOUT.as_millis() as u32;
        let order = StartDrafterRequest { model, timeout_ms };
        self.operations().start_drafter(order).await.map(drop)
    }

    /// Stops the drafter, and returns when its process is gone.
    ///
    /// # Errors
    /// The supervisor's refusal.
    pub async fn stop_drafter(&self) -> Result<(), Status> {
        let timeout_ms = DRAFTER_CHANGE_TIMEOUT.as_millis() as u32;
        self.operations().stop_drafter(StopDrafterRequest { timeout_ms }).await.map(drop)
    }

    fn operations(&self) -> OperationsClient<Channel> {
        OperationsClient::new(socket::channel(self.dir.socket("supervisor")))
    }
}
