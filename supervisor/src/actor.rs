//! The one task that owns the core: it makes an event of whatever happens, and does what the core
//! says.
//!
//! Order of reading: exits of workers, orders to stop, ends of requests, mail, time. Exits come
//! first, so nobody is routed to the dead; ends come before new requests, so nobody is refused a
//! place that is free. Doing starts work and returns; its result comes back as mail.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use paceline_process::{Clock, Exit as OurExit, RuntimeDir, chain, platform};
use paceline_proto::internal::v1::{GatewayReport, PermitChange, ServiceState};
use paceline_proto::v1::{PolicyResponse, StatusResponse};
use paceline_vocabulary::Millis;
use paceline_vocabulary::{Epoch, RequestId, Term};
use tokio::sync::{mpsc, oneshot, watch};
use tonic::Status;

use crate::child::{Host, Hosts};
use crate::client;
use crate::core::admission::{Ask, Ticket};
use crate::core::drafter::{Call, Order};
use crate::core::operations::Command;
use crate::core::seat::{Seat, WorkerId};
use crate::core::worker::{self, Exit};
use crate::core::{Action, Event, Notice, Supervisor};
use crate::desk::{Cut, Desk, Ending, Grant, Posted, Recall, Verdict};
use crate::events::{Change, Journal};
use crate::handover;
use crate::lines::LineWriter;
use crate::relay::permit_message;
use crate::route_log::{self, Decided, Ended, Line};
use crate::status::{self, Me};
use crate::{Identities, Setup};

/// Mail on its way to the actor.
const MAILBOX: usize = 1_024;
/// Requests inside the supervisor at once, beyond those that may wait.
const REQUESTS: usize = 1_024;

/// Longest time until it looks whether it was run at all.
const TURN: Duration = Duration::from_millis(500);
/// So much later it was not.
const STARVED: Duration = Duration::from_millis(400);
/// Pause between two readings of the machine's free memory.
const MEMORY_MS: u64 = 2_000;

/// What is put into the actor's mailbox.
#[derive(Debug)]
pub enum Mail {
    /// A request.
    Submit {
        /// Its number.
        ticket: Ticket,
        /// Its name in every process.
        id: RequestId,
        /// Its traffic class.
        class: String,
        /// What it asks for.
        ask: Ask,
        /// Where the decision goes.
        reply: oneshot::Sender<Verdict>,
    },
    /// News of a worker.
    Worker(WorkerId, worker::Event),
    /// Free memory of the machine was looked up.
    MemoryRead {
        /// As the system says, if it does.
        available_bytes: Option<u64>,
    },
    /// A link was handed over, or not.
    Connected {
        /// Its number.
        generation: u64,
        /// Why not.
        failure: Option<String>,
    },
    /// An order for other permits was answered, or not in time.
    Repermitted {
        /// By this life of the target.
        epoch: Epoch,
        /// Whose permits it did not take.
        missed: Vec<Ticket>,
    },
    /// An operator's order.
    Order {
        /// What is ordered.
        order: Order,
        /// Where its end goes.
        reply: oneshot::Sender<Result<StatusResponse, Status>>,
    },
    /// An operator's order of something else.
    Command {
        /// What is ordered.
        command: Command,
        /// Where its end goes.
        reply: oneshot::Sender<Result<StatusResponse, Status>>,
    },
    /// An operator sets a key of the policy.
    SetPolicy {
        /// As in the configuration.
        key: String,
        /// In the configuration's form.
        value: String,
        /// Where the policy goes then.
        reply: oneshot::Sender<Result<PolicyResponse, Status>>,
    },
    /// The gateway of an `Attach` stream said how it is.
    Reported(u64, GatewayReport),
    /// That stream ended.
    Detached(u64),
    /// A question for a snapshot.
    Status {
        /// Where it goes.
        reply: oneshot::Sender<StatusResponse>,
    },
}

/// Who wants the service to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// An operator, by signal: the first drains, the second cancels, the third kills.
    Asked,
    /// Whoever started us is gone.
    ParentGone,
}

/// A request as others know it.
struct Named {
    id: RequestId,
    class: String,
    /// When it was first routed, where that is written down.
    routed: Option<Millis>,
}

/// Core and everything it decides over.
pub struct Actor<H> {
    core: Supervisor,
    clock: Clock,
    hosts: Hosts<H>,
    dir: RuntimeDir,
    me: Me,
    term: Term,
    lines: HashMap<WorkerId, client::Line>,
    waiting: HashMap<Ticket, oneshot::Sender<Verdict>>,
    /// The names of all requests here, by which the target knows them.
    names: HashMap<Ticket, Named>,
    route_log: Option<LineWriter<Line>>,
    policy_calls: HashMap<Call, oneshot::Sender<Result<PolicyResponse, Status>>>,
    calls: HashMap<Call, oneshot::Sender<Result<StatusResponse, Status>>>,
    called: u64,
    /// When free memory was last read.
    memory_read: Option<Millis>,
    /// Answers to the core's own actions, told it before anything else.
    answers: VecDeque<Event>,
    mail: mpsc::Receiver<Mail>,
    mail_tx: mpsc::Sender<Mail>,
    endings: mpsc::Receiver<Ending>,
    stops: mpsc::Receiver<Stop>,
    cuts: watch::Sender<Option<Cut>>,
    notices: watch::Sender<ServiceState>,
    recalls: watch::Sender<Option<Recall>>,
    journal: Journal,
    identities: Identities,
}

impl<H: Host> Actor<H> {
    /// An actor and the desk it works behind.
    pub fn new(setup: Setup, hosts: Hosts<H>, stops: mpsc::Receiver<Stop>) -> (Self, Desk) {
        let Setup { settings, plan, dir, term, me, route_log, identities } = setup;
        let (journal, events) = Journal::new(&dir, term);
        let clock = Clock::start();
        let core = Supervisor::new(settings, plan, term);
        let (mail_tx, mail) = mpsc::channel(MAILBOX);
        let (endings_tx, endings) =
            mpsc::channel(settings.places.saturating_add(REQUESTS).min(1 << 16));
        let (cuts, cuts_rx) = watch::channel(None);
        let (notices, notices_rx) =
            watch::channel(status::service_state(&core.notice(), core.drafters().serves()));
        let (recalls, recalls_rx) = watch::channel(None);
        let posted = Posted { cuts: cuts_rx, notices: notices_rx, recalls: recalls_rx };
        let desk = Desk::new(mail_tx.clone(), endings_tx, posted, events, term, clock);
        let actor = Self {
            core,
            clock,
            hosts,
            dir,
            me,
            term,
            lines: HashMap::new(),
            waiting: HashMap::new(),
            names: HashMap::new(),
            route_log: route_log
                .map(|path| LineWriter::start("route-log", path, route_log::MAX_BYTES)),
            calls: HashMap::new(),
            policy_calls: HashMap::new(),
            called: 0,
            memory_read: None,
            answers: VecDeque::new(),
            mail,
            mail_tx,
            endings,
            stops,
            cuts,
            notices,
            recalls,
            journal,
            identities,
        };
        (actor, desk)
    }

    /// Works until the workers are gone, or left to the next supervisor.
    pub async fn run(mut self) -> OurExit {
        let me = &self.me;
        let cause = match me.restarts {
            0 => "it was started".to_owned(),
            times => format!("it was started again, {times} times in all that nobody asked for"),
        };
        let change = Change {
            kind: "supervisor",
            subject: "supervisor".into(),
            epoch: me.term,
            ..Default::default()
        };
        self.journal.record(Change { to: "serving".into(), cause, ..change });
        // Drafters of an earlier supervisor are taken over in whichever place they are, also where
        // none would be started.
        for seat in Seat::ALL {
            let worker = WorkerId::Drafter(seat);
            if let Some(found) = self.find(worker) {
                self.tell(Event::Worker(worker, found));
            }
        }
        let mut event = Event::Begun;
        loop {
            if let Some(exit) = self.tell(event) {
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
            let event = tokio::select! {
                biased;
                (worker, exit) = self.hosts.exited() => Some(self.exited(worker, exit)),
                Some(stop) = self.stops.recv() => Some(match stop {
                    Stop::Asked => Event::StopAsked,
                    Stop::ParentGone => Event::ParentGone,
                }),
                Some(ending) = self.endings.recv() => Some(self.ended(ending)),
                Some(mail) = self.mail.recv() => self.open(mail),
                () = tokio::time::sleep(at_most) => (pause == Some(at_most)).then_some(Event::TimePassed),
            };
            let ms = self.clock.now().since(turned);
            if u128::from(ms) > at_most.as_millis() + STARVED.as_millis() {
                // Told first: what was heard meanwhile has not been read yet.
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
            // Its client is gone and its end was read before its beginning.
            Mail::Submit { reply, .. } if reply.is_closed() => return None,
            Mail::Submit { ticket, id, class, ask, reply } => {
                self.waiting.insert(ticket, reply);
                self.names.insert(ticket, Named { id, class, routed: None });
                Event::Submitted { ticket, ask }
            }
            Mail::Worker(worker, event) => {
                if let (WorkerId::Target, worker::Event::Beat(_)) = (worker, &event) {
                    self.read_memory();
                }
                Event::Worker(worker, event)
            }
            Mail::MemoryRead { available_bytes } => Event::MemoryRead { available_bytes },
            Mail::Connected { generation, failure } => Event::Connected { generation, failure },
            Mail::Repermitted { epoch, missed } => Event::Repermitted { epoch, missed },
            Mail::Order { order, reply } => {
                let call = self.call(reply);
                Event::Ordered { call, order }
            }
            Mail::Command { command, reply } => {
                let call = self.call(reply);
                Event::Commanded { call, command }
            }
            Mail::SetPolicy { key, value, reply } => {
                self.called += 1;
                self.policy_calls.insert(Call(self.called), reply);
                Event::PolicySet { call: Call(self.called), key, value }
            }
            Mail::Reported(attachment, report) => Event::Reported { attachment, report },
            Mail::Detached(attachment) => Event::Detached { attachment },
            Mail::Status { reply } => {
                // Whoever asked may be gone.
                let _ = reply.send(status::snapshot(&self.core, &self.me, self.clock.now()));
                return None;
            }
        })
    }

    /// Has free memory looked up, by the pace of the target's heartbeats, which say what is held of
    /// it.
    fn read_memory(&mut self) {
        let now = self.clock.now();
        if self.memory_read.is_some_and(|at| now.since(at) < MEMORY_MS) {
            return;
        }
        self.memory_read = Some(now);
        let mail = self.mail_tx.clone();
        tokio::task::spawn_blocking(move || {
            // A full mailbox has better things to do; the next look is soon.
            let _ =
                mail.try_send(Mail::MemoryRead { available_bytes: platform::available_memory() });
        });
    }

    /// A request is over: it is written down, and if it ended well counted.
    fn ended(&mut self, ending: Ending) -> Event {
        let Ending { ticket, served } = ending;
        self.waiting.remove(&ticket);
        let (served, line) = served.unzip();
        if let (Some(Named { id, routed: Some(since), .. }), Some(log)) =
            (self.names.remove(&ticket), &mut self.route_log)
        {
            log.write(Line::Ended(Ended::of(&id, self.term, self.clock.now().since(since), line)));
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

    fn call(&mut self, reply: oneshot::Sender<Result<StatusResponse, Status>>) -> Call {
        self.called += 1;
        self.calls.insert(Call(self.called), reply);
        Call(self.called)
    }

    fn exited(&mut self, worker: WorkerId, exit: Exit) -> Event {
        self.lines.remove(&worker);
        let epoch = match worker {
            WorkerId::Target => self.core.target().last_epoch(),
            WorkerId::Drafter(seat) => self.core.drafters().seat(seat).last_epoch(),
        };
        Event::Worker(
            worker,
            worker::Event::Exited { epoch, exit, log: self.hosts.of(worker).last_words() },
        )
    }

    /// Tells the core and does what it says; how we end, when all is done for good.
    fn tell(&mut self, event: Event) -> Option<OurExit> {
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
            Action::Connect { generation, seat, ends } => {
                handover::begin(&self.dir, generation, seat, ends, self.term, self.mail_tx.clone());
            }
            Action::Repermit { epoch, changes } => {
                // Whose name is gone is over, and the core is about to hear it.
                let changes = changes.into_iter().filter_map(|(ticket, permit)| {
                    let request_id = self.names.get(&ticket)?.id.as_str().to_owned();
                    Some((
                        ticket,
                        PermitChange { request_id, permit: Some(permit_message(permit)) },
                    ))
                });
                let changes: Vec<_> = changes.collect();
                match self.lines.get(&WorkerId::Target) {
                    Some(line) => line.repermit(changes),
                    // Its process has ended, and the core is about to hear it.
                    None => {
                        self.answers.push_back(Event::Repermitted { epoch, missed: Vec::new() })
                    }
                }
            }
            Action::LogRoute { ticket, decision } => {
                if let (Some(named), Some(log)) = (self.names.get_mut(&ticket), &mut self.route_log)
                {
                    named.routed.get_or_insert(now);
                    log.write(Line::Decided(Box::new(Decided::of(
                        &decision,
                        &named.id,
                        &named.class,
                        self.term,
                    ))));
                }
            }
            Action::PushPolicy { policy, .. } => {
                if let Some(line) = self.lines.get_mut(&WorkerId::Target) {
                    line.set_policy(policy.message());
                }
            }
            Action::LogPolicy { epoch, key, from, to, cause } => {
                let subject = key.to_owned();
                self.journal.record(Change {
                    kind: "policy",
                    subject,
                    epoch,
                    from,
                    to,
                    cause: cause.into(),
                });
            }
            Action::Answer { call, outcome } if self.policy_calls.contains_key(&call) => {
                let policy = status::policy(&self.core);
                if let Some(reply) = self.policy_calls.remove(&call) {
                    // Whoever asked may be gone.
                    let _ = reply.send(outcome.map(|()| policy).map_err(Status::from));
                }
            }
            Action::Answer { call, outcome } => {
                if let Some(reply) = self.calls.remove(&call) {
                    let done = |()| status::snapshot(&self.core, &self.me, now);
                    // Whoever ordered it may have given up.
                    let _ = reply.send(outcome.map(done).map_err(Status::from));
                }
            }
            Action::Admit { ticket, epoch, permit, queued_ms } => {
                match (self.waiting.remove(&ticket), self.lines.get(&WorkerId::Target)) {
                    (Some(reply), Some(line)) => {
                        // If its client has gone this instant, its end is on the way.
                        let _ = reply.send(Ok(Grant {
                            epoch,
                            permit,
                            queued_ms,
                            target: line.target(),
                        }));
                    }
                    _ => tracing::error!(
                        ticket = ticket.0,
                        "admitted, and nobody waits or nothing runs"
                    ),
                }
            }
            Action::Deny { ticket, denial } => {
                tracing::debug!(
                    ticket = ticket.0,
                    reason = denial.reason().word(),
                    "request denied"
                );
                if let Some(reply) = self.waiting.remove(&ticket) {
                    // If its client has gone this instant, its end is on the way.
                    let _ = reply.send(Err(denial));
                }
            }
            Action::Cut { epoch, denial } => {
                self.cuts.send_replace(Some(Cut { epoch, denial }));
            }
            Action::Announce(notice) => self.announce(&notice),
            Action::Overslept { ms } => {
                tracing::warn!(ms, at_ms = now.0, "time was lost; nobody's silence counts")
            }
            Action::RestartGateway { attachment, grace_ms } => {
                self.recalls.send_replace(Some(Recall { attachment, grace_ms }));
            }
            Action::LogLink { seat, generation, to, cause } => {
                let subject = WorkerId::Drafter(seat).to_string();
                self.journal.record(Change {
                    kind: "link",
                    subject,
                    epoch: generation,
                    to: to.into(),
                    cause,
                    ..Default::default()
                });
            }
            Action::LogService { from, to, cause } => {
                let (from, to, cause) = (from.into(), to.into(), cause.into());
                self.journal.record(Change {
                    kind: "service",
                    subject: "service".into(),
                    epoch: 0,
                    from,
                    to,
                    cause,
                });
            }
            Action::LogGateway { epoch, from, to, cause } => {
                let (from, to, cause) = (from.word(), to.word(), cause.into());
                self.journal.record(Change {
                    kind: "gateway",
                    subject: "gateway".into(),
                    epoch,
                    from,
                    to,
                    cause,
                });
            }
            Action::LogOrder { subject, to } => {
                let change =
                    Change { kind: "order", subject: subject.into(), to, ..Default::default() };
                self.journal.record(Change { cause: "an operator orders it".into(), ..change });
            }
            Action::Exit { restart } => {
                return Some(if restart { OurExit::RestartMe } else { OurExit::Asked });
            }
        }
        None
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
                } else if let Some(line) = self.lines.get(&worker) {
                    line.stop(cause);
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
                if let Some(line) = self.lines.get(&worker) {
                    line.describe();
                }
            }
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
                tracing::warn!(%worker, phase, event, "an event that means nothing here");
            }
            worker::Action::Abandon { epoch, .. } => {
                tracing::error!(%worker, %epoch, "the core let an Abandon out")
            }
        }
    }

    fn clear(&self, worker: WorkerId) {
        self.dir.clear(worker.name());
        self.dir.clear(&format!("{}.link", worker.name()));
    }

    /// A process of an earlier supervisor, taken in hand.
    fn find(&mut self, worker: WorkerId) -> Option<worker::Event> {
        let record = self.hosts.of(worker).find()?;
        let epoch = Epoch(record.epoch);
        tracing::info!(%worker, %epoch, pid = record.pid, "worker of an earlier supervisor found");
        let line = client::Line::new(worker, &self.dir, epoch, self.term, self.mail_tx.clone());
        let mut line = line.expecting(record.pid, self.identities.of(worker).clone());
        line.watch();
        self.lines.insert(worker, line);
        Some(worker::Event::Found { epoch, pid: record.pid })
    }

    fn spawn(&mut self, worker: WorkerId, model: &str) -> worker::Event {
        if let Some(found) = self.find(worker) {
            return found;
        }
        // A dead one's socket would be taken for the new one's.
        self.clear(worker);
        let epoch = match self.dir.count_up(worker.epochs()) {
            Ok(number) => Epoch(number),
            Err(error) => return worker::Event::SpawnFailed { cause: chain(&error) },
        };
        match self.hosts.of(worker).start(epoch, self.term, model) {
            Ok(pid) => {
                tracing::info!(%worker, %epoch, pid, "worker started");
                let mut line =
                    client::Line::new(worker, &self.dir, epoch, self.term, self.mail_tx.clone());
                line.watch();
                self.lines.insert(worker, line);
                worker::Event::Spawned { epoch, pid }
            }
            Err(error) => worker::Event::SpawnFailed { cause: error.to_string() },
        }
    }

    fn announce(&mut self, notice: &Notice) {
        self.notices.send_replace(status::service_state(notice, self.core.drafters().serves()));
    }

    /// Announces a change of the drafter's health. The core does not: no request depends on it
    /// (I3).
    fn announce_drafter(&self) {
        let serves = self.core.drafters().serves();
        self.notices.send_if_modified(|state| {
            std::mem::replace(&mut state.drafter_serves, serves) != serves
        });
    }
}
