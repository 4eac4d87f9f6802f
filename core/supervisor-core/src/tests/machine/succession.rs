//! A supervisor that dies, and the one that takes over what it finds.

use super::judge::Received;
use super::{Fate, Happening, Machine};
use crate::tests::testing::*;

impl Machine {
    /// The supervisor is gone, and with it its mail and the streams that passed it.
    pub(super) fn leave(&mut self, gap_ms: u64) {
        self.absent = true;
        (self.unresponsive_until, self.starved_ms) = (self.now, 0);
        self.outcomes += self
            .requests
            .values()
            .filter(|request| matches!(request.fate, Fate::Waiting | Fate::Running { .. }))
            .count() as u64;
        self.requests.clear();
        self.orders.clear();
        let delivered = |happening: &Happening| matches!(happening, Happening::Message(_));
        let lost: Vec<(u64, u64)> =
            self.agenda.iter().filter(|(_, what)| delivered(what)).map(|(at, _)| *at).collect();
        for at in lost {
            if let Some(Happening::Message(event)) = self.agenda.remove(&at) {
                self.lose(&event);
            }
        }
        let lives: Vec<(WorkerId, Epoch)> =
            self.processes.iter().map(|(worker, process)| (*worker, process.epoch)).collect();
        for (worker, epoch) in lives {
            self.post(30_000, Happening::Lease(worker, epoch));
        }
        self.post(gap_ms, Happening::Returns);
    }

    /// A message to a supervisor that is not there.
    pub(super) fn lose(&mut self, event: &Event) {
        match event {
            Event::Submitted { .. } => self.outcomes += 1,
            Event::DrafterOrdered { order_id, .. }
            | Event::Ordered { order_id, .. }
            | Event::PolicySet { order_id, .. }
            | Event::Tuned { order_id, .. } => {
                self.orders.remove(order_id);
            }
            _ => {}
        }
    }

    /// Another supervisor takes over what it finds.
    pub(super) fn take_over(&mut self) {
        self.term += 1;
        (self.absent, self.adopting) = (false, true);
        let bug = self.core.bug();
        self.core = FaultySupervisor::new(self.settings, self.plan.clone(), Term(self.term), bug);
        self.received = Received::default();
        self.files.told = false;
        self.write(format!("> supervisor of term {}", self.term));
        *self.seen.entry("succeeded".to_owned()).or_default() += 1;
        for worker in [WorkerId::Drafter(WorkerSlot::First), WorkerId::Drafter(WorkerSlot::Second)]
        {
            if let Some(process) = self.processes.get(&worker) {
                let found = worker::Event::Found { epoch: process.epoch, pid: 9 };
                self.deliver(Event::Worker(worker, found));
            }
        }
        self.deliver(Event::Begun);
        self.adopting = false;
        self.gateways += 1;
        self.send_gateway_report(GatewayState::Ready);
    }
}
