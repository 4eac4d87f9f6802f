//! Decides what the engine does next: no clock, no socket, no array. Time is an argument, sequences are numbers.

pub mod ledger;
pub mod scheduler;
pub mod sequence;

pub use ledger::{Ledger, LedgerError};
pub use scheduler::{Chosen, Emission, Part, Scheduler, SchedulerError, Step};
pub use sequence::{Ended, Finish, Phase, Request, Sequence, SequenceKey};
