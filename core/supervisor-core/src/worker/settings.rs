//! The bounds of a worker's process.

/// Settings of a worker that the core knows in advance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerSettings {
    /// Bounds of its states.
    pub timeouts: WorkerTimeouts,
    /// Starts allowed in any `restart_period_ms`.
    pub restarts: u32,
    /// Also how long an epoch has to last until earlier failures are forgotten.
    pub restart_period_ms: u64,
    /// On this system a process that is killed at work can strand memory of the machine.
    pub kill_strands_memory: bool,
}

/// Timeouts of a worker, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerTimeouts {
    /// From the spawn to the first heartbeat.
    pub start_ms: u64,
    /// Without a further byte while loading.
    pub load_ms: u64,
    /// Without a heartbeat until it is suspect.
    pub silent_ms: u64,
    /// Without progress in a busy phase until it counts as hung.
    pub hang_ms: u64,
    /// From the control message to SIGTERM, for a process that is not hung.
    pub ask_ms: u64,
    /// From SIGTERM to SIGKILL, likewise.
    pub term_ms: u64,
    /// `ask_ms` and `term_ms` for a process that is hung or does not answer, without progress of
    /// its teardown.
    pub quiet_ms: u64,
    /// Longest time of one stage for a teardown that makes progress.
    pub teardown_ms: u64,
    /// From one SIGKILL to the next.
    pub kill_ms: u64,
}

impl Default for WorkerSettings {
    fn default() -> Self {
        let timeouts = WorkerTimeouts {
            start_ms: 30_000,
            load_ms: 30_000,
            silent_ms: 2_000,
            hang_ms: 10_000,
            ask_ms: 5_000,
            term_ms: 10_000,
            quiet_ms: 2_000,
            teardown_ms: 30_000,
            kill_ms: 5_000,
        };
        Self { timeouts, restarts: 5, restart_period_ms: 60_000, kill_strands_memory: false }
    }
}
