//! What it is to be a worker: a process that the supervisor starts in a session of its own, that
//! owns one model on one thread, shows its progress in heartbeats, and lives on a lease.
//!
//! [`run`] is its whole life: socket and record first, so that a supervisor finds it while it
//! loads; then the weights, on the engine's thread; then service until it is asked to stop or its
//! lease ends. What differs between workers is in [`Parts`].

mod gate;
mod life;
mod mailbox;
mod progress;
mod pulse;

pub use gate::{Gate, StopOrder, WorkerService};
pub use life::{Args, Engine, Parts, Post, run};
pub use mailbox::{Inbox, Mail, Refused, mailbox};
pub use progress::Progress;
pub use pulse::Pulse;
