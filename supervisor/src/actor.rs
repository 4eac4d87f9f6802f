//! The one task that owns the core: it makes an event of whatever happens, and does what the core says.
//!
//! Order of reading: exits of the target, orders to stop, ends of requests, mail, time. Exits come first, so nobody is
//! routed to the dead; ends come before new requests, so nobody is refused a place that is free. Doing starts work and
//! returns; its result comes back as mail.

use std::collections::{HashMap, VecDeque};

use paceline_process::{Clock, Millis, RuntimeDir};
use paceline_proto::ids::{Epoch, Term};
use paceline_proto::internal::v1::{GatewayReport, ServiceState};
use paceline_proto::v1::StatusResponse;
use tokio::sync::{mpsc, oneshot, watch};

use crate::child::Host;
use crate::client::Line;
use crate::core::admission::{Ask, Ticket};
use crate::core::worker::{self, Exit};
use crate::core::{Action, Event, Notice, Settings, Supervisor};
use crate::desk::{Cut, Desk, Grant, Verdict};
use crate::status::{self, Me};

/// Mail on its way to the actor.
const MAILBOX: usize = 1_024;
/// Requests inside the supervisor at once, beyond those that may wait.
const REQUESTS: usize = 1_024;

/// What is put into the actor's mailbox.
#[derive(Debug)]
pub enum Mail {
    /// A request.
    Submit {
        /// Its number.
        ticket: Ticket,
        /// What it asks for.
        ask: Ask,
        /// Where the decision goes.
        reply: oneshot::Sender<Verdict>,
    },
    /// News of the target.
    Target(worker::Event),
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

/// Core and everything it decides over.
pub struct Actor<H> {
    core: Supervisor,
    clock: Clock,
    host: H,
    dir: RuntimeDir,
    me: Me,
    term: Term,
    line: Option<Line>,
    waiting: HashMap<Ticket, oneshot::Sender<Verdict>>,
    /// Answers to the core's own actions, told it before anything else.
    answers: VecDeque<worker::Event>,
    mail: mpsc::Receiver<Mail>,
    mail_tx: mpsc::Sender<Mail>,
    endings: mpsc::Receiver<Ticket>,
    stops: mpsc::Receiver<Stop>,
    cuts: watch::Sender<Option<Cut>>,
    notices: watch::Sender<ServiceState>,
}

impl<H: Host> Actor<H> {
    /// An actor and the desk it works behind.
    pub fn new(settings: Settings, host: H, dir: RuntimeDir, term: Term, me: Me, stops: mpsc::Receiver<Stop>) -> (Self, Desk) {
        let clock = Clock::start();
        let core = Supervisor::new(settings);
        let (mail_tx, mail) = mpsc::channel(MAILBOX);
        let (endings_tx, endings) = mpsc::channel(settings.places.saturating_add(REQUESTS).min(1 << 16));
        let (cuts, cuts_rx) = watch::channel(None);
        let (notices, notices_rx) = watch::channel(status::service_state(&core.notice()));
        let desk = Desk::new(mail_tx.clone(), endings_tx, cuts_rx, notices_rx, term, clock);
        let actor = Self {
            core,
            clock,
            host,
            dir,
            me,
            term,
            line: None,
            waiting: HashMap::new(),
            answers: VecDeque::new(),
            mail,
            mail_tx,
            endings,
            stops,
            cuts,
            notices,
        };
        (actor, desk)
    }

    /// Works until the workers are gone.
    pub async fn run(mut self) {
        let mut event = Event::Target(worker::Event::StartAsked);
        loop {
            if self.tell(event) {
                return;
            }
            event = self.next().await;
        }
    }

    async fn next(&mut self) -> Event {
        loop {
            let pause = self.core.next_deadline().map(|due| self.clock.until(due));
            tokio::select! {
                biased;
                exit = self.host.exited() => return self.exited(exit),
                Some(stop) = self.stops.recv() => return match stop {
                    Stop::Asked => Event::StopAsked,
                    Stop::ParentGone => Event::ParentGone,
                },
                Some(ticket) = self.endings.recv() => {
                    self.waiting.remove(&ticket);
                    return Event::Ended { ticket };
                }
                Some(mail) = self.mail.recv() => if let Some(event) = self.open(mail) {
                    return event;
                },
                () = tokio::time::sleep(pause.unwrap_or_default()), if pause.is_some() => return Event::TimePassed,
            }
        }
    }

    fn open(&mut self, mail: Mail) -> Option<Event> {
        Some(match mail {
            // Its client is gone and its end was read before its beginning.
            Mail::Submit { reply, .. } if reply.is_closed() => return None,
            Mail::Submit { ticket, ask, reply } => {
                self.waiting.insert(ticket, reply);
                Event::Submitted { ticket, ask }
            }
            Mail::Target(event) => Event::Target(event),
            Mail::Reported(attachment, report) => Event::Reported { attachment, report },
            Mail::Detached(attachment) => Event::Detached { attachment },
            Mail::Status { reply } => {
                // Whoever asked may be gone.
                let _ = reply.send(status::snapshot(&self.core, &self.me, self.clock.now()));
                return None;
            }
        })
    }

    fn exited(&mut self, exit: Exit) -> Event {
        self.line = None;
        let epoch = self.core.target().last_epoch();
        Event::Target(worker::Event::Exited { epoch, exit, log: self.host.last_words() })
    }

    /// Tells the core and does what it says; true when all is done for good.
    fn tell(&mut self, event: Event) -> bool {
        let now = self.clock.now();
        let mut over = false;
        let mut actions = self.core.on_event(event, now);
        loop {
            for action in actions {
                over |= self.perform(action, now);
            }
            match self.answers.pop_front() {
                Some(answer) => actions = self.core.on_event(Event::Target(answer), now),
                None => return over,
            }
        }
    }

    fn perform(&mut self, action: Action, now: Millis) -> bool {
        match action {
            Action::Target(action) => self.perform_on_target(action),
            Action::Admit { ticket, epoch, permit, queued_ms } => match (self.waiting.remove(&ticket), &self.line) {
                (Some(reply), Some(line)) => {
                    // If its client has gone this instant, its end is on the way.
                    let _ = reply.send(Ok(Grant { epoch, permit, queued_ms, target: line.client() }));
                }
                _ => tracing::error!(ticket = ticket.0, "admitted, and nobody waits or nothing runs"),
            },
            Action::Deny { ticket, denial } => {
                tracing::debug!(ticket = ticket.0, reason = denial.reason().word(), "request denied");
                if let Some(reply) = self.waiting.remove(&ticket) {
                    // If its client has gone this instant, its end is on the way.
                    let _ = reply.send(Err(denial));
                }
            }
            Action::Cut { epoch, denial } => {
                self.cuts.send_replace(Some(Cut { epoch, denial }));
            }
            Action::Announce(notice) => self.announce(&notice),
            Action::Overslept { ms } => tracing::warn!(ms, at_ms = now.0, "time was lost; nobody's silence counts"),
            Action::LogService { from, to, cause } => tracing::info!(from, to, cause, "service"),
            Action::Exit => return true,
        }
        false
    }

    fn perform_on_target(&mut self, action: worker::Action) {
        match action {
            worker::Action::Spawn => {
                let answer = self.spawn();
                self.answers.push_back(answer);
            }
            worker::Action::AskStop { epoch, cause } => {
                if self.host.is_frozen() {
                    self.answers.push_back(worker::Event::Frozen { epoch });
                } else if let Some(line) = &self.line {
                    line.stop(cause);
                }
            }
            worker::Action::Terminate { epoch } => {
                tracing::warn!(worker = "target", %epoch, "SIGTERM");
                self.host.signal(false);
            }
            worker::Action::Kill { epoch } => {
                tracing::warn!(worker = "target", %epoch, "SIGKILL");
                self.host.signal(true);
            }
            worker::Action::Describe { .. } => {
                if let Some(line) = &self.line {
                    line.describe();
                }
            }
            worker::Action::Clear => self.dir.clear("target"),
            worker::Action::LogPhase { epoch, from, to, cause } => {
                tracing::info!(worker = "target", %epoch, from, to, cause, "worker phase");
            }
            worker::Action::Surprise { phase, event } => {
                tracing::warn!(worker = "target", phase, event, "an event that means nothing here");
            }
            worker::Action::Abandon { epoch, .. } => tracing::error!(%epoch, "the core let an Abandon out"),
        }
    }

    fn spawn(&mut self) -> worker::Event {
        if let Some(record) = self.host.find() {
            let epoch = Epoch(record.epoch);
            tracing::info!(worker = "target", %epoch, pid = record.pid, "worker of an earlier supervisor found");
            self.line = Some(Line::new(self.dir.socket("target"), epoch, self.term, self.mail_tx.clone()));
            return worker::Event::Found { epoch, pid: record.pid };
        }
        // A dead one's socket would be taken for the new one's.
        self.dir.clear("target");
        let epoch = match self.dir.count_up("target.epoch") {
            Ok(number) => Epoch(number),
            Err(error) => return worker::Event::SpawnFailed { cause: error.to_string() },
        };
        match self.host.start(epoch, self.term) {
            Ok(pid) => {
                tracing::info!(worker = "target", %epoch, pid, "worker started");
                let mut line = Line::new(self.dir.socket("target"), epoch, self.term, self.mail_tx.clone());
                line.watch();
                self.line = Some(line);
                worker::Event::Spawned { epoch, pid }
            }
            Err(error) => worker::Event::SpawnFailed { cause: error.to_string() },
        }
    }

    fn announce(&mut self, notice: &Notice) {
        self.notices.send_replace(status::service_state(notice));
    }
}
