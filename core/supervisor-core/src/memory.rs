//! The machine's memory as one budget: target, drafter, KV and MLX's caches together. The target's
//! ledger bounds what sequences reserve by the configured budget (I11); here is what the machine
//! itself still has for them, so that the drafter makes room before a request waits.
//!
//! Not yet held memory of admitted requests is counted as gone. MLX's cache of freed buffers is
//! what the next request is served from, so it counts as there.
//!
//! A GPU on macOS shares the machine's memory and has a bound of its own: the working set that its
//! driver recommends for all processes. What is left is the smaller of two figures: free memory of
//! the machine, and the recommended working set minus what both workers hold.

pub use crate::worker::ProcessMemory;
use crate::worker::{WiredReading, Worker};

/// Share of the whole that is left to everything else on the machine ...
const RESERVE_SHARE: u64 = 50;
/// ... and the most of it.
const MAX_RESERVE_BYTES: u64 = 256 << 20;

/// The machine's memory at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MachineMemory {
    /// Bytes that all workers may hold together; 0: neither the system nor the GPU bounds it.
    pub budget_bytes: u64,
    /// The target's.
    pub target: ProcessMemory,
    /// The drafters'.
    pub drafter: ProcessMemory,
    /// Free bytes, as the system reports.
    pub available_bytes: Option<u64>,
    /// Bytes that the GPU's driver recommends for all processes, as the target reports; `None`: no
    /// such bound.
    pub recommended_bytes: Option<u64>,
}

impl MachineMemory {
    /// The machine's memory with these workers and this much free memory.
    pub fn new(target: &Worker, drafters: [&Worker; 2], available_bytes: Option<u64>) -> Self {
        let memory = target.life().and_then(|life| life.heartbeat.as_ref()?.memory);
        let recommended = memory.map(|memory| memory.recommended_bytes).filter(|bytes| *bytes > 0);
        let memory_of = |worker: &Worker| worker.life().map(ProcessMemory::of).unwrap_or_default();
        let drafters = drafters.into_iter().map(memory_of);
        let machine = Self {
            budget_bytes: 0,
            target: memory_of(target),
            drafter: drafters.fold(ProcessMemory::default(), ProcessMemory::plus),
            available_bytes,
            recommended_bytes: recommended,
        };
        Self { budget_bytes: machine.budget(), ..machine }
    }

    /// Bytes that all living workers hold, by their last reports.
    fn held_bytes(&self) -> u64 {
        self.target.plus(self.drafter).all()
    }

    /// A reading of the machine's wired memory, with what all living workers hold.
    pub fn beside(&self, reading: WiredReading) -> WiredReading {
        WiredReading { others_bytes: self.held_bytes(), ..reading }
    }

    fn reserve_bytes(&self) -> u64 {
        // Without the drafter's memory: a drafter's own report decides nothing for requests (I3).
        let whole = self.target.all().saturating_add(self.available_bytes.unwrap_or(0));
        (whole / RESERVE_SHARE).min(MAX_RESERVE_BYTES)
    }

    /// Bytes that all processes of ours may hold; 0 if neither the system nor the GPU bounds it.
    fn budget(&self) -> u64 {
        let held = self.held_bytes();
        let whole = |available| held.saturating_add(available);
        let machine = self
            .available_bytes
            .map(|available| whole(available).saturating_sub(self.reserve_bytes()));
        [machine, self.recommended_bytes].into_iter().flatten().min().unwrap_or(0)
    }

    /// Bytes that are left for requests, without `promised` bytes that are reserved for running
    /// requests and not held yet.
    pub fn spare_bytes(&self, promised: u64) -> Option<u64> {
        let free = |available: u64| {
            available.saturating_add(self.target.cache).saturating_sub(self.reserve_bytes())
        };
        let free = self.available_bytes.map(free);
        // The target can use its own cached buffers again, but not the drafter's. A drafter that
        // reports too much is ended for want of memory, so it costs no request (I3).
        let held = self.target.active.saturating_add(self.drafter.all());
        let working_set =
            self.recommended_bytes.map(|recommended| recommended.saturating_sub(held));
        let there = [free, working_set].into_iter().flatten().min()?;
        Some(there.saturating_sub(promised))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn huge_reported_figures_do_not_overflow() {
        let invented = ProcessMemory { active: u64::MAX, cache: u64::MAX };
        let honest = ProcessMemory { active: 1_000, cache: 100 };
        assert_eq!(honest.plus(invented), invented);
        let available_bytes = Some(3_500);
        let machine = MachineMemory {
            target: invented,
            drafter: invented,
            available_bytes,
            ..MachineMemory::default()
        };
        assert_eq!(machine.reserve_bytes(), MAX_RESERVE_BYTES);
        assert_eq!(machine.spare_bytes(u64::MAX), Some(0));
        // What a drafter reports of itself takes nothing from requests.
        let honest = MachineMemory { target: honest, ..machine };
        assert_eq!(honest.spare_bytes(0), Some(3_508));
    }

    #[test]
    fn promised_and_reserved_memory_is_not_spare() {
        let target = ProcessMemory { active: 1_000, cache: 100 };
        let drafter = ProcessMemory { active: 300, cache: 100 };
        let machine = MachineMemory {
            target,
            drafter,
            available_bytes: Some(3_500),
            ..MachineMemory::default()
        };
        // 2 % of 4,600.
        assert_eq!(machine.reserve_bytes(), 92);
        assert_eq!(machine.spare_bytes(0), Some(3_508));
        assert_eq!(machine.spare_bytes(500), Some(3_008));
        assert_eq!(machine.spare_bytes(9_000), Some(0));
        assert_eq!(MachineMemory { available_bytes: None, ..machine }.spare_bytes(0), None);
        let large = MachineMemory { available_bytes: Some(1 << 40), ..machine };
        assert_eq!(large.reserve_bytes(), MAX_RESERVE_BYTES);
    }

    #[test]
    fn the_smaller_of_free_memory_and_the_recommended_working_set_bounds_requests() {
        let (target, drafter) = (
            ProcessMemory { active: 1_000, cache: 100 },
            ProcessMemory { active: 300, cache: 100 },
        );
        let unbounded = MachineMemory {
            target,
            drafter,
            available_bytes: Some(3_500),
            ..MachineMemory::default()
        };
        // 2 % of 4,600 stay with the rest of the machine.
        assert_eq!((unbounded.spare_bytes(0), unbounded.budget()), (Some(3_508), 4_908));
        let machine =
            |recommended| MachineMemory { recommended_bytes: Some(recommended), ..unbounded };
        // 1,400 are held, of which the target can use nothing again but its own cache.
        assert_eq!((machine(2_000).spare_bytes(0), machine(2_000).budget()), (Some(600), 2_000));
        assert_eq!(machine(2_000).spare_bytes(500), Some(100));
        assert_eq!((machine(1_200).spare_bytes(0), machine(1_200).budget()), (Some(0), 1_200));
        // A bound that is larger than the machine's memory changes nothing.
        assert_eq!((machine(9_000).spare_bytes(0), machine(9_000).budget()), (Some(3_508), 4_908));
        let silent = MachineMemory { available_bytes: None, ..machine(2_000) };
        assert_eq!(
            (silent.spare_bytes(0), silent.budget()),
            (Some(600), 2_000),
            "the system does not say what is free"
        );
        let neither = MachineMemory { recommended_bytes: None, ..silent };
        assert_eq!((neither.spare_bytes(0), neither.budget()), (None, 0));
    }
}
