//! The target worker: the model that is served, and its batch. Not here: routing, restart policy,
//! text.
//!
//! One named thread owns MLX and runs the steps that the core decides (`engine`). One small tokio
//! runtime serves gRPC on the worker's socket (`serve`), and one thread sends heartbeats; both are
//! parts of every worker (`paceline_process::worker`). The threads share numbers and bounded
//! queues, never arrays (I8).

#![cfg(feature = "mlx")]

mod constraint;
mod cost_file;
mod device;
mod drafting;
mod engine;
mod error;
mod features;
mod grammar;
mod image_files;
mod load;
mod loaded_model;
mod outlet;
mod page_store;
mod pass;
#[cfg(test)]
mod planned_tests;
mod request;
mod run;
mod running;
mod serve;
mod wire;

pub use run::{Args, run};
