//! Reaction of the world to the core's orders, and the checks of each order.

use super::{Fate, WORKERS, World};
use crate::tests::testing::*;

/// What the core knows a request by.
fn content_of(summary: &RequestSummary) -> (KeyId, u64) {
    (summary.key, summary.fingerprint.0)
}

impl World {
    pub(super) fn perform(&mut self, action: Action) -> Option<Event> {
        match action {
            Action::Worker(worker, action) => {
                return self.perform_on(worker, action).map(|event| Event::Worker(worker, event));
            }
            Action::Connect { generation, slot, ends } => self.connect(generation, slot, ends),
            Action::Repermit { epoch, changes } => return Some(self.repermit(epoch, changes)),
            Action::Answer { order_id, outcome } => self.answer(order_id, outcome.is_ok()),
            Action::Admit { ticket, epoch, permit, .. } => self.admit(ticket, epoch, permit),
            Action::Deny { ticket, denial } => {
                let newest = self.requests.last_key_value().map(|(newest, _)| *newest);
                if matches!(denial, Denial::QueueFull { .. }) && newest != Some(ticket) {
                    *self.seen.entry("displaced".to_owned()).or_default() += 1;
                }
                if matches!(denial, Denial::PoisonSuspect) {
                    *self.seen.entry("suspect".to_owned()).or_default() += 1;
                    let (summary, _) = self.requests[&ticket];
                    let ends = self.ends_without_token.get(&content_of(&summary));
                    self.assert(ends.is_some_and(|ends| *ends >= 2), "blame without evidence");
                }
                self.outcomes += 1;
                self.turn(ticket, Fate::Waiting, Fate::Over { reported: false, cost_bytes: 0 });
            }
            Action::Abort { epoch, denial } => self.cut(epoch, &denial),
            Action::PushPolicy { epoch, .. } => {
                self.assert(
                    self.epoch(WorkerId::Target) == Some(epoch),
                    "a policy for a life that is not there",
                );
            }
            Action::LogRoute { .. } => {}
            Action::LogPolicy { .. } => *self.seen.entry("policy".to_owned()).or_default() += 1,
            Action::Overslept { .. }
            | Action::Announce(_)
            | Action::LogService { .. }
            | Action::LogLink { .. }
            | Action::LogRefusal { .. } => {}
            Action::LogGateway { .. } | Action::LogOrder { .. } => {}
            Action::TargetSwapped { model } => {
                let served = &self.processes[&WorkerId::Target].model;
                self.assert(*served == model, "a swap has ended and another model is served");
            }
            Action::RestartGateway { attachment, .. } => {
                self.assert(
                    attachment <= self.attachment,
                    "a gateway is restarted that is not there",
                );
                // Another comes, and attaches when it comes to it.
                self.attachment = self.attachment.max(attachment + 1);
            }
            Action::Exit { restart: true } => {
                self.assert(!self.exited, "it ends twice");
                self.assert(self.leaving, "it leaves and nobody asked");
                self.exited = true;
            }
            Action::Exit { restart: false } => {
                self.assert(!self.exited, "it ends twice");
                for worker in WORKERS {
                    if self.epoch(worker).is_some() {
                        // Not even SIGKILL has ended it in the time there is.
                        self.assert(self.processes[&worker].kills >= 1, "a process is left");
                        *self.seen.entry("given up".to_owned()).or_default() += 1;
                    }
                }
                self.exited = true;
            }
        }
        None
    }

    /// A link is handed over.
    fn connect(&mut self, generation: u64, slot: WorkerSlot, ends: LinkEnds) {
        self.assert(
            self.epoch(WorkerId::Target) == Some(ends.target),
            "a link to a target that is not there",
        );
        self.assert(
            self.epoch(WorkerId::Drafter(slot)) == Some(ends.drafter),
            "a link to a drafter that is not there",
        );
        self.assert(
            matches!(self.core.target().phase(), Phase::Ready { .. }),
            "a link to a target that is not ready",
        );
        let drafter = self.core.drafters().slot(slot);
        self.assert(
            matches!(drafter.phase(), Phase::Ready { .. }),
            "a link to a drafter that is not ready",
        );
        if let Err(what) = self.links.hand(generation, slot, ends, self.now) {
            self.assert(false, what);
        }
    }

    /// Other permits reach the target, or are missed.
    fn repermit(&mut self, epoch: Epoch, changes: Vec<(Ticket, Permit)>) -> Event {
        self.assert(
            self.epoch(WorkerId::Target) == Some(epoch),
            "permits for a life that is not there",
        );
        let lost = self.random.below(6) == 0;
        let mut missed = Vec::new();
        for (ticket, permit) in changes {
            if lost || self.random.below(12) == 0 {
                missed.push(ticket);
            } else {
                self.permits.insert(ticket, permit);
            }
            let running =
                self.requests.get(&ticket).is_some_and(|(_, fate)| !matches!(fate, Fate::Waiting));
            self.assert(running, "a permit for a request that does not run");
            self.judge(permit);
        }
        self.missed.clone_from(&missed);
        Event::Repermitted { epoch, missed }
    }

    /// An operator's order is answered.
    fn answer(&mut self, order_id: OrderId, is_done: bool) {
        let (kind, answered, target) = self.orders[&order_id];
        self.assert(!answered, "an order is answered twice");
        self.orders.insert(order_id, (kind, true, target));
        if is_done {
            *self.seen.entry(kind.to_owned()).or_default() += 1;
            self.check_answer(kind, target);
            let gone =
                WorkerSlot::ALL.iter().all(|slot| self.epoch(WorkerId::Drafter(*slot)).is_none());
            self.assert(kind != "stopped" || gone, "a stop is answered and a process is left");
            // At the moment of the answer; it may fall in the next.
            let up = self.links.reported_up().is_some();
            self.assert(kind != "started" || up, "a start is answered and there is no link");
        }
    }

    /// A request is admitted.
    fn admit(&mut self, ticket: Ticket, epoch: Epoch, permit: Permit) {
        self.assert(
            self.epoch(WorkerId::Target) == Some(epoch),
            "admitted to a life that is not there",
        );
        self.assert(
            matches!(self.core.target().phase(), Phase::Ready { .. }),
            "admitted to one that is not ready",
        );
        self.judge(permit);
        self.judge_turn(ticket);
        self.permits.insert(ticket, permit);
        self.admitted.push(ticket);
        let (summary, _) = self.requests[&ticket];
        let cost = |positions| {
            self.capacity.cost_of(&summary, positions).expect("an admitted request fits")
        };
        let cost_bytes = cost(summary.expected_positions(self.core.admission().typical_tokens()));
        let least = cost(u64::from(summary.context_tokens) + 1);
        self.assert(
            (least..=cost(summary.most_positions())).contains(&cost_bytes),
            "counted below what it begins with",
        );
        self.turn(ticket, Fate::Waiting, Fate::Running { epoch, cost_bytes });
    }

    fn perform_on(&mut self, worker: WorkerId, action: worker::Action) -> Option<worker::Event> {
        match action {
            worker::Action::Spawn { model } => return Some(self.spawn(worker, model)),
            worker::Action::AskStop { epoch, cause } => {
                if worker != WorkerId::Target
                    && (cause.contains("memory is short") || cause.contains("idle_stop_s"))
                {
                    *self.seen.entry("rests".to_owned()).or_default() += 1;
                }
                self.assert(self.epoch(worker) == Some(epoch), "another process is ended");
                match self.random.below(4) {
                    0 => return Some(worker::Event::Frozen { epoch }),
                    1 => return Some(worker::Event::StopAnswered { epoch, reached: false }),
                    2 => return Some(worker::Event::StopAnswered { epoch, reached: true }),
                    _ => self.at(worker).doomed = true,
                }
            }
            worker::Action::Terminate { epoch } => {
                self.assert(self.epoch(worker) == Some(epoch), "another process is ended");
                self.at(worker).doomed |= self.random.below(2) == 0;
            }
            worker::Action::Kill { epoch } => {
                self.assert(self.epoch(worker) == Some(epoch), "another process is ended");
                self.at(worker).kills += 1;
                self.at(worker).doomed |= self.random.below(4) != 0;
            }
            worker::Action::Describe { .. } => self.at(worker).describing = true,
            worker::Action::Clear => {
                self.assert(self.epoch(worker).is_none(), "cleared under a living process")
            }
            worker::Action::Surprise { phase, event } => {
                self.assert(false, &format!("surprise {phase}/{event}"))
            }
            worker::Action::Abandon { .. } => self.assert(false, "an Abandon left the core"),
            worker::Action::ReadWired => {
                self.free_memory_of_the_dead(worker);
                return Some(worker::Event::WiredRead(Some(self.wired())));
            }
            worker::Action::LookAtFiles { .. } => {
                let files = self.now.0 / 60_000;
                return Some(worker::Event::FilesSeen { files });
            }
            worker::Action::LogPhase { .. } => {}
        }
        None
    }

    /// The process is gone, and another one is to follow: requests that are over hold nothing more.
    fn free_memory_of_the_dead(&mut self, worker: WorkerId) {
        if worker != WorkerId::Target {
            return;
        }
        for (_, fate) in self.requests.values_mut() {
            if let Fate::Over { cost_bytes, .. } = fate {
                *cost_bytes = 0;
            }
        }
    }

    /// The memory of a killed process comes back at once, later, or never.
    pub(super) fn leave_wired(&mut self, worker: WorkerId, exit: WorkerExit) {
        if let WorkerExit::Signal(_) = exit {
            let ms = [0, 900, 4_000, 3_600_000][self.log.len() % 4];
            self.wired_until.insert(worker, self.now + ms);
        }
    }

    /// The machine's wired memory: 100 of 1,000 bytes, and 300 for each process that left its own.
    fn wired(&self) -> WiredReading {
        let left = self.wired_until.values().filter(|until| **until > self.now).count() as u64;
        WiredReading { wired_bytes: 100 + 300 * left, machine_bytes: 1_000, others_bytes: 0 }
    }

    /// A process is started, is found, or cannot be started.
    fn spawn(&mut self, worker: WorkerId, model: String) -> worker::Event {
        if let (true, Some(epoch)) = (self.processes[&worker].left, self.epoch(worker)) {
            self.at(worker).left = false;
            *self.seen.entry("taken over".to_owned()).or_default() += 1;
            return worker::Event::Found { epoch, pid: 9 };
        }
        self.assert(self.epoch(worker).is_none(), "a second process is started");
        self.free_memory_of_the_dead(worker);
        self.assert(
            worker == WorkerId::Target || !model.is_empty(),
            "a drafter is started without a model",
        );
        *self.at(worker) = Default::default();
        let what = self.random.below(20);
        if what == 0 {
            return worker::Event::SpawnFailed { cause: "no program".into() };
        }
        let last =
            if worker == WorkerId::Target { &mut self.last_target } else { &mut self.last_drafter };
        *last += 1;
        let epoch = Epoch(*last);
        (self.at(worker).epoch, self.at(worker).model) = (Some(epoch), model);
        self.at(worker).earlier = what == 1;
        match what {
            1 => worker::Event::Found { epoch, pid: 9 },
            _ => worker::Event::Spawned { epoch, pid: 9 },
        }
    }

    /// A command was answered: it is so.
    fn check_answer(&self, kind: &str, target: u64) {
        match kind {
            "target restarted" => {
                let fresh = self.epoch(WorkerId::Target) > Some(Epoch(target));
                self.assert(fresh, "a restart is answered and the old target runs");
                self.assert(
                    matches!(self.core.target().phase(), Phase::Ready { .. }),
                    "a restart is answered too early",
                );
            }
            "swapped for /m" | "swapped for /n" => {
                let served = &self.processes[&WorkerId::Target].model;
                self.assert(
                    kind.ends_with(served.as_str()) && !served.is_empty(),
                    "a swap is answered and another model is served",
                );
                self.assert(
                    matches!(self.core.target().phase(), Phase::Ready { .. }),
                    "a swap is answered too early",
                );
            }
            "drained" => self.assert(
                self.core.admission().active() == 0,
                "a drain is answered and something runs",
            ),
            _ => {}
        }
    }

    /// Whether this one may be admitted now, by its key.
    fn judge_turn(&mut self, ticket: Ticket) {
        let key = self.requests[&ticket].0.key;
        let fairness = FairnessCheck::new(self.requests.iter().map(|(ticket, (summary, fate))| {
            let standing = match fate {
                Fate::Waiting => Standing::Waiting,
                Fate::Running { .. } => Standing::Running,
                // Until its end is reported it counts.
                Fate::Over { cost_bytes, .. } if *cost_bytes > 0 => Standing::Running,
                Fate::Over { .. } => Standing::Gone,
            };
            (*ticket, summary.key, standing)
        }));
        let oldest = fairness.oldest(key) == Some(ticket);
        self.assert(oldest, &format!("r{} is admitted before an older one of its key", ticket.0));
        let admission = fairness.judge(key, self.settings.admission.streams_per_key);
        self.assert(
            admission.is_ok(),
            &format!("r{}: {}", ticket.0, admission.err().unwrap_or_default()),
        );
        for passed in fairness.passed(key, self.settings.admission.streams_per_key) {
            *self.seen.entry(passed.to_owned()).or_default() += 1;
        }
    }

    /// Drafts are allowed only over a link that the target reported as up, to a live drafter.
    fn judge(&self, permit: Permit) {
        let linked = self
            .links
            .reported_up()
            .is_some_and(|(slot, epoch)| self.epoch(WorkerId::Drafter(slot)) == Some(epoch));
        self.assert(
            permit.lane == Lane::Plain || linked,
            "drafts are allowed and there is no link",
        );
        self.assert(
            (permit.lane == Lane::Plain) == (permit.max_draft == 0),
            "a permit contradicts itself",
        );
    }

    fn cut(&mut self, epoch: Epoch, denial: &Denial) {
        let gone = matches!(denial, Denial::Gone { .. });
        for (ticket, (summary, fate)) in &mut self.requests {
            match *fate {
                Fate::Running { epoch: of, cost_bytes } if of <= epoch => {
                    if gone && !self.progressed.contains(ticket) {
                        *self.ends_without_token.entry(content_of(summary)).or_default() += 1;
                    }
                    self.outcomes += 1;
                    *fate = Fate::Over {
                        reported: false,
                        cost_bytes: if gone { 0 } else { cost_bytes },
                    };
                }
                Fate::Over { reported, .. } if gone => {
                    *fate = Fate::Over { reported, cost_bytes: 0 }
                }
                _ => {}
            }
        }
    }

    fn turn(&mut self, ticket: Ticket, from: Fate, to: Fate) {
        let (summary, fate) = *self.requests.get(&ticket).expect("a known request");
        self.assert(fate == from, &format!("r{} is {fate:?}, not {from:?}", ticket.0));
        self.requests.insert(ticket, (summary, to));
    }
}
