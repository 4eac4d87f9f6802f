//! `[supervisor]`: the runtime directory, leases and restarts.

use serde::{Deserialize, Serialize};

/// `[supervisor]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SupervisorConfig {
    /// Directory of sockets, logs and counters; "" = $XDG_RUNTIME_DIR/paceline or the user's cache
    /// directory.
    pub runtime_dir: String,
    /// Seconds that a worker lives on without its supervisor.
    pub lease_s: u64,
    /// Seconds without progress after which a busy worker counts as hung; ten times its usual step
    /// if that is longer. `serve` replaces a gateway or supervisor without a sign of life for three
    /// times as long.
    pub hang_s: u64,
    /// The restart within `restart_period_s` at which a process counts as failed: with 5 there are
    /// at most five starts.
    pub restarts: u32,
    /// Seconds over which restarts are counted.
    pub restart_period_s: u64,
}

impl Default for SupervisorConfig {
    fn default() -> Self {
        Self {
            runtime_dir: String::new(),
            lease_s: 30,
            hang_s: 10,
            restarts: 5,
            restart_period_s: 60,
        }
    }
}
