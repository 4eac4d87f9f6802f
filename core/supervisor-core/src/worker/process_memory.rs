//! Memory of one worker process.

use super::life::Life;

/// Bytes of one process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessMemory {
    /// Bytes of arrays and buffers in use.
    pub active: u64,
    /// Bytes that were freed and are kept for reuse.
    pub cache: u64,
}

impl ProcessMemory {
    /// By the process's own report. Before its first report: the weights it has read, and what its
    /// sequences hold.
    pub fn of(life: &Life) -> Self {
        let heartbeat = life.heartbeat.as_ref();
        match heartbeat
            .and_then(|heartbeat| heartbeat.memory)
            .filter(|memory| memory.active_bytes > 0)
        {
            Some(memory) => Self { active: memory.active_bytes, cache: memory.cache_bytes },
            None => {
                let weights = life.described.as_ref().map(|described| described.weight_bytes());
                let read = heartbeat.map_or(0, |heartbeat| heartbeat.loaded_bytes);
                let held =
                    heartbeat.and_then(|heartbeat| heartbeat.kv).map_or(0, |kv| kv.held_bytes);
                Self { active: weights.unwrap_or(read).saturating_add(held), cache: 0 }
            }
        }
    }

    /// The sum with another process's. Workers report these figures, so no sum of them may
    /// overflow.
    pub fn plus(self, other: Self) -> Self {
        Self {
            active: self.active.saturating_add(other.active),
            cache: self.cache.saturating_add(other.cache),
        }
    }

    /// All bytes of the process.
    pub fn all(self) -> u64 {
        self.active.saturating_add(self.cache)
    }
}
