//! The drafter worker: the shell of `paceline_drafter_core`. It proposes tokens and may die at any
//! instant. Not here: acceptance; the target alone decides on a token.
//!
//! One named thread owns MLX and serves the link (`engine`): Feeds of the target go through the
//! core, which decides what the next forward holds. What proposes is a `proposer`: weights
//! (`model`), prompt lookup (`lookup`), or both (`with_lookup`). The worker's socket, heartbeats and
//! lease are those of every worker (`paceline_process::worker`).

#![cfg(feature = "mlx")]

mod engine;
mod error;
mod lookup;
mod model;
mod proposer;
mod run;
mod serve;
mod session_spans;
mod target_link;
mod with_lookup;

pub use run::{Args, run};
