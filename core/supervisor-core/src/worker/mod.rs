//! One worker process from its start to its end. Decides and never acts: only numbers and facts
//! come in, only actions go out. The states and their transitions are drawn in [`phase`].
//!
//! The next epoch starts only when the process before it is gone: `Spawn` is ordered only if no
//! process is left. A process that an earlier supervisor left is `Found` and adopted as it is: it
//! has to show only a heartbeat and its identity. If it is another than this supervisor would start
//! (`Foreign`), it is ended. Events of an earlier epoch are dropped (I7).

mod event;
mod host_memory;
mod identity;
mod life;
mod phase;
mod process_memory;
mod refusal;
mod restart;
mod settings;
mod status;
mod stop;
mod takeover;
mod wired;

use std::sync::Arc;

use paceline_vocabulary::report::Heartbeat;
use paceline_vocabulary::state::WorkerPhase;
use paceline_vocabulary::{Epoch, Millis};

pub use event::{Action, Event};
use host_memory::HostMemory;
pub use identity::{WorkerClaim, WorkerIdentity};
pub use life::{Life, WorkerDescription, WorkerExit};
use phase::UnexpectedEnd;
pub use phase::{HangKind, Phase, StopReason, StopStage, SuspectReason};
pub use process_memory::ProcessMemory;
use refusal::ModelFiles;
pub use restart::{Restart, RestartBudget, RestartPauses};
pub use settings::{WorkerSettings, WorkerTimeouts};
pub use wired::{WiredReading, stranded_sentence};

/// Model that a worker serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkerKind {
    /// The model that is served.
    Target,
    /// The model that proposes tokens.
    Drafter,
}

impl WorkerKind {
    fn noun(self) -> &'static str {
        match self {
            WorkerKind::Target => "the target",
            WorkerKind::Drafter => "the drafter",
        }
    }

    /// Its name in commands.
    fn part(self) -> &'static str {
        match self {
            WorkerKind::Target => "target",
            WorkerKind::Drafter => "drafter",
        }
    }
}

/// How the epoch before the present one ended.
#[derive(Clone, Debug)]
pub struct LastEnd {
    /// The epoch; `None` if the process never started.
    pub epoch: Option<Epoch>,
    /// How.
    pub cause: String,
    /// Last lines of its log.
    pub log: String,
}

/// A worker process.
#[derive(Debug)]
pub struct Worker {
    kind: WorkerKind,
    settings: WorkerSettings,
    /// Directory it was last started with; empty is the configuration's.
    model: String,
    phase: Phase,
    life: Option<Life>,
    /// A start was ordered, and is not answered yet. A process may be there all the same.
    is_being_started: bool,
    last_end: Option<LastEnd>,
    /// Milliseconds from spawn to ready, of the last epoch that became ready.
    came_up_ms: Option<u64>,
    /// The description of the last epoch that gave one.
    described: Option<Arc<WorkerDescription>>,
    budget: RestartBudget,
    host_memory: HostMemory,
    files: ModelFiles,
    restarts: u32,
    last_epoch: Epoch,
    /// No epoch follows: the service drains.
    retired: bool,
    /// No epoch follows by itself: an unexpected end is final.
    once: bool,
}

impl Worker {
    /// A worker that was not started yet.
    pub fn new(kind: WorkerKind, settings: WorkerSettings) -> Self {
        let WorkerSettings { restarts, restart_period_ms, .. } = settings;
        Self {
            kind,
            settings,
            model: String::new(),
            phase: Phase::Stopped,
            life: None,
            is_being_started: false,
            last_end: None,
            came_up_ms: None,
            described: None,
            budget: RestartBudget::new(restarts, restart_period_ms, RestartPauses::WORKER),
            host_memory: HostMemory::default(),
            files: ModelFiles::default(),
            restarts: 0,
            last_epoch: Epoch(0),
            retired: false,
            once: false,
        }
    }

    /// Takes one event and returns what is to be done.
    pub fn on_event(&mut self, event: Event, now: Millis) -> Vec<Action> {
        let mut out = Vec::new();
        // An event of another epoch says nothing about this one (I7).
        let present = self.life.as_ref().map(|life| life.epoch);
        if event.epoch().is_some() && event.epoch() != present {
            return out;
        }
        self.assert_counts_up(&event);
        match &event {
            Event::Spawned { .. } | Event::Found { .. } | Event::SpawnFailed { .. } => {
                self.is_being_started = false;
            }
            Event::WiredRead(reading) => {
                self.on_wired_read(*reading, now, &mut out);
                return out;
            }
            Event::FilesSeen { files } => {
                self.on_files_seen(*files, now, &mut out);
                return out;
            }
            Event::Exited { exit, .. } => self.note_end(*exit),
            _ => {}
        }
        match self.phase {
            Phase::Stopped => self.on_event_stopped(event, now, &mut out),
            Phase::BackingOff { .. } | Phase::Failed { .. } => {
                self.on_event_between(event, now, &mut out)
            }
            Phase::Starting { .. }
            | Phase::Loading { .. }
            | Phase::Ready { .. }
            | Phase::Suspect { .. } => self.on_event_alive(event, now, &mut out),
            Phase::Ending { .. } => self.on_event_ending(event, now, &mut out),
        }
        out
    }

    fn on_event_stopped(&mut self, event: Event, now: Millis, out: &mut Vec<Action>) {
        match event {
            Event::StartAsked { model } if self.life.is_none() => self.start(model, now, out),
            Event::Found { epoch, pid }
                if self.kind == WorkerKind::Drafter && !self.retired && self.life.is_none() =>
            {
                self.model.clear();
                self.take_over(epoch, pid, now, out);
            }
            // Stopped between `Spawn` and its answer: the process is not left alone.
            Event::Spawned { epoch, pid } | Event::Found { epoch, pid } => {
                self.begin(epoch, pid, now);
                self.end(StopReason::Asked("nobody asked for it any more"), now, out);
            }
            // Likewise, and there is no process.
            Event::SpawnFailed { .. } => {}
            // A process that was given up ends after all.
            Event::Exited { .. } => {
                self.life = None;
                out.push(Action::Clear);
            }
            Event::DrainAsked => self.retired = true,
            Event::EndAsked { cause } => self.enter(Phase::Stopped, cause, out),
            // A process that was given up still reports.
            event if event.epoch().is_some() => {}
            event => self.surprise(&event, out),
        }
    }

    fn on_event_between(&mut self, event: Event, now: Millis, out: &mut Vec<Action>) {
        match event {
            Event::StartAsked { model } => self.start(model, now, out),
            Event::DrainAsked => {
                self.retired = true;
                self.enter(Phase::Stopped, "the service drains", out);
            }
            Event::EndAsked { cause } => self.enter(Phase::Stopped, cause, out),
            event => self.surprise(&event, out),
        }
    }

    fn on_event_alive(&mut self, event: Event, now: Millis, out: &mut Vec<Action>) {
        match (self.phase, event) {
            (Phase::Starting { .. }, Event::Spawned { epoch, pid }) => self.begin(epoch, pid, now),
            (Phase::Starting { .. }, Event::Found { epoch, pid }) => {
                self.take_over(epoch, pid, now, out)
            }
            (Phase::Starting { .. }, Event::SpawnFailed { cause }) => {
                let end = UnexpectedEnd::NotStarted(cause);
                self.end_unexpectedly(end, String::new(), now, out);
            }
            (_, Event::Heartbeat(heartbeat)) => self.on_heartbeat(*heartbeat, now, out),
            (Phase::Loading { .. }, Event::Described { described, .. }) => {
                self.come_up(described, now, out)
            }
            // Described twice.
            (Phase::Ready { .. } | Phase::Suspect { .. }, Event::Described { .. }) => {}
            (_, Event::Foreign { cause, .. }) => self.refuse(cause, now, out),
            (_, Event::DescribeFailed { .. }) => self.describe_again(),
            (_, Event::Condemned { cause, .. }) => {
                if let Some(life) = &mut self.life {
                    life.failure = cause;
                }
                self.end(StopReason::Condemned, now, out);
            }
            (_, Event::Exited { exit, log, .. }) => {
                self.end_unexpectedly(UnexpectedEnd::Exited(exit), log, now, out)
            }
            (_, Event::DrainAsked) => self.retired = true,
            (_, Event::EndAsked { cause }) if self.life.is_some() => {
                self.end(StopReason::Asked(cause), now, out)
            }
            (_, Event::EndAsked { cause }) => self.enter(Phase::Stopped, cause, out),
            (_, event) => self.surprise(&event, out),
        }
    }

    fn on_event_ending(&mut self, event: Event, now: Millis, out: &mut Vec<Action>) {
        let Phase::Ending { why, stage, answered, until, most } = self.phase else { return };
        match event {
            Event::Heartbeat(heartbeat) => {
                let life = self.life.as_mut();
                let progress = life.is_some_and(|life| life.on_heartbeat(*heartbeat, now));
                if progress && stage != StopStage::Killed {
                    let until = until.max(most.min(now + self.settings.timeouts.quiet_ms));
                    self.phase = Phase::Ending { why, stage, answered, until, most };
                }
            }
            Event::DescribeFailed { .. } => self.describe_again(),
            Event::StopAnswered { reached, .. } if stage == StopStage::Asked => match reached {
                true => {
                    self.phase = Phase::Ending { why, stage, answered: true, until, most };
                }
                false => self.escalate(why, StopStage::Terminated, false, now, out),
            },
            Event::Frozen { .. } if stage != StopStage::Killed => {
                self.escalate(why, StopStage::Killed, answered, now, out)
            }
            // These come when a later stage has begun already.
            Event::StopAnswered { .. }
            | Event::Frozen { .. }
            | Event::Described { .. }
            | Event::Foreign { .. }
            | Event::Condemned { .. } => {}
            Event::Exited { exit, log, .. } => self.ended(why, exit, log, now, out),
            Event::DrainAsked => self.retired = true,
            Event::EndAsked { cause } => {
                let why = StopReason::Asked(cause);
                self.phase = Phase::Ending { why, stage, answered, until, most };
            }
            Event::KillAsked => {
                let why = StopReason::Asked("the time to end is over");
                self.escalate(why, StopStage::Killed, answered, now, out);
            }
            event => self.surprise(&event, out),
        }
    }

    fn surprise(&self, event: &Event, out: &mut Vec<Action>) {
        out.push(Action::Surprise { phase: self.phase.name(), event: event.name() });
    }

    /// The next heartbeat asks again.
    fn describe_again(&mut self) {
        if let Some(life) = &mut self.life {
            life.describing = false;
        }
    }

    /// Time has passed: does what is due.
    pub fn on_time(&mut self, now: Millis) -> Vec<Action> {
        let mut out = Vec::new();
        if self.next_deadline().is_none_or(|due| due > now) {
            return out;
        }
        match self.phase {
            Phase::Starting { .. } => self.end(StopReason::Hung(HangKind::Unseen), now, &mut out),
            Phase::Loading { .. } => {
                let loading =
                    self.life.as_ref().and_then(Life::phase) == Some(WorkerPhase::Loading);
                let kind = if loading { HangKind::Loading } else { HangKind::Undescribed };
                self.end(StopReason::Hung(kind), now, &mut out);
            }
            Phase::Ready { since } => match self.hang(now) {
                Some(hang) => self.end(StopReason::Hung(hang), now, &mut out),
                None if self.silent_at() <= Some(now) => {
                    let silent_s = self.settings.timeouts.silent_ms as f64 / 1e3;
                    let cause = format!("no heartbeat for {silent_s} s");
                    let phase = Phase::Suspect { reason: SuspectReason::Silent };
                    self.enter(phase, &cause, &mut out);
                }
                None if since + self.settings.restart_period_ms <= now => {
                    self.budget.clear();
                    self.last_end = None;
                }
                None => {}
            },
            Phase::Suspect { .. } => {
                if let Some(hang) = self.hang(now) {
                    self.end(StopReason::Hung(hang), now, &mut out);
                }
            }
            Phase::Ending { .. } => self.escalate_on_time(now, &mut out),
            Phase::BackingOff { .. } => {
                if !self.continue_check(now, &mut out) {
                    self.restart("the pause is over", now, &mut out);
                }
            }
            Phase::Failed { .. } if self.is_refused() => self.look_at_files(now, &mut out),
            Phase::Failed { .. } => self.restart("tried again", now, &mut out),
            Phase::Stopped => {}
        }
        out
    }

    fn escalate_on_time(&mut self, now: Millis, out: &mut Vec<Action>) {
        let Phase::Ending { why, stage, answered, most, .. } = self.phase else { return };
        match stage {
            StopStage::Asked => self.escalate(why, StopStage::Terminated, answered, now, out),
            StopStage::Terminated => self.escalate(why, StopStage::Killed, answered, now, out),
            StopStage::Killed if matches!(why, StopReason::Asked(_)) && most <= now => {
                // Nothing more can be done, and the service's end is bounded (I6).
                self.enter(Phase::Stopped, "given up: it does not go, not even by SIGKILL", out);
            }
            StopStage::Killed => {
                let until = now + self.settings.timeouts.kill_ms;
                self.phase = Phase::Ending { why, stage, answered, until, most };
                out.extend(self.life.as_ref().map(|life| Action::Kill { epoch: life.epoch }));
            }
        }
    }

    /// When [`Worker::on_time`] has something to do.
    pub fn next_deadline(&self) -> Option<Millis> {
        match self.phase {
            Phase::Stopped => None,
            // A process that is adopted has run for long: it owes a heartbeat, not a start.
            Phase::Starting { since } if self.is_taken_over() => {
                Some(since + self.settings.timeouts.hang_ms)
            }
            Phase::Starting { since } => {
                self.life.as_ref().map(|_| since + self.settings.timeouts.start_ms)
            }
            Phase::Loading { .. } => self
                .life
                .as_ref()
                .map(|life| life.last_progress_at() + self.settings.timeouts.load_ms),
            Phase::Ready { since } => {
                let settled = (!self.budget.is_clean() || self.last_end.is_some())
                    .then(|| since + self.settings.restart_period_ms);
                [self.hung_at(), self.silent_at(), settled].into_iter().flatten().min()
            }
            Phase::Suspect { .. } => self.hung_at(),
            Phase::Ending { until, .. } | Phase::BackingOff { until } => Some(until),
            Phase::Failed { retry } => retry,
        }
    }

    /// The supervisor was not running: missing heartbeats until `now` prove nothing.
    pub fn discount_lost_time(&mut self, now: Millis) {
        if let Some(life) = &mut self.life {
            life.discount_lost_time(now);
        }
        if let Phase::Starting { since } = &mut self.phase {
            *since = now;
        }
    }

    /// `max(hang_s, 10 × p99 of the phase)`, by the step times of its last heartbeat; without any
    /// it is `hang_s`.
    fn step_budget_ms(&self) -> u64 {
        let heartbeat = self.life.as_ref().and_then(|life| life.heartbeat.as_ref());
        let p99_us = heartbeat.and_then(|heartbeat| {
            let times = heartbeat.step_times.as_ref()?;
            Some(match heartbeat.phase {
                WorkerPhase::Prefill => times.prefill_p99_us,
                WorkerPhase::Decode => times.decode_p99_us,
                _ => 0,
            })
        });
        self.settings.timeouts.hang_ms.max(u64::from(p99_us.unwrap_or(0)) / 100)
    }

    fn hung_at(&self) -> Option<Millis> {
        self.life.as_ref().map(|life| life.last_progress_at() + self.step_budget_ms())
    }

    fn silent_at(&self) -> Option<Millis> {
        self.life.as_ref().map(|life| life.last_heartbeat_at() + self.settings.timeouts.silent_ms)
    }

    fn hang(&self, now: Millis) -> Option<HangKind> {
        self.hung_at().filter(|at| *at <= now)?;
        let silent = self.silent_at().is_some_and(|at| at <= now);
        Some(if silent {
            HangKind::Silent
        } else {
            HangKind::Working(self.life.as_ref()?.phase()?)
        })
    }

    fn start(&mut self, model: String, now: Millis, out: &mut Vec<Action>) {
        self.budget.clear();
        self.last_end = None;
        self.model = model;
        let cause = "it is asked to start";
        // An operator who starts a worker that failed for stranded memory decides that it may be
        // started. The system cannot tell whose memory is wired.
        let failed = matches!(self.phase, Phase::Failed { .. });
        let is_decided = failed && self.stranded_bytes().is_some();
        if is_decided || !self.begin_check(cause, false, now, out) {
            self.spawn(cause, false, now, out);
        }
    }

    /// Earlier failures do not count any more.
    pub fn clear_budget(&mut self) {
        self.budget.clear();
    }

    /// From now on an unexpected end is final (`true`), or the budget allows another start.
    pub fn live_once(&mut self, once: bool) {
        self.once = once;
    }

    fn begin(&mut self, epoch: Epoch, pid: u32, now: Millis) {
        self.life = Some(Life::new(epoch, pid, now));
        self.last_epoch = epoch;
    }

    fn on_heartbeat(&mut self, heartbeat: Heartbeat, now: Millis, out: &mut Vec<Action>) {
        let Some(life) = &mut self.life else { return };
        life.on_heartbeat(heartbeat, now);
        let leaving = matches!(life.phase(), Some(WorkerPhase::Stopping | WorkerPhase::Failed));
        let epoch = life.epoch;
        if let Phase::Starting { .. } = self.phase {
            self.enter(Phase::Loading { since: now }, "its first heartbeat", out);
        }
        match self.phase {
            Phase::Loading { .. } => {
                let Some(life) = &mut self.life else { return };
                let loaded = matches!(
                    life.phase(),
                    Some(WorkerPhase::Idle | WorkerPhase::Prefill | WorkerPhase::Decode)
                );
                let measured = self.kind == WorkerKind::Drafter || life.budget_bytes().is_some();
                if loaded && measured && !life.describing {
                    life.describing = true;
                    out.push(Action::Describe { epoch });
                }
            }
            Phase::Ready { .. } | Phase::Suspect { reason: SuspectReason::Silent } if leaving => {
                self.enter(
                    Phase::Suspect { reason: SuspectReason::Leaving },
                    "it ends without being asked",
                    out,
                );
            }
            Phase::Suspect { reason: SuspectReason::Silent } => {
                self.enter(Phase::Ready { since: now }, "heartbeats again", out)
            }
            _ => {}
        }
    }

    fn come_up(&mut self, described: Arc<WorkerDescription>, now: Millis, out: &mut Vec<Action>) {
        let Some(life) = &mut self.life else { return };
        if !described.is_usable() {
            return self.end(StopReason::Hung(HangKind::Undescribed), now, out);
        }
        if !life.earlier {
            self.came_up_ms = Some(now.since(life.since));
        } else if let Some(info) = described.drafter() {
            // Found where none was started yet: its model is what runs. In place of a start: it has
            // to be the one asked for.
            if !self.model.is_empty() && self.model != info.path {
                return self.refuse(
                    format!("its model is {}, {} is wanted", info.path, self.model),
                    now,
                    out,
                );
            }
            self.model.clone_from(&info.path);
        }
        let cause = if life.earlier { "taken over" } else { "loaded" };
        life.described = Some(described.clone());
        life.discount_lost_time(now);
        self.described = Some(described);
        self.enter(Phase::Ready { since: now }, cause, out);
    }

    fn enter(&mut self, phase: Phase, cause: &str, out: &mut Vec<Action>) {
        if self.phase.name() != phase.name() {
            self.log_phase(phase.name(), cause, out);
        }
        self.phase = phase;
    }

    fn log_phase(&self, to: &'static str, cause: &str, out: &mut Vec<Action>) {
        out.push(Action::LogPhase {
            epoch: self.last_epoch,
            from: self.phase.name(),
            to,
            cause: cause.to_owned(),
        });
    }

    /// Where it stands.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// Whether there is no process and none is to come.
    pub fn is_gone(&self) -> bool {
        self.phase == Phase::Stopped && self.life.is_none()
    }

    /// Whether it is stopped, with no start under way that would leave a process.
    pub fn is_stopped(&self) -> bool {
        self.phase == Phase::Stopped && !self.is_being_started
    }

    /// Directory it was last started with; empty is the configuration's.
    pub fn model(&self) -> &str {
        &self.model
    }

    /// How the epoch before the present one ended, if that was unexpected.
    pub fn last_end(&self) -> Option<&LastEnd> {
        self.last_end.as_ref()
    }

    /// The process there is.
    pub fn life(&self) -> Option<&Life> {
        self.life.as_ref()
    }

    /// The description of the last epoch that became ready.
    pub fn described(&self) -> Option<&Arc<WorkerDescription>> {
        self.described.as_ref()
    }

    /// The last epoch, whether it still runs or not.
    pub fn last_epoch(&self) -> Epoch {
        self.last_epoch
    }

    /// Starts nobody asked for.
    pub fn restarts(&self) -> u32 {
        self.restarts
    }
}
