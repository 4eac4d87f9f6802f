//! Random choice of the next step.

use std::sync::Arc;

use super::{Fate, WORKERS, World};
use crate::tests::testing::*;

/// One of the simulated drafters does not draft for requests with images.
fn serves_images(model: &str) -> bool {
    model != "/e"
}

impl World {
    fn any_worker(&mut self) -> WorkerId {
        WORKERS[self.random.below(3) as usize]
    }

    /// One random step. Longer than 60 lines: an arm per kind of step.
    pub(super) fn step(&mut self) {
        match self.random.below(24) {
            0..=3 => self.submit(),
            4 | 5 => {
                let live = self.tickets(|fate| !matches!(fate, Fate::Over { .. }));
                if !live.is_empty() {
                    let ticket = live[self.random.below(live.len() as u64) as usize];
                    // Done, or its client is gone.
                    self.outcomes += 1;
                    if matches!(self.requests[&ticket].1, Fate::Running { .. })
                        && self.random.below(2) == 0
                    {
                        let tokens = 1 + self.random.below(600);
                        let served = served_plainly(tokens);
                        self.deliver(Event::Served { ticket, served });
                    }
                    self.report(ticket);
                }
            }
            6..=12 => {
                let worker = self.any_worker();
                match self.epoch(worker) {
                    Some(epoch) => self.heartbeat(worker, epoch),
                    None => self.stale(worker),
                }
            }
            13 | 14 => {
                for worker in WORKERS {
                    self.describe(worker);
                }
            }
            15 => {
                let worker = self.any_worker();
                self.stale(worker);
            }
            16 => {
                let exit = [
                    WorkerExit::Signal(9),
                    WorkerExit::Code(0),
                    WorkerExit::Code(69),
                    WorkerExit::Unknown,
                    WorkerExit::Code(65),
                ][self.random.below(5) as usize];
                let worker = self.any_worker();
                let rarely = if self.calm { 4 } else { 1 };
                if self.random.below(rarely * if worker == WorkerId::Target { 8 } else { 4 }) == 0 {
                    self.die(worker, exit);
                }
            }
            17..=19 => self.link_moves(),
            20 if self.random.below(4) == 0 => self.order(),
            20 if self.random.below(4) == 0 => self.command(),
            22 if self.random.below(80) == 0 => self.supervisor_again(true),
            22 if self.random.below(2) == 0 => self.progress(),
            23 if self.random.below(20) == 0 => self.gateway_moves(),
            21 if self.random.below(8) == 0 => self.set_policy(),
            23 if self.random.below(8) == 0 => self.tune(),
            21 if self.random.below(60) == 0 => {
                let stop = self.random.below(2) == 0;
                self.deliver(if stop { Event::StopAsked } else { Event::ParentGone });
            }
            _ => {
                let longest = if self.calm { 6 } else { 8 };
                let ms = [10, 50, 100, 200, 300, 500, 3_000, 70_000]
                    [self.random.below(longest) as usize];
                self.sleep(ms);
            }
        }
        if self.calm && self.random.below(2) == 0 {
            for worker in WORKERS {
                if let Some(epoch) = self.epoch(worker) {
                    self.heartbeat(worker, epoch);
                }
            }
        }
        self.reap();
        if self.random.below(3) > 0 {
            self.settle();
        }
    }

    fn submit(&mut self) {
        let prompt_tokens = self.random.below(700) as u32;
        let summary = RequestSummary {
            // Of two keys, or of none.
            key: KeyId(u64::from(prompt_tokens % 3)),
            prompt_tokens,
            max_tokens: 1 + self.random.below(400) as u32,
            context_tokens: prompt_tokens,
            deadline: (self.random.below(3) == 0).then(|| self.now + self.random.below(4_000)),
            wish: [RouteWish::Auto, RouteWish::Auto, RouteWish::Speculative, RouteWish::Plain]
                [self.random.below(4) as usize],
            // Every fourth has an image.
            patches: if prompt_tokens % 4 == 3 { u64::from(prompt_tokens / 4) } else { 0 },
            resumed: false,
            // Few contents, so that the target ends at the same one again.
            fingerprint: Fingerprint(u64::from(prompt_tokens % 2)),
            model: None,
        };
        let ticket = Ticket(self.requests.len() as u64);
        self.requests.insert(ticket, (summary, Fate::Waiting));
        self.submitted.push(self.now);
        self.deliver(Event::Submitted { ticket, summary });
    }

    /// A running request has its first tokens.
    fn progress(&mut self) {
        let running = self.tickets(|fate| matches!(fate, Fate::Running { .. }));
        if !running.is_empty() {
            let ticket = running[self.random.below(running.len() as u64) as usize];
            self.progressed.insert(ticket);
            self.deliver(Event::Progressed { ticket });
        }
    }

    fn describe(&mut self, worker: WorkerId) {
        let (true, Some(epoch)) = (self.processes[&worker].describing, self.epoch(worker)) else {
            return;
        };
        self.at(worker).describing = false;
        let described = match worker {
            WorkerId::Target => WorkerDescription::Target {
                model: ModelInfo::default(),
                capacity: self.capacity.clone(),
            },
            WorkerId::Drafter(_) => {
                let path = self.processes[&worker].model.clone();
                let images = serves_images(&path);
                WorkerDescription::Drafter(DrafterInfo {
                    block_size: 8,
                    path,
                    images,
                    ..Default::default()
                })
            }
        };
        let failed = self.random.below(4) == 0;
        if self.processes[&worker].earlier && self.random.below(4) == 0 {
            return self.deliver(Event::Worker(
                worker,
                worker::Event::Foreign { epoch, cause: "another version".into() },
            ));
        }
        let described = worker::Event::Described { epoch, described: Arc::new(described) };
        self.deliver(Event::Worker(
            worker,
            if failed { worker::Event::DescribeFailed { epoch } } else { described },
        ));
    }

    /// Events of an epoch that is over, or never was.
    fn stale(&mut self, worker: WorkerId) {
        let epoch = Epoch(self.random.below(self.last_target.max(self.last_drafter) + 2));
        if Some(epoch) != self.epoch(worker) {
            let exited =
                worker::Event::Exited { epoch, exit: WorkerExit::Signal(9), log: String::new() };
            self.deliver(Event::Worker(worker, exited));
            self.heartbeat(worker, epoch);
        }
    }

    fn set_policy(&mut self) {
        let order_id = OrderId(self.orders.len() as u64);
        let change = [
            PolicyChange::Force(Force::Plain),
            PolicyChange::Force(Force::Auto),
            PolicyChange::Force(Force::Auto),
            PolicyChange::Force(Force::Speculative),
            PolicyChange::MaxConcurrent(Auto::Is(1)),
            PolicyChange::MaxConcurrent(Auto::Auto),
            PolicyChange::KvPressure(0.5),
            PolicyChange::MaxContext(Auto::Auto),
        ][self.random.below(8) as usize];
        self.orders.insert(order_id, ("set", false, 0));
        self.deliver(Event::PolicySet { order_id, change });
    }

    /// An operator changes settings that need no restart. The bound of the queue never falls below
    /// what waits, so that the check of the bound holds.
    fn tune(&mut self) {
        let order_id = OrderId(self.orders.len() as u64);
        let tuning = match self.random.below(3) {
            0 => {
                let models = [&["/d"][..], &["/e", "/d"], &[]][self.random.below(3) as usize];
                // The setting is kept: the next supervisor begins with it.
                self.plan.models = models.iter().map(|name| (*name).to_owned()).collect();
                Tuning::Drafters(self.plan.clone())
            }
            _ => {
                let places = [4, 6][self.random.below(2) as usize];
                let queue_places = places.max(self.core.admission().queued());
                let bounds = AdmissionBounds { queue_places, ..self.settings.admission };
                self.settings.admission = bounds;
                Tuning::Admission(bounds)
            }
        };
        self.orders.insert(order_id, ("tuned", false, 0));
        self.deliver(Event::Tuned { order_id, tuning });
    }

    fn order(&mut self) {
        let order_id = OrderId(self.orders.len() as u64);
        let model = ["", "/d", "/e"][self.random.below(3) as usize].to_owned();
        let order = match self.random.below(6) {
            0 => DrafterOrder::Stop,
            5 => DrafterOrder::Renew,
            1 | 2 => DrafterOrder::Start { model },
            _ => DrafterOrder::Swap { model },
        };
        let kind = match order {
            DrafterOrder::Start { .. } => "started",
            DrafterOrder::Stop => "stopped",
            DrafterOrder::Swap { .. } => "swapped",
            DrafterOrder::Renew => "renewed",
        };
        self.orders.insert(order_id, (kind, false, self.last_target));
        self.deliver(Event::DrafterOrdered { order_id, order });
    }

    fn command(&mut self) {
        let order_id = OrderId(self.orders.len() as u64);
        let at_once = self.random.below(3) == 0;
        let restart = |process| OperatorOrder::Restart { process, at_once };
        let drafters: &[&str] = [&["/d"][..], &[]][self.random.below(2) as usize];
        let (order, kind) = match self.random.below(14) {
            12 => (target_swap("/m", drafters, at_once), "swapped for /m"),
            13 => (target_swap("/n", drafters, at_once), "swapped for /n"),
            0..=3 => (restart(ServiceProcess::Target), "target restarted"),
            4 => (restart(ServiceProcess::Drafter), "drafter restarted"),
            5 => (restart(ServiceProcess::Gateway), "gateway restarted"),
            6 => (restart(ServiceProcess::Supervisor), "supervisor restarts"),
            7 | 8 => (OperatorOrder::Drain, "drained"),
            _ => (OperatorOrder::Resume, "undone"),
        };
        self.leaving |= kind == "supervisor restarts";
        self.orders.insert(order_id, (kind, false, self.last_target));
        self.deliver(Event::Ordered { order_id, order });
    }

    /// The gateway attaches, reports another state, or detaches.
    fn gateway_moves(&mut self) {
        let attachment = self.attachment;
        let state = [GatewayState::Ready, GatewayState::Ready, GatewayState::Draining]
            [self.random.below(3) as usize];
        let report = gateway_report(attachment, state);
        match self.random.below(6) {
            0 => self.deliver(Event::Detached { attachment }),
            _ => self.deliver(Event::Reported { attachment, report }),
        }
    }

    /// The supervisor is gone, and another finds what it left.
    pub(super) fn supervisor_again(&mut self, killed: bool) {
        if killed {
            // Its streams ended with it: each request has its outcome, and the target drops them.
            for (_, fate) in self.requests.values_mut() {
                if !matches!(fate, Fate::Over { .. }) {
                    self.outcomes += 1;
                }
                *fate = Fate::Over { reported: true, cost_bytes: 0 };
            }
        }
        self.term += 1 << 20;
        self.log.push(format!("t={} another supervisor, term {}", self.now.0, self.term));
        *self.seen.entry("another supervisor".to_owned()).or_default() += 1;
        self.core = Supervisor::new(self.settings, self.plan.clone(), Term(self.term));
        self.links.orphaned(self.term << 32);
        (self.exited, self.leaving) = (false, false);
        self.attachment += 1;
        for worker in WORKERS {
            let process = self.at(worker);
            (process.left, process.earlier, process.describing) =
                (process.epoch.is_some(), true, false);
        }
        for worker in WORKERS {
            if let (WorkerId::Drafter(_), Some(epoch)) = (worker, self.epoch(worker)) {
                self.at(worker).left = false;
                self.deliver(Event::Worker(worker, worker::Event::Found { epoch, pid: 9 }));
            }
        }
        self.deliver(Event::Begun);
    }
}
