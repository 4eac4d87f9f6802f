//! The drafter worker: a guest that proposes and may die at any instant. Not here: acceptance, the
//! last word on a token.
//!
//! One named thread owns MLX and serves the link (`engine`): what came over it goes through the
//! core, which says what the next forward holds. The worker's socket, heartbeats and lease are
//! those of every worker (`paceline_process::worker`).

pub mod core;

#[cfg(feature = "mlx")]
mod engine;
#[cfg(feature = "mlx")]
mod model;
#[cfg(feature = "mlx")]
mod peer;
#[cfg(feature = "mlx")]
mod run;
#[cfg(feature = "mlx")]
mod serve;

#[cfg(feature = "mlx")]
pub use run::{Args, run};
