//! Starts the service. [`serve`] is the parent process of gateway and supervisor, [`service`] has
//! systemd or launchd start it. What is to be decided is in `paceline_service_core`.
//!
//! - [`args`]: the arguments of both commands
//! - [`flags`]: flags as settings
//! - [`device`]: the device that will compute, and what a model takes there
//! - [`fetch`]: models of a hub that are fetched before a start

pub mod args;
pub mod device;
pub mod fetch;
pub mod flags;
pub mod serve;
pub mod service;
