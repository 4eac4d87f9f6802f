//! The supervisor: hands each event to the machine that it concerns, then brings the state to rest.
//!
//! Each event is processed in three parts:
//! 1. Deadlines that passed are processed first, so that a flood of events cannot delay them.
//! 2. The event goes to one machine.
//! 3. [`Supervisor::settle`] computes what follows from the state alone: restarts, drafters and
//!    routes, admissions, the notice for the gateway, the end.

mod changes;
mod host;
mod invariants;
mod outage;

use paceline_vocabulary::report::{LinkReport, SpeculationFigures};
use paceline_vocabulary::{Millis, ModelMark, Permit, Reason, RouteReason, Term};

use crate::action::{Action, Notice};
use crate::admission::{Admission, TargetMemory};
use crate::denial::{Denial, Outage};
use crate::drafter::{DrafterInputs, DrafterLoad, DrafterPlan, Drafters, TargetState};
use crate::event::Event;
use crate::gateway::{Gateway, GatewayChange};
use crate::ids::{Ticket, WorkerId};
use crate::operations::{self, Operations, TargetChoice};
use crate::poison::Suspects;
use crate::request::RequestSummary;
use crate::routing::{self, Routing};
use crate::service::{self, Service, ServicePhase};
use crate::settings::Settings;
use crate::worker::{self, Phase, Worker, WorkerKind};

/// How far KV pressure has to fall below `routing.kv_pressure` before a drafter that was stopped
/// for it may return, as a share of that bound. A share, because an operator may set any bound.
const PRESSURE_MARGIN: f64 = 0.15;

/// The supervisor's decisions.
#[derive(Debug)]
pub struct Supervisor {
    settings: Settings,
    service: Service,
    /// `Begun` came: workers may be started.
    begun: bool,
    target: Worker,
    drafters: Drafters,
    routing: Routing,
    /// Free memory of the machine, as last read.
    available_bytes: Option<u64>,
    admission: Admission,
    suspects: Suspects,
    gateway: Gateway,
    operations: Operations,
    announced: Notice,
    /// Since when no request is inside; `None` while one is.
    idle_since: Option<Millis>,
}

impl Supervisor {
    /// A supervisor without a process. The first event is `Begun`, after `Found` for each drafter
    /// that an earlier supervisor left.
    pub fn new(settings: Settings, plan: DrafterPlan, term: Term) -> Self {
        let target = Worker::new(WorkerKind::Target, settings.worker);
        let choice = TargetChoice { model: String::new(), drafters: plan.models.clone() };
        let drafters = Drafters::new(settings.worker, plan, term);
        let admission = Admission::new(settings.admission);
        let announced = Notice { outage: target.outage(), ..Notice::default() };
        Self {
            settings,
            service: Service::new(&settings),
            begun: false,
            routing: Routing::new(settings.policy, drafters.state(), settings.log_routes),
            target,
            drafters,
            available_bytes: None,
            admission,
            suspects: Suspects::default(),
            gateway: Gateway::default(),
            operations: Operations::new(settings.drain_ms, choice),
            announced,
            idle_since: Some(Millis(0)),
        }
    }

    /// Takes one event and returns what is to be done, in order. Longer than 60 lines: one arm for
    /// each event.
    pub fn on_event(&mut self, event: Event, now: Millis) -> Vec<Action> {
        let mut out = Vec::new();
        let undecided = self.undecided(&event);
        if let Event::Starved { ms } = event {
            self.discount_lost_time(ms, now, &mut out);
        }
        self.pass_time(now, &mut out);
        match self.with_held_bytes(event) {
            Event::Begun => {
                self.begun = true;
                self.start_target(String::new(), now, &mut out);
            }
            Event::Worker(WorkerId::Target, event) => self.target_event(event, now, &mut out),
            Event::Worker(WorkerId::Drafter(slot), event) => {
                let actions = self.drafters.on_worker(slot, event, now);
                out.extend(actions.into_iter().map(Action::from));
            }
            Event::Connected { generation, failure } => {
                let actions = self.drafters.on_connected(generation, failure, now);
                out.extend(actions.into_iter().map(Action::from));
            }
            Event::DrafterOrdered { order_id, order } => {
                out.push(Action::LogOrder { subject: "drafter", to: order.words() });
                let actions = self.drafters.on_order(order_id, order, self.service.is_up(), now);
                out.extend(actions.into_iter().map(Action::from));
            }
            Event::Ordered { order_id, order } => {
                let to = order.words();
                out.push(Action::LogOrder { subject: order.subject(), to });
                let inputs =
                    operations_inputs(&self.service, &self.target, &self.gateway, &self.admission);
                let actions = self.operations.on_order(order_id, order, &inputs, now);
                self.perform_operations(actions, now, &mut out);
            }
            Event::Repermitted { epoch, missed } => {
                self.routing.on_repermitted(epoch, &missed, &mut self.admission, now)
            }
            Event::Submitted { ticket, summary } => self.submitted(ticket, summary, now, &mut out),
            Event::Progressed { ticket } => self.admission.on_progress(ticket),
            Event::Served { ticket, served } => {
                if let Some(summary) = self.admission.summary(ticket) {
                    self.suspects.clear(&summary);
                }
                self.routing.on_served(served);
                self.admission.on_served(ticket, served);
            }
            Event::PolicySet { order_id, change } => self.set_policy(order_id, change, &mut out),
            Event::Tuned { order_id, tuning } => self.tune(order_id, tuning, &mut out),
            Event::MemoryRead { available_bytes } => self.available_bytes = available_bytes,
            Event::Ended { ticket } => self.admission.on_ended(ticket),
            Event::Reported { attachment, report } => {
                let change = self.gateway.reported(attachment, report, now);
                out.extend(change.map(log_gateway));
            }
            Event::Detached { attachment } => {
                out.extend(self.gateway.detached(attachment).map(log_gateway))
            }
            Event::StopAsked => self.service_event(service::Event::StopAsked, now, &mut out),
            Event::ParentGone => self.service_event(service::Event::ParentGone, now, &mut out),
            Event::Starved { .. } | Event::TimePassed => {}
        }
        self.settle(now, &mut out);
        let is_idle = self.admission.active() + self.admission.queued() == 0;
        self.idle_since = is_idle.then(|| self.idle_since.unwrap_or(now));
        self.assert_invariants(&undecided, &out);
        out
    }

    /// When the shell has to send `TimePassed`. Deadlines live in the state, so no timer can
    /// outlive its reason.
    pub fn next_deadline(&self) -> Option<Millis> {
        let deadlines = [
            self.target.next_deadline(),
            self.drafters.next_deadline(),
            self.admission.next_deadline(),
            self.service.next_deadline(),
            self.operations.next_deadline(),
            self.routing.next_deadline(),
        ];
        deadlines.into_iter().flatten().min()
    }

    /// The supervisor was not running: missing heartbeats of that time prove nothing.
    fn discount_lost_time(&mut self, ms: u64, now: Millis, out: &mut Vec<Action>) {
        out.push(Action::Overslept { ms });
        self.target.discount_lost_time(now);
        self.drafters.discount_lost_time(now);
    }

    fn pass_time(&mut self, now: Millis, out: &mut Vec<Action>) {
        let Some(due) = self.next_deadline().filter(|due| *due <= now) else { return };
        if now.since(due) > self.settings.late_ms {
            self.discount_lost_time(now.since(due), now, out);
        }
        let actions = self.target.on_time(now);
        self.perform_target(actions, now, out);
        out.extend(self.drafters.on_time(now).into_iter().map(Action::from));
        for (ticket, denial) in self.admission.expire(now) {
            out.push(Action::Deny { ticket, denial });
        }
        self.service_event(service::Event::TimePassed, now, out);
        let actions = self.operations.on_time(
            &operations_inputs(&self.service, &self.target, &self.gateway, &self.admission),
            now,
        );
        self.perform_operations(actions, now, out);
    }

    fn target_event(&mut self, event: worker::Event, now: Millis, out: &mut Vec<Action>) {
        let link = self.note_heartbeat(&event);
        let actions = self.target.on_event(event, now);
        self.perform_target(actions, now, out);
        if let Some(report) = link {
            out.extend(self.drafters.on_report(&report, now).into_iter().map(Action::from));
        }
    }

    /// A heartbeat of the present epoch says what sequences hold; returns its report of the link.
    fn note_heartbeat(&mut self, event: &worker::Event) -> Option<LinkReport> {
        let worker::Event::Heartbeat(heartbeat) = event else { return None };
        self.target.life().filter(|life| life.epoch == heartbeat.epoch)?;
        self.admission.on_heartbeat();
        heartbeat.link.clone()
    }

    fn start_target(&mut self, model: String, now: Millis, out: &mut Vec<Action>) {
        self.target_event(worker::Event::StartAsked { model }, now, out);
    }

    fn perform_target(&mut self, actions: Vec<worker::Action>, now: Millis, out: &mut Vec<Action>) {
        for action in actions {
            out.push(match action {
                worker::Action::Abandon { epoch, cause } => {
                    if let Some(suspect) = self.admission.suspect(epoch) {
                        self.suspects.fell(&suspect, now);
                    }
                    self.admission.abandon(epoch);
                    let retry_ms = self.target.retry_ms(now);
                    Action::Abort { epoch, denial: Denial::Gone { cause, retry_ms } }
                }
                action => Action::Worker(WorkerId::Target, action),
            });
        }
    }

    fn drafters_event(&mut self, event: &worker::Event, now: Millis, out: &mut Vec<Action>) {
        out.extend(self.drafters.on_both(event, now).into_iter().map(Action::from));
    }

    fn service_event(&mut self, event: service::Event, now: Millis, out: &mut Vec<Action>) {
        for action in self.service.on_event(event, now) {
            match action {
                service::Action::Log { from, to, cause } => {
                    out.push(Action::LogService { from, to, cause })
                }
                service::Action::DrainWorkers => {
                    self.target_event(worker::Event::DrainAsked, now, out);
                    self.drafters_event(&worker::Event::DrainAsked, now, out);
                }
                service::Action::AbortStreams => self.abort_streams(now, out),
                service::Action::EndWorkers => {
                    let end = worker::Event::EndAsked { cause: "the service stops" };
                    self.target_event(end.clone(), now, out);
                    self.drafters_event(&end, now, out);
                }
                service::Action::KillEndingWorkers => {
                    if let Phase::Ending { .. } = self.target.phase() {
                        self.target_event(worker::Event::KillAsked, now, out);
                    }
                    out.extend(self.drafters.kill_ending(now).into_iter().map(Action::from));
                }
                service::Action::Exit { restart } => out.push(Action::Exit { restart }),
            }
        }
    }

    fn perform_operations(
        &mut self,
        actions: Vec<operations::Action>,
        now: Millis,
        out: &mut Vec<Action>,
    ) {
        for action in actions {
            match action {
                operations::Action::Answer { order_id, outcome } => {
                    out.push(Action::Answer { order_id, outcome })
                }
                operations::Action::StartTarget { model, once } => {
                    self.target.live_once(once);
                    self.start_target(model, now, out);
                }
                operations::Action::KeepTarget => self.target.live_once(false),
                operations::Action::UseDrafters { models } => {
                    let actions = self.drafters.use_models(models, now);
                    out.extend(actions.into_iter().map(Action::from));
                }
                operations::Action::TargetSwapped { model } => {
                    out.push(Action::TargetSwapped { model })
                }
                operations::Action::EndTarget => {
                    let cause = "an operator restarts it";
                    self.target_event(worker::Event::EndAsked { cause }, now, out);
                }
                operations::Action::ClearTargetBudget => self.target.clear_budget(),
                operations::Action::AbortStreams { for_good: false } => {
                    self.abort_streams(now, out)
                }
                operations::Action::AbortStreams { for_good: true } => {
                    let denial = Denial::ModelChanged;
                    out.push(Action::Abort { epoch: self.target.last_epoch(), denial });
                }
                operations::Action::ForgetRequests => {
                    self.admission.abandon(self.target.last_epoch())
                }
                operations::Action::RestartGateway { attachment, grace_ms } => {
                    out.push(Action::RestartGateway { attachment, grace_ms })
                }
                operations::Action::RestartDrafter { order_id, at_once } => {
                    let order = self.drafters.restart_order(at_once);
                    let actions = self.drafters.on_order(order_id, order, true, now);
                    out.extend(actions.into_iter().map(Action::from));
                }
                operations::Action::RestartSupervisor { at_once } => {
                    self.service_event(service::Event::RestartAsked { at_once }, now, out)
                }
                operations::Action::Hold => self.service_event(service::Event::HoldAsked, now, out),
                operations::Action::Resume => {
                    self.service_event(service::Event::ResumeAsked, now, out)
                }
            }
        }
    }

    fn abort_streams(&self, now: Millis, out: &mut Vec<Action>) {
        if let Some(denial) = self.denial(now) {
            out.push(Action::Abort { epoch: self.target.last_epoch(), denial });
        }
    }

    fn submitted(
        &mut self,
        ticket: Ticket,
        summary: RequestSummary,
        now: Millis,
        out: &mut Vec<Action>,
    ) {
        let memory = target_memory(&self.target, self.spare_bytes());
        let taken = match (self.denial_of(&summary, now), memory) {
            (Some(denial), _) => Err(denial),
            (None, _) if self.suspects.refuses(&summary, now) => Err(Denial::PoisonSuspect),
            (None, _) if !self.serves_model_of(&summary) => Err(Denial::ModelChanged),
            (None, Some(memory)) => self.admission.submit(ticket, summary, &memory, now),
            (None, None) => {
                let why = "the target has not said what it can hold".to_owned();
                let outage = Outage { reason: Reason::TargetLoading, why };
                let retry_ms = self.settings.worker.timeouts.silent_ms;
                Err(Denial::Outage { outage, retry_ms, log: String::new() })
            }
        };
        match taken {
            Err(denial) => return out.push(Action::Deny { ticket, denial }),
            Ok(Some(displaced)) => {
                let (ticket, denial) = (displaced.ticket, displaced.denial);
                out.push(Action::Deny { ticket, denial });
            }
            Ok(None) => {}
        }
        let inputs = routing_inputs(&self.target, &self.drafters);
        if self.routing.would_draft(&summary, &inputs, &self.admission, now) {
            self.drafters.on_draftable_request();
        }
    }

    /// Whether the tokens of a request are those of the served model.
    fn serves_model_of(&self, summary: &RequestSummary) -> bool {
        let served = self.target.described().and_then(|described| described.model());
        match (summary.model, served) {
            (Some(mark), Some(model)) => mark == ModelMark::of(&model.path),
            _ => true,
        }
    }

    /// Computes what follows from the state alone.
    fn settle(&mut self, now: Millis, out: &mut Vec<Action>) {
        let actions = self.operations.settle(
            &operations_inputs(&self.service, &self.target, &self.gateway, &self.admission),
            now,
        );
        self.perform_operations(actions, now, out);
        self.settle_drafters(now, out);
        let inputs = routing_inputs(&self.target, &self.drafters);
        let actions = self.routing.settle(&inputs, &mut self.admission, now);
        out.extend(actions.into_iter().map(Action::from));
        self.settle_admission(now, out);
        let notice = self.notice();
        if notice != self.announced {
            self.announced = notice.clone();
            out.push(Action::Announce(notice));
        }
        if self.admission.active() == 0 {
            self.service_event(service::Event::Idle, now, out);
        }
        let actions = self.operations.answer_orders(
            &operations_inputs(&self.service, &self.target, &self.gateway, &self.admission),
            now,
        );
        self.perform_operations(actions, now, out);
        self.settle_stranded(now);
        if self.target.is_stopped() && self.drafters.are_stopped() {
            self.service_event(service::Event::WorkersGone, now, out);
        }
    }

    fn settle_drafters(&mut self, now: Millis, out: &mut Vec<Action>) {
        let phase = self.target.phase();
        let loaded = matches!(phase, Phase::Ready { .. } | Phase::Suspect { .. });
        let ready = matches!(phase, Phase::Ready { .. });
        let life = self.target.life().filter(|_| loaded);
        let inputs = DrafterInputs {
            target: life.map(|life| TargetState { epoch: life.epoch, ready }),
            failed: self.target.outage().filter(|_| matches!(phase, Phase::Failed { .. })),
            serving: self.begun && self.service.is_up(),
            load: self.load(),
        };
        out.extend(self.drafters.settle(&inputs, now).into_iter().map(Action::from));
    }

    fn settle_admission(&mut self, now: Millis, out: &mut Vec<Action>) {
        // A suspect target may be ready again at once, so requests go on waiting for it. In every
        // other phase they would wait in vain.
        let serves = matches!(self.target.phase(), Phase::Ready { .. } | Phase::Suspect { .. })
            && self.service.is_up()
            && self.operations.serves_queue();
        let is_held = self.service.phase() == ServicePhase::Held;
        for (ticket, summary) in self.admission.waiting() {
            let waits = serves && (!is_held || summary.resumed);
            if !waits && let Some(denial) = self.denial_of(&summary, now) {
                self.admission.turn_away(ticket);
                out.push(Action::Deny { ticket, denial });
            }
        }
        if !serves {
            return;
        }
        // Each admitted request leaves less memory to the next.
        while let Some(memory) = target_memory(&self.target, self.spare_bytes()) {
            let epoch = memory.epoch;
            let Some(admitted) = self.admission.admit(&memory, now) else { break };
            let (ticket, queued_ms) = (admitted.ticket, admitted.queued_ms);
            let inputs = routing_inputs(&self.target, &self.drafters);
            let first =
                self.routing.route_first(ticket, &admitted.summary, &inputs, &self.admission, now);
            out.extend(first.log.map(Action::from));
            let permit = first.permit;
            self.admission.routed(ticket, permit);
            out.push(Action::Admit { ticket, epoch, permit, queued_ms });
        }
    }

    /// Conditions that the suspension of the drafter depends on.
    fn load(&self) -> DrafterLoad {
        let bound = self.routing.policy().kv_pressure;
        let pressure = self.kv_pressure();
        let spare = self.machine_memory().spare_bytes(0);
        let needed = self.promised_bytes().saturating_add(self.drafters.need_bytes());
        let memory = target_memory(&self.target, self.spare_bytes());
        let would_draft =
            |permit: &Permit| permit.max_draft > 0 || permit.reason == RouteReason::DrafterLoading;
        DrafterLoad {
            drafting: self.admission.any_permit(would_draft),
            crowded: self
                .routing
                .is_crowded(&routing_inputs(&self.target, &self.drafters), &self.admission),
            memory_short: pressure > bound || spare == Some(0),
            memory_free: pressure <= bound * (1.0 - PRESSURE_MARGIN)
                && spare.is_none_or(|spare| spare > needed),
            request_waits_for_memory: self.drafter_runs()
                && memory.is_some_and(|memory| self.admission.waits_for_machine_memory(&memory)),
        }
    }

    /// Figures of speculation from the target, once it has measured drafts.
    pub fn figures(&self) -> Option<&SpeculationFigures> {
        self.target.life()?.figures()
    }

    /// Whether the service takes nothing new: it was asked to stop, or drained.
    pub fn is_stopping(&self) -> bool {
        !self.service.phase().admits()
    }

    /// Whether the target may be started with the model of this name, now or after a failed swap.
    pub fn may_load(&self, model: &str) -> bool {
        self.operations.may_load(model)
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

    /// Milliseconds since a request was inside, or since our start; 0 while one is.
    pub fn idle_ms(&self, now: Millis) -> u64 {
        self.idle_since.map_or(0, |since| now.since(since))
    }

    /// Queue and ledger.
    pub fn admission(&self) -> &Admission {
        &self.admission
    }

    /// State of routing.
    pub fn routing(&self) -> &Routing {
        &self.routing
    }
}

fn operations_inputs<'a>(
    service: &Service,
    target: &'a Worker,
    gateway: &'a Gateway,
    admission: &Admission,
) -> operations::Inputs<'a> {
    operations::Inputs {
        service: service.phase(),
        target,
        gateway,
        active: admission.active(),
        queued: admission.queued(),
    }
}

fn routing_inputs<'a>(target: &'a Worker, drafters: &Drafters) -> routing::Inputs<'a> {
    let (drafter, drafter_images) = (drafters.state(), drafters.serves_images());
    routing::Inputs { target, drafter, drafter_images }
}

/// The target's memory for admission; `None` while the target takes no requests.
fn target_memory(target: &Worker, spare_bytes: Option<u64>) -> Option<TargetMemory<'_>> {
    let Phase::Ready { .. } = target.phase() else { return None };
    let life = target.life()?;
    Some(TargetMemory {
        epoch: life.epoch,
        capacity: life.described.as_ref()?.capacity()?,
        budget_bytes: life.budget_bytes()?,
        held_bytes: life.kv_bytes(),
        spare_bytes,
    })
}

fn log_gateway(change: GatewayChange) -> Action {
    let GatewayChange { epoch, from, to, cause } = change;
    Action::LogGateway { epoch, from, to, cause }
}
