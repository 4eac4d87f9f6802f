//! What every program of ours needs of the operating system: its differences, the monotonic clock,
//! variables of the environment, start and end of a process. Not here: configuration, sockets,
//! anything with a runtime.

pub mod clock;
pub mod environment;
mod exit;
pub mod platform;
pub mod start;

pub use clock::Clock;
pub use exit::exit_at_once;
