//! The decisions of the target worker: what each step computes, which sequences have memory, what
//! the prefix cache keeps, and which sequences draft. No clock, no socket, no array: time is an
//! argument (I10), sequences are numbers, and the shell in `worker-target` computes the steps.
//!
//! [`scheduler`] the next [`step`] · [`sequence`] one generation's life · [`ledger`] memory in
//! bytes · [`prefix_cache`] its index of pages · [`speculation`] draft lengths · [`vision_tower`]
//! and [`image`] images · [`hidden_window`], [`drafter_progress`], [`draft_deadline`] one drafter
//! link's windows, progress and deadlines.

pub mod draft_deadline;
pub mod draft_plan;
pub mod drafter_progress;
pub mod hidden_window;
pub mod image;
pub mod ledger;
pub mod prefix_cache;
pub mod scheduler;
pub mod sequence;
pub mod speculation;
pub mod step;
pub mod vision_tower;

pub use draft_deadline::DraftDeadline;
pub use draft_plan::{
    DecisionLog, DraftPlan, DrafterReadiness, LaneEvent, Parked, Policy, RankedCycle, WidthDecision,
};
pub use drafter_progress::{DrafterProgress, FeedPiece, ReportedPosition};
pub use hidden_window::HiddenStateWindow;
pub use image::{Image, ImageKey};
pub use ledger::{ClassBytes, Ledger, LedgerError};
pub use prefix_cache::{
    Chain, Evicted, KeptPages, PAGE, PageId, PageKey, PrefixIndex, SNAPSHOT_INTERVAL,
    SnapshotPlaces,
};
pub use scheduler::{
    Completion, Emission, PrefixWait, Scheduler, SchedulerError, Started, Unstarted,
};
pub use sequence::{Draft, DraftCounts, EndReason, Finish, Phase, Request, Sequence, SequenceKey};
pub use speculation::{CostCell, Size, Speculation};
pub use step::{Chosen, Preempted, Step, StepPart, Token};
pub use vision_tower::{Tower, TowerInfo, TowerSlice, WantedImage};
