//! The state of the whole service: serving, drained by an operator, or on its way to the end.
//!
//! ```text
//! Serving ── stop ──▶ Draining ── stop, or time ──▶ Aborting ── nothing runs, or time ──▶ Ending ──▶ Over
//!  ▲   │                 │  └────────── nothing runs ────────────────────────────────────────▲        ▲
//!  │   ▼ drain, undone   └── to be started again: nothing runs, or time ── workers stay ───────────────┘
//!  Leaving ── time ──▶ Held: takes nothing new, runs on
//! ```
//! - Serving: requests are admitted.
//! - Leaving: an operator drains the service. Requests are still admitted for `notice_ms`, and health
//!   reports that none are, so that a router sends its requests elsewhere before one is refused.
//! - Held: an operator drained the service. Running requests go on; nothing new is taken.
//! - Draining: the service was asked to stop. Running requests have `drain_ms` to end.
//! - Aborting: all streams were ordered to end. They have `cancel_ms`.
//! - Ending: the workers are being ended.
//! - Over: the supervisor exits.
//!
//! If memory of the machine is stranded, the target cannot be started. The service then stays for
//! [`STRANDED_STAY_MS`] and ends.

use paceline_vocabulary::Millis;

use crate::settings::Settings;

/// Time from the failure of a target for stranded memory to the end of the service. Meanwhile
/// clients and `paceline status` get the reason, and an operator can start the target all the same.
/// As long as a drain.
const STRANDED_STAY_MS: u64 = 30_000;

/// Where the service stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the module's head explains them; `until` is the phase's deadline")]
pub enum ServicePhase {
    Serving,
    Leaving { until: Millis },
    Held,
    Draining { until: Millis },
    Aborting { until: Millis },
    Ending,
    Over,
}

impl ServicePhase {
    /// Name of the phase in events.
    pub fn name(self) -> &'static str {
        match self {
            ServicePhase::Serving => "serving",
            ServicePhase::Leaving { .. } => "leaving",
            ServicePhase::Held => "held",
            ServicePhase::Draining { .. } => "draining",
            ServicePhase::Aborting { .. } => "cutting",
            ServicePhase::Ending => "ending",
            ServicePhase::Over => "over",
        }
    }

    /// Whether requests are admitted.
    pub fn admits(self) -> bool {
        matches!(self, ServicePhase::Serving | ServicePhase::Leaving { .. })
    }
}

/// Event that the service receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The service was asked to stop: the first time it drains, the second time it aborts, the
    /// third time it kills.
    StopAsked,
    /// The process that started the supervisor is gone.
    ParentGone,
    /// An operator restarts the supervisor; the workers stay.
    RestartAsked {
        /// Running requests get no time.
        at_once: bool,
    },
    /// An operator drains the service.
    HoldAsked,
    /// An operator undoes the drain.
    ResumeAsked,
    /// No request runs.
    Idle,
    /// No worker is left.
    WorkersGone,
    /// A deadline may have passed.
    TimePassed,
}

/// Action that the service orders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Log that the phase changed.
    Log {
        /// The phase before.
        from: &'static str,
        /// The phase now.
        to: &'static str,
        /// Why.
        cause: &'static str,
    },
    /// Tell the workers that no epoch follows the present one.
    DrainWorkers,
    /// End every running stream.
    AbortStreams,
    /// End the workers.
    EndWorkers,
    /// Send SIGKILL to the workers that are being ended.
    KillEndingWorkers,
    /// End the supervisor.
    Exit {
        /// It is to be started again; the workers stay.
        restart: bool,
    },
}

/// The service's state machine.
#[derive(Debug)]
pub struct Service {
    phase: ServicePhase,
    /// The supervisor ends in order to be started again.
    restarts: bool,
    /// When the service ends because its target cannot be started.
    stranded_until: Option<Millis>,
    notice_ms: u64,
    drain_ms: u64,
    orphan_drain_ms: u64,
    cancel_ms: u64,
}

impl Service {
    /// A service that serves.
    pub fn new(settings: &Settings) -> Self {
        Self {
            phase: ServicePhase::Serving,
            restarts: false,
            stranded_until: None,
            notice_ms: settings.notice_ms,
            drain_ms: settings.drain_ms,
            orphan_drain_ms: settings.orphan_drain_ms,
            cancel_ms: settings.cancel_ms,
        }
    }

    /// The next drain is preceded by a notice of `ms` milliseconds.
    pub fn set_notice(&mut self, ms: u64) {
        self.notice_ms = ms;
    }

    /// Where the service stands.
    pub fn phase(&self) -> ServicePhase {
        self.phase
    }

    /// Whether the supervisor ends in order to be started again.
    pub fn restarts(&self) -> bool {
        self.restarts
    }

    /// Whether the service goes on, drained by an operator or not.
    pub fn is_up(&self) -> bool {
        self.phase.admits() || self.phase == ServicePhase::Held
    }

    /// When [`Event::TimePassed`] has an effect.
    pub fn next_deadline(&self) -> Option<Millis> {
        match self.phase {
            ServicePhase::Draining { until } | ServicePhase::Aborting { until } => Some(until),
            ServicePhase::Leaving { until } => {
                Some(self.stranded_until.map_or(until, |stranded| stranded.min(until)))
            }
            ServicePhase::Serving | ServicePhase::Held => self.stranded_until,
            _ => None,
        }
    }

    /// Whether memory of the machine is stranded, so that the target cannot be started.
    pub fn set_stranded(&mut self, stranded: bool, now: Millis) {
        match stranded {
            true => {
                self.stranded_until.get_or_insert(now + STRANDED_STAY_MS);
            }
            false => self.stranded_until = None,
        }
    }

    /// Takes one event and returns what is to be done, in order.
    pub fn on_event(&mut self, event: Event, now: Millis) -> Vec<Action> {
        let mut out = Vec::new();
        match (event, self.phase) {
            (Event::StopAsked, _) => self.stop("asked to stop", self.drain_ms, now, &mut out),
            (Event::ParentGone, _) => self.parent_gone(now, &mut out),
            (Event::RestartAsked { at_once }, _) => {
                let cause = "an operator restarts the supervisor";
                self.restarts = true;
                self.enter(ServicePhase::Draining { until: now + self.drain_ms }, cause, &mut out);
                if at_once {
                    self.abort(cause, now, &mut out);
                }
            }
            (Event::HoldAsked, ServicePhase::Serving) => {
                let phase = match self.notice_ms {
                    0 => ServicePhase::Held,
                    notice_ms => ServicePhase::Leaving { until: now + notice_ms },
                };
                self.enter(phase, "an operator drains the service", &mut out)
            }
            (Event::ResumeAsked, ServicePhase::Leaving { .. } | ServicePhase::Held) => {
                self.enter(ServicePhase::Serving, "an operator undid the drain", &mut out)
            }
            (Event::Idle, ServicePhase::Draining { .. } | ServicePhase::Aborting { .. }) => {
                self.end("nothing runs any more", &mut out)
            }
            (Event::WorkersGone, ServicePhase::Ending) => {
                self.enter(ServicePhase::Over, "the workers are gone", &mut out);
                out.push(Action::Exit { restart: false });
            }
            (Event::TimePassed, ServicePhase::Draining { until }) if until <= now => {
                self.abort("the time to drain is over", now, &mut out)
            }
            (Event::TimePassed, ServicePhase::Aborting { until }) if until <= now => {
                self.end("the time to cancel is over", &mut out)
            }
            (Event::TimePassed, _)
                if self.is_up() && self.stranded_until.is_some_and(|until| until <= now) =>
            {
                self.end("memory of the machine is stranded", &mut out)
            }
            (Event::TimePassed, ServicePhase::Leaving { until }) if until <= now => {
                self.enter(ServicePhase::Held, "the notice before the drain is over", &mut out)
            }
            _ => {}
        }
        out
    }

    fn stop(&mut self, cause: &'static str, drain_ms: u64, now: Millis, out: &mut Vec<Action>) {
        // A stop is stronger than a restart.
        let restarted = std::mem::take(&mut self.restarts);
        match self.phase {
            ServicePhase::Draining { .. } if !restarted => self.abort(cause, now, out),
            ServicePhase::Aborting { .. } if !restarted => {
                self.end(cause, out);
                out.push(Action::KillEndingWorkers);
            }
            ServicePhase::Serving
            | ServicePhase::Leaving { .. }
            | ServicePhase::Held
            | ServicePhase::Draining { .. }
            | ServicePhase::Aborting { .. } => {
                self.enter(ServicePhase::Draining { until: now + drain_ms }, cause, out);
                out.push(Action::DrainWorkers);
            }
            ServicePhase::Ending => out.push(Action::KillEndingWorkers),
            ServicePhase::Over => {}
        }
    }

    fn parent_gone(&mut self, now: Millis, out: &mut Vec<Action>) {
        let cause = "whoever started us is gone";
        match &mut self.phase {
            ServicePhase::Serving | ServicePhase::Leaving { .. } | ServicePhase::Held => {
                self.stop(cause, self.orphan_drain_ms, now, out)
            }
            // No process is left that would start the supervisor again.
            ServicePhase::Draining { .. } | ServicePhase::Aborting { .. } if self.restarts => {
                self.stop(cause, self.orphan_drain_ms, now, out)
            }
            ServicePhase::Draining { until } => *until = (now + self.orphan_drain_ms).min(*until),
            _ => {}
        }
    }

    fn abort(&mut self, cause: &'static str, now: Millis, out: &mut Vec<Action>) {
        self.enter(ServicePhase::Aborting { until: now + self.cancel_ms }, cause, out);
        out.push(Action::AbortStreams);
    }

    fn end(&mut self, cause: &'static str, out: &mut Vec<Action>) {
        if self.restarts {
            self.enter(ServicePhase::Over, cause, out);
            return out.push(Action::Exit { restart: true });
        }
        self.enter(ServicePhase::Ending, cause, out);
        out.push(Action::EndWorkers);
    }

    fn enter(&mut self, phase: ServicePhase, cause: &'static str, out: &mut Vec<Action>) {
        out.push(Action::Log { from: self.phase.name(), to: phase.name(), cause });
        self.phase = phase;
    }
}
