//! State of a worker for others: whether requests may come, when that may change, and the words for
//! both.

use paceline_vocabulary::state::{ProcessState, WorkerPhase};
use paceline_vocabulary::{Millis, Reason};

use super::{HangKind, Phase, StopReason, SuspectReason, Worker, WorkerKind, stranded_sentence};
use crate::denial::Outage;

/// Assumed time from spawn to ready, until it was measured.
const CAME_UP_MS: u64 = 1_000;
/// Shortest pause that a client is asked for.
const SOONEST_RETRY_MS: u64 = 250;

impl Worker {
    /// State of the worker as `paceline status` names it.
    pub fn state(&self) -> ProcessState {
        match self.phase {
            Phase::Stopped => ProcessState::Stopped,
            Phase::Starting { .. } => ProcessState::Starting,
            Phase::Loading { .. } => ProcessState::Loading,
            Phase::Ready { .. } => ProcessState::Ready,
            Phase::Suspect { .. }
            | Phase::Ending { why: StopReason::Hung(_) | StopReason::Condemned, .. } => {
                ProcessState::Suspect
            }
            Phase::Ending { .. } => ProcessState::Draining,
            Phase::BackingOff { .. } => ProcessState::BackingOff,
            Phase::Failed { .. } => ProcessState::Failed,
        }
    }

    /// Why it takes no requests; `None` if it does.
    pub fn outage(&self) -> Option<Outage> {
        let noun = self.kind.noun();
        let before =
            self.last_end.as_ref().map(|end| format!(": the one before ended by {}", end.cause));
        let restarted = before.clone().unwrap_or_default();
        let (reason, why) = match self.phase {
            Phase::Ready { .. } => return None,
            Phase::Stopped => (Reason::Restarting, format!("{noun} is stopped")),
            Phase::Starting { .. } if self.is_taken_over() => (
                Reason::Restarting,
                format!("{noun} is being taken over from an earlier supervisor"),
            ),
            Phase::Starting { .. } if before.is_none() => {
                (Reason::TargetLoading, format!("{noun} is being started"))
            }
            Phase::Starting { .. } => {
                (Reason::Restarting, format!("{noun} is being started again{restarted}"))
            }
            Phase::Loading { .. } => (
                Reason::TargetLoading,
                format!(
                    "{noun} is loading, {} % of its weights are read{restarted}",
                    self.percent()
                ),
            ),
            Phase::Suspect { reason: SuspectReason::Silent } => {
                (Reason::Restarting, format!("{noun} gives no sign of life"))
            }
            Phase::Suspect { reason: SuspectReason::Leaving } => {
                (Reason::Restarting, format!("{noun} is ending by itself"))
            }
            Phase::Ending { why: StopReason::Asked(_), .. } if self.kind == WorkerKind::Target => {
                (Reason::Draining, "the service is stopping".to_owned())
            }
            Phase::Ending { why, .. } => {
                (Reason::Restarting, format!("{noun} is being ended: {}", self.end_words(why)))
            }
            Phase::BackingOff { .. } => {
                (Reason::Restarting, format!("{noun} waits for its next start{restarted}"))
            }
            Phase::Failed { .. } if self.stranded_bytes().is_some() => {
                let sentence = stranded_sentence(self.stranded_bytes().unwrap_or_default());
                (Reason::HostMemoryStranded, format!("{noun} is not started again: {sentence}"))
            }
            Phase::Failed { .. } if self.is_refused() => {
                (Reason::CrashLoop, format!("{noun} cannot be loaded{restarted}"))
            }
            Phase::Failed { .. } => {
                (Reason::CrashLoop, format!("{noun} does not stay up{restarted}"))
            }
        };
        Some(Outage { reason, why })
    }

    /// When requests may be taken again, as far as is known; 0 if they are taken now.
    pub fn retry_ms(&self, now: Millis) -> u64 {
        let come_up = self.came_up_ms.unwrap_or(CAME_UP_MS);
        let ms = match self.phase {
            Phase::Ready { .. } => return 0,
            Phase::Stopped | Phase::Starting { .. } => come_up,
            Phase::Loading { since } => {
                match self.life.as_ref().and_then(|life| life.heartbeat.as_ref()) {
                    Some(heartbeat) if heartbeat.loaded_bytes > 0 => {
                        let rest = heartbeat.total_bytes.saturating_sub(heartbeat.loaded_bytes)
                            as f64
                            / heartbeat.loaded_bytes as f64;
                        (now.since(since) as f64 * rest) as u64
                    }
                    _ => come_up,
                }
            }
            Phase::Suspect { .. } => self.settings.timeouts.silent_ms,
            Phase::Ending { until, .. } => until.since(now) + come_up,
            Phase::BackingOff { until } => until.since(now) + come_up,
            Phase::Failed { retry: Some(retry) } if !self.is_refused() => {
                retry.since(now) + come_up
            }
            Phase::Failed { .. } => 900_000,
        };
        ms.clamp(SOONEST_RETRY_MS, 3_600_000)
    }

    /// Last lines of the log of an epoch that ended unexpectedly.
    pub fn last_log(&self) -> &str {
        self.last_end.as_ref().map_or("", |end| &end.log)
    }

    /// Why it is in this state, for operators: the cause, the next try, and after an unexpected end
    /// the last lines of the log.
    pub fn reason(&self, now: Millis) -> String {
        let seconds = |at: Millis| at.since(now).div_ceil(1_000);
        let state = match self.phase {
            Phase::Suspect { .. } | Phase::Ending { .. } => self.outage().map(|outage| outage.why),
            Phase::BackingOff { .. } if self.host_memory.is_waiting() => {
                Some("waits until the memory of the killed process has come back".to_owned())
            }
            Phase::BackingOff { until } => Some(format!("next start in {} s", seconds(until))),
            Phase::Failed { .. } if self.is_refused() => Some(self.wait_for_files()),
            Phase::Failed { retry: Some(retry) } => {
                Some(format!("next try in {} s", seconds(retry)))
            }
            Phase::Failed { retry: None } => {
                let part = self.kind.part();
                Some(format!("not tried again by itself, only by `paceline restart {part}`"))
            }
            _ => None,
        };
        let end = self.last_end.as_ref().map(|end| {
            let life = end.epoch.map(|epoch| format!("epoch {epoch} ended: ")).unwrap_or_default();
            let log = if end.log.is_empty() { String::new() } else { format!("\n{}", end.log) };
            (format!("{life}{}", end.cause), log)
        });
        match (state, end) {
            (Some(state), Some((cause, log))) => format!("{cause}; {state}{log}"),
            (None, Some((cause, log))) => format!("{cause}{log}"),
            (Some(state), None) => state,
            (None, None) => String::new(),
        }
    }

    fn percent(&self) -> u64 {
        let heartbeat = self.life.as_ref().and_then(|life| life.heartbeat.as_ref());
        heartbeat
            .and_then(|heartbeat| {
                heartbeat.loaded_bytes.saturating_mul(100).checked_div(heartbeat.total_bytes)
            })
            .unwrap_or(0)
            .min(100)
    }

    pub(super) fn end_words(&self, why: StopReason) -> String {
        let seconds = |ms: u64| ms as f64 / 1e3;
        match why {
            StopReason::Foreign => {
                let how = self.life.as_ref().map_or("", |life| life.failure.as_str());
                format!("an earlier supervisor left it, and it cannot be taken over: {how}")
            }
            StopReason::Asked(cause) => cause.to_owned(),
            StopReason::Condemned => {
                let how = self.life.as_ref().map_or("", |life| life.failure.as_str());
                format!("it broke the link's protocol: {how}")
            }
            StopReason::Hung(HangKind::Unseen) => {
                format!(
                    "it did not show itself within {} s",
                    seconds(self.settings.timeouts.start_ms)
                )
            }
            StopReason::Hung(HangKind::Loading) => {
                format!("no progress in loading for {} s", seconds(self.settings.timeouts.load_ms))
            }
            StopReason::Hung(HangKind::Undescribed) => {
                "it has loaded and does not say what".to_owned()
            }
            StopReason::Hung(HangKind::Silent) => {
                format!("no heartbeat for {} s", seconds(self.step_budget_ms()))
            }
            StopReason::Hung(HangKind::Working(phase)) => {
                let doing = match phase {
                    WorkerPhase::Prefill => "reading a prompt",
                    WorkerPhase::Decode => "decoding",
                    WorkerPhase::Stopping => "ending",
                    WorkerPhase::Failed => "failing",
                    WorkerPhase::Loading | WorkerPhase::Idle => "its work",
                };
                format!("no progress in {doing} for {} s", seconds(self.step_budget_ms()))
            }
        }
    }
}
