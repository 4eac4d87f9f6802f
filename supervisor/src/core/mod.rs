//! Who runs, and who serves this request: every decision of the supervisor, and none of its acts (I10).
//!
//! [`Supervisor::on_event`] takes what happened and says what is to be done; the shell (`actor.rs`) does it and reports
//! back. Requests pass here twice, when they come and when they are over; tokens never do.
//!
//! ```text
//! Serving ── StopAsked ──▶ Draining ── StopAsked, or time ──▶ Cutting ── nothing runs, or time ──▶ Ending ──▶ Over
//!                             └──────────── nothing runs ──────────────────────────────────────────▲
//! ```

pub mod admission;
pub mod denial;
pub mod gateway;
pub mod restart;
pub mod route;
pub mod worker;

#[cfg(test)]
mod scenarios;
#[cfg(test)]
mod simulation;

use std::sync::Arc;

use paceline_process::Millis;
use paceline_proto::ids::Epoch;
use paceline_proto::internal::v1::GatewayReport;
use paceline_proto::status::Reason;

use admission::{Admission, Ask, Room, Ticket};
use denial::{Denial, Outage};
use gateway::Gateway;
use route::{Drafter, Permit, Policy, Signals, route};
use worker::{Described, Patience, Phase, Worker};

/// Every bound of the core, in milliseconds and counts.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Places in the queue.
    pub places: usize,
    /// Longest wait in it.
    pub queue_wait_ms: u64,
    /// Restarts allowed in any `restart_period_ms`.
    pub restarts: u32,
    /// Also how long a life has to last until earlier falls are forgotten.
    pub restart_period_ms: u64,
    /// Bounds of a worker's life.
    pub patience: Patience,
    /// What running requests get when the service is asked to stop.
    pub drain_ms: u64,
    /// The same when whoever started us is gone.
    pub orphan_drain_ms: u64,
    /// For cancelled requests to end.
    pub cancel_ms: u64,
    /// A deadline seen so much too late means that we were not awake, so that others' silence proves nothing.
    pub late_ms: u64,
    /// The operator's routing.
    pub policy: Policy,
}

/// What happened.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "fields are what their types say")]
pub enum Event {
    /// To the target's process.
    Target(worker::Event),
    /// A request came.
    Submitted { ticket: Ticket, ask: Ask },
    /// A request is over, or its client is gone; also of one that was denied.
    Ended { ticket: Ticket },
    /// The gateway said how it is.
    Reported { attachment: u64, report: GatewayReport },
    /// The gateway's stream ended.
    Detached { attachment: u64 },
    /// An operator wants the service to stop: the first drains, the second cancels, the third kills.
    StopAsked,
    /// Whoever started us is gone.
    ParentGone,
    /// [`Supervisor::next_deadline`] was reached.
    TimePassed,
}

/// What is to be done.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "fields are what their types say")]
pub enum Action {
    /// To the target's process. Never `Abandon`, which becomes a `Cut`.
    Target(worker::Action),
    /// Forward this request to this life of the target.
    Admit { ticket: Ticket, epoch: Epoch, permit: Permit, queued_ms: u64 },
    /// Refuse this request.
    Deny { ticket: Ticket, denial: Denial },
    /// End every running stream of this life and of earlier ones.
    Cut { epoch: Epoch, denial: Denial },
    /// Tell the gateway.
    Announce(Notice),
    /// Say that time was lost.
    Overslept { ms: u64 },
    /// Say that the service's state changed.
    LogService { from: &'static str, to: &'static str, cause: &'static str },
    /// The workers are gone: end.
    Exit,
}

/// Whether requests can be served, as the gateway is told.
#[derive(Clone, Debug, Default)]
pub struct Notice {
    /// Why not; `None` if they can.
    pub outage: Option<Outage>,
    /// The served model, once it is known.
    pub described: Option<Arc<Described>>,
}

impl PartialEq for Notice {
    fn eq(&self, other: &Self) -> bool {
        self.outage == other.outage && self.described.as_ref().map(Arc::as_ptr) == other.described.as_ref().map(Arc::as_ptr)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Service {
    Serving,
    Draining { until: Millis },
    Cutting { until: Millis },
    Ending,
    Over,
}

impl Service {
    fn name(self) -> &'static str {
        match self {
            Service::Serving => "serving",
            Service::Draining { .. } => "draining",
            Service::Cutting { .. } => "cutting",
            Service::Ending => "ending",
            Service::Over => "over",
        }
    }
}

/// The supervisor's decisions.
#[derive(Debug)]
pub struct Supervisor {
    settings: Settings,
    service: Service,
    target: Worker,
    admission: Admission,
    gateway: Gateway,
    announced: Notice,
}

impl Supervisor {
    /// A supervisor with nothing started; the first event is the target's `StartAsked`.
    pub fn new(settings: Settings) -> Self {
        let target = Worker::new(settings.patience, settings.restarts, settings.restart_period_ms);
        let admission = Admission::new(settings.places, settings.queue_wait_ms);
        let announced = Notice { outage: target.outage(), described: None };
        Self { settings, service: Service::Serving, target, admission, gateway: Gateway::default(), announced }
    }

    /// Takes one event in and says what is to be done, in order.
    pub fn on_event(&mut self, event: Event, now: Millis) -> Vec<Action> {
        let mut out = Vec::new();
        // What was due comes before what came: a flood of events cannot hold time up.
        self.pass_time(now, &mut out);
        match event {
            Event::Target(event) => self.tell_target(event, now, &mut out),
            Event::Submitted { ticket, ask } => self.submitted(ticket, ask, now, &mut out),
            Event::Ended { ticket } => self.admission.ended(ticket),
            Event::Reported { attachment, report } => self.gateway.reported(attachment, report, now),
            Event::Detached { attachment } => self.gateway.detached(attachment),
            Event::StopAsked => self.stop_asked("asked to stop", self.settings.drain_ms, now, &mut out),
            Event::ParentGone => self.parent_gone(now, &mut out),
            Event::TimePassed => {}
        }
        self.settle(now, &mut out);
        out
    }

    /// When the shell owes us a `TimePassed`. Deadlines live in the state, so no timer can outlive its reason.
    pub fn next_deadline(&self) -> Option<Millis> {
        let service = match self.service {
            Service::Draining { until } | Service::Cutting { until } => Some(until),
            Service::Serving | Service::Ending | Service::Over => None,
        };
        [self.target.next_deadline(), self.admission.next_deadline(), service].into_iter().flatten().min()
    }

    fn pass_time(&mut self, now: Millis, out: &mut Vec<Action>) {
        let Some(due) = self.next_deadline().filter(|due| *due <= now) else { return };
        if now.since(due) > self.settings.late_ms {
            out.push(Action::Overslept { ms: now.since(due) });
            self.target.forgive(now);
        }
        let actions = self.target.on_time(now);
        self.pass_on(actions, now, out);
        for (ticket, denial) in self.admission.expire(now) {
            out.push(Action::Deny { ticket, denial });
        }
        match self.service {
            Service::Draining { until } if until <= now => self.cut("the time to drain is over", now, out),
            Service::Cutting { until } if until <= now => self.end("the time to cancel is over", now, out),
            _ => {}
        }
    }

    fn tell_target(&mut self, event: worker::Event, now: Millis, out: &mut Vec<Action>) {
        let actions = self.target.on_event(event, now);
        self.pass_on(actions, now, out);
    }

    fn pass_on(&mut self, actions: Vec<worker::Action>, now: Millis, out: &mut Vec<Action>) {
        for action in actions {
            out.push(match action {
                worker::Action::Abandon { epoch, cause } => {
                    self.admission.abandon(epoch);
                    Action::Cut { epoch, denial: Denial::Gone { cause, retry_ms: self.target.retry_ms(now) } }
                }
                action => Action::Target(action),
            });
        }
    }

    fn submitted(&mut self, ticket: Ticket, ask: Ask, now: Millis, out: &mut Vec<Action>) {
        let taken = match (self.denial(now), room(&self.target)) {
            (Some(denial), _) => Err(denial),
            (None, Some(room)) => self.admission.submit(ticket, ask, &room, now),
            (None, None) => {
                let why = "the target has not said what it can hold".to_owned();
                let outage = Outage { reason: Reason::TargetLoading, why };
                Err(Denial::Outage { outage, retry_ms: self.settings.patience.silent_ms, log: String::new() })
            }
        };
        if let Err(denial) = taken {
            out.push(Action::Deny { ticket, denial });
        }
    }

    fn stop_asked(&mut self, cause: &'static str, drain_ms: u64, now: Millis, out: &mut Vec<Action>) {
        match self.service {
            Service::Serving => {
                self.enter(Service::Draining { until: now + drain_ms }, cause, out);
                self.tell_target(worker::Event::DrainAsked, now, out);
            }
            Service::Draining { .. } => self.cut(cause, now, out),
            Service::Cutting { .. } | Service::Ending => {
                if let Service::Cutting { .. } = self.service {
                    self.end(cause, now, out);
                }
                if let Phase::Ending { .. } = self.target.phase() {
                    self.tell_target(worker::Event::KillAsked, now, out);
                }
            }
            Service::Over => {}
        }
    }

    fn parent_gone(&mut self, now: Millis, out: &mut Vec<Action>) {
        let soon = now + self.settings.orphan_drain_ms;
        match &mut self.service {
            Service::Serving => self.stop_asked("whoever started us is gone", self.settings.orphan_drain_ms, now, out),
            Service::Draining { until } => *until = soon.min(*until),
            _ => {}
        }
    }

    fn cut(&mut self, cause: &'static str, now: Millis, out: &mut Vec<Action>) {
        self.enter(Service::Cutting { until: now + self.settings.cancel_ms }, cause, out);
        if let Some(denial) = self.denial(now) {
            out.push(Action::Cut { epoch: self.target.last_epoch(), denial });
        }
    }

    fn end(&mut self, cause: &'static str, now: Millis, out: &mut Vec<Action>) {
        self.enter(Service::Ending, cause, out);
        self.tell_target(worker::Event::EndAsked, now, out);
    }

    /// What follows from the state alone, whatever brought it about.
    fn settle(&mut self, now: Millis, out: &mut Vec<Action>) {
        // A doubtful target may be back at once: who waits goes on waiting. In all other states waiting is in vain.
        if self.service != Service::Serving || !matches!(self.target.phase(), Phase::Ready { .. } | Phase::Suspect { .. }) {
            if let Some(denial) = self.denial(now) {
                for ticket in self.admission.turn_away() {
                    out.push(Action::Deny { ticket, denial: denial.clone() });
                }
            }
        } else if let Some(room) = room(&self.target) {
            while let Some(admitted) = self.admission.admit(&room, now) {
                let permit = route(admitted.ask.wish, &Signals { drafter: Drafter::Absent }, &self.settings.policy);
                out.push(Action::Admit { ticket: admitted.ticket, epoch: room.epoch, permit, queued_ms: admitted.queued_ms });
            }
        }
        let notice = self.notice();
        if notice != self.announced {
            self.announced = notice.clone();
            out.push(Action::Announce(notice));
        }
        if matches!(self.service, Service::Draining { .. } | Service::Cutting { .. }) && self.admission.active() == 0 {
            self.end("nothing runs any more", now, out);
        }
        if self.service == Service::Ending && self.target.phase() == Phase::Stopped {
            self.enter(Service::Over, "the workers are gone", out);
            out.push(Action::Exit);
        }
    }

    fn enter(&mut self, service: Service, cause: &'static str, out: &mut Vec<Action>) {
        out.push(Action::LogService { from: self.service.name(), to: service.name(), cause });
        self.service = service;
    }

    fn outage(&self) -> Option<Outage> {
        match self.service {
            Service::Serving => self.target.outage(),
            _ => Some(Outage::stopping()),
        }
    }

    /// What a request is told that comes now; `None` if it may be served.
    fn denial(&self, now: Millis) -> Option<Denial> {
        let outage = self.outage()?;
        let crash_loop = outage.reason == Reason::CrashLoop;
        let log = if crash_loop { self.target.last_log().to_owned() } else { String::new() };
        // A service that stops is either started again soon or not at all.
        let retry_ms = if self.is_stopping() { 1_000 } else { self.target.retry_ms(now) };
        Some(Denial::Outage { outage, retry_ms, log })
    }

    /// What the gateway is told at this moment.
    pub fn notice(&self) -> Notice {
        Notice { outage: self.outage(), described: self.target.described().cloned() }
    }

    /// Whether the service was asked to stop.
    pub fn is_stopping(&self) -> bool {
        self.service != Service::Serving
    }

    /// The target's process.
    pub fn target(&self) -> &Worker {
        &self.target
    }

    /// The gateway.
    pub fn gateway(&self) -> &Gateway {
        &self.gateway
    }

    /// Queue and ledger.
    pub fn admission(&self) -> &Admission {
        &self.admission
    }
}

/// The target as admission sees it; `None` while it takes nothing.
fn room(target: &Worker) -> Option<Room<'_>> {
    let Phase::Ready { .. } = target.phase() else { return None };
    let life = target.life()?;
    let capacity = &life.described.as_ref()?.capacity;
    Some(Room { epoch: life.epoch, capacity, budget_bytes: life.budget_bytes()? })
}
