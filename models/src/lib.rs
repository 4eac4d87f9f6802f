//! The model zoo, on mlx-rs: checkpoints in, logits out. Not here: gRPC, tokio, clocks, requests,
//! batching policy.
//!
//! A model is weights and a forward. The KV store is an argument, never a field, so one set of
//! weights serves many sequences and rewinds. MLX belongs to one thread of a process (I8): models
//! and stores are not `Send`.
//!
//! A module imports only modules of the lines above its own. In the line of `load`, `hidden_states`
//! also imports `transfer`. Test: `tests/arrows.rs`.
//!
//! ```text
//!  error · device · info · segment    results, the device, a target's sizes, rows of a sequence
//!  exact_lanes · id_cell              bits of a row alone; ids that are known when a step begins
//!  products                           how products by quantized weights are computed
//!  testing                            what tests ask of MLX's graph
//!  load · transfer · hidden_states    checkpoints; arrays and hidden states as bytes
//!  layers                             what model families share; masks and positions
//!  batch · kv · sample · vision       a forward's input and output; the KV store; tokens; images
//!  families                           one file per architecture
//!  draft                              one file per drafter kind
//! ```

pub mod batch;
pub mod device;
pub mod draft;
mod error;
pub mod exact_lanes;
pub mod families;
mod hidden_states;
mod id_cell;
mod info;
pub mod kv;
mod layers;
pub mod load;
pub mod products;
pub mod sample;
mod segment;
#[cfg(any(debug_assertions, feature = "test-graph"))]
pub mod testing;
pub mod transfer;
pub mod vision;

pub use batch::{Batch, FeatureLayers, Forward, Override, PendingIds, Wants};
pub use device::{DeviceChoice, DeviceError};
pub use draft::{
    BlockRequest, DraftBatch, DraftInfo, DraftOptions, DraftPart, DraftPlan, Drafter, Proposal,
    Quantize, TokenDraft, load_draft, plan_draft,
};
pub use error::ModelError;
pub use families::{
    LoadOptions, PreparedStep, Target, load_target, load_target_with, plan_target, planned_hello,
    prepare_next, take_prepared,
};
pub use hidden_states::{HiddenStates, HostHiddenStates};
pub use id_cell::IdCell;
pub use info::TargetInfo;
pub use kv::{GrowingKv, KeptStates, KvRows, KvStore, LayerKv};
pub use layers::Positions;
pub use load::LoadError;
pub use mlx_rs::{Array, Dtype};
pub use paceline_checkpoint::RecurrentSizes;
pub use products::{Products, ProductsChoice, ProductsError};
pub use segment::{Segment, SequenceId};
