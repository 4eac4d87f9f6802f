//! The life of a worker process. The supervisor starts a worker in a session of its own. A worker
//! owns one model on one thread, reports its progress in heartbeats, and ends when its lease is
//! over.
//!
//! [`run`] is its whole life: socket and record first, so that a supervisor finds it while it
//! loads; then the weights, on the engine's thread; then service until it is asked to stop or its
//! lease ends. What differs between workers is in [`WorkerParts`].

mod gate;
mod life;
mod mailbox;
mod progress;
mod pulse;

pub use gate::{Gate, StopOrder, WorkerService};
pub use life::{Args, ENGINE_STACK_BYTES, Engine, WorkerContext, WorkerParts, run};
pub use mailbox::{Inbox, Mail, SendRefused, mailbox};
pub use progress::Progress;
pub use pulse::Pulse;
