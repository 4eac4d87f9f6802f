//! The attachment: a stream to the supervisor that is open for the gateway's whole life. The
//! gateway reports its state over it; the supervisor sends whether requests can be served, and
//! orders. A stream that is lost is opened again.
//!
//! The supervisor also sends beats. When none comes for 3 s, it hangs: requests are refused and
//! health is NOT_SERVING until it answers again. The stream stays open meanwhile.

use std::time::Duration;

use futures::{Stream, StreamExt as _};
use paceline_process::config::LimitsConfig;
use paceline_process::task;
use paceline_proto::internal::v1::SupervisorNotice;
use paceline_proto::internal::v1::supervisor_client::SupervisorClient;
use paceline_proto::internal::v1::supervisor_notice::Notice;
use paceline_protocols::inference::error::InferenceError;
use paceline_service_core::ending::Event;
use paceline_vocabulary::report::{GatewayReport, ImageLimits};
use paceline_vocabulary::state::GatewayState;
use paceline_vocabulary::{Epoch, ModelMark, Reason, Term, chain};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::MissedTickBehavior;
use tonic::Status;
use tonic::transport::Channel;

use super::wire;
use crate::images::limits_of;
use crate::inference::languages::Languages;
use crate::inference::standing::{Attached, ServiceState, Standing};

/// Pause before the first try after a loss; doubles with each failure.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// Longest pause between tries: a supervisor that comes back serves within a second of its start.
const LONGEST_PAUSE: Duration = Duration::from_millis(200);

/// Interval at which the time without a beat is counted.
const TICK: Duration = Duration::from_millis(500);
/// Ticks without a beat, 3 s in all, after which a supervisor counts as hung: it missed five beats.
const SILENT_TICKS: u32 = 6;

/// Counts the time without a beat, in ticks of this process. Time in which this process did not run
/// either, because the machine slept or everything was stopped, is at most one tick.
#[derive(Debug, Default)]
struct Silence {
    /// Ticks since the last notice; `None` before the first beat, because a supervisor that sends
    /// none is not expected to.
    ticks: Option<u32>,
}

impl Silence {
    /// A notice arrived.
    fn ended(&mut self, notice: Option<&Notice>) {
        if self.ticks.is_some() || matches!(notice, Some(Notice::Beat(_))) {
            self.ticks = Some(0);
        }
    }

    /// A tick passed without a notice. True once, when the supervisor begins to count as hung.
    fn ticked(&mut self) -> bool {
        let Some(ticks) = &mut self.ticks else { return false };
        *ticks = ticks.saturating_add(1);
        *ticks == SILENT_TICKS
    }
}

/// Constant facts of this gateway's process, for its reports.
#[derive(Clone, Copy, Debug)]
pub struct GatewayProcess {
    /// Number of its life.
    pub epoch: Epoch,
    /// Restarts that no operator asked for.
    pub restarts: u32,
}

/// Both ends of the attachment.
#[derive(Debug)]
pub struct Attachment {
    /// The connection to the supervisor.
    pub supervisor: Channel,
    /// The gateway that attaches.
    pub process: GatewayProcess,
    /// Gets what the supervisor sends about the service.
    pub standing: watch::Sender<Standing>,
    /// Number of running requests.
    pub running: watch::Receiver<usize>,
    /// Gets the supervisor's orders.
    pub orders: mpsc::Sender<Event>,
    /// Follows the model that is served.
    pub languages: Languages,
    /// The operator's limits.
    pub limits: LimitsConfig,
}

impl Attachment {
    /// Keeps attached until the task is aborted.
    pub fn start(self) -> JoinHandle<()> {
        task::spawn("attach", async move {
            let mut pause = FIRST_PAUSE;
            loop {
                let outcome = self.once(&mut pause).await;
                // Requests must not be sent to a supervisor that is not there.
                self.standing.send_modify(|standing| standing.supervisor = None);
                match outcome {
                    Ok(()) => tracing::info!("supervisor closed the attachment"),
                    Err(status) => {
                        tracing::debug!(code = ?status.code(), message = status.message(), "no attachment")
                    }
                }
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        })
    }

    /// One stream, from its opening to its end.
    async fn once(&self, pause: &mut Duration) -> Result<(), Status> {
        let reports = reports(self.process, self.standing.subscribe(), self.running.clone());
        let mut supervisor = SupervisorClient::new(self.supervisor.clone());
        let mut notices = supervisor.attach(reports.map(wire::report)).await?.into_inner();
        let mut silence = Silence::default();
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let notice = tokio::select! {
                biased;
                notice = notices.message() => notice?,
                _ = ticks.tick() => {
                    if silence.ticked() {
                        self.count_as_hung();
                    }
                    continue;
                }
            };
            let Some(notice) = notice else { return Ok(()) };
            *pause = FIRST_PAUSE;
            silence.ended(notice.notice.as_ref());
            self.take(notice).await;
        }
    }

    fn count_as_hung(&self) {
        tracing::warn!("the supervisor does not answer; requests are refused until it does");
        self.standing.send_modify(|standing| {
            if let Some(supervisor) = &mut standing.supervisor {
                supervisor.silent = true;
            }
        });
    }

    async fn take(&self, SupervisorNotice { term, notice }: SupervisorNotice) {
        let term = Term(term);
        let attached = self.standing.borrow().supervisor.clone();
        if attached.as_ref().map(|supervisor| supervisor.term) != Some(term) {
            tracing::info!(term = term.0, "attached to the supervisor");
        }
        if attached.is_some_and(|supervisor| supervisor.silent) {
            tracing::info!(term = term.0, "the supervisor answers again");
        }
        let change = |change: &dyn Fn(&mut Attached)| {
            self.standing.send_if_modified(|standing| {
                let before = standing.supervisor.clone();
                let supervisor = standing.supervisor.get_or_insert_default();
                supervisor.term = term;
                supervisor.silent = false;
                change(supervisor);
                standing.supervisor != before
            });
        };
        match notice {
            Some(Notice::Service(service)) => {
                let mut service = wire::service(service);
                if !self.knows_language(&service) {
                    let waiting =
                        without_language(service.clone(), &InferenceError::reading_model());
                    change(&|supervisor| supervisor.service = Some(waiting.clone()));
                    service = self.read_language(service).await;
                }
                service.images = self.image_limits(&service);
                service.unread_tool_calls = self.leaves_tool_calls_unread(&service);
                let known = self.standing.borrow().supervisor.clone();
                let known = known.and_then(|supervisor| supervisor.service);
                // Progress in words comes often; a change of state does not.
                if known.is_none_or(|known| known.differs_in_state(&service)) {
                    let ServiceState { can_serve, drafter_serves, reason, .. } = &service;
                    let reason = reason.map(Reason::word);
                    tracing::info!(can_serve, drafter_serves, reason, "service state");
                }
                change(&|supervisor| supervisor.service = Some(service.clone()));
            }
            Some(Notice::Drain(order)) => {
                tracing::info!(cause = order.cause, "ordered to drain");
                change(&|supervisor| supervisor.drained = true);
            }
            Some(Notice::Restart(order)) => {
                tracing::info!(cause = order.cause, "ordered to restart");
                change(&|_| {});
                // Only a gateway that is ending already does not listen.
                let grace = order.grace_ms.map(|ms| Duration::from_millis(ms.into()));
                let _ = self.orders.send(Event::RestartAsked(grace)).await;
            }
            Some(Notice::Beat(_)) => change(&|_| {}),
            None => {
                tracing::warn!(term = term.0, "notice of no known kind");
                change(&|_| {});
            }
        }
    }
}

impl Attachment {
    /// Whether the text side of the served model is there.
    fn knows_language(&self, service: &ServiceState) -> bool {
        service.model.as_ref().is_none_or(|model| self.languages.of(model).is_some())
    }

    /// Limits of the images that the served model reads, if it reads any.
    fn image_limits(&self, service: &ServiceState) -> Option<ImageLimits> {
        let model = service.model.as_ref().filter(|model| model.vision)?;
        let language = self.languages.of(model)?.language;
        language.images.as_deref().map(|processor| limits_of(processor, &self.limits))
    }

    /// Whether the served model has tools and the format of its tool calls is not read.
    fn leaves_tool_calls_unread(&self, service: &ServiceState) -> bool {
        let language = service.model.as_ref().and_then(|model| self.languages.of(model));
        language.is_some_and(|served| served.language.leaves_tool_calls_unread())
    }

    /// Reads the text side of another model. Returns the state with which requests are served: none
    /// are, if the files cannot be read.
    async fn read_language(&self, service: ServiceState) -> ServiceState {
        let Some(path) = service.model.as_ref().map(|model| model.path.clone()) else {
            return service;
        };
        tracing::info!(path, "the target serves another model; its text files are read");
        let languages = self.languages.clone();
        let reading = tokio::task::spawn_blocking(move || languages.follow(&path));
        let failure = match reading.await {
            Ok(Ok(())) => return service,
            Ok(Err(error)) => chain(&error),
            Err(_) => "a panic while they were read".to_owned(),
        };
        tracing::error!(failure, "the text files of the served model cannot be used");
        let message = format!("the text files of the served model cannot be used: {failure}");
        without_language(service, &InferenceError::new(Reason::Restarting, message))
    }
}

/// The state of a service whose requests cannot be served for want of a text side.
fn without_language(service: ServiceState, error: &InferenceError) -> ServiceState {
    ServiceState {
        can_serve: false,
        held: false,
        reason: Some(error.kind),
        message: error.message.clone(),
        retry_after: error.retry_after,
        ..service
    }
}

/// The gateway's reports: its state at once, then each change. Changes that come faster than they
/// are sent become one.
fn reports(
    process: GatewayProcess,
    standing: watch::Receiver<Standing>,
    running: watch::Receiver<usize>,
) -> impl Stream<Item = GatewayReport> + Send + 'static {
    futures::stream::unfold(
        (standing, running, None::<GatewayReport>),
        move |(mut standing, mut running, last)| async move {
            loop {
                let report = {
                    let standing = standing.borrow_and_update();
                    let takes_more = standing.open().is_ok() && !standing.leaving;
                    let service = standing.supervisor.as_ref().and_then(|one| one.service.as_ref());
                    let model = standing.serving().ok();
                    GatewayReport {
                        epoch: process.epoch,
                        pid: std::process::id(),
                        state: match takes_more {
                            true => GatewayState::Ready,
                            false => GatewayState::Draining,
                        },
                        restarts: process.restarts,
                        streams: u32::try_from(*running.borrow_and_update()).unwrap_or(u32::MAX),
                        images: service.and_then(|service| service.images),
                        model: model.map(|serving| ModelMark::of(&serving.model.path)),
                        unread_tool_calls: service.is_some_and(|service| service.unread_tool_calls),
                    }
                };
                if last != Some(report) {
                    return Some((report, (standing, running, Some(report))));
                }
                let changed = tokio::select! {
                    changed = standing.changed() => changed,
                    changed = running.changed() => changed,
                };
                // The gateway is gone: so is the stream.
                changed.ok()?;
            }
        },
    )
}

#[cfg(test)]
mod tests {
    use paceline_proto::internal::v1::Beat;

    use super::*;

    /// The tick at which the supervisor counts as hung, if it does within a hundred.
    fn hung_at(silence: &mut Silence) -> Option<u32> {
        (1..=100).find(|_| silence.ticked())
    }

    #[test]
    fn a_supervisor_counts_as_hung_after_three_seconds_without_a_beat() {
        let beat = Notice::Beat(Beat {});
        let mut silence = Silence::default();
        silence.ended(Some(&beat));
        assert_eq!(hung_at(&mut silence), Some(SILENT_TICKS));
        assert_eq!(TICK * SILENT_TICKS, Duration::from_secs(3));
        // Whatever it sends is a sign of life.
        silence.ended(None);
        assert_eq!(hung_at(&mut silence), Some(SILENT_TICKS));
        assert_eq!(hung_at(&mut silence), None, "it is reported once");
    }

    #[test]
    fn a_supervisor_that_sends_no_beats_is_not_expected_to() {
        let mut silence = Silence::default();
        silence.ended(None);
        assert_eq!(hung_at(&mut silence), None);
    }
}
