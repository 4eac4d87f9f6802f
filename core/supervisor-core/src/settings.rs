//! Every bound of the core, in milliseconds and counts.

use paceline_settings::LimitsConfig;

use crate::admission::AdmissionBounds;
use crate::routing::Policy;
use crate::worker::WorkerSettings;

/// The core's settings. `Settings::default()` equals those of an empty configuration on a system
/// where a kill strands no memory; a test of the shell checks it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// Bounds of admission.
    pub admission: AdmissionBounds,
    /// Bounds of each worker process.
    pub worker: WorkerSettings,
    /// Time before an operator's drain in which requests are admitted and health reports that none
    /// are.
    pub notice_ms: u64,
    /// Time that running requests get when the service is asked to stop.
    pub drain_ms: u64,
    /// Time that running requests get when the process that started the supervisor is gone.
    pub orphan_drain_ms: u64,
    /// Time that aborted requests get to end.
    pub cancel_ms: u64,
    /// If a deadline is processed later than this, the supervisor was not running: missing
    /// heartbeats prove nothing.
    pub late_ms: u64,
    /// The operator's routing policy.
    pub policy: Policy,
    /// Whether routes are logged.
    pub log_routes: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            admission: AdmissionBounds::of(&LimitsConfig::default()),
            worker: WorkerSettings::default(),
            notice_ms: 0,
            drain_ms: 30_000,
            orphan_drain_ms: 5_000,
            cancel_ms: 5_000,
            late_ms: 1_000,
            policy: Policy::default(),
            log_routes: false,
        }
    }
}
