//! Decisions about gateway and supervisor, which no worker needs to know: when `paceline serve`
//! starts, restarts and stops them, and how a gateway ends. No clock, no process, no signal (I10).
//!
//! - [`launch`] decides for `serve`, with [`watchdog`]; [`member`] names its children.
//! - [`ending`] decides how a gateway ends.

pub mod ending;
pub mod launch;
pub mod member;
pub mod watchdog;
