//! The model zoo, on mlx-rs: checkpoints in, logits out. Not here: gRPC, tokio, clocks, requests,
//! batching policy.
//!
//! A model is weights and a forward; the KV store is an argument, never a field, so one set of
//! weights serves many sequences and rewinds. MLX belongs to one thread of a process (I8): models
//! and stores are not `Send`.

pub mod batch;
pub mod device;
pub mod draft;
mod error;
pub mod kv;
mod layers;
pub mod load;
pub mod sample;
pub mod target;
pub mod transfer;
pub mod vision;

pub use batch::{Batch, Forward, Override, Positions, Purpose, Segment, Tapped, Taps, Wants};
pub use device::{DeviceChoice, DeviceError};
pub use draft::{Draft, DraftBatch, DraftInfo, DraftPart, Quantize, load_draft};
pub use error::{LoadError, ModelError};
pub use kv::{Graph, KvStore, LayerKv, Rows, SequenceId};
pub use mlx_rs::{Array, Dtype};
pub use target::{Target, TargetInfo, load_target};
