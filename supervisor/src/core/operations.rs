//! What operators order of the target, the gateway, the supervisor and the whole service, and when
//! it is carried out.
//!
//! ```text
//! restart target:  requests are refused ── none runs, or time ──▶ the process is ended ── gone ──▶ it is started ── ready ──▶ answer
//! restart gateway: it is told ── another is attached and ready ──▶ answer
//! drain:           requests are refused ── none runs ──▶ answer; undone by another order
//! restart supervisor: answer; requests are refused ── none runs, or time ──▶ end, and leave the workers where they are
//! ```
//! A call that is given up leaves its order standing.

use paceline_proto::status::Reason;
use paceline_proto::v1::ProcessState;
use paceline_vocabulary::Epoch;
use paceline_vocabulary::Millis;

use super::denial::{Denial, Outage, Refused};
use super::drafter::Call;
use super::gateway::Gateway;
use super::worker::{self, Phase};
use super::{Action, Service, Supervisor};

/// Calls that may wait at once (I6).
const CALLS: usize = 64;
/// What running requests of a gateway that is restarted at once get.
const NO_GRACE_MS: u32 = 0;

/// A process of the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "they are what they are called")]
pub enum Part {
    Gateway,
    Target,
    Drafter,
    Supervisor,
}

impl Part {
    /// Its name in events and messages.
    pub fn name(self) -> &'static str {
        match self {
            Part::Gateway => "gateway",
            Part::Target => "target",
            Part::Drafter => "drafter",
            Part::Supervisor => "supervisor",
        }
    }
}

/// What is ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// A process is to end and be started again.
    Restart {
        /// Which.
        part: Part,
        /// Running requests have no time to end.
        at_once: bool,
    },
    /// Nothing new is taken.
    Drain,
    /// It is taken again.
    Resume,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Goal {
    /// The target is ready in a later life than this.
    Target { after: Epoch },
    /// A gateway is ready that attached later than this.
    Gateway { after: u64 },
    /// Nothing runs.
    Drained,
}

/// Where a restart of the target stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Restart {
    /// Its requests have their time.
    Draining { until: Millis },
    /// The process is being ended.
    Ending,
}

/// Orders that are being carried out.
#[derive(Debug, Default)]
pub struct Operations {
    restart: Option<Restart>,
    leaves: bool,
    calls: Vec<(Call, Goal)>,
}

impl Operations {
    pub(super) fn next_deadline(&self) -> Option<Millis> {
        match self.restart {
            Some(Restart::Draining { until }) => Some(until),
            _ => None,
        }
    }

    /// Whether the target is on its way out by an operator's order.
    pub(super) fn restarts_target(&self) -> bool {
        self.restart.is_some()
    }

    /// Whether this supervisor ends to be started again.
    pub(super) fn leaves(&self) -> bool {
        self.leaves
    }

    /// It does not leave after all; says whether it was about to.
    pub(super) fn stay(&mut self) -> bool {
        std::mem::take(&mut self.leaves)
    }
}

impl Supervisor {
    pub(super) fn commanded(
        &mut self,
        call: Call,
        command: Command,
        now: Millis,
        out: &mut Vec<Action>,
    ) {
        let (subject, to) = match command {
            Command::Restart { part, at_once } => {
                (part.name(), if at_once { "restart at once" } else { "restart" }.to_owned())
            }
            Command::Drain => ("service", "drain".to_owned()),
            Command::Resume => ("service", "take requests again".to_owned()),
        };
        out.push(Action::LogOrder { subject, to });
        match self.take_command(call, command, now, out) {
            Ok(Some(goal)) => self.operations.calls.push((call, goal)),
            Ok(None) => {}
            Err(refused) => out.push(Action::Answer { call, outcome: Err(refused) }),
        }
    }

    /// What the call waits for; `None` if it was answered, or somebody else does.
    fn take_command(
        &mut self,
        call: Call,
        command: Command,
        now: Millis,
        out: &mut Vec<Action>,
    ) -> Result<Option<Goal>, Refused> {
        if !self.is_up() {
            return Err(Refused::new(
                Reason::Draining,
                "the service is stopping, or its supervisor is being restarted",
            ));
        }
        if self.operations.calls.len() >= CALLS {
            let message = format!("{CALLS} orders are being carried out already; try again in 1 s");
            return Err(Refused::new(Reason::QueueFull, message));
        }
        match command {
            Command::Restart { part: Part::Drafter, at_once } => {
                let order = self.drafters.restart_order(at_once);
                self.drafters.on_order(call, order, true, now, out);
                Ok(None)
            }
            Command::Restart { part: Part::Target, at_once } => {
                Ok(Some(self.restart_target(at_once, now, out)))
            }
            Command::Restart { part: Part::Gateway, at_once } => {
                if self.gateway.attached().is_none() {
                    let message = "no gateway is attached that could be restarted; whoever starts it may be starting it now";
                    return Err(Refused::new(Reason::ProcessState, message));
                }
                let after = self.gateway.newest();
                out.push(Action::RestartGateway {
                    attachment: after,
                    grace_ms: at_once.then_some(NO_GRACE_MS),
                });
                Ok(Some(Goal::Gateway { after }))
            }
            Command::Restart { part: Part::Supervisor, at_once } => {
                out.push(Action::Answer { call, outcome: Ok(()) });
                self.operations.leaves = true;
                self.operations.restart = None;
                let cause = "an operator restarts the supervisor";
                self.enter(Service::Draining { until: now + self.settings.drain_ms }, cause, out);
                if at_once {
                    self.cut(cause, now, out);
                }
                Ok(None)
            }
            Command::Drain => {
                if self.service == Service::Serving {
                    self.enter(Service::Held, "an operator drains the service", out);
                }
                Ok(Some(Goal::Drained))
            }
            Command::Resume => {
                if self.service == Service::Held {
                    self.enter(Service::Serving, "an operator undid the drain", out);
                }
                let undone = Refused::new(Reason::ProcessState, "another order undid the drain");
                for (call, _) in
                    self.operations.calls.extract_if(.., |(_, goal)| *goal == Goal::Drained)
                {
                    out.push(Action::Answer { call, outcome: Err(undone.clone()) });
                }
                out.push(Action::Answer { call, outcome: Ok(()) });
                Ok(None)
            }
        }
    }

    fn restart_target(&mut self, at_once: bool, now: Millis, out: &mut Vec<Action>) -> Goal {
        let goal = Goal::Target { after: self.target.last_epoch() };
        match self.target.phase() {
            // Between two lives, or asked again: what is under way leads there.
            Phase::Stopped | Phase::Ending { .. } => self.target.clear_budget(),
            Phase::BackingOff { .. } | Phase::Failed { .. } => {
                self.tell_target(worker::Event::StartAsked { model: String::new() }, now, out);
            }
            Phase::Starting { .. }
            | Phase::Loading { .. }
            | Phase::Ready { .. }
            | Phase::Suspect { .. } => {
                let drain_ms = if at_once { 0 } else { self.settings.drain_ms };
                let until = match self.operations.restart {
                    // The one who is in more of a hurry wins.
                    Some(Restart::Draining { until }) => until.min(now + drain_ms),
                    _ => now + drain_ms,
                };
                self.operations.restart = Some(Restart::Draining { until });
                self.pass_operations_time(now, out);
            }
        }
        goal
    }

    pub(super) fn pass_operations_time(&mut self, now: Millis, out: &mut Vec<Action>) {
        let Some(Restart::Draining { until }) = self.operations.restart else { return };
        if until > now {
            return;
        }
        if self.admission.active() > 0
            && let Some(denial) = self.denial(now)
        {
            out.push(Action::Cut { epoch: self.target.last_epoch(), denial });
        }
        self.end_target(now, out);
    }

    fn end_target(&mut self, now: Millis, out: &mut Vec<Action>) {
        self.operations.restart = Some(Restart::Ending);
        self.tell_target(worker::Event::EndAsked { cause: "an operator restarts it" }, now, out);
    }

    /// Brings a restart of the target further.
    pub(super) fn settle_restart(&mut self, now: Millis, out: &mut Vec<Action>) {
        if !self.is_up() {
            self.operations.restart = None;
        }
        match (self.operations.restart, self.target.phase()) {
            // It fell before we ended it: another starts by itself, or waits for it no longer.
            (Some(Restart::Draining { .. }), Phase::BackingOff { .. } | Phase::Failed { .. }) => {
                self.operations.restart = None;
                self.tell_target(worker::Event::StartAsked { model: String::new() }, now, out);
            }
            (Some(Restart::Draining { .. }), Phase::Starting { .. })
                if self.target.life().is_none() =>
            {
                self.operations.restart = None;
            }
            (Some(Restart::Draining { .. }), Phase::Ending { .. }) => {
                self.operations.restart = Some(Restart::Ending)
            }
            (Some(Restart::Draining { .. }), _) if self.admission.active() == 0 => {
                self.end_target(now, out)
            }
            (Some(Restart::Ending), Phase::Stopped) if self.target.is_gone() => {
                self.operations.restart = None;
                // What was cut may not have reported its end; with the process gone it holds
                // nothing.
                self.admission.abandon(self.target.last_epoch());
                self.tell_target(worker::Event::StartAsked { model: String::new() }, now, out);
            }
            // It hung on its way out and was restarted as such.
            (Some(Restart::Ending), phase)
                if !matches!(phase, Phase::Ending { .. } | Phase::Stopped) =>
            {
                self.operations.restart = None;
            }
            _ => {}
        }
    }

    pub(super) fn answer_commands(&mut self, now: Millis, out: &mut Vec<Action>) {
        let calls = std::mem::take(&mut self.operations.calls);
        for (call, goal) in calls {
            match self.outcome(goal, now) {
                Some(outcome) => out.push(Action::Answer { call, outcome }),
                None => self.operations.calls.push((call, goal)),
            }
        }
    }

    fn outcome(&self, goal: Goal, now: Millis) -> Option<Result<(), Refused>> {
        if !self.is_up() {
            let message = "the service is stopping, or its supervisor is being restarted";
            return Some(Err(Refused::new(Reason::Draining, message)));
        }
        match goal {
            Goal::Target { after } => match self.target.phase() {
                Phase::Ready { .. } if self.target.last_epoch() > after => Some(Ok(())),
                Phase::Failed { .. } => {
                    Some(Err(Refused::new(Reason::CrashLoop, self.target.reason(now))))
                }
                _ => None,
            },
            Goal::Gateway { after } => (self.gateway.newest() > after
                && self.gateway.state() == ProcessState::Ready)
                .then_some(Ok(())),
            Goal::Drained => (self.admission.active() == 0).then_some(Ok(())),
        }
    }

    /// Why nothing is taken, where an operator wants it so.
    pub(super) fn ordered_outage(&self) -> Option<Outage> {
        let outage = |reason, why: &str| Some(Outage { reason, why: why.to_owned() });
        match self.service {
            Service::Held => outage(Reason::Draining, "an operator has drained the service"),
            Service::Serving if self.operations.restarts_target() => {
                outage(Reason::Restarting, "an operator restarts the target")
            }
            Service::Draining { .. } | Service::Cutting { .. } | Service::Over
                if self.operations.leaves() =>
            {
                outage(Reason::Restarting, "an operator restarts the supervisor")
            }
            _ => None,
        }
    }

    /// What a request is told whose place is taken by an order.
    pub(super) fn ordered_retry_ms(&self, now: Millis) -> u64 {
        let come_up = self.target.retry_ms(now);
        match self.operations.restart {
            Some(Restart::Draining { until }) if self.admission.active() > 0 => {
                until.since(now).clamp(1_000, 4_000).max(come_up)
            }
            Some(_) => come_up.max(1_000),
            None => 1_000,
        }
    }

    pub(super) fn tell_gateway(
        &mut self,
        cause: &'static str,
        tell: impl FnOnce(&mut Gateway),
        out: &mut Vec<Action>,
    ) {
        let before = (self.gateway.report().epoch, self.gateway.state());
        tell(&mut self.gateway);
        let (epoch, to) = (self.gateway.report().epoch, self.gateway.state());
        if (epoch, to) != before {
            let from = if epoch == before.0 { before.1 } else { ProcessState::Stopped };
            out.push(Action::LogGateway { epoch, from, to, cause });
        }
    }
}

/// A denial to requests that an order stands in the way of.
pub(super) fn denial(outage: Outage, retry_ms: u64) -> Denial {
    Denial::Outage { outage, retry_ms, log: String::new() }
}
