//! Decides what the engine does next: no clock, no socket, no array. Time is an argument, sequences
//! are numbers.

pub mod image;
pub mod ledger;
pub mod pace;
pub mod prefix;
pub mod reach;
pub mod scheduler;
pub mod sequence;
pub mod speculation;
pub mod tower;
pub mod window;

pub use image::{Image, ImageKey};
pub use ledger::{ClassBytes, Ledger, LedgerError};
pub use pace::Pace;
pub use prefix::{Chain, PAGE, PageId, PageKey, Prefix};
pub use reach::{Piece, Reach, ReportedPosition};
pub use scheduler::{
    Chosen, Emission, End, Follows, Gave, Part, Scheduler, SchedulerError, Started, Step, Token,
};
pub use sequence::{Counts, Draft, Ended, Finish, Phase, Request, Sequence, SequenceKey};
pub use speculation::{Plan, Policy, Reading, Speculation};
pub use tower::{Slice, Tower, TowerInfo, WantedImage};
pub use window::TapWindow;
