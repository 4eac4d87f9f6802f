//! The one task that owns the core: it makes the core's events, and carries out its actions.
//!
//! Order of reading: exits of workers, orders to stop, ends of requests, mail, time. Exits come
//! first, so that no request is routed to a dead worker. Ends come before new requests, so that no
//! request is refused a place that is free. An action starts work and returns; its result comes
//! back as mail.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use paceline_process::{RuntimeDir, chain};
use paceline_proto::internal::v1::{PermitChange, ServiceState};
use paceline_proto::v1::{PolicyResponse, StatusResponse};
use paceline_supervisor_core::denial::OrderRefusal;
use paceline_supervisor_core::operations::{OperatorOrder, TargetChoice, TargetSwapOrder};
use paceline_supervisor_core::routing::Decision;
use paceline_supervisor_core::worker::{self, WorkerExit};
use paceline_supervisor_core::{
    Action, Event, Notice, OrderId, Supervisor, Ticket, WorkerId, WorkerSlot,
};
use paceline_system::Clock;
use paceline_vocabulary::{Epoch, Exit as OurExit, Millis, Permit, RequestId, Term};
use tokio::sync::{mpsc, oneshot, watch};
use tonic::Status;

use crate::boot_mark::BootMark;
use crate::child::{Host, Hosts};
use crate::error;
use crate::events::{self, Change, Journal};
use crate::handle::ActorHandle;
use crate::handover;
use crate::host;
use crate::lines::LineWriter;
use crate::mailbox::{
    AbortStreams, AdmissionDecision, AdmissionGrant, Broadcasts, GatewayRestart, Mail, OrderReply,
    RequestEnd, Stop,
};
use crate::route_log::{self, DecidedLine, EndedLine, RouteLogLine};
use crate::setup::Setup;
use crate::status::{self, OwnProcess};
use crate::target_swap::TargetSetup;
use crate::wire::{permit_message, policy_message};
use crate::worker_client::WorkerClient;

/// Messages that the mailbox takes.
const MAILBOX: usize = 1_024;
/// Requests inside the supervisor at once, in addition to those that may wait.
const REQUESTS: usize = 1_024;

/// Longest wait for an event, so that lost time is noticed.
const TURN: Duration = Duration::from_millis(500);
/// A wait that took this much longer means that the process was not run.
const STARVED: Duration = Duration::from_millis(400);
/// Pause between two readings of the machine's free memory.
const MEMORY_INTERVAL_MS: u64 = 2_000;

/// A request as other processes know it.
struct Named {
    id: RequestId,
    class: String,
    /// When it was first routed, if routes are logged.
    routed: Option<Millis>,
}

/// The core, and everything that it decides about.
pub struct Actor<H> {
    core: Supervisor,
    clock: Clock,
    hosts: Hosts<H>,
    dir: RuntimeDir,
    own: OwnProcess,
    term: Term,
    clients: HashMap<WorkerId, WorkerClient>,
    waiting: HashMap<Ticket, oneshot::Sender<AdmissionDecision>>,
    /// The names of all requests here. The target has them under the same names.
    names: HashMap<Ticket, Named>,
    route_log: Option<LineWriter<RouteLogLine>>,
    policy_orders: HashMap<OrderId, oneshot::Sender<Result<PolicyResponse, Status>>>,
    orders: HashMap<OrderId, OrderReply>,
    last_order: u64,
    /// When free memory was last read.
    memory_read: Option<Millis>,
    /// Answers to the core's own actions. The core gets them before anything else.
    answers: VecDeque<Event>,
    mail: mpsc::Receiver<Mail>,
    mail_tx: mpsc::Sender<Mail>,
    ends: mpsc::Receiver<RequestEnd>,
    stops: mpsc::Receiver<Stop>,
    aborts: watch::Sender<Option<AbortStreams>>,
    notices: watch::Sender<ServiceState>,
    gateway_restarts: watch::Sender<Option<GatewayRestart>>,
    journal: Journal,
    boot_mark: BootMark,
    /// What the workers of each model are started with, by the name that the core has for it.
    setups: HashMap<String, TargetSetup>,
    /// That of the model that is served.
    served: TargetSetup,
}

impl<H: Host> Actor<H> {
    /// An actor and its handle.
    pub fn new(setup: Setup, hosts: Hosts<H>, stops: mpsc::Receiver<Stop>) -> (Self, ActorHandle) {
        let Setup { settings, plan, dir, term, own, route_log, target, boot_mark, .. } = setup;
        let (journal, events) = Journal::new(&dir, term);
        let clock = Clock::start();
        let core = Supervisor::new(settings, plan, term);
        let (mail_tx, mail) = mpsc::channel(MAILBOX);
        let (ends_tx, ends) =
            mpsc::channel(settings.admission.queue_places.saturating_add(REQUESTS).min(1 << 16));
        let (aborts, aborts_rx) = watch::channel(None);
        let (notices, notices_rx) =
            watch::channel(status::service_state(&core, &core.notice(), Millis(0)));
        let (gateway_restarts, restarts_rx) = watch::channel(None);
        let broadcasts =
            Broadcasts { aborts: aborts_rx, notices: notices_rx, restarts: restarts_rx };
        let handle = ActorHandle::new(mail_tx.clone(), ends_tx, broadcasts, events, term, clock)
            .waiting_at_most(settings.admission.queue_wait_ms);
        let actor = Self {
            core,
            clock,
            hosts,
            dir,
            own,
            term,
            clients: HashMap::new(),
            waiting: HashMap::new(),
            names: HashMap::new(),
            route_log: route_log
                .map(|path| LineWriter::start("route-log", path, route_log::MAX_BYTES)),
            orders: HashMap::new(),
            policy_orders: HashMap::new(),
            last_order: 0,
            memory_read: None,
            answers: VecDeque::new(),
            mail,
            mail_tx,
            ends,
            stops,
            aborts,
            notices,
            gateway_restarts,
            journal,
            boot_mark,
            setups: HashMap::from([(String::new(), target.clone())]),
            served: target,
        };
        (actor, handle)
    }

    /// Works until the workers are gone, or left to the next supervisor.
    pub async fn run(mut self) -> OurExit {
        let cause = match self.own.restarts {
            0 => "it was started".to_owned(),
            1 => "it was started again, once in all without an order".to_owned(),
            times => format!("it was started again, {times} times in all without an order"),
        };
        let change = Change {
            kind: "supervisor",
            subject: "supervisor".into(),
            epoch: self.own.term,
            ..Default::default()
        };
        self.journal.record(Change { to: "serving".into(), cause, ..change });
        if let Some(change) = self.boot_mark.change() {
            self.journal.record(change);
        }
        // Drafters of an earlier supervisor are adopted in either slot, also if none would be
        // started.
        for slot in WorkerSlot::ALL {
            let worker = WorkerId::Drafter(slot);
            if let Some(found) = self.find(worker) {
                self.process(Event::Worker(worker, found));
            }
        }
        let mut event = Event::Begun;
        loop {
            if let Some(exit) = self.process(event) {
                if exit == OurExit::Asked {
                    self.boot_mark.clear();
                }
                return exit;
            }
            event = self.next().await;
        }
    }

    async fn next(&mut self) -> Event {
        loop {
            let pause = self.core.next_deadline().map(|due| self.clock.until(due));
            let at_most = pause.map_or(TURN, |pause| pause.min(TURN));
            let turned = self.clock.now();
            self.boot_mark.observe(&self.core, turned);
            let event = tokio::select! {
                biased;
                (worker, exit) = self.hosts.exited() => Some(self.exited(worker, exit)),
                Some(stop) = self.stops.recv() => Some(match stop {
                    Stop::Asked => Event::StopAsked,
                    Stop::ParentGone => Event::ParentGone,
                }),
                Some(end) = self.ends.recv() => Some(self.ended(end)),
                Some(mail) = self.mail.recv() => self.open(mail),
                () = tokio::time::sleep(at_most) => (pause == Some(at_most)).then_some(Event::TimePassed),
            };
            let ms = self.clock.now().since(turned);
            if u128::from(ms) > at_most.as_millis() + STARVED.as_millis() {
                // Before `event`: messages of that time have not been read yet.
                self.answers.extend(event);
                return Event::Starved { ms };
            }
            if let Some(event) = event {
                return event;
            }
        }
    }

    fn open(&mut self, mail: Mail) -> Option<Event> {
        Some(match mail {
            // Its client is gone, and its end was read before its start.
            Mail::Submit { reply, .. } if reply.is_closed() => return None,
            Mail::Submit { ticket, id, class, summary, reply } => {
                self.waiting.insert(ticket, reply);
                self.names.insert(ticket, Named { id, class, routed: None });
                Event::Submitted { ticket, summary }
            }
            Mail::Progressed { ticket } => Event::Progressed { ticket },
            Mail::Worker(worker, event) => {
                if let (WorkerId::Target, worker::Event::Heartbeat(_)) = (worker, &event) {
                    self.read_memory();
                }
                Event::Worker(worker, event)
            }
            Mail::MemoryRead { available_bytes } => Event::MemoryRead { available_bytes },
            Mail::Connected { generation, failure } => Event::Connected { generation, failure },
            Mail::Repermitted { epoch, missed } => Event::Repermitted { epoch, missed },
            Mail::DrafterOrder { order, reply } => {
                Event::DrafterOrdered { order_id: self.open_order(reply), order }
            }
            Mail::OperatorOrder { order, reply } => {
                Event::Ordered { order_id: self.open_order(reply), order }
            }
            Mail::SwapTarget { setup, drain_ms, reply } => {
                let order_id = self.open_order(reply);
                let order = OperatorOrder::SwapTarget(self.swap_order(*setup, drain_ms));
                Event::Ordered { order_id, order }
            }
            Mail::SetPolicy { change, reply } => {
                self.last_order += 1;
                let order_id = OrderId(self.last_order);
                self.policy_orders.insert(order_id, reply);
                Event::PolicySet { order_id, change }
            }
            Mail::Tune { tuning, reply } => {
                Event::Tuned { order_id: self.open_order(reply), tuning }
            }
            Mail::Reported { attachment, report } => Event::Reported { attachment, report },
            Mail::Detached { attachment } => Event::Detached { attachment },
            Mail::Target { reply } => {
                // Here and below: the caller may be gone.
                let _ = reply.send(self.clients.get(&WorkerId::Target).map(WorkerClient::access));
                return None;
            }
            Mail::Ping { reply } => {
                let _ = reply.send(());
                return None;
            }
            Mail::Status { reply } => {
                let _ = reply.send(self.snapshot(self.clock.now()));
                return None;
            }
        })
    }

    /// Has free memory read, at the pace of the target's heartbeats, which report what is held.
    fn read_memory(&mut self) {
        let now = self.clock.now();
        if self.memory_read.is_some_and(|at| now.since(at) < MEMORY_INTERVAL_MS) {
            return;
        }
        self.memory_read = Some(now);
        host::read_memory(self.mail_tx.clone());
    }

    /// Has the files looked at with which this worker is started.
    fn look_at_files(&self, worker: WorkerId, model: &str) {
        host::look_at_files(worker, self.served.files(worker, model), self.mail_tx.clone());
    }

    /// A request is over: it is logged, and counted if it ended well.
    fn ended(&mut self, end: RequestEnd) -> Event {
        let RequestEnd { ticket, served } = end;
        self.waiting.remove(&ticket);
        let (served, line) = served.map(|served| (served.request, served.line)).unzip();
        if let (Some(Named { id, routed: Some(since), .. }), Some(log)) =
            (self.names.remove(&ticket), &mut self.route_log)
        {
            let duration_ms = self.clock.now().since(since);
            log.write(RouteLogLine::Ended(EndedLine::of(&id, self.term, duration_ms, line)));
        }
        let ended = Event::Ended { ticket };
        match served {
            Some(served) => {
                self.answers.push_back(ended);
                Event::Served { ticket, served }
            }
            None => ended,
        }
    }

    fn open_order(&mut self, reply: OrderReply) -> OrderId {
        self.last_order += 1;
        let order_id = OrderId(self.last_order);
        self.orders.insert(order_id, reply);
        order_id
    }

    fn exited(&mut self, worker: WorkerId, exit: WorkerExit) -> Event {
        self.clients.remove(&worker);
        let epoch = match worker {
            WorkerId::Target => self.core.target().last_epoch(),
            WorkerId::Drafter(slot) => self.core.drafters().slot(slot).last_epoch(),
        };
        Event::Worker(
            worker,
            worker::Event::Exited { epoch, exit, log: self.hosts.of(worker).last_words() },
        )
    }

    /// Gives the core one event and carries out its actions; returns the exit code at the end.
    fn process(&mut self, event: Event) -> Option<OurExit> {
        let now = self.clock.now();
        let mut over = None;
        let mut actions = self.core.on_event(event, now);
        loop {
            for action in actions {
                over = self.perform(action, now).or(over);
            }
            match self.answers.pop_front() {
                Some(answer) => actions = self.core.on_event(answer, now),
                None => {
                    self.announce_drafter();
                    return over;
                }
            }
        }
    }

    fn perform(&mut self, action: Action, now: Millis) -> Option<OurExit> {
        match action {
            Action::Worker(worker, action) => self.perform_on(worker, action),
            Action::Connect { generation, slot, ends } => {
                handover::begin(&self.dir, generation, slot, ends, self.term, self.mail_tx.clone());
            }
            Action::Repermit { epoch, changes } => self.repermit(epoch, changes),
            Action::PushPolicy { policy, .. } => {
                if let Some(client) = self.clients.get_mut(&WorkerId::Target) {
                    client.set_policy(policy_message(&policy));
                }
            }
            Action::Answer { order_id, outcome } => self.answer(order_id, outcome, now),
            Action::Admit { ticket, epoch, permit, queued_ms } => {
                self.admit(ticket, epoch, permit, queued_ms)
            }
            Action::Deny { ticket, denial } => {
                let reason = denial.reason().word();
                tracing::debug!(ticket = ticket.0, reason, "request denied");
                if let Some(reply) = self.waiting.remove(&ticket) {
                    // If its client has gone this instant, its end is on the way.
                    let _ = reply.send(Err(denial));
                }
            }
            Action::Abort { epoch, denial } => {
                self.aborts.send_replace(Some(AbortStreams { epoch, denial }));
            }
            Action::Announce(notice) => self.announce(&notice),
            Action::Overslept { ms } => {
                tracing::warn!(ms, at_ms = now.0, "time was lost; missing heartbeats do not count")
            }
            Action::RestartGateway { attachment, grace_ms } => {
                self.gateway_restarts.send_replace(Some(GatewayRestart { attachment, grace_ms }));
            }
            Action::LogRoute { ticket, decision } => self.log_route(ticket, &decision, now),
            Action::TargetSwapped { model } => self.swapped(model),
            Action::LogOrder { subject, to } => {
                self.journal.record(events::ordered(subject, to));
            }
            Action::Exit { restart } => return Some(host::exit(&self.core, restart)),
            action => {
                if let Some(change) = events::logged(action) {
                    self.journal.record(change);
                }
            }
        }
        None
    }

    fn repermit(&mut self, epoch: Epoch, changes: Vec<(Ticket, Permit)>) {
        // A request without a name is over, and the core is about to learn it.
        let changes = changes.into_iter().filter_map(|(ticket, permit)| {
            let request_id = self.names.get(&ticket)?.id.as_str().to_owned();
            Some((ticket, PermitChange { request_id, permit: Some(permit_message(permit)) }))
        });
        let changes: Vec<_> = changes.collect();
        match self.clients.get(&WorkerId::Target) {
            Some(client) => client.repermit(changes),
            // Its process has ended, and the core is about to learn it.
            None => self.answers.push_back(Event::Repermitted { epoch, missed: Vec::new() }),
        }
    }

    fn log_route(&mut self, ticket: Ticket, decision: &Decision, now: Millis) {
        let (Some(named), Some(log)) = (self.names.get_mut(&ticket), &mut self.route_log) else {
            return;
        };
        named.routed.get_or_insert(now);
        let line = DecidedLine::of(decision, &named.id, &named.class, self.term);
        log.write(RouteLogLine::Decided(Box::new(line)));
    }

    fn answer(&mut self, order_id: OrderId, outcome: Result<(), OrderRefusal>, now: Millis) {
        let outcome = outcome.map_err(error::refused);
        // The caller may be gone, or may have given up its order.
        if let Some(reply) = self.policy_orders.remove(&order_id) {
            let _ = reply.send(outcome.map(|()| status::policy(&self.core)));
        } else if let Some(reply) = self.orders.remove(&order_id) {
            let _ = reply.send(outcome.map(|()| self.snapshot(now)));
        }
    }

    fn snapshot(&self, now: Millis) -> StatusResponse {
        status::snapshot(&self.core, &self.own, &self.served.model_dir, now)
    }

    /// The core's order to serve another model, by the name of its directory. A model that was
    /// served before has the name that it had, so that its clients see the same model.
    fn swap_order(&mut self, setup: TargetSetup, drain_ms: Option<u64>) -> TargetSwapOrder {
        let known = self.setups.iter().find(|(_, known)| known.place == setup.place);
        let (model, setup) = match known {
            Some((name, known)) => (name.clone(), known.clone()),
            None => (setup.model_dir.display().to_string(), setup),
        };
        let choice = TargetChoice { model: model.clone(), drafters: setup.drafters.clone() };
        let same = setup.place == self.served.place;
        // The configured one, those of a swap that is under way, and this one.
        let core = &self.core;
        self.setups.retain(|name, _| name.is_empty() || core.may_load(name));
        self.setups.insert(model, setup);
        TargetSwapOrder { choice, drain_ms, same }
    }

    /// An operator's swap is done: the next supervisor has to know the model.
    fn swapped(&mut self, model: String) {
        let change = Change {
            kind: "target",
            subject: "target".to_owned(),
            epoch: self.core.target().last_epoch().0,
            to: self.served.model_dir.display().to_string(),
            cause: "an operator swapped the model".to_owned(),
            ..Change::default()
        };
        self.journal.record(change);
        // An empty name is the configuration's.
        if model.is_empty() {
            self.dir.forget_swap();
        } else if let Err(error) = self.dir.keep_swap(&model) {
            tracing::warn!(
                error = chain(&error),
                "the swap cannot be kept; the next supervisor loads the configured model"
            );
        }
    }

    fn admit(&mut self, ticket: Ticket, epoch: Epoch, permit: Permit, queued_ms: u64) {
        match (self.waiting.remove(&ticket), self.clients.get(&WorkerId::Target)) {
            (Some(reply), Some(client)) => {
                let target = client.target();
                // If its client has gone this instant, its end is on the way.
                let _ = reply.send(Ok(AdmissionGrant { epoch, permit, queued_ms, target }));
            }
            _ => tracing::error!(
                ticket = ticket.0,
                "admitted, and no caller waits or no target runs"
            ),
        }
    }

    fn perform_on(&mut self, worker: WorkerId, action: worker::Action) {
        match action {
            worker::Action::Spawn { model } => {
                let answer = self.spawn(worker, &model);
                self.answers.push_back(Event::Worker(worker, answer));
            }
            worker::Action::AskStop { epoch, cause } => {
                if self.hosts.of(worker).is_frozen() {
                    self.answers.push_back(Event::Worker(worker, worker::Event::Frozen { epoch }));
                } else if let Some(client) = self.clients.get(&worker) {
                    client.stop(cause);
                }
            }
            worker::Action::Terminate { epoch } => {
                tracing::warn!(%worker, %epoch, "SIGTERM");
                self.hosts.of(worker).signal(false);
            }
            worker::Action::Kill { epoch } => {
                tracing::warn!(%worker, %epoch, "SIGKILL");
                self.hosts.of(worker).signal(true);
            }
            worker::Action::Describe { .. } => {
                if let Some(client) = self.clients.get(&worker) {
                    client.describe();
                }
            }
            worker::Action::ReadWired => {
                let event = worker::Event::WiredRead(host::wired());
                self.answers.push_back(Event::Worker(worker, event));
            }
            worker::Action::LookAtFiles { model } => self.look_at_files(worker, &model),
            worker::Action::Clear => self.clear(worker),
            worker::Action::LogPhase { epoch, from, to, cause } => {
                let (subject, from, to) = (worker.to_string(), from.into(), to.into());
                self.journal.record(Change {
                    kind: "phase",
                    subject,
                    epoch: epoch.0,
                    from,
                    to,
                    cause,
                });
            }
            worker::Action::Surprise { phase, event } => {
                tracing::warn!(%worker, phase, event, "an unexpected event");
            }
            worker::Action::Abandon { epoch, .. } => {
                tracing::error!(%worker, %epoch, "the core returned an Abandon action")
            }
        }
    }

    fn clear(&self, worker: WorkerId) {
        self.dir.clear(worker.name());
        self.dir.clear(&format!("{}.link", worker.name()));
    }

    /// A process that an earlier supervisor left, if there is one.
    fn find(&mut self, worker: WorkerId) -> Option<worker::Event> {
        let record = self.hosts.of(worker).find()?;
        let epoch = Epoch(record.epoch);
        self.dir.know(worker.epoch_file(), epoch.0);
        tracing::info!(%worker, %epoch, pid = record.pid, "worker of an earlier supervisor found");
        let client = WorkerClient::new(worker, &self.dir, epoch, self.term, self.mail_tx.clone());
        let mut client = client.expecting(record.pid, self.served.identities.of(worker).clone());
        client.watch();
        self.clients.insert(worker, client);
        Some(worker::Event::Found { epoch, pid: record.pid })
    }

    fn spawn(&mut self, worker: WorkerId, model: &str) -> worker::Event {
        if worker == WorkerId::Target
            && let Some(setup) = self.setups.get(model)
        {
            self.hosts.set_models(&setup.variables);
            self.served = setup.clone();
        }
        if let Some(found) = self.find(worker) {
            return found;
        }
        self.look_at_files(worker, model);
        // A dead one's socket would be taken for the new one's.
        self.clear(worker);
        let epoch = match self.dir.count_up(worker.epoch_file()) {
            Ok(number) => Epoch(number),
            Err(error) => return worker::Event::SpawnFailed { cause: chain(&error) },
        };
        match self.hosts.of(worker).start(epoch, self.term, model) {
            Ok(pid) => {
                tracing::info!(%worker, %epoch, pid, "worker started");
                let mut client =
                    WorkerClient::new(worker, &self.dir, epoch, self.term, self.mail_tx.clone());
                client.watch();
                self.clients.insert(worker, client);
                worker::Event::Spawned { epoch, pid }
            }
            Err(error) => worker::Event::SpawnFailed { cause: error.to_string() },
        }
    }

    fn announce(&mut self, notice: &Notice) {
        let state = status::service_state(&self.core, notice, self.clock.now());
        self.notices.send_replace(state);
    }

    /// Announces a change of the drafter's health. The core does not announce it, because no
    /// request depends on it (I3).
    fn announce_drafter(&self) {
        let serves = self.core.drafters().serves();
        self.notices.send_if_modified(|state| {
            std::mem::replace(&mut state.drafter_serves, serves) != serves
        });
    }
}
