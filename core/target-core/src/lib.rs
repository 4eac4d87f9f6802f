//! Decides what the engine does next: no clock, no socket, no array. Time is an argument, sequences
//! are numbers.

pub mod draft_deadline;
pub mod drafter_progress;
pub mod hidden_window;
pub mod image;
pub mod ledger;
pub mod prefix_cache;
pub mod scheduler;
pub mod sequence;
pub mod speculation;
pub mod vision_tower;

pub use draft_deadline::DraftDeadline;
pub use drafter_progress::{DrafterProgress, FeedPiece, ReportedPosition};
pub use hidden_window::HiddenStateWindow;
pub use image::{Image, ImageKey};
pub use ledger::{ClassBytes, Ledger, LedgerError};
pub use prefix_cache::{Chain, PAGE, PageId, PageKey, PrefixIndex};
pub use scheduler::{
    Chosen, Emission, End, Preempted, PrefixWait, Scheduler, SchedulerError, Started, Step,
    StepPart, Token,
};
pub use sequence::{Draft, DraftCounts, EndReason, Finish, Phase, Request, Sequence, SequenceKey};
pub use speculation::{DraftPlan, DrafterReadiness, LaneEvent, Policy, Speculation};
pub use vision_tower::{Tower, TowerInfo, TowerSlice, WantedImage};
