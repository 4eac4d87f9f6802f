//! What the engine is doing, as numbers any thread may read: written at step borders, never computed on demand, so that
//! asking for health is no work for the engine.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering::Relaxed};

use paceline_proto::internal::v1::{Heartbeat, KvUse, LinkReport, SpeculationTotals, WorkerPhase};

/// Steps over which the percentiles of `Stats` are taken.
const RECENT_STEPS: usize = 256;

/// The engine's figures.
#[derive(Debug, Default)]
pub struct Progress {
    phase: AtomicU32,
    steps: AtomicU64,
    loaded_bytes: AtomicU64,
    total_bytes: AtomicU64,
    weights_loaded_unix_s: AtomicI64,
    sequences: AtomicU32,
    budget_bytes: AtomicU64,
    held_bytes: AtomicU64,
    reserved_bytes: AtomicU64,
    prefill_tokens: AtomicU64,
    decode_tokens: AtomicU64,
    recent_us: Mutex<VecDeque<u32>>,
    failure: Mutex<String>,
    link: Mutex<LinkReport>,
    speculation: Mutex<SpeculationTotals>,
}

impl Progress {
    /// What the engine is doing.
    pub fn set_phase(&self, phase: WorkerPhase) {
        self.phase.store(phase as u32, Relaxed);
    }

    /// What the engine was last said to do.
    pub fn phase(&self) -> WorkerPhase {
        WorkerPhase::try_from(self.phase.load(Relaxed) as i32).unwrap_or(WorkerPhase::Unspecified)
    }

    /// Bytes of weights read, and in all.
    pub fn set_load(&self, read: u64, total: u64) {
        self.loaded_bytes.store(read, Relaxed);
        self.total_bytes.store(total, Relaxed);
    }

    /// When the weights were there, in seconds since 1970.
    pub fn set_loaded_at(&self, unix_s: i64) {
        self.weights_loaded_unix_s.store(unix_s, Relaxed);
    }

    /// The ledger's figures, in bytes.
    pub fn set_kv(&self, budget: u64, held: u64, reserved: u64) {
        self.budget_bytes.store(budget, Relaxed);
        self.held_bytes.store(held, Relaxed);
        self.reserved_bytes.store(reserved, Relaxed);
    }

    /// Sequences (or sessions) there are.
    pub fn set_sequences(&self, count: usize) {
        self.sequences.store(count as u32, Relaxed);
    }

    /// A step is done: so many rows, in so many microseconds. Steps without prompt rows make the percentiles.
    pub fn step_done(&self, prefill_rows: usize, decode_rows: usize, took_us: u64) {
        self.steps.fetch_add(1, Relaxed);
        self.prefill_tokens.fetch_add(prefill_rows as u64, Relaxed);
        self.decode_tokens.fetch_add(decode_rows as u64, Relaxed);
        if prefill_rows == 0 {
            let mut recent = self.recent_us.lock().expect("nobody panics while holding it");
            if recent.len() == RECENT_STEPS {
                recent.pop_front();
            }
            recent.push_back(took_us.min(u64::from(u32::MAX)) as u32);
        }
    }

    /// Loading failed for good.
    pub fn fail(&self, why: String) {
        *self.failure.lock().expect("nobody panics while holding it") = why;
        self.set_phase(WorkerPhase::Failed);
    }

    /// How the link stands.
    pub fn set_link(&self, report: LinkReport) {
        *self.link.lock().expect("nobody panics while holding it") = report;
    }

    /// What speculation did so far.
    pub fn set_speculation(&self, totals: SpeculationTotals) {
        *self.speculation.lock().expect("nobody panics while holding it") = totals;
    }

    /// Tokens read and decoded so far.
    pub fn tokens(&self) -> (u64, u64) {
        (self.prefill_tokens.load(Relaxed), self.decode_tokens.load(Relaxed))
    }

    /// Median and 99th percentile of recent decode steps, µs; 0 before the first.
    pub fn step_us(&self) -> (u32, u32) {
        let mut recent: Vec<u32> = self.recent_us.lock().expect("nobody panics while holding it").iter().copied().collect();
        recent.sort_unstable();
        let at = |share: f64| recent.get((recent.len() as f64 * share) as usize).or(recent.last()).copied().unwrap_or(0);
        (at(0.5), at(0.99))
    }

    /// Everything a supervisor follows.
    pub fn heartbeat(&self, epoch: u64) -> Heartbeat {
        Heartbeat {
            epoch,
            phase: self.phase().into(),
            steps: self.steps.load(Relaxed),
            loaded_bytes: self.loaded_bytes.load(Relaxed),
            total_bytes: self.total_bytes.load(Relaxed),
            weights_loaded_unix_s: self.weights_loaded_unix_s.load(Relaxed),
            kv: Some(KvUse {
                budget_bytes: self.budget_bytes.load(Relaxed),
                held_bytes: self.held_bytes.load(Relaxed),
                reserved_bytes: self.reserved_bytes.load(Relaxed),
                prefix_bytes: 0,
            }),
            sequences: self.sequences.load(Relaxed),
            failure: self.failure.lock().expect("nobody panics while holding it").clone(),
            link: Some(self.link.lock().expect("nobody panics while holding it").clone()),
            speculation: Some(*self.speculation.lock().expect("nobody panics while holding it")),
            figures: None,
            step_times: None,
            memory: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_recent_decode_steps() {
        let progress = Progress::default();
        assert_eq!(progress.step_us(), (0, 0));
        for us in 1..=1000 {
            progress.step_done(0, 1, us);
        }
        progress.step_done(64, 0, 999_999);
        assert_eq!(progress.step_us(), (873, 998));
        assert_eq!(progress.tokens(), (64, 1000));
        assert_eq!(progress.heartbeat(3).steps, 1001);
    }
}
