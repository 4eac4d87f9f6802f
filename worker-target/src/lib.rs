//! The target worker: the model that is served, and its batch. Not here: routing, restart policy,
//! text.
//!
//! One named thread owns MLX and runs the steps that the core decides (`engine`). One small tokio
//! runtime serves gRPC on the worker's socket (`serve`), and one thread sends heartbeats; both are
//! parts of every worker (`paceline_process::worker`). The threads share numbers and bounded
//! queues, never arrays (I8).

#[cfg(feature = "mlx")]
use paceline_target_core as core;

#[cfg(feature = "mlx")]
mod cost_file;
#[cfg(feature = "mlx")]
mod drafting;
#[cfg(feature = "mlx")]
mod engine;
#[cfg(feature = "mlx")]
mod error;
#[cfg(feature = "mlx")]
mod features;
#[cfg(feature = "mlx")]
mod fit;
#[cfg(feature = "mlx")]
mod grammar;
#[cfg(feature = "mlx")]
mod image_files;
#[cfg(feature = "mlx")]
mod inspect;
#[cfg(feature = "mlx")]
mod load;
#[cfg(feature = "mlx")]
mod loaded_model;
#[cfg(feature = "mlx")]
mod outlet;
#[cfg(feature = "mlx")]
mod page_store;
#[cfg(feature = "mlx")]
mod pass;
#[cfg(feature = "mlx")]
mod request;
#[cfg(feature = "mlx")]
mod run;
#[cfg(feature = "mlx")]
mod running;
#[cfg(feature = "mlx")]
mod serve;
#[cfg(feature = "mlx")]
mod wire;

#[cfg(feature = "mlx")]
pub use run::{Args, run};
