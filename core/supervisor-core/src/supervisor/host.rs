//! The machine below the supervisor: what its memory still has for requests, whether the target is
//! busy, and what stranded memory means for the service.

use paceline_vocabulary::Millis;

use super::Supervisor;
use crate::event::Event;
use crate::ids::WorkerSlot;
use crate::memory::MachineMemory;
use crate::worker::{self, Phase};

impl Supervisor {
    /// The machine's memory.
    pub fn machine_memory(&self) -> MachineMemory {
        let drafters = WorkerSlot::ALL.map(|slot| self.drafters.slot(slot));
        MachineMemory::new(&self.target, drafters, self.available_bytes)
    }

    /// Bytes that the machine still has for requests. `None` if the machine bounds nothing: neither
    /// bound is known, or neither a drafter nor a request could give memory back.
    pub(super) fn spare_bytes(&self) -> Option<u64> {
        let waits = self.admission.active() > 0 || self.drafter_runs();
        self.machine_memory().spare_bytes(self.promised_bytes()).filter(|_| waits)
    }

    /// Bytes that are reserved by running requests and that they do not hold yet.
    pub(super) fn promised_bytes(&self) -> u64 {
        let held = self.target.life().map_or(0, worker::Life::kv_bytes);
        self.admission.reserved_bytes().saturating_sub(held)
    }

    pub(super) fn drafter_runs(&self) -> bool {
        WorkerSlot::ALL.iter().any(|slot| self.drafters.slot(*slot).life().is_some())
    }

    /// Share of the KV budget that running requests hold, by the target's last heartbeat.
    pub fn kv_pressure(&self) -> f64 {
        self.target.life().map_or(0.0, worker::Life::kv_pressure)
    }

    /// Whether the target is busy, for the boot mark: a request runs, or the target loads.
    pub fn is_busy(&self) -> bool {
        let loads = matches!(self.target.phase(), Phase::Starting { .. } | Phase::Loading { .. });
        self.admission.active() > 0 || loads
    }

    /// Adds to a reading of wired memory what the living workers hold. Every other event is passed
    /// on.
    pub(super) fn with_held_bytes(&self, event: Event) -> Event {
        match event {
            Event::Worker(id, worker::Event::WiredRead(Some(reading))) => {
                let reading = self.machine_memory().beside(reading);
                Event::Worker(id, worker::Event::WiredRead(Some(reading)))
            }
            event => event,
        }
    }

    /// A service whose target cannot be started ends after a while.
    pub(super) fn settle_stranded(&mut self, now: Millis) {
        let failed = matches!(self.target.phase(), Phase::Failed { .. });
        self.service.set_stranded(failed && self.target.stranded_bytes().is_some(), now);
    }
}
