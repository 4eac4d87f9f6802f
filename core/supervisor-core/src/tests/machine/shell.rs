//! Reaction of the machine to the core's orders: the shell's part, processes, the target's links.

use paceline_vocabulary::Exit;

use super::{Delivered, Fate, Happening, Machine, Process, TargetLinks, kind, target};
use crate::tests::testing::*;

impl Machine {
    /// Carries out an action; some are answered at once. Longer than 60 lines: an arm per action.
    pub(super) fn perform(&mut self, action: Action) -> Option<Event> {
        match action {
            Action::Worker(worker, action) => {
                return self.perform_on(worker, action).map(|event| Event::Worker(worker, event));
            }
            Action::Connect { generation, slot, ends } => {
                self.judge_link(slot, ends);
                let delay = 1 + self.random.below(10);
                self.post(delay, Happening::Handed(generation, slot, ends));
            }
            Action::Repermit { epoch, changes } => {
                for (ticket, permit) in &changes {
                    let runs = self
                        .requests
                        .get(ticket)
                        .is_some_and(|request| request.fate != Fate::Waiting);
                    self.require(runs, "a permit for a request that does not run");
                    self.judge_permit(*permit);
                }
                let delay = self.random.below(4);
                self.post(delay, Happening::Permits(self.term, epoch, changes));
            }
            Action::Answer { order_id, outcome } => {
                let done = self.orders.remove(&order_id);
                self.require(done.is_some() || self.absent, "an order is answered twice");
                if let (Some(done), true) = (done, outcome.is_ok()) {
                    *self.seen.entry(done.to_owned()).or_default() += 1;
                }
            }
            Action::Admit { ticket, epoch, permit, .. } => self.admit(ticket, epoch, permit),
            Action::Deny { ticket, .. } => match self.requests.get_mut(&ticket) {
                Some(request) if request.fate == Fate::Left => {
                    request.fate = Fate::Over { cost_bytes: 0 }
                }
                Some(request) if request.fate == Fate::Waiting => self.end_request(ticket),
                _ => self.require(false, "a request that does not wait is denied"),
            },
            Action::Abort { epoch, denial } => self.cut(epoch, &denial),
            Action::Exit { restart } => self.end(restart),
            Action::RestartGateway { attachment, .. } => {
                if attachment == self.gateways {
                    self.gateways += 1;
                    let report = gateway_report(self.gateways, GatewayState::Ready);
                    self.send(Event::Detached { attachment }, true);
                    self.post(
                        700,
                        Happening::Message(Event::Reported { attachment: self.gateways, report }),
                    );
                }
            }
            Action::PushPolicy { epoch, policy } => {
                self.delivered.newest = policy.epoch;
                let delay = self.random.below(4);
                self.post(delay, Happening::Policy(self.term, epoch, policy.epoch));
            }
            Action::Overslept { .. }
            | Action::Announce(_)
            | Action::LogService { .. }
            | Action::LogLink { .. }
            | Action::LogRefusal { .. } => {}
            Action::LogRoute { .. }
            | Action::LogPolicy { .. }
            | Action::LogGateway { .. }
            | Action::TargetSwapped { .. }
            | Action::LogOrder { .. } => {}
        }
        None
    }

    fn end(&mut self, restart: bool) {
        match restart {
            true => {
                let running = self
                    .requests
                    .values()
                    .any(|request| matches!(request.fate, Fate::Running { .. }));
                self.require(!running, "a supervisor leaves and cuts a request nobody cut");
                let gap = 20 + self.random.below(500);
                self.leave(gap);
            }
            false => self.exited = true,
        }
    }

    /// Longer than 60 lines: an arm per action.
    fn perform_on(&mut self, worker: WorkerId, action: worker::Action) -> Option<worker::Event> {
        match action {
            worker::Action::Spawn { model } => return Some(self.spawn(worker, model)),
            worker::Action::AskStop { epoch, .. } => {
                self.judge_hang(worker, epoch);
                let process =
                    self.processes.get_mut(&worker).filter(|process| process.epoch == epoch)?;
                if process.frozen {
                    return Some(worker::Event::Frozen { epoch });
                }
                let reached = !process.hung || self.random.below(2) == 0;
                let (delay, gone) = (self.random.below(10), 20 + self.random.below(800));
                if !self.processes[&worker].hung {
                    self.processes.get_mut(&worker).expect("looked up above").leaving = true;
                    self.post(gone, Happening::Dies(worker, epoch, WorkerExit::Code(0)));
                }
                self.post(
                    delay,
                    Happening::Message(Event::Worker(
                        worker,
                        worker::Event::StopAnswered { epoch, reached },
                    )),
                );
            }
            worker::Action::Terminate { epoch } => {
                let hears = self
                    .processes
                    .get(&worker)
                    .is_some_and(|process| !process.frozen && !process.hung);
                let delay = 5 + self.random.below(500);
                if hears {
                    self.post(delay, Happening::Dies(worker, epoch, WorkerExit::Signal(15)));
                }
            }
            worker::Action::Kill { epoch } => {
                if let Some(process) =
                    self.processes.get_mut(&worker).filter(|process| process.epoch == epoch)
                {
                    process.killed = true;
                }
                // Now and then the kernel takes its time.
                let delay =
                    if self.random.below(20) == 0 { 7_000 } else { 1 + self.random.below(30) };
                self.post(delay, Happening::Dies(worker, epoch, WorkerExit::Signal(9)));
            }
            worker::Action::Describe { epoch } => {
                let answers = self
                    .processes
                    .get(&worker)
                    .is_some_and(|process| process.epoch == epoch && !process.frozen);
                let event = match answers && self.random.below(12) > 0 {
                    true => worker::Event::Described { epoch, described: self.describe(worker) },
                    false => worker::Event::DescribeFailed { epoch },
                };
                self.send(Event::Worker(worker, event), true);
            }
            worker::Action::Clear => self.require(
                !self.processes.contains_key(&worker),
                "cleared under a living process (I7)",
            ),
            worker::Action::Surprise { phase, event } => {
                self.require(false, &format!("surprise {phase}/{event}"))
            }
            worker::Action::Abandon { .. } => self.require(false, "an Abandon left the core"),
            worker::Action::ReadWired => return Some(worker::Event::WiredRead(None)),
            worker::Action::LookAtFiles { .. } => self.look_at_files(worker),
            worker::Action::LogPhase { .. } => {}
        }
        None
    }

    /// The number that stands for the files of the model.
    fn version(&self, worker: WorkerId) -> u64 {
        let of = kind(worker);
        self.files.damaged[of] + u64::from(self.faults.unloadable_until[of] <= self.now)
    }

    fn look_at_files(&mut self, worker: WorkerId) {
        let files = self.version(worker);
        let delay = 1 + self.random.below(20);
        self.post(
            delay,
            Happening::Message(Event::Worker(worker, worker::Event::FilesSeen { files })),
        );
    }

    /// A target whose files were refused is started: they are others now, or there was an order.
    fn judge_try(&mut self) {
        let files = self.version(WorkerId::Target);
        (self.files.tried, self.files.told) = (files, false);
        let Some((refused, orders, term)) = self.files.refused.take() else { return };
        self.require(
            refused != files || orders != self.last_order || term != self.term,
            "refused files are tried again, and nothing has changed",
        );
        if refused != files {
            *self.seen.entry("other files are tried".to_owned()).or_default() += 1;
        }
    }

    fn spawn(&mut self, worker: WorkerId, model: String) -> worker::Event {
        if self.processes.contains_key(&worker) {
            // Only what an earlier supervisor left.
            let known = self.believes(worker);
            self.require(self.term > 1 && !known, "a second process is started");
            return worker::Event::Found { epoch: self.processes[&worker].epoch, pid: 9 };
        }
        self.look_at_files(worker);
        if worker == WorkerId::Target {
            self.judge_try();
            // What its last epoch held is free, whether its requests have reported their ends or
            // not.
            for request in self.requests.values_mut() {
                if let Fate::Over { cost_bytes } = &mut request.fate {
                    *cost_bytes = 0;
                }
            }
        }
        let of = kind(worker);
        if self.faults.unstartable[of] > 0 {
            self.faults.unstartable[of] -= 1;
            return worker::Event::SpawnFailed { cause: "no program".into() };
        }
        self.epochs[of] += 1;
        let epoch = Epoch(self.epochs[of]);
        let load_ms =
            50 + self.random.below(2_000) + std::mem::take(&mut self.faults.slow_load_ms[of]);
        self.processes.insert(worker, Process::new(epoch, model, self.now, load_ms));
        if self.faults.unloadable_until[of] > self.now {
            let delay = 10 + self.random.below(load_ms);
            let exit = WorkerExit::Code(Exit::ModelRefused as i32);
            self.post(delay, Happening::Dies(worker, epoch, exit));
        } else if self.faults.loops[of] > 0 {
            self.faults.loops[of] -= 1;
            let (delay, exit) = (
                10 + self.random.below(400),
                [WorkerExit::Signal(11), WorkerExit::Code(1)][self.random.below(2) as usize],
            );
            self.post(delay, Happening::Dies(worker, epoch, exit));
        }
        self.post(5, Happening::HeartbeatTimer(worker, epoch));
        self.post(load_ms, Happening::HeartbeatNow(worker, epoch));
        worker::Event::Spawned { epoch, pid: 9 }
    }

    /// A process ends. Its exit is an event of its own and always comes, at times twice; the
    /// streams of its requests break.
    pub(super) fn die(&mut self, worker: WorkerId, exit: WorkerExit) {
        let Some(process) = self.processes.remove(&worker) else { return };
        let epoch = process.epoch;
        match worker {
            WorkerId::Target => {
                let is_refused = exit == WorkerExit::Code(Exit::ModelRefused as i32);
                let refused = (self.files.tried, self.last_order, self.term);
                let is_alone = is_refused && self.orders.is_empty();
                self.files.refused = is_alone.then_some(refused);
                self.links = TargetLinks::ABSENT;
                self.delivered = Delivered::default();
                let running =
                    |fate: Fate| matches!(fate, Fate::Running { epoch: of, .. } if of == epoch);
                let broken: Vec<Ticket> = self
                    .requests
                    .iter()
                    .filter(|(_, request)| running(request.fate))
                    .map(|(ticket, _)| *ticket)
                    .collect();
                broken.into_iter().for_each(|ticket| self.end_request(ticket));
            }
            WorkerId::Drafter(_) => {
                let of_it = |link: &Option<(u64, WorkerSlot, LinkEnds)>| {
                    link.is_some_and(|(_, _, ends)| ends.drafter == epoch)
                };
                if of_it(&self.links.serving) {
                    self.links.serving = None;
                }
                if of_it(&self.links.newest) {
                    self.move_link(LinkPhase::Lost);
                }
            }
        }
        self.send(
            Event::Worker(worker, worker::Event::Exited { epoch, exit, log: "last words".into() }),
            true,
        );
    }

    fn admit(&mut self, ticket: Ticket, epoch: Epoch, permit: Permit) {
        self.judge_permit(permit);
        self.judge_route(ticket, permit);
        self.judge_turn(ticket);
        let request = self.requests.get(&ticket).copied();
        let typical = self.core.admission().typical_tokens();
        let cost = request.and_then(|request| {
            self.capacity.cost_of(&request.summary, request.summary.expected_positions(typical))
        });
        let (Some(request), Some(cost_bytes)) = (request, cost) else {
            return self.require(false, "admitted, unknown or too long");
        };
        let least =
            self.capacity.cost_of(&request.summary, u64::from(request.summary.context_tokens) + 1);
        self.require(
            Some(cost_bytes) >= least,
            "a request is counted below what it begins with (I11)",
        );
        self.require(
            matches!(request.fate, Fate::Waiting | Fate::Left),
            "a request that does not wait is admitted",
        );
        self.require(
            self.core.target().life().is_some_and(|life| life.epoch == epoch),
            "admitted to another life (I7)",
        );
        self.require(
            matches!(self.core.target().phase(), Phase::Ready { .. }),
            "admitted to one that is not ready",
        );
        if request.fate == Fate::Left {
            self.requests
                .insert(ticket, super::Request { fate: Fate::Over { cost_bytes }, ..request });
            return;
        }
        let since = self.now;
        self.requests.insert(
            ticket,
            super::Request { fate: Fate::Running { epoch, cost_bytes, since }, ..request },
        );
        match self.alive(WorkerId::Target, epoch) {
            true => {
                // Now and then other permits are faster.
                let way = if self.random.below(10) == 0 {
                    self.random.below(300)
                } else {
                    self.random.below(4)
                };
                self.post(way, Happening::Arrives(ticket, permit));
                // And now and then an answer is slow, so that much happens to one request.
                let pace = if self.random.below(16) == 0 { 20 } else { 1 };
                self.post(
                    way + pace * target::time_ms(request.answer),
                    Happening::Finishes(ticket),
                );
            }
            // It died a moment ago, and its exit is on the way: the stream cannot be opened.
            false => self.end_request(ticket),
        }
    }

    pub(super) fn finish(&mut self, ticket: Ticket) {
        let Some(Fate::Running { epoch, .. }) =
            self.requests.get(&ticket).map(|request| request.fate)
        else {
            return;
        };
        match self.processes.get(&WorkerId::Target) {
            Some(process) if process.epoch == epoch && process.frozen => {
                self.post(200, Happening::Finishes(ticket))
            }
            Some(process) if process.epoch == epoch && process.hung => {}
            _ if self.faults.slow_until > self.now => self.post(1_000, Happening::Finishes(ticket)),
            // It begins again when there is room, and has as far to go as it had.
            Some(_) if !self.holds(ticket) => {
                *self.seen.entry("gives way".to_owned()).or_default() += 1;
                self.post(200, Happening::Finishes(ticket));
            }
            _ => {
                self.requests.entry(ticket).and_modify(|request| request.served = true);
                self.end_request(ticket);
            }
        }
    }

    /// A request gets its outcome, if it has none, and its end is reported.
    pub(super) fn end_request(&mut self, ticket: Ticket) {
        let Some(request) = self.requests.get_mut(&ticket) else { return };
        let cost_bytes = match request.fate {
            Fate::Over { .. } | Fate::Left => return,
            Fate::Waiting => 0,
            Fate::Running { cost_bytes, .. } => cost_bytes,
        };
        request.fate = Fate::Over { cost_bytes };
        self.outcomes += 1;
        self.send(Event::Ended { ticket }, false);
    }

    fn cut(&mut self, epoch: Epoch, denial: &Denial) {
        let gone = matches!(denial, Denial::Gone { .. });
        let tickets: Vec<Ticket> = self.requests.keys().copied().collect();
        for ticket in tickets {
            match self.requests[&ticket].fate {
                Fate::Running { epoch: of, .. } if of <= epoch => self.end_request(ticket),
                _ => {}
            }
            // The core has forgotten what the dead life held.
            if gone
                && let Some(Fate::Over { cost_bytes }) =
                    self.requests.get_mut(&ticket).map(|request| &mut request.fate)
            {
                *cost_bytes = 0;
            }
        }
    }

    pub(super) fn take_link(&mut self, generation: u64, slot: WorkerSlot, ends: LinkEnds) {
        let awake = |worker, epoch| {
            self.processes
                .get(&worker)
                .is_some_and(|process| process.epoch == epoch && !process.frozen)
        };
        let there =
            awake(WorkerId::Target, ends.target) && awake(WorkerId::Drafter(slot), ends.drafter);
        let failure = (!there).then(|| "nobody listens".to_owned());
        if there {
            self.links.newest = Some((generation, slot, ends));
            self.links.phase = LinkPhase::Greeting;
            let delay = 5 + self.random.below(40);
            self.post(delay, Happening::Greeted(generation));
        }
        // At times the answer is lost, and the timeout applies.
        if self.random.below(40) > 0 {
            self.send(Event::Connected { generation, failure }, true);
        }
    }

    pub(super) fn greet(&mut self, generation: u64) {
        if !matches!(self.links.newest, Some((newest, _, _)) if newest == generation)
            || self.links.phase != LinkPhase::Greeting
        {
            return;
        }
        if std::mem::take(&mut self.faults.refuses) {
            return self.move_link(LinkPhase::Refused);
        }
        self.links.serving = self.links.newest;
        self.move_link(LinkPhase::Up);
        if self.faults.late_until > self.now {
            self.move_link(LinkPhase::Suspect);
        }
    }

    /// The newest link changes; the target shows itself at once.
    pub(super) fn move_link(&mut self, to: LinkPhase) {
        let from = self.links.phase;
        let (Some(newest), true) = (
            self.links.newest,
            matches!(from, LinkPhase::Greeting | LinkPhase::Up | LinkPhase::Suspect),
        ) else {
            return;
        };
        if to == LinkPhase::Suspect && from != LinkPhase::Up {
            return;
        }
        self.links.phase = to;
        if !matches!(to, LinkPhase::Up | LinkPhase::Suspect) {
            self.links.serving = self.links.serving.filter(|serving| serving.0 != newest.0);
        }
        if let Some(epoch) = self.processes.get(&WorkerId::Target).map(|process| process.epoch) {
            self.post(0, Happening::HeartbeatNow(WorkerId::Target, epoch));
        }
    }

    /// No worker is ended as hung that was never silent or stuck.
    fn judge_hang(&mut self, worker: WorkerId, epoch: Epoch) {
        let phase = match worker {
            WorkerId::Target => self.core.target().phase(),
            WorkerId::Drafter(slot) => self.core.drafters().slot(slot).phase(),
        };
        let hung = matches!(phase, Phase::Ending { why: StopReason::Hung(_), .. });
        let healthy = self
            .processes
            .get(&worker)
            .is_some_and(|process| process.epoch == epoch && !process.was_faulty);
        self.require(!(hung && healthy), "a worker is ended as hung that never was");
    }
}
