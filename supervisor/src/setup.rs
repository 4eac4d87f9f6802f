//! Setup of a supervisor.

use paceline_process::{Config, RuntimeDir};
use paceline_supervisor_core::drafter::DrafterPlan;
use paceline_supervisor_core::worker::WorkerIdentity;
use paceline_supervisor_core::{Settings, WorkerId};
use paceline_vocabulary::Term;

use crate::status::OwnProcess;

/// Inputs of [`crate::run`] besides processes and orders to stop.
#[derive(Debug)]
pub struct Setup {
    /// Bounds of the core.
    pub settings: Settings,
    /// The configured drafters.
    pub plan: DrafterPlan,
    /// The runtime directory, prepared and locked.
    pub dir: RuntimeDir,
    /// Number of this life.
    pub term: Term,
    /// Figures of this process for `status`.
    pub own: OwnProcess,
    /// File of the route log; `None` is none.
    pub route_log: Option<std::path::PathBuf>,
    /// Identities that workers of an earlier supervisor must have to be taken over.
    pub identities: WorkerIdentities,
}

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
