//! One life of a worker: which process it is, what it last showed of itself, and when it last got
//! anywhere.

use std::fmt;
use std::sync::Arc;

use paceline_proto::internal::v1::{DrafterInfo, Heartbeat, ModelInfo, WorkerPhase};
use paceline_vocabulary::Epoch;
use paceline_vocabulary::Millis;

use crate::core::admission::Capacity;

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// By itself, with this code.
    Code(i32),
    /// By this signal.
    Signal(i32),
    /// It was not our child: gone is all we know.
    Unknown,
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |names: &[(i32, &'static str)], n: i32| {
            names.iter().find(|(m, _)| *m == n).map(|(_, name)| *name)
        };
        match self {
            Exit::Code(code) => {
                let known = [
                    (64, "bad configuration"),
                    (69, "something it needs is missing"),
                    (70, "internal error"),
                    (78, "host memory is stranded"),
                ];
                write!(f, "exit code {code}")?;
                name(&known, *code).map_or(Ok(()), |meaning| write!(f, " ({meaning})"))
            }
            Exit::Signal(signal) => {
                // The numbers that Linux and macOS share; others are given as numbers.
                let known = [
                    (3, "SIGQUIT"),
                    (4, "SIGILL"),
                    (5, "SIGTRAP"),
                    (6, "SIGABRT"),
                    (8, "SIGFPE"),
                    (9, "SIGKILL"),
                ];
                let more = [(11, "SIGSEGV"), (13, "SIGPIPE"), (15, "SIGTERM")];
                write!(f, "signal {signal}")?;
                let found = name(&known, *signal).or_else(|| name(&more, *signal));
                found.map_or(Ok(()), |word| write!(f, " ({word})"))
            }
            Exit::Unknown => f.write_str("ended"),
        }
    }
}

/// What a loaded worker says of itself.
#[derive(Clone, Debug, PartialEq)]
pub enum Described {
    /// A target.
    Target {
        /// The model it serves.
        model: ModelInfo,
        /// What it can hold.
        capacity: Capacity,
    },
    /// A drafter.
    Drafter(DrafterInfo),
}

impl Described {
    /// Whether work can be given to it by what it says.
    pub fn is_usable(&self) -> bool {
        match self {
            Described::Target { capacity, .. } => capacity.is_usable(),
            // A block is the bonus token and at least one more.
            Described::Drafter(info) => info.block_size >= 2,
        }
    }

    /// What a target can hold.
    pub fn capacity(&self) -> Option<&Capacity> {
        match self {
            Described::Target { capacity, .. } => Some(capacity),
            Described::Drafter(_) => None,
        }
    }

    /// The model a target serves.
    pub fn model(&self) -> Option<&ModelInfo> {
        match self {
            Described::Target { model, .. } => Some(model),
            Described::Drafter(_) => None,
        }
    }

    /// What a drafter proposes.
    pub fn drafter(&self) -> Option<&DrafterInfo> {
        match self {
            Described::Drafter(info) => Some(info),
            Described::Target { .. } => None,
        }
    }

    /// Bytes of its weights.
    pub fn weight_bytes(&self) -> u64 {
        match self {
            Described::Target { model, .. } => model.weight_bytes,
            Described::Drafter(info) => info.weight_bytes,
        }
    }
}

/// A process and what it last showed.
#[derive(Clone, Debug)]
pub struct Life {
    /// Its number.
    pub epoch: Epoch,
    /// Its process id.
    pub pid: u32,
    /// When it was started, or found.
    pub since: Millis,
    /// Its last heartbeat.
    pub beat: Option<Heartbeat>,
    /// Its description, once it has loaded.
    pub described: Option<Arc<Described>>,
    /// An earlier supervisor started it.
    pub earlier: bool,
    /// A description was asked for and has not come.
    pub describing: bool,
    /// Why it failed, in its own words.
    pub failure: String,
    budget_bytes: Option<u64>,
    heard: Millis,
    moved: Millis,
}

impl Life {
    /// A life that begins, or is found, at `now`.
    pub fn new(epoch: Epoch, pid: u32, now: Millis) -> Self {
        Self {
            epoch,
            pid,
            since: now,
            beat: None,
            described: None,
            earlier: false,
            describing: false,
            failure: String::new(),
            budget_bytes: None,
            heard: now,
            moved: now,
        }
    }

    /// Takes a heartbeat in; returns whether it shows progress.
    pub fn hear(&mut self, beat: Heartbeat, now: Millis) -> bool {
        let new = self.beat.as_ref().is_none_or(|last| mark(last) != mark(&beat));
        // Without work nothing moves, rightly. Before it is described a worker owes us that much,
        // idle or not.
        let rests = beat.phase() == WorkerPhase::Idle && self.described.is_some();
        self.heard = now;
        if new || rests {
            self.moved = now;
        }
        if !beat.failure.is_empty() {
            self.failure.clone_from(&beat.failure);
        }
        if let Some(kv) = &beat.kv {
            self.budget_bytes = Some(kv.budget_bytes);
        }
        self.beat = Some(beat);
        new
    }

    /// Its last heartbeat came then.
    pub fn heard(&self) -> Millis {
        self.heard
    }

    /// It last got somewhere then.
    pub fn moved(&self) -> Millis {
        self.moved
    }

    /// We were not awake to listen: it starts at `now` with a clean sheet.
    pub fn forgive(&mut self, now: Millis) {
        self.heard = now;
        self.moved = now;
    }

    /// What it does, as it last said.
    pub fn phase(&self) -> WorkerPhase {
        self.beat.as_ref().map_or(WorkerPhase::Unspecified, Heartbeat::phase)
    }

    /// Bytes its sequences may hold together; `None` before it said so.
    pub fn budget_bytes(&self) -> Option<u64> {
        self.budget_bytes
    }

    /// Bytes that sequences held by the last heartbeat, without what is kept for a drafter: that is
    /// given up before a request waits.
    pub fn kv_bytes(&self) -> u64 {
        let kv = self.beat.as_ref().and_then(|beat| beat.kv);
        kv.map_or(0, |kv| kv.held_bytes.saturating_sub(kv.tap_bytes))
    }
}

/// The facts by which two heartbeats are compared. New requests are no progress, so the number of
/// sequences and what they hold count only while it gives them back.
fn mark(beat: &Heartbeat) -> (i32, u64, u64, u32, u64) {
    let stopping = beat.phase() == WorkerPhase::Stopping;
    let held = beat.kv.as_ref().map_or(0, |kv| kv.held_bytes);
    let (sequences, held) = if stopping { (beat.sequences, held) } else { (0, 0) };
    (beat.phase, beat.steps, beat.loaded_bytes, sequences, held)
}

#[cfg(test)]
mod tests {
    use paceline_proto::internal::v1::KvUse;

    use super::*;

    fn beat(phase: WorkerPhase, steps: u64) -> Heartbeat {
        Heartbeat { phase: phase.into(), steps, ..Default::default() }
    }

    #[test]
    fn a_busy_worker_moves_by_steps_and_an_idle_one_by_being_there() {
        let mut life = Life::new(Epoch(1), 7, Millis(0));
        life.described = Some(Arc::new(Described::Drafter(DrafterInfo::default())));
        assert!(life.hear(beat(WorkerPhase::Decode, 1), Millis(10)));
        assert!(!life.hear(beat(WorkerPhase::Decode, 1), Millis(20)));
        assert_eq!((life.heard(), life.moved()), (Millis(20), Millis(10)));
        life.hear(beat(WorkerPhase::Idle, 1), Millis(30));
        life.hear(beat(WorkerPhase::Idle, 1), Millis(40));
        assert_eq!(life.moved(), Millis(40));
    }

    #[test]
    fn new_requests_are_no_progress_of_a_wedged_engine() {
        let mut life = Life::new(Epoch(1), 7, Millis(0));
        life.hear(beat(WorkerPhase::Decode, 1), Millis(10));
        assert!(!life.hear(Heartbeat { sequences: 9, ..beat(WorkerPhase::Decode, 1) }, Millis(20)));
        assert!(
            life.hear(Heartbeat { sequences: 9, ..beat(WorkerPhase::Stopping, 1) }, Millis(30))
        );
        assert!(
            life.hear(Heartbeat { sequences: 8, ..beat(WorkerPhase::Stopping, 1) }, Millis(40))
        );
    }

    #[test]
    fn what_is_kept_for_a_drafter_is_in_nobodys_way() {
        let mut life = Life::new(Epoch(1), 7, Millis(0));
        let kv = KvUse { held_bytes: 100, tap_bytes: 30, ..Default::default() };
        life.hear(Heartbeat { kv: Some(kv), ..beat(WorkerPhase::Decode, 1) }, Millis(10));
        assert_eq!(life.kv_bytes(), 70);
    }

    #[test]
    fn ends_are_named() {
        assert_eq!(Exit::Signal(9).to_string(), "signal 9 (SIGKILL)");
        assert_eq!(Exit::Signal(35).to_string(), "signal 35");
        assert_eq!(Exit::Code(69).to_string(), "exit code 69 (something it needs is missing)");
        assert_eq!(Exit::Code(1).to_string(), "exit code 1");
    }
}
