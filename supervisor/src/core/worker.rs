//! One worker process from spawn to grave. Decides and never acts: only numbers and facts come in,
//! only orders go out.
//!
//! ```text
//!            StartAsked           first Beat            Described
//!  Stopped ────────────▶ Starting ──────────▶ Loading ────────────▶ Ready ◀──────▶ Suspect   no heartbeat, or leaving
//!     ▲                   │  ▲  ▲                │                    │               │
//!     │           Foreign │  │  │ until          └─────── hung ───────┴───────────────┤
//!     │                   ▼  │  │                                                     ▼
//!     └─── asked ─────── Ending │ ◀──────────── control message, SIGTERM, SIGKILL ────┘
//!                           │   │
//!          Exited, from any │   └── BackingOff ◀── budget left ──┐
//!                           ▼                                    │
//!                         (fall) ────── budget spent ──▶ Failed ─┴▶ Starting, by itself, later
//! ```
//! The next life starts only when the one before is gone: `Spawn` is given only where no process is
//! left. One that an earlier supervisor left is `Found` and taken over as it is: it has nothing to
//! show but a heartbeat and who it is. If that is another than we would start (`Foreign`) it is
//! ended. News of an earlier life is dropped (I7).

mod end;
mod identity;
mod life;
mod news;
mod outlook;
mod phase;
mod takeover;

use std::sync::Arc;

use paceline_proto::internal::v1::{Heartbeat, WorkerPhase};
use paceline_vocabulary::Epoch;
use paceline_vocabulary::Millis;

use super::restart::RestartBudget;
use end::Fall;
pub use identity::{Claim, Identity};
pub use life::{Described, Exit, Life};
pub use news::{Action, Event};
pub use phase::{Doubt, EndWhy, Hang, Patience, Phase, Rung};

/// What a worker is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The model that is served.
    Target,
    /// The model that proposes tokens.
    Drafter,
}

impl Kind {
    fn noun(self) -> &'static str {
        match self {
            Kind::Target => "the target",
            Kind::Drafter => "the drafter",
        }
    }
}

/// How the life before this one ended.
#[derive(Clone, Debug)]
pub struct LastEnd {
    /// Which it was; none if it never began.
    pub epoch: Option<Epoch>,
    /// How.
    pub cause: String,
    /// Last lines of its log.
    pub log: String,
}

/// A worker process.
#[derive(Debug)]
pub struct Worker {
    kind: Kind,
    patience: Patience,
    /// Directory it was last started with; empty is the configuration's.
    model: String,
    phase: Phase,
    life: Option<Life>,
    last_end: Option<LastEnd>,
    /// From spawn to ready, of the last life that got there.
    came_up_ms: Option<u64>,
    /// The model of the last life that described itself.
    described: Option<Arc<Described>>,
    budget: RestartBudget,
    period_ms: u64,
    restarts: u32,
    last_epoch: Epoch,
    /// No further life begins: the service drains.
    retired: bool,
    /// No further life begins by itself: a fall is the end of it.
    once: bool,
    surprises: u64,
}

impl Worker {
    /// A worker that was not started yet; `restarts` of it are allowed in any `period_ms`.
    pub fn new(kind: Kind, patience: Patience, restarts: u32, period_ms: u64) -> Self {
        Self {
            kind,
            patience,
            model: String::new(),
            phase: Phase::Stopped,
            life: None,
            last_end: None,
            came_up_ms: None,
            described: None,
            budget: RestartBudget::new(restarts, period_ms),
            period_ms,
            restarts: 0,
            last_epoch: Epoch(0),
            retired: false,
            once: false,
            surprises: 0,
        }
    }

    /// Takes one event in and says what is to be done.
    pub fn on_event(&mut self, event: Event, now: Millis) -> Vec<Action> {
        let mut out = Vec::new();
        // News of another life says nothing about this one (I7).
        let foreign = event
            .epoch()
            .is_some_and(|epoch| self.life.as_ref().is_none_or(|life| life.epoch != epoch));
        #[cfg(test)]
        let foreign = foreign && !super::plant::is(super::plant::Bug::OldEpoch);
        if foreign {
            return out;
        }
        match (self.phase, event) {
            (Phase::Stopped, Event::StartAsked { model }) if self.life.is_none() => {
                self.start(model, now, &mut out)
            }
            (Phase::BackingOff { .. } | Phase::Failed { .. }, Event::StartAsked { model }) => {
                self.start(model, now, &mut out)
            }
            (Phase::Starting { .. }, Event::Spawned { epoch, pid }) => self.begin(epoch, pid, now),
            (Phase::Starting { .. }, Event::Found { epoch, pid }) => {
                self.take_over(epoch, pid, now, &mut out)
            }
            (Phase::Stopped, Event::Found { epoch, pid })
                if self.kind == Kind::Drafter && !self.retired && self.life.is_none() =>
            {
                self.model.clear();
                self.take_over(epoch, pid, now, &mut out);
            }
            (Phase::Starting { .. }, Event::SpawnFailed { cause }) => {
                self.fall(Fall::Unstartable(cause), String::new(), now, &mut out);
            }
            // Stopped between the order to spawn and its answer: no orphan is left.
            (Phase::Stopped, Event::Spawned { epoch, pid } | Event::Found { epoch, pid }) => {
                self.begin(epoch, pid, now);
                self.end(EndWhy::Asked("nobody asked for it any more"), now, &mut out);
            }
            // Likewise, and there is none.
            (Phase::Stopped, Event::SpawnFailed { .. }) => {}
            // One that was given up goes after all, or shows that it still does not.
            (Phase::Stopped, Event::Exited { .. }) => {
                self.life = None;
                out.push(Action::Clear);
            }
            (Phase::Stopped, event) if event.epoch().is_some() => {}
            (
                Phase::Starting { .. }
                | Phase::Loading { .. }
                | Phase::Ready { .. }
                | Phase::Suspect { .. },
                Event::Beat(beat),
            ) => {
                self.hear(*beat, now, &mut out);
            }
            (Phase::Ending { why, rung, answered, until, most }, Event::Beat(beat)) => {
                let progress = self.life.as_mut().is_some_and(|life| life.hear(*beat, now));
                if progress && rung != Rung::Killed {
                    let until = until.max(most.min(now + self.patience.quiet_ms));
                    self.phase = Phase::Ending { why, rung, answered, until, most };
                }
            }
            (Phase::Loading { .. }, Event::Described { described, .. }) => {
                self.come_up(described, now, &mut out)
            }
            // Said twice.
            (Phase::Ready { .. } | Phase::Suspect { .. }, Event::Described { .. }) => {}
            (
                Phase::Starting { .. }
                | Phase::Loading { .. }
                | Phase::Ready { .. }
                | Phase::Suspect { .. },
                Event::Foreign { cause, .. },
            ) => self.refuse(cause, now, &mut out),
            (_, Event::DescribeFailed { .. }) => {
                if let Some(life) = &mut self.life {
                    life.describing = false; // asked again at the next heartbeat
                }
            }
            (
                Phase::Ending { why, rung: Rung::Asked, until, most, .. },
                Event::StopAnswered { reached, .. },
            ) => match reached {
                true => {
                    self.phase =
                        Phase::Ending { why, rung: Rung::Asked, answered: true, until, most }
                }
                false => self.climb(why, Rung::Terminated, false, now, &mut out),
            },
            (Phase::Ending { why, rung, answered, .. }, Event::Frozen { .. })
                if rung != Rung::Killed =>
            {
                self.climb(why, Rung::Killed, answered, now, &mut out);
            }
            // These come when we have moved on already.
            (
                Phase::Ending { .. },
                Event::StopAnswered { .. }
                | Event::Frozen { .. }
                | Event::Described { .. }
                | Event::Foreign { .. },
            ) => {}
            (Phase::Ending { why, .. }, Event::Exited { exit, log, .. }) => {
                self.ended(why, exit, log, now, &mut out)
            }
            (Phase::Ending { .. }, Event::Condemned { .. }) => {}
            (_, Event::Condemned { cause, .. }) => {
                if let Some(life) = &mut self.life {
                    life.failure = cause;
                }
                self.end(EndWhy::Condemned, now, &mut out);
            }
            (_, Event::Exited { exit, log, .. }) => {
                self.fall(Fall::Exited(exit), log, now, &mut out)
            }
            (Phase::BackingOff { .. } | Phase::Failed { .. }, Event::DrainAsked) => {
                self.retired = true;
                self.enter(Phase::Stopped, "the service drains", &mut out);
            }
            (_, Event::DrainAsked) => self.retired = true,
            (
                Phase::Starting { .. }
                | Phase::Loading { .. }
                | Phase::Ready { .. }
                | Phase::Suspect { .. },
                Event::EndAsked { cause },
            ) if self.life.is_some() => {
                self.end(EndWhy::Asked(cause), now, &mut out);
            }
            (Phase::Ending { rung, answered, until, most, .. }, Event::EndAsked { cause }) => {
                self.phase =
                    Phase::Ending { why: EndWhy::Asked(cause), rung, answered, until, most };
            }
            (_, Event::EndAsked { cause }) => self.enter(Phase::Stopped, cause, &mut out),
            (Phase::Ending { answered, .. }, Event::KillAsked) => {
                self.climb(
                    EndWhy::Asked("patience is over"),
                    Rung::Killed,
                    answered,
                    now,
                    &mut out,
                );
            }
            (phase, event) => {
                self.surprises += 1;
                out.push(Action::Surprise { phase: phase.name(), event: event.name() });
            }
        }
        out
    }

    /// Time has passed: does what is due.
    pub fn on_time(&mut self, now: Millis) -> Vec<Action> {
        let mut out = Vec::new();
        if self.next_deadline().is_none_or(|due| due > now) {
            return out;
        }
        match self.phase {
            Phase::Starting { .. } => self.end(EndWhy::Hung(Hang::Unseen), now, &mut out),
            Phase::Loading { .. } => {
                let loading =
                    matches!(self.life.as_ref().map(Life::phase), Some(WorkerPhase::Loading));
                self.end(
                    EndWhy::Hung(if loading { Hang::Loading } else { Hang::Undescribed }),
                    now,
                    &mut out,
                );
            }
            Phase::Ready { since } => match self.hang(now) {
                Some(hang) => self.end(EndWhy::Hung(hang), now, &mut out),
                None if self.silent_at() <= Some(now) => {
                    let cause =
                        format!("no heartbeat for {} s", self.patience.silent_ms as f64 / 1e3);
                    self.enter(Phase::Suspect { doubt: Doubt::Silent }, &cause, &mut out);
                }
                None if since + self.period_ms <= now => {
                    self.budget.clear();
                    self.last_end = None;
                }
                None => {}
            },
            Phase::Suspect { .. } => {
                if let Some(hang) = self.hang(now) {
                    self.end(EndWhy::Hung(hang), now, &mut out);
                }
            }
            Phase::Ending { why, rung: Rung::Asked, answered, .. } => {
                self.climb(why, Rung::Terminated, answered, now, &mut out)
            }
            Phase::Ending { why, rung: Rung::Terminated, answered, .. } => {
                self.climb(why, Rung::Killed, answered, now, &mut out)
            }
            Phase::Ending { why: EndWhy::Asked(_), rung: Rung::Killed, most, .. }
                if most <= now =>
            {
                // Nothing more can be done from here, and the service's end is bounded (I6).
                self.enter(
                    Phase::Stopped,
                    "given up: it does not go, not even by SIGKILL",
                    &mut out,
                );
            }
            Phase::Ending { why, rung: Rung::Killed, answered, most, .. } => {
                self.phase = Phase::Ending {
                    why,
                    rung: Rung::Killed,
                    answered,
                    until: now + self.patience.kill_ms,
                    most,
                };
                out.extend(self.life.as_ref().map(|life| Action::Kill { epoch: life.epoch }));
            }
            Phase::BackingOff { .. } => self.restart("the pause is over", now, &mut out),
            Phase::Failed { .. } => self.restart("tried again", now, &mut out),
            Phase::Stopped => {}
        }
        out
    }

    /// When [`Worker::on_time`] has something to do.
    pub fn next_deadline(&self) -> Option<Millis> {
        match self.phase {
            Phase::Stopped => None,
            // One that is taken over has been there for long: it owes us a heartbeat, not a start.
            Phase::Starting { since } if self.is_taken_over() => {
                Some(since + self.patience.hang_ms)
            }
            Phase::Starting { since } => self.life.as_ref().map(|_| since + self.patience.start_ms),
            Phase::Loading { .. } => {
                self.life.as_ref().map(|life| life.moved() + self.patience.load_ms)
            }
            Phase::Ready { since } => {
                let settled = (!self.budget.is_clean() || self.last_end.is_some())
                    .then(|| since + self.period_ms);
                [self.hung_at(), self.silent_at(), settled].into_iter().flatten().min()
            }
            Phase::Suspect { .. } => self.hung_at(),
            Phase::Ending { until, .. } | Phase::BackingOff { until } => Some(until),
            Phase::Failed { retry } => retry,
        }
    }

    /// We slept, or were starved, and could not listen: silence until `now` proves nothing.
    pub fn forgive(&mut self, now: Millis) {
        if let Some(life) = &mut self.life {
            life.forgive(now);
        }
        if let Phase::Starting { since } = &mut self.phase {
            *since = now;
        }
    }

    /// `max(hang_s, 10 × p99 of the phase)`, by the step times of its last heartbeat; without any
    /// it is `hang_s`.
    fn step_budget_ms(&self) -> u64 {
        let beat = self.life.as_ref().and_then(|life| life.beat.as_ref());
        let p99_us = beat.and_then(|beat| {
            let times = beat.step_times.as_ref()?;
            Some(match beat.phase() {
                WorkerPhase::Prefill => times.prefill_p99_us,
                WorkerPhase::Decode => times.decode_p99_us,
                _ => 0,
            })
        });
        self.patience.hang_ms.max(u64::from(p99_us.unwrap_or(0)) / 100)
    }

    fn hung_at(&self) -> Option<Millis> {
        self.life.as_ref().map(|life| life.moved() + self.step_budget_ms())
    }

    fn silent_at(&self) -> Option<Millis> {
        self.life.as_ref().map(|life| life.heard() + self.patience.silent_ms)
    }

    fn hang(&self, now: Millis) -> Option<Hang> {
        self.hung_at().filter(|at| *at <= now)?;
        let silent = self.silent_at().is_some_and(|at| at <= now);
        Some(if silent { Hang::Silent } else { Hang::Working(self.life.as_ref()?.phase()) })
    }

    fn start(&mut self, model: String, now: Millis, out: &mut Vec<Action>) {
        self.budget.clear();
        self.last_end = None;
        self.model = model;
        self.spawn("it is asked to start", false, now, out);
    }

    /// Earlier falls do not count any more.
    pub fn clear_budget(&mut self) {
        self.budget.clear();
    }

    /// From now on a fall is the end of it (`true`), or another life follows within the budget.
    pub fn live_once(&mut self, once: bool) {
        self.once = once;
    }

    fn begin(&mut self, epoch: Epoch, pid: u32, now: Millis) {
        self.life = Some(Life::new(epoch, pid, now));
        self.last_epoch = epoch;
    }

    fn hear(&mut self, beat: Heartbeat, now: Millis, out: &mut Vec<Action>) {
        let Some(life) = &mut self.life else { return };
        life.hear(beat, now);
        let leaving = matches!(life.phase(), WorkerPhase::Stopping | WorkerPhase::Failed);
        let epoch = life.epoch;
        if let Phase::Starting { .. } = self.phase {
            self.enter(Phase::Loading { since: now }, "it shows itself", out);
        }
        match self.phase {
            Phase::Loading { .. } => {
                let Some(life) = &mut self.life else { return };
                let loaded = matches!(
                    life.phase(),
                    WorkerPhase::Idle | WorkerPhase::Prefill | WorkerPhase::Decode
                );
                let measured = self.kind == Kind::Drafter || life.budget_bytes().is_some();
                if loaded && measured && !life.describing {
                    life.describing = true;
                    out.push(Action::Describe { epoch });
                }
            }
            Phase::Ready { .. } if leaving => {
                self.enter(
                    Phase::Suspect { doubt: Doubt::Leaving },
                    "it ends without being asked",
                    out,
                );
            }
            Phase::Suspect { doubt: Doubt::Silent } if leaving => {
                self.enter(
                    Phase::Suspect { doubt: Doubt::Leaving },
                    "it ends without being asked",
                    out,
                );
            }
            Phase::Suspect { doubt: Doubt::Silent } => {
                self.enter(Phase::Ready { since: now }, "heard again", out)
            }
            _ => {}
        }
    }

    fn come_up(&mut self, described: Arc<Described>, now: Millis, out: &mut Vec<Action>) {
        let Some(life) = &mut self.life else { return };
        if !described.is_usable() {
            return self.end(EndWhy::Hung(Hang::Undescribed), now, out);
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
        life.forgive(now);
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

    /// Directory it was last started with; empty is the configuration's.
    pub fn model(&self) -> &str {
        &self.model
    }

    /// How the life before this one ended, if that was a fall.
    pub fn last_end(&self) -> Option<&LastEnd> {
        self.last_end.as_ref()
    }

    /// The process there is.
    pub fn life(&self) -> Option<&Life> {
        self.life.as_ref()
    }

    /// What the last life that came up said of itself.
    pub fn described(&self) -> Option<&Arc<Described>> {
        self.described.as_ref()
    }

    /// Number of the last life, whether it still goes on or not.
    pub fn last_epoch(&self) -> Epoch {
        self.last_epoch
    }

    /// Starts nobody asked for.
    pub fn restarts(&self) -> u32 {
        self.restarts
    }

    /// Events that meant nothing where they came.
    pub fn surprises(&self) -> u64 {
        self.surprises
    }
}
