//! Decides what the engine does next: no clock, no socket, no array. Time is an argument, sequences are numbers.

pub mod ledger;
pub mod pace;
pub mod prefix;
pub mod reach;
pub mod scheduler;
pub mod sequence;
pub mod speculation;
pub mod window;

pub use ledger::{ClassBytes, Ledger, LedgerError};
pub use pace::Pace;
pub use prefix::{Chain, PAGE, PageId, PageKey, Prefix};
pub use reach::{Piece, Reach};
pub use scheduler::{Chosen, Emission, End, Follows, Gave, Part, Scheduler, SchedulerError, Step, Token};
pub use sequence::{Counts, Draft, Ended, Finish, Permit, Phase, Request, Sequence, SequenceKey};
pub use speculation::{Force, Plan, Policy, Reading, Speculation};
pub use window::TapWindow;
