//! Events that a worker's state machine receives, and actions that it orders.

use std::sync::Arc;

use paceline_vocabulary::Epoch;
use paceline_vocabulary::report::Heartbeat;

use super::life::{WorkerDescription, WorkerExit};
use super::wired::WiredReading;

/// Event that a worker's state machine receives.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "fields are what their types say")]
pub enum Event {
    /// It is to run with this model; empty is the configuration's. Earlier failures do not count.
    StartAsked { model: String },
    /// A process that an earlier supervisor left, found instead of a spawn, or before a drafter was
    /// started.
    Found { epoch: Epoch, pid: u32 },
    /// The process was started.
    Spawned { epoch: Epoch, pid: u32 },
    /// The process could not be started.
    SpawnFailed { cause: String },
    /// A heartbeat.
    Heartbeat(Box<Heartbeat>),
    /// It described what it serves.
    Described { epoch: Epoch, described: Arc<WorkerDescription> },
    /// It was found, and is not what this supervisor would start.
    Foreign { epoch: Epoch, cause: String },
    /// It was asked for its description and did not give one.
    DescribeFailed { epoch: Epoch },
    /// The control message to end reached it, or did not.
    StopAnswered { epoch: Epoch, reached: bool },
    /// It is stopped by job control and can answer nothing but SIGKILL.
    Frozen { epoch: Epoch },
    /// The process is gone.
    Exited { epoch: Epoch, exit: WorkerExit, log: String },
    /// The machine's wired memory was read; `None`: the system does not say.
    WiredRead(Option<WiredReading>),
    /// The model's files were looked at; another number stands for other files.
    FilesSeen { files: u64 },
    /// It broke the protocol of its link: it is ended at once, and the end counts as unexpected.
    Condemned { epoch: Epoch, cause: String },
    /// The service takes nothing new: no epoch follows the present one.
    DrainAsked,
    /// It is to end, and why.
    EndAsked { cause: &'static str },
    /// The service stops, and the time to end is over.
    KillAsked,
}

impl Event {
    pub(super) fn name(&self) -> &'static str {
        match self {
            Event::StartAsked { .. } => "start asked",
            Event::Found { .. } => "found",
            Event::Spawned { .. } => "spawned",
            Event::SpawnFailed { .. } => "spawn failed",
            Event::Heartbeat(_) => "heartbeat",
            Event::Described { .. } => "described",
            Event::Foreign { .. } => "foreign",
            Event::DescribeFailed { .. } => "describe failed",
            Event::StopAnswered { .. } => "stop answered",
            Event::Frozen { .. } => "frozen",
            Event::Exited { .. } => "exited",
            Event::WiredRead(_) => "wired memory read",
            Event::FilesSeen { .. } => "files seen",
            Event::Condemned { .. } => "condemned",
            Event::DrainAsked => "drain asked",
            Event::EndAsked { .. } => "end asked",
            Event::KillAsked => "kill asked",
        }
    }

    /// The epoch that it concerns.
    pub(crate) fn epoch(&self) -> Option<Epoch> {
        match self {
            Event::Heartbeat(heartbeat) => Some(heartbeat.epoch),
            Event::Described { epoch, .. }
            | Event::DescribeFailed { epoch }
            | Event::Foreign { epoch, .. }
            | Event::StopAnswered { epoch, .. }
            | Event::Frozen { epoch }
            | Event::Condemned { epoch, .. }
            | Event::Exited { epoch, .. } => Some(*epoch),
            _ => None,
        }
    }
}

/// Action that a worker's state machine orders.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "fields are what their types say")]
pub enum Action {
    /// Read the machine's wired memory and answer `WiredRead` at once.
    ReadWired,
    /// Start a process with this model and answer `Spawned` or `SpawnFailed`. If an earlier process
    /// is left, answer `Found` instead. Look at the model's files as well.
    Spawn { model: String },
    /// Look at this model's files and answer `FilesSeen`.
    LookAtFiles { model: String },
    /// Send the control message to end, at once, and answer `StopAnswered`.
    AskStop { epoch: Epoch, cause: String },
    /// Send SIGTERM.
    Terminate { epoch: Epoch },
    /// Send SIGKILL.
    Kill { epoch: Epoch },
    /// Ask for its description and answer `Described` or `DescribeFailed`.
    Describe { epoch: Epoch },
    /// Remove what a dead process left in the runtime directory.
    Clear,
    /// This epoch serves no request any more: its running requests have to end.
    Abandon { epoch: Epoch, cause: String },
    /// Log that the phase changed; of the last epoch that began.
    LogPhase { epoch: Epoch, from: &'static str, to: &'static str, cause: String },
    /// Log that an event came that means nothing in this phase.
    Surprise { phase: &'static str, event: &'static str },
}
