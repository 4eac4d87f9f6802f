//! Who runs, and who serves this request: every decision of the supervisor, and none of its acts
//! (I10).
//!
//! [`Supervisor::on_event`] takes what happened and says what is to be done; the shell (`actor.rs`)
//! does it and reports back. Requests pass here twice, when they come and when they are over;
//! tokens never do.
//!
//! ```text
//! Serving ── StopAsked ──▶ Draining ── StopAsked, or time ──▶ Cutting ── nothing runs, or time ──▶ Ending ──▶ Over
//!  ▲   │                      │  └────────── nothing runs ──────────────────────────────────────────▲        ▲
//!  │   ▼ drain, undone        └── to be started again: nothing runs, or time ── workers stay ────────────────┘
//!  Held: takes nothing new, runs on
//! ```

pub mod admission;
pub mod denial;
pub mod drafter;
pub mod gateway;
pub mod likely;
pub mod link;
pub mod memory;
mod news;
pub mod operations;
pub mod outlook;
mod permits;
pub mod policy;
pub mod queue;
pub mod restart;
pub mod route;
pub mod routing;
pub mod seat;
pub mod worker;

#[cfg(test)]
mod books;
#[cfg(test)]
mod dice;
#[cfg(test)]
mod machine;
#[cfg(test)]
mod plant;
#[cfg(test)]
mod scenarios;
#[cfg(test)]
mod simulation;
use paceline_proto::status::Reason;
use paceline_vocabulary::Millis;
use paceline_vocabulary::{Epoch, Term};

use admission::{Admission, Ask, Room, Ticket};
use denial::{Denial, Outage};
use drafter::{Around, Drafters, Plan};
use gateway::Gateway;
pub use news::{Action, Event, Notice, Settings};
use operations::Operations;
use routing::Routing;
use seat::WorkerId;
use worker::{Kind, Phase, Worker};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Service {
    Serving,
    /// An operator drained it.
    Held,
    Draining {
        until: Millis,
    },
    Cutting {
        until: Millis,
    },
    Ending,
    Over,
}

impl Service {
    fn name(self) -> &'static str {
        match self {
            Service::Serving => "serving",
            Service::Held => "held",
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
    /// Since then workers are started.
    begun: bool,
    target: Worker,
    drafters: Drafters,
    routing: Routing,
    /// Free memory of the machine, as last read.
    available_bytes: Option<u64>,
    admission: Admission,
    gateway: Gateway,
    operations: Operations,
    announced: Notice,
}

impl Supervisor {
    /// A supervisor with nothing started; the first event is `Begun`, behind what earlier
    /// supervisors left.
    pub fn new(settings: Settings, plan: Plan, term: Term) -> Self {
        let target = Worker::new(
            Kind::Target,
            settings.patience,
            settings.restarts,
            settings.restart_period_ms,
        );
        let drafters = Drafters::new(&settings, plan, term);
        let admission =
            Admission::new(settings.places, settings.queue_wait_ms, settings.streams_per_key);
        let announced = Notice { outage: target.outage(), described: None };
        let routing = Routing::new(settings.policy, drafters.state());
        Self {
            settings,
            service: Service::Serving,
            begun: false,
            target,
            drafters,
            routing,
            available_bytes: None,
            admission,
            gateway: Gateway::default(),
            operations: Operations::default(),
            announced,
        }
    }

    /// Takes one event in and says what is to be done, in order.
    pub fn on_event(&mut self, event: Event, now: Millis) -> Vec<Action> {
        let mut out = Vec::new();
        if let Event::Starved { ms } = event {
            self.forgive(ms, now, &mut out);
        }
        // What was due comes before what came: a flood of events cannot hold time up.
        self.pass_time(now, &mut out);
        match event {
            Event::Begun => {
                self.begun = true;
                self.tell_target(worker::Event::StartAsked { model: String::new() }, now, &mut out);
            }
            Event::Worker(WorkerId::Target, event) => self.tell_target(event, now, &mut out),
            Event::Worker(WorkerId::Drafter(seat), event) => {
                self.drafters.on_worker(seat, event, now, &mut out)
            }
            Event::Connected { generation, failure } => {
                self.drafters.on_connected(generation, failure, now, &mut out)
            }
            Event::Ordered { call, order } => {
                out.push(Action::LogOrder { subject: "drafter", to: order.words() });
                let serving = self.is_up();
                self.drafters.on_order(call, order, serving, now, &mut out);
            }
            Event::Commanded { call, command } => self.commanded(call, command, now, &mut out),
            Event::Repermitted { epoch, missed } => self.repermitted(epoch, &missed, now),
            Event::Submitted { ticket, ask } => self.submitted(ticket, ask, now, &mut out),
            Event::Served { ticket, served } => {
                self.routing.served(served);
                if let Some(ms) = served.first_ms {
                    self.admission.first_token(ticket, ms);
                }
                self.admission.served(ticket, served.tokens);
            }
            Event::PolicySet { call, key, value } => self.set_policy(call, &key, &value, &mut out),
            Event::MemoryRead { available_bytes } => self.available_bytes = available_bytes,
            Event::Ended { ticket } => self.admission.ended(ticket),
            Event::Reported { attachment, report } => {
                self.tell_gateway(
                    "it says so",
                    |gateway| gateway.reported(attachment, report, now),
                    &mut out,
                );
            }
            Event::Detached { attachment } => {
                self.tell_gateway(
                    "its stream ended",
                    |gateway| gateway.detached(attachment),
                    &mut out,
                );
            }
            Event::StopAsked => {
                self.stop_asked("asked to stop", self.settings.drain_ms, now, &mut out)
            }
            Event::ParentGone => self.parent_gone(now, &mut out),
            Event::Starved { .. } | Event::TimePassed => {}
        }
        self.settle(now, &mut out);
        out
    }

    /// When the shell owes us a `TimePassed`. Deadlines live in the state, so no timer can outlive
    /// its reason.
    pub fn next_deadline(&self) -> Option<Millis> {
        let service = match self.service {
            Service::Draining { until } | Service::Cutting { until } => Some(until),
            Service::Serving | Service::Held | Service::Ending | Service::Over => None,
        };
        let workers = [self.target.next_deadline(), self.drafters.next_deadline()];
        let others = [
            self.admission.next_deadline(),
            service,
            self.operations.next_deadline(),
            self.routing.next_deadline(),
        ];
        workers.into_iter().chain(others).flatten().min()
    }

    /// Time was lost: nobody's silence proves anything.
    fn forgive(&mut self, ms: u64, now: Millis, out: &mut Vec<Action>) {
        out.push(Action::Overslept { ms });
        self.target.forgive(now);
        self.drafters.forgive(now);
    }

    fn pass_time(&mut self, now: Millis, out: &mut Vec<Action>) {
        let Some(due) = self.next_deadline().filter(|due| *due <= now) else { return };
        if now.since(due) > self.settings.late_ms {
            self.forgive(now.since(due), now, out);
        }
        let actions = self.target.on_time(now);
        self.pass_on(actions, now, out);
        self.drafters.on_time(now, out);
        for (ticket, denial) in self.admission.expire(now) {
            out.push(Action::Deny { ticket, denial });
        }
        match self.service {
            Service::Draining { until } if until <= now => {
                self.cut("the time to drain is over", now, out)
            }
            Service::Cutting { until } if until <= now => {
                self.end("the time to cancel is over", now, out)
            }
            _ => {}
        }
        self.pass_operations_time(now, out);
    }

    fn tell_target(&mut self, event: worker::Event, now: Millis, out: &mut Vec<Action>) {
        let link = match &event {
            worker::Event::Beat(beat)
                if self.target.life().is_some_and(|life| life.epoch == Epoch(beat.epoch)) =>
            {
                self.admission.heard();
                beat.link.clone()
            }
            _ => None,
        };
        let actions = self.target.on_event(event, now);
        self.pass_on(actions, now, out);
        if let Some(report) = link {
            self.drafters.on_report(&report, now, out);
        }
    }

    fn pass_on(&mut self, actions: Vec<worker::Action>, now: Millis, out: &mut Vec<Action>) {
        for action in actions {
            out.push(match action {
                worker::Action::Abandon { epoch, cause } => {
                    self.admission.abandon(epoch);
                    Action::Cut {
                        epoch,
                        denial: Denial::Gone { cause, retry_ms: self.target.retry_ms(now) },
                    }
                }
                action => Action::Worker(WorkerId::Target, action),
            });
        }
    }

    fn submitted(&mut self, ticket: Ticket, ask: Ask, now: Millis, out: &mut Vec<Action>) {
        let taken = match (self.denial(now), room(&self.target, self.spare_bytes())) {
            (Some(denial), _) => Err(denial),
            (None, Some(room)) => self.admission.submit(ticket, ask, &room, now),
            (None, None) => {
                let why = "the target has not said what it can hold".to_owned();
                let outage = Outage { reason: Reason::TargetLoading, why };
                Err(Denial::Outage {
                    outage,
                    retry_ms: self.settings.patience.silent_ms,
                    log: String::new(),
                })
            }
        };
        match taken {
            Err(denial) => return out.push(Action::Deny { ticket, denial }),
            Ok(Some((ticket, denial))) => out.push(Action::Deny { ticket, denial }),
            Ok(None) => {}
        }
        if self.would_draft(&ask, now) {
            self.drafters.missed();
        }
    }

    fn stop_asked(
        &mut self,
        cause: &'static str,
        drain_ms: u64,
        now: Millis,
        out: &mut Vec<Action>,
    ) {
        let was_leaving = self.operations.stay();
        match self.service {
            Service::Serving | Service::Held => {
                self.enter(Service::Draining { until: now + drain_ms }, cause, out);
                self.tell_target(worker::Event::DrainAsked, now, out);
                self.drafters.tell_all(&worker::Event::DrainAsked, now, out);
            }
            // A stop is stronger than a restart.
            Service::Draining { .. } | Service::Cutting { .. } if was_leaving => {
                self.enter(Service::Draining { until: now + drain_ms }, cause, out);
                self.tell_target(worker::Event::DrainAsked, now, out);
                self.drafters.tell_all(&worker::Event::DrainAsked, now, out);
            }
            Service::Draining { .. } => self.cut(cause, now, out),
            Service::Cutting { .. } | Service::Ending => {
                if let Service::Cutting { .. } = self.service {
                    self.end(cause, now, out);
                }
                if let Phase::Ending { .. } = self.target.phase() {
                    self.tell_target(worker::Event::KillAsked, now, out);
                }
                self.drafters.kill(now, out);
            }
            Service::Over => {}
        }
    }

    fn parent_gone(&mut self, now: Millis, out: &mut Vec<Action>) {
        let soon = now + self.settings.orphan_drain_ms;
        match &mut self.service {
            Service::Serving | Service::Held => {
                self.stop_asked(
                    "whoever started us is gone",
                    self.settings.orphan_drain_ms,
                    now,
                    out,
                );
            }
            // Nobody is left who would start us again.
            Service::Draining { .. } | Service::Cutting { .. } if self.operations.leaves() => {
                self.stop_asked(
                    "whoever started us is gone",
                    self.settings.orphan_drain_ms,
                    now,
                    out,
                );
            }
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
        if self.operations.leaves() {
            self.enter(Service::Over, cause, out);
            return out.push(Action::Exit { restart: true });
        }
        self.enter(Service::Ending, cause, out);
        let end = worker::Event::EndAsked { cause: "the service stops" };
        self.tell_target(end.clone(), now, out);
        self.drafters.tell_all(&end, now, out);
    }

    /// What follows from the state alone, whatever brought it about.
    fn settle(&mut self, now: Millis, out: &mut Vec<Action>) {
        self.settle_restart(now, out);
        self.settle_drafters(now, out);
        // A doubtful target may be back at once: who waits goes on waiting. In all other states
        // waiting is in vain.
        let there = matches!(self.target.phase(), Phase::Ready { .. } | Phase::Suspect { .. });
        if self.service != Service::Serving || !there || self.operations.restarts_target() {
            if let Some(denial) = self.denial(now) {
                for ticket in self.admission.turn_away() {
                    #[cfg(test)]
                    if plant::is(plant::Bug::LostStatus) {
                        continue;
                    }
                    out.push(Action::Deny { ticket, denial: denial.clone() });
                }
            }
        } else {
            // Each one leaves less room to the next.
            while let Some(room) = room(&self.target, self.spare_bytes()) {
                let epoch = room.epoch;
                let Some(admitted) = self.admission.admit(&room, now) else { break };
                let permit = self.permit(admitted.ticket, &admitted.ask, now, out);
                self.admission.routed(admitted.ticket, permit);
                out.push(Action::Admit {
                    ticket: admitted.ticket,
                    epoch,
                    permit,
                    queued_ms: admitted.queued_ms,
                });
            }
        }
        let notice = self.notice();
        if notice != self.announced {
            self.announced = notice.clone();
            out.push(Action::Announce(notice));
        }
        if matches!(self.service, Service::Draining { .. } | Service::Cutting { .. })
            && self.admission.active() == 0
        {
            self.end("nothing runs any more", now, out);
        }
        self.answer_commands(now, out);
        if self.service == Service::Ending
            && self.target.phase() == Phase::Stopped
            && self.drafters.are_stopped()
        {
            self.enter(Service::Over, "the workers are gone", out);
            out.push(Action::Exit { restart: false });
        }
    }

    fn settle_drafters(&mut self, now: Millis, out: &mut Vec<Action>) {
        let phase = self.target.phase();
        let loaded = matches!(phase, Phase::Ready { .. } | Phase::Suspect { .. });
        let around = Around {
            target: self
                .target
                .life()
                .filter(|_| loaded)
                .map(|life| (life.epoch, matches!(phase, Phase::Ready { .. }))),
            failed: self.target.outage().filter(|_| matches!(phase, Phase::Failed { .. })),
            serving: self.begun && self.is_up(),
            load: self.load(),
        };
        self.drafters.settle(&around, now, out);
        self.settle_routing(now, out);
    }

    /// Share of the KV budget that running requests hold, by the target's last heartbeat.
    pub fn kv_pressure(&self) -> f64 {
        let kv = self.target.life().and_then(|life| life.beat.as_ref()?.kv).unwrap_or_default();
        if kv.budget_bytes == 0 { 0.0 } else { kv.held_bytes as f64 / kv.budget_bytes as f64 }
    }

    fn enter(&mut self, service: Service, cause: &'static str, out: &mut Vec<Action>) {
        out.push(Action::LogService { from: self.service.name(), to: service.name(), cause });
        self.service = service;
    }

    fn outage(&self) -> Option<Outage> {
        self.ordered_outage().or_else(|| match self.service {
            Service::Serving => self.target.outage(),
            _ => Some(Outage::stopping()),
        })
    }

    /// What a request is told that comes now; `None` if it may be served.
    fn denial(&self, now: Millis) -> Option<Denial> {
        if let Some(outage) = self.ordered_outage() {
            return Some(operations::denial(outage, self.ordered_retry_ms(now)));
        }
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

    /// Whether the service takes nothing new: it was asked to stop, or drained.
    pub fn is_stopping(&self) -> bool {
        self.service != Service::Serving
    }

    /// Whether the service is to go on, whether it takes something new or not.
    fn is_up(&self) -> bool {
        matches!(self.service, Service::Serving | Service::Held)
    }

    /// The target's process.
    pub fn target(&self) -> &Worker {
        &self.target
    }

    /// The drafters.
    pub fn drafters(&self) -> &Drafters {
        &self.drafters
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
fn room(target: &Worker, spare_bytes: Option<u64>) -> Option<Room<'_>> {
    let Phase::Ready { .. } = target.phase() else { return None };
    let life = target.life()?;
    let capacity = life.described.as_ref()?.capacity()?;
    let held_bytes = life.kv_bytes();
    Some(Room {
        epoch: life.epoch,
        capacity,
        budget_bytes: life.budget_bytes()?,
        held_bytes,
        spare_bytes,
    })
}
