//! The bounds of a worker's process.

use paceline_settings::SupervisorConfig;

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

impl WorkerSettings {
    /// The configuration's settings for a system where a kill strands memory, or for another, and
    /// where one stage of a teardown takes at most `teardown_ms`.
    pub fn of(supervisor: &SupervisorConfig, kill_strands_memory: bool, teardown_ms: u64) -> Self {
        let hang_ms = supervisor.hang_s.saturating_mul(1_000);
        let timeouts = WorkerTimeouts {
            start_ms: hang_ms.max(30_000),
            // A file system may pause longer than an engine: a false kill here costs a whole load.
            load_ms: hang_ms.max(30_000),
            silent_ms: 2_000,
            hang_ms,
            ask_ms: 5_000,
            term_ms: 10_000,
            quiet_ms: if kill_strands_memory { 10_000 } else { 2_000 },
            teardown_ms,
            kill_ms: 5_000,
        };
        let restart_period_ms = supervisor.restart_period_s.saturating_mul(1_000);
        Self { timeouts, restarts: supervisor.restarts, restart_period_ms, kill_strands_memory }
    }
}

impl Default for WorkerSettings {
    fn default() -> Self {
        Self::of(&SupervisorConfig::default(), false, 30_000)
    }
}
