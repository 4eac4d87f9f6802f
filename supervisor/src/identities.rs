//! Identities by which workers of an earlier supervisor are recognized.

use paceline_process::Config;
use paceline_supervisor_core::WorkerId;
use paceline_supervisor_core::worker::WorkerIdentity;

/// Identities of the workers that this supervisor would start.
#[derive(Clone, Debug)]
pub struct WorkerIdentities {
    /// As the target.
    pub target: WorkerIdentity,
    /// As a drafter.
    pub drafter: WorkerIdentity,
}

impl WorkerIdentities {
    pub(crate) fn new(config: &Config) -> Self {
        let of = |config_digest| WorkerIdentity {
            build: paceline_proto::BUILD.to_owned(),
            config_digest,
        };
        Self { target: of(config.target_digest()), drafter: of(config.drafter_digest()) }
    }

    /// As this worker.
    pub fn of(&self, worker: WorkerId) -> &WorkerIdentity {
        match worker {
            WorkerId::Target => &self.target,
            WorkerId::Drafter(_) => &self.drafter,
        }
    }
}
