//! Setup of a supervisor.

use paceline_process::RuntimeDir;
use paceline_supervisor_core::Settings;
use paceline_supervisor_core::drafter::DrafterPlan;
use paceline_vocabulary::Term;

use crate::boot_mark::BootMark;
use crate::settings::SettingsDesk;
use crate::status::OwnProcess;
use crate::target_swap::{TargetPlanner, TargetSetup};

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
    /// What the workers of the configured model are started with. Workers of an earlier supervisor
    /// must have these identities to be taken over.
    pub target: TargetSetup,
    /// Whether the machine went down at work, for this start and for the next one.
    pub boot_mark: BootMark,
    /// Reads and changes the settings; `None` where they cannot be changed.
    pub desk: Option<SettingsDesk>,
    /// Prepares swaps of the target; `None` where it cannot be swapped.
    pub planner: Option<TargetPlanner>,
}
