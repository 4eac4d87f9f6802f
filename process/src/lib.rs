//! Shared parts of all our processes: configuration, logs, sockets, the runtime directory, signals
//! and exit codes. Not here: models, routing, anything that only one binary needs.

pub mod config;
pub mod keys;
pub mod lifecycle;
pub mod listen;
pub mod notify;
pub mod runtime_dir;
pub mod socket;
pub mod task;
pub mod telemetry;
pub mod worker;

pub use config::{Config, ConfigError, Loaded};
pub use lifecycle::Signals;
pub use notify::Notifier;
pub use paceline_vocabulary::chain;
pub use runtime_dir::RuntimeDir;
