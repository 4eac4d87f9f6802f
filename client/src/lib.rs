//! The parts that `paceline` and `paceline-bench` share as clients of the service. Not here:
//! commands and their flags, the parent process, figures of one command.
//!
//! A module imports only modules of the lines above its own.
//!
//! ```text
//!  failure · args · message       why a command failed; common flags; messages of a conversation
//!  screen · print                 standard output; tables and bytes for people
//!  program                        a program's life, and the programs beside it
//!  answer · channel               a stream as one answer; the way to the service
//!  prompts · own_prompts          embedded prompts; those of a user's file
//!  ask                            one request of a measurement
//!  compare                        equal tokens
//!  own_service                    a service of our own, on which `selftest` and `bench` measure
//! ```

pub mod answer;
pub mod args;
pub mod ask;
pub mod channel;
pub mod compare;
pub mod failure;
pub mod message;
pub mod own_prompts;
pub mod own_service;
pub mod print;
pub mod program;
pub mod prompts;
pub mod screen;

pub use failure::Failure;
pub use screen::Screen;
