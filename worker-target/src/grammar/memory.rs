//! Memory of grammars: those that are kept, the vocabulary, and the copies of running sequences.
//! Heartbeats carry the sum.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use paceline_process::worker::Progress;

/// Bytes of grammars.
#[derive(Debug)]
pub(super) struct GrammarMemory {
    kept: AtomicU64,
    running: AtomicU64,
    progress: Arc<Progress>,
}

/// Bytes of one sequence's copy, until it is dropped.
#[derive(Debug)]
pub(super) struct HeldBytes {
    memory: Arc<GrammarMemory>,
    bytes: u64,
}

impl GrammarMemory {
    /// Nothing is held yet.
    pub(super) fn new(progress: Arc<Progress>) -> Self {
        Self { kept: AtomicU64::new(0), running: AtomicU64::new(0), progress }
    }

    /// Sets what compiled grammars and the vocabulary hold.
    pub(super) fn set_kept(&self, bytes: u64) {
        self.kept.store(bytes, Relaxed);
        self.report();
    }

    /// Counts a sequence's copy.
    pub(super) fn hold(self: &Arc<Self>, bytes: u64) -> HeldBytes {
        self.running.fetch_add(bytes, Relaxed);
        self.report();
        HeldBytes { memory: Arc::clone(self), bytes }
    }

    fn report(&self) {
        self.progress.set_grammar_bytes(self.kept.load(Relaxed) + self.running.load(Relaxed));
    }
}

impl Drop for HeldBytes {
    fn drop(&mut self) {
        self.memory.running.fetch_sub(self.bytes, Relaxed);
        self.memory.report();
    }
}
