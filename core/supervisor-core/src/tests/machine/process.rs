//! A worker's process on the simulated machine, and what can be wrong with it.

use crate::tests::testing::*;

/// A process.
#[derive(Clone, Debug)]
pub(super) struct Process {
    pub(super) epoch: Epoch,
    /// Directory of a drafter.
    pub(super) model: String,
    /// The weights are loaded from then on. In a crash loop the process ends then instead.
    pub(super) loaded_at: u64,
    pub(super) frozen: bool,
    pub(super) hung: bool,
    /// SIGKILL is on its way: it shows nothing any more.
    pub(super) killed: bool,
    /// It was asked to end and does.
    pub(super) leaving: bool,
    /// It was faulty at some time: to end it as hung may be right.
    pub(super) was_faulty: bool,
    pub(super) steps: u64,
    pub(super) stepped_at: u64,
    /// Heartbeats of a process arrive in their order.
    pub(super) last_message_at: u64,
}

impl Process {
    pub(super) fn new(epoch: Epoch, model: String, now: u64, load_ms: u64) -> Self {
        Self {
            epoch,
            model,
            loaded_at: now + load_ms,
            frozen: false,
            hung: false,
            killed: false,
            leaving: false,
            was_faulty: load_ms > 25_000,
            steps: 0,
            stepped_at: now,
            last_message_at: now,
        }
    }

    /// Phase of the process, with work or without.
    pub(super) fn phase(&self, now: u64, busy: bool, prefill: bool) -> WorkerPhase {
        match () {
            () if self.leaving => WorkerPhase::Stopping,
            () if now < self.loaded_at => WorkerPhase::Loading,
            () if self.hung || (busy && !prefill) => WorkerPhase::Decode,
            () if busy => WorkerPhase::Prefill,
            () => WorkerPhase::Idle,
        }
    }
}

/// Faults of the machine at this moment; index 0 is the target, 1 the drafters.
#[derive(Clone, Debug, Default)]
pub(super) struct Faults {
    /// Number of next starts that end while they load.
    pub(super) loops: [u64; 2],
    /// The model's files are refused until then.
    pub(super) unloadable_until: [u64; 2],
    /// Number of next starts that do not come about.
    pub(super) unstartable: [u64; 2],
    /// Additional milliseconds of the next load.
    pub(super) slow_load_ms: [u64; 2],
    /// Heartbeats are lost until then.
    pub(super) silent_until: [u64; 2],
    /// Steps take 8 s until then.
    pub(super) slow_until: u64,
    /// Every second permit or policy is lost on its way to the target, or the answer, until then.
    pub(super) unreached_until: u64,
    /// The target refuses the next link.
    pub(super) refuses: bool,
    /// Drafts come too late until then.
    pub(super) late_until: u64,
    /// Gain of speculation that the target has measured, in percent of plain decoding.
    pub(super) gain: Option<u64>,
    /// Percent of the KV budget that is held, and until when.
    pub(super) pressure: (u64, u64),
}

/// The files of the models.
#[derive(Clone, Debug, Default)]
pub(super) struct ModelFiles {
    /// An even number for files that are refused, the next one once they are mended; index as in
    /// [`Faults`].
    pub(super) damaged: [u64; 2],
    /// At the last start of the target.
    pub(super) tried: u64,
    /// The supervisor has the answer of its look at that start.
    pub(super) told: bool,
    /// At a refusal of the target that no order was open at, with the number of orders so far and
    /// the supervisor's term.
    pub(super) refused: Option<(u64, u64, u64)>,
}

/// Index of a worker in the arrays of [`Faults`].
pub(super) fn kind(worker: WorkerId) -> usize {
    match worker {
        WorkerId::Target => 0,
        WorkerId::Drafter(_) => 1,
    }
}
