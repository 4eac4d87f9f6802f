//! Where a worker can stand, and how long it may take to get on.

use paceline_proto::internal::v1::WorkerPhase;
use paceline_vocabulary::Millis;

/// Bounds of a life, in milliseconds.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// From the spawn to the first heartbeat.
    pub start_ms: u64,
    /// Without a byte more while loading.
    pub load_ms: u64,
    /// Without a heartbeat until it is suspect.
    pub silent_ms: u64,
    /// Without progress in a busy phase until it is hung.
    pub hang_ms: u64,
    /// For the control message to end a process that is not hung.
    pub ask_ms: u64,
    /// For SIGTERM likewise.
    pub term_ms: u64,
    /// Without teardown progress of a process that is hung or does not answer.
    pub quiet_ms: u64,
    /// Longest wait on one rung for a teardown that makes progress.
    pub teardown_ms: u64,
    /// From one SIGKILL to the next look.
    pub kill_ms: u64,
}

/// Why a worker gets no requests although it lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doubt {
    /// No heartbeat.
    Silent,
    /// It says that it ends, and nobody asked.
    Leaving,
}

/// What a hung worker did when it stopped getting anywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hang {
    /// It never showed itself.
    Unseen,
    /// It was loading.
    Loading,
    /// It had loaded and did not say what.
    Undescribed,
    /// It was at this.
    Working(WorkerPhase),
    /// Nothing was heard of it.
    Silent,
}

/// Why a process is being ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndWhy {
    /// An earlier supervisor left it, and it is not what we would start; its life's `failure` says
    /// how.
    Foreign,
    /// It hangs.
    Hung(Hang),
    /// It broke the link's protocol, and the target let it go; its life's `failure` says how.
    Condemned,
    /// It is asked to, and why.
    Asked(&'static str),
}

/// How hard it is being ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rung {
    /// By the control message.
    Asked,
    /// By SIGTERM.
    Terminated,
    /// By SIGKILL.
    Killed,
}

/// Where a worker stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(
    missing_docs,
    reason = "the diagram above; times are when the phase began (`since`) or ends (`until`, `retry`)"
)]
pub enum Phase {
    Stopped,
    Starting { since: Millis },
    Loading { since: Millis },
    Ready { since: Millis },
    Suspect { doubt: Doubt },
    Ending { why: EndWhy, rung: Rung, answered: bool, until: Millis, most: Millis },
    BackingOff { until: Millis },
    Failed { retry: Option<Millis> },
}

impl Phase {
    /// Its word in logs.
    pub fn name(&self) -> &'static str {
        match self {
            Phase::Stopped => "stopped",
            Phase::Starting { .. } => "starting",
            Phase::Loading { .. } => "loading",
            Phase::Ready { .. } => "ready",
            Phase::Suspect { .. } => "suspect",
            Phase::Ending { .. } => "ending",
            Phase::BackingOff { .. } => "backing_off",
            Phase::Failed { .. } => "failed",
        }
    }
}
