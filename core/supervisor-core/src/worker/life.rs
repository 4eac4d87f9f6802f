//! One epoch of a worker: its process, its last heartbeat, and when it last made progress.

use std::fmt;
use std::sync::Arc;

use paceline_vocabulary::report::{DrafterInfo, Heartbeat, ModelInfo, SpeculationFigures};
use paceline_vocabulary::state::WorkerPhase;
use paceline_vocabulary::{Epoch, Exit, Millis};

use crate::capacity::Capacity;

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkerExit {
    /// By itself, with this code.
    Code(i32),
    /// By this signal.
    Signal(i32),
    /// It was not our child: gone is all we know.
    Unknown,
}

impl fmt::Display for WorkerExit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WorkerExit::Code(code) => {
                let meaning = match Exit::of(*code) {
                    Some(Exit::Config) => " (bad configuration)",
                    Some(Exit::ModelRefused) => " (the model is refused)",
                    Some(Exit::Unavailable) => " (something it needs is missing)",
                    Some(Exit::Bug) => " (internal error)",
                    Some(Exit::MemoryStranded) => " (host memory is stranded)",
                    Some(Exit::Asked | Exit::RestartMe) | None => "",
                };
                write!(f, "exit code {code}{meaning}")
            }
            WorkerExit::Signal(signal) => {
                // The numbers that Linux and macOS share; others are given as numbers.
                let word = match signal {
                    3 => " (SIGQUIT)",
                    4 => " (SIGILL)",
                    5 => " (SIGTRAP)",
                    6 => " (SIGABRT)",
                    8 => " (SIGFPE)",
                    9 => " (SIGKILL)",
                    11 => " (SIGSEGV)",
                    13 => " (SIGPIPE)",
                    15 => " (SIGTERM)",
                    _ => "",
                };
                write!(f, "signal {signal}{word}")
            }
            WorkerExit::Unknown => f.write_str("ended"),
        }
    }
}

/// How a loaded worker describes itself.
#[derive(Clone, Debug, PartialEq)]
pub enum WorkerDescription {
    /// A target.
    Target {
        /// The model it serves.
        model: ModelInfo,
        /// Capacity of the target.
        capacity: Capacity,
    },
    /// A drafter.
    Drafter(DrafterInfo),
}

impl WorkerDescription {
    /// Whether work can be given to it.
    pub fn is_usable(&self) -> bool {
        match self {
            WorkerDescription::Target { capacity, .. } => capacity.is_usable(),
            // A block is the bonus token and at least one more.
            WorkerDescription::Drafter(info) => info.block_size >= 2,
        }
    }

    /// Capacity of a target.
    pub fn capacity(&self) -> Option<&Capacity> {
        match self {
            WorkerDescription::Target { capacity, .. } => Some(capacity),
            WorkerDescription::Drafter(_) => None,
        }
    }

    /// The model a target serves.
    pub fn model(&self) -> Option<&ModelInfo> {
        match self {
            WorkerDescription::Target { model, .. } => Some(model),
            WorkerDescription::Drafter(_) => None,
        }
    }

    /// Description of a drafter.
    pub fn drafter(&self) -> Option<&DrafterInfo> {
        match self {
            WorkerDescription::Drafter(info) => Some(info),
            WorkerDescription::Target { .. } => None,
        }
    }

    /// Bytes of its weights.
    pub fn weight_bytes(&self) -> u64 {
        match self {
            WorkerDescription::Target { model, .. } => model.weight_bytes,
            WorkerDescription::Drafter(info) => info.weight_bytes,
        }
    }
}

/// A process and its last heartbeat.
#[derive(Clone, Debug)]
pub struct Life {
    /// Number of the life.
    pub epoch: Epoch,
    /// Id of the process.
    pub pid: u32,
    /// When it was started, or found.
    pub since: Millis,
    /// Last heartbeat of the process.
    pub heartbeat: Option<Heartbeat>,
    /// Description of the process, once it has loaded.
    pub described: Option<Arc<WorkerDescription>>,
    /// An earlier supervisor started it.
    pub earlier: bool,
    /// A description was asked for and has not come.
    pub describing: bool,
    /// Why it failed, in its own words.
    pub failure: String,
    budget_bytes: Option<u64>,
    last_heartbeat_at: Millis,
    last_progress_at: Millis,
}

impl Life {
    /// An epoch that begins, or is found, at `now`.
    pub fn new(epoch: Epoch, pid: u32, now: Millis) -> Self {
        Self {
            epoch,
            pid,
            since: now,
            heartbeat: None,
            described: None,
            earlier: false,
            describing: false,
            failure: String::new(),
            budget_bytes: None,
            last_heartbeat_at: now,
            last_progress_at: now,
        }
    }

    /// Takes a heartbeat; returns whether it shows progress.
    pub fn on_heartbeat(&mut self, heartbeat: Heartbeat, now: Millis) -> bool {
        let new = self
            .heartbeat
            .as_ref()
            .is_none_or(|last| Progress::of(last) != Progress::of(&heartbeat));
        // An idle worker makes no steps, rightly. Before its description even an idle worker has
        // to make progress.
        let rests = heartbeat.phase == WorkerPhase::Idle && self.described.is_some();
        self.last_heartbeat_at = now;
        if new || rests {
            self.last_progress_at = now;
        }
        if !heartbeat.failure.is_empty() {
            self.failure.clone_from(&heartbeat.failure);
        }
        if let Some(kv) = &heartbeat.kv {
            self.budget_bytes = Some(kv.budget_bytes);
        }
        self.heartbeat = Some(heartbeat);
        new
    }

    /// Time of its last heartbeat.
    pub fn last_heartbeat_at(&self) -> Millis {
        self.last_heartbeat_at
    }

    /// Time of its last progress.
    pub fn last_progress_at(&self) -> Millis {
        self.last_progress_at
    }

    /// The supervisor was not running: earlier silence does not count.
    pub fn discount_lost_time(&mut self, now: Millis) {
        self.last_heartbeat_at = now;
        self.last_progress_at = now;
    }

    /// The phase of its last heartbeat; `None` before the first.
    pub fn phase(&self) -> Option<WorkerPhase> {
        self.heartbeat.as_ref().map(|heartbeat| heartbeat.phase)
    }

    /// Bytes that its sequences may hold together; `None` before its first report.
    pub fn budget_bytes(&self) -> Option<u64> {
        self.budget_bytes
    }

    /// Share of the KV budget that running requests hold.
    pub fn kv_pressure(&self) -> f64 {
        let kv = self.heartbeat.as_ref().and_then(|heartbeat| heartbeat.kv).unwrap_or_default();
        if kv.budget_bytes == 0 { 0.0 } else { kv.held_bytes as f64 / kv.budget_bytes as f64 }
    }

    /// Figures of speculation from a target, once it has measured drafts: before, every gain is 1
    /// and means nothing.
    pub fn figures(&self) -> Option<&SpeculationFigures> {
        let figures = self.heartbeat.as_ref()?.figures.as_ref()?;
        figures.draft.is_some_and(|draft| draft.observations > 0).then_some(figures)
    }

    /// Bytes that sequences held by the last heartbeat, without hidden states for the drafter:
    /// these are freed before a request waits.
    pub fn kv_bytes(&self) -> u64 {
        let kv = self.heartbeat.as_ref().and_then(|heartbeat| heartbeat.kv);
        kv.map_or(0, |kv| kv.held_bytes.saturating_sub(kv.hidden_bytes))
    }
}

/// The figures by which progress is judged. New requests are no progress: sequences and what they
/// hold count only while the worker stops and gives them back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Progress {
    phase: WorkerPhase,
    steps: u64,
    loaded_bytes: u64,
    sequences: u32,
    held_bytes: u64,
}

impl Progress {
    fn of(heartbeat: &Heartbeat) -> Self {
        let stopping = heartbeat.phase == WorkerPhase::Stopping;
        let held_bytes = heartbeat.kv.map_or(0, |kv| kv.held_bytes);
        let (sequences, held_bytes) =
            if stopping { (heartbeat.sequences, held_bytes) } else { (0, 0) };
        let Heartbeat { phase, steps, loaded_bytes, .. } = *heartbeat;
        Self { phase, steps, loaded_bytes, sequences, held_bytes }
    }
}

#[cfg(test)]
mod tests {
    use paceline_vocabulary::report::KvUse;

    use super::*;

    fn heartbeat(phase: WorkerPhase, steps: u64) -> Heartbeat {
        Heartbeat { steps, ..Heartbeat::new(Epoch(1), phase) }
    }

    #[test]
    fn a_busy_worker_progresses_by_steps_and_an_idle_one_by_heartbeats() {
        let mut life = Life::new(Epoch(1), 7, Millis(0));
        life.described = Some(Arc::new(WorkerDescription::Drafter(DrafterInfo::default())));
        assert!(life.on_heartbeat(heartbeat(WorkerPhase::Decode, 1), Millis(10)));
        assert!(!life.on_heartbeat(heartbeat(WorkerPhase::Decode, 1), Millis(20)));
        assert_eq!((life.last_heartbeat_at(), life.last_progress_at()), (Millis(20), Millis(10)));
        life.on_heartbeat(heartbeat(WorkerPhase::Idle, 1), Millis(30));
        life.on_heartbeat(heartbeat(WorkerPhase::Idle, 1), Millis(40));
        assert_eq!(life.last_progress_at(), Millis(40));
    }

    #[test]
    fn a_warm_up_progresses_by_its_steps_and_not_by_heartbeats() {
        let mut life = Life::new(Epoch(1), 7, Millis(0));
        for (steps, at) in [(0, 10), (1, 20_000), (2, 40_000)] {
            assert!(life.on_heartbeat(heartbeat(WorkerPhase::Loading, steps), Millis(at)));
        }
        assert!(!life.on_heartbeat(heartbeat(WorkerPhase::Loading, 2), Millis(60_000)));
        assert_eq!(life.last_progress_at(), Millis(40_000));
    }

    #[test]
    fn new_requests_are_no_progress_of_a_wedged_engine() {
        let mut life = Life::new(Epoch(1), 7, Millis(0));
        life.on_heartbeat(heartbeat(WorkerPhase::Decode, 1), Millis(10));
        assert!(!life.on_heartbeat(
            Heartbeat { sequences: 9, ..heartbeat(WorkerPhase::Decode, 1) },
            Millis(20)
        ));
        assert!(life.on_heartbeat(
            Heartbeat { sequences: 9, ..heartbeat(WorkerPhase::Stopping, 1) },
            Millis(30)
        ));
        assert!(life.on_heartbeat(
            Heartbeat { sequences: 8, ..heartbeat(WorkerPhase::Stopping, 1) },
            Millis(40)
        ));
    }

    #[test]
    fn hidden_states_do_not_count_as_held_by_sequences() {
        let mut life = Life::new(Epoch(1), 7, Millis(0));
        let kv = KvUse { held_bytes: 100, hidden_bytes: 30, ..Default::default() };
        life.on_heartbeat(
            Heartbeat { kv: Some(kv), ..heartbeat(WorkerPhase::Decode, 1) },
            Millis(10),
        );
        assert_eq!(life.kv_bytes(), 70);
    }

    #[test]
    fn exits_are_named() {
        assert_eq!(WorkerExit::Signal(9).to_string(), "signal 9 (SIGKILL)");
        assert_eq!(WorkerExit::Signal(35).to_string(), "signal 35");
        assert_eq!(
            WorkerExit::Code(69).to_string(),
            "exit code 69 (something it needs is missing)"
        );
        assert_eq!(WorkerExit::Code(1).to_string(), "exit code 1");
    }
}
