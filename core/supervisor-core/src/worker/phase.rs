//! The states of a worker process.
//!
//! ```text
//!            StartAsked           first heartbeat       Described
//!  Stopped ────────────▶ Starting ──────────▶ Loading ────────────▶ Ready ◀──────▶ Suspect
//!     ▲                   │  ▲  ▲                │                    │               │
//!     │           Foreign │  │  │ until          └─────── hung ───────┴───────────────┤
//!     │                   ▼  │  │                                                     ▼
//!     └─── asked ─────── Ending │ ◀──────────── control message, SIGTERM, SIGKILL ────┘
//!                           │   │
//!          Exited, from any │   └── BackingOff ◀── budget left ──┐
//!                           ▼                                    │
//!                   (unexpected end) ── budget spent ──▶ Failed ─┴▶ Starting, by itself, later
//! ```
//! - Stopped → Starting: a start is asked for; the core orders `Spawn`.
//! - Starting → Loading: the first heartbeat arrives.
//! - Loading → Ready: the worker has loaded and describes itself.
//! - Ready → Suspect: no heartbeat for `silent_ms`, or the worker ends without being asked.
//! - Suspect → Ready: a heartbeat arrives again.
//! - Starting, Loading, Ready, Suspect → Ending, for one of four reasons:
//!   - the worker hangs
//!   - it broke the link's protocol
//!   - it is not the worker that this supervisor would start (`Foreign`)
//!   - it is asked to end
//! - Ending → Stopped: the process that was asked to end is gone, or is given up after SIGKILL.
//! - Ending → Starting: the foreign process of a target is gone; the target is started.
//! - any → BackingOff: the process ended unexpectedly; the restart budget allows a later start.
//! - any → Starting: the process ended unexpectedly; the restart budget allows a start at once.
//! - any → Failed: the process ended unexpectedly; the restart budget is spent. The next try is
//!   minutes away.
//! - BackingOff, Failed → Starting: the pause is over, or a start is asked for. After a refusal of the
//!   model's files Failed ends only when they change, or by an order ([`super::refusal`]).
//! - any → BackingOff → Starting or Failed: the process was killed on a system where that can strand
//!   memory, and the memory is waited for ([`super::host_memory`]).

use paceline_vocabulary::Millis;
use paceline_vocabulary::state::WorkerPhase;

use super::life::WorkerExit;

/// Why a live worker gets no requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SuspectReason {
    /// No heartbeat.
    Silent,
    /// It reports that it ends, and nobody asked it to.
    Leaving,
}

/// Activity in which a worker hung.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HangKind {
    /// It never sent a heartbeat.
    Unseen,
    /// It was loading.
    Loading,
    /// It had loaded and did not describe itself.
    Undescribed,
    /// It was in this phase.
    Working(WorkerPhase),
    /// It sent no heartbeats any more.
    Silent,
}

/// Why a process is being ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// An earlier supervisor left it, and it is not what this one would start; `Life::failure` says
    /// why.
    Foreign,
    /// It hangs.
    Hung(HangKind),
    /// It broke the link's protocol, and the target ejected it; `Life::failure` says how.
    Condemned,
    /// It is asked to end, and why.
    Asked(&'static str),
}

/// How a process is being ended; each stage is harder than the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopStage {
    /// By the control message.
    Asked,
    /// By SIGTERM.
    Terminated,
    /// By SIGKILL.
    Killed,
}

/// An end that nobody asked for.
#[derive(Clone, Debug)]
pub(super) enum UnexpectedEnd {
    /// The process exited.
    Exited(WorkerExit),
    /// It hung and was ended; why.
    Hung(String),
    /// It could not be started; why.
    NotStarted(String),
}

/// State of a worker.
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
    Suspect { reason: SuspectReason },
    Ending { why: StopReason, stage: StopStage, answered: bool, until: Millis, most: Millis },
    BackingOff { until: Millis },
    Failed { retry: Option<Millis> },
}

impl Phase {
    /// Name of the phase in logs.
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
