//! The engine's figures, which any thread may read. The engine writes them between two steps, so a
//! request for them costs the engine nothing.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering::Relaxed};

use paceline_proto::internal::v1::{
    Heartbeat, KvUse, LinkReport, MemoryUse, SpeculationFigures, SpeculationTotals, StepTimes,
    WorkerPhase,
};

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
    unstarted: AtomicU32,
    unstarted_tokens: AtomicU64,
    budget_bytes: AtomicU64,
    held_bytes: AtomicU64,
    tap_bytes: AtomicU64,
    prefix_bytes: AtomicU64,
    grammar_bytes: AtomicU64,
    prefill_tokens: AtomicU64,
    decode_tokens: AtomicU64,
    recent_us: Mutex<Recent>,
    recent_prefill_us: Mutex<Recent>,
    failure: Mutex<String>,
    link: Mutex<LinkReport>,
    speculation: Mutex<SpeculationTotals>,
    figures: Mutex<Option<SpeculationFigures>>,
    memory: Mutex<Option<MemoryUse>>,
}

/// How long the last steps of a kind took, µs.
#[derive(Debug, Default)]
struct Recent(VecDeque<u32>);

impl Recent {
    fn push(&mut self, us: u64) {
        if self.0.len() == RECENT_STEPS {
            self.0.pop_front();
        }
        self.0.push_back(us.min(u64::from(u32::MAX)) as u32);
    }

    /// Median and 99th percentile; 0 before the first.
    fn percentiles(&self) -> (u32, u32) {
        let mut sorted: Vec<u32> = self.0.iter().copied().collect();
        sorted.sort_unstable();
        let at = |share: f64| {
            sorted
                .get((sorted.len() as f64 * share) as usize)
                .or(sorted.last())
                .copied()
                .unwrap_or(0)
        };
        (at(0.5), at(0.99))
    }
}

impl Progress {
    /// Sets what the engine is doing.
    pub fn set_phase(&self, phase: WorkerPhase) {
        self.phase.store(phase as u32, Relaxed);
    }

    /// Phase of the engine, as last set.
    pub fn phase(&self) -> WorkerPhase {
        WorkerPhase::try_from(self.phase.load(Relaxed) as i32).unwrap_or(WorkerPhase::Unspecified)
    }

    /// Rest of a teardown: sequences and the bytes that they hold. `None` before the engine begins
    /// to end. Neither a load nor a step changes it.
    pub fn teardown(&self) -> Option<(u32, u64)> {
        let left = (self.sequences.load(Relaxed), self.held_bytes.load(Relaxed));
        (self.phase() == WorkerPhase::Stopping).then_some(left)
    }

    /// Sets the bytes of weights read so far, and in all.
    pub fn set_load(&self, read: u64, total: u64) {
        self.loaded_bytes.store(read, Relaxed);
        self.total_bytes.store(total, Relaxed);
    }

    /// Sets when the weights were loaded, in seconds since 1970.
    pub fn set_loaded_at(&self, unix_s: i64) {
        self.weights_loaded_unix_s.store(unix_s, Relaxed);
    }

    /// Sets the ledger's figures, in bytes: the budget, what sequences hold, and of that the hidden
    /// states that are retained for a drafter.
    pub fn set_kv(&self, budget: u64, held: u64, hidden: u64) {
        self.budget_bytes.store(budget, Relaxed);
        self.held_bytes.store(held, Relaxed);
        self.tap_bytes.store(hidden, Relaxed);
    }

    /// Sets what the prefix cache retains of ended sequences, in bytes.
    pub fn set_prefix_bytes(&self, bytes: u64) {
        self.prefix_bytes.store(bytes, Relaxed);
    }

    /// Sets what compiled grammars hold, in bytes. Heartbeats add it to the memory of arrays.
    pub fn set_grammar_bytes(&self, bytes: u64) {
        self.grammar_bytes.store(bytes, Relaxed);
    }

    /// Sets the number of sequences; of a drafter the number of its sessions.
    pub fn set_sequences(&self, count: usize) {
        self.sequences.store(count as u32, Relaxed);
    }

    /// Sets the number of sequences of which no row is computed yet, and the sum of their tokens.
    pub fn set_unstarted(&self, sequences: usize, tokens: usize) {
        self.unstarted.store(u32::try_from(sequences).unwrap_or(u32::MAX), Relaxed);
        self.unstarted_tokens.store(tokens as u64, Relaxed);
    }

    /// Counts a finished step: its rows, and its time in microseconds. Steps with prompt rows have
    /// percentiles of their own.
    pub fn step_done(&self, prefill_rows: usize, decode_rows: usize, took_us: u64) {
        self.steps.fetch_add(1, Relaxed);
        self.prefill_tokens.fetch_add(prefill_rows as u64, Relaxed);
        self.decode_tokens.fetch_add(decode_rows as u64, Relaxed);
        let recent = if prefill_rows == 0 { &self.recent_us } else { &self.recent_prefill_us };
        recent.lock().expect("not poisoned").push(took_us);
    }

    /// Counts a finished slice of an image in the vision tower. It is progress, and takes as long
    /// as a prompt's chunk.
    pub fn tower_done(&self, took_us: u64) {
        self.steps.fetch_add(1, Relaxed);
        self.recent_prefill_us.lock().expect("not poisoned").push(took_us);
    }

    /// Counts a finished part of a warm-up. It is progress, and no measure of later steps: the first
    /// forwards of a process are the slowest.
    pub fn warm_up_done(&self) {
        self.steps.fetch_add(1, Relaxed);
    }

    /// Reports that loading failed for good.
    pub fn fail(&self, why: String) {
        *self.failure.lock().expect("not poisoned") = why;
        self.set_phase(WorkerPhase::Failed);
    }

    /// Sets the state of the link.
    pub fn set_link(&self, report: LinkReport) {
        *self.link.lock().expect("not poisoned") = report;
    }

    /// Sets the totals of speculation since the start.
    pub fn set_speculation(&self, totals: SpeculationTotals) {
        *self.speculation.lock().expect("not poisoned") = totals;
    }

    /// Sets the measured figures of speculation.
    pub fn set_figures(&self, figures: SpeculationFigures) {
        *self.figures.lock().expect("not poisoned") = Some(figures);
    }

    /// Sets the memory that the process holds in arrays.
    pub fn set_memory(&self, memory: MemoryUse) {
        *self.memory.lock().expect("not poisoned") = Some(memory);
    }

    /// Tokens prefilled and decoded so far.
    pub fn tokens(&self) -> (u64, u64) {
        (self.prefill_tokens.load(Relaxed), self.decode_tokens.load(Relaxed))
    }

    /// Median and 99th percentile of recent decode steps, µs; 0 before the first.
    pub fn step_us(&self) -> (u32, u32) {
        self.recent_us.lock().expect("not poisoned").percentiles()
    }

    fn step_times(&self) -> StepTimes {
        let prefill = self.recent_prefill_us.lock().expect("not poisoned").percentiles();
        StepTimes { prefill_p99_us: prefill.1, decode_p99_us: self.step_us().1 }
    }

    /// A heartbeat with all figures.
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
                tap_bytes: self.tap_bytes.load(Relaxed),
                prefix_bytes: self.prefix_bytes.load(Relaxed),
            }),
            sequences: self.sequences.load(Relaxed),
            unstarted: self.unstarted.load(Relaxed),
            unstarted_tokens: self.unstarted_tokens.load(Relaxed),
            failure: self.failure.lock().expect("not poisoned").clone(),
            link: Some(self.link.lock().expect("not poisoned").clone()),
            speculation: Some(*self.speculation.lock().expect("not poisoned")),
            figures: self.figures.lock().expect("not poisoned").clone(),
            step_times: Some(self.step_times()),
            memory: self.memory(),
        }
    }

    fn memory(&self) -> Option<MemoryUse> {
        let memory = (*self.memory.lock().expect("not poisoned"))?;
        let active_bytes = memory.active_bytes + self.grammar_bytes.load(Relaxed);
        Some(MemoryUse { active_bytes, ..memory })
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
        let beat = progress.heartbeat(3);
        assert_eq!(beat.steps, 1001);
        assert_eq!(
            beat.step_times,
            Some(StepTimes { prefill_p99_us: 999_999, decode_p99_us: 998 })
        );
        assert_eq!((beat.figures, beat.memory), (None, None));
    }
}
