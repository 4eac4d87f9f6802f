//! Layers that model families share. Device branches and weight formats are settled here, not in a
//! model's file.

mod activation;
mod attention;
mod delta_rule;
mod embedding;
mod experts;
mod gate;
mod gate_kernel;
mod heads;
#[cfg(target_os = "linux")]
mod host;
#[cfg(not(target_os = "linux"))]
#[path = "host_elsewhere.rs"]
mod host;
mod linear;
mod mlp;
mod moe;
mod norm;
mod ops;
mod positions;
#[cfg(target_os = "linux")]
mod program;
mod quantized;
mod quantized_parts;
mod recurrent;
mod rope;
mod rope_tables;

pub(crate) use activation::{Gelu, activated, gate_heads};
pub(crate) use attention::{
    HiddenKeys, QueryRows, RowKeys, RowPlaces, RowWrite, StoredHeads, VisibleKeys, attention,
};
#[cfg(not(target_os = "linux"))]
pub(crate) use delta_rule::Advanced;
pub(crate) use delta_rule::{DeltaRule, StatePass};
pub(crate) use embedding::Embedding;
pub(crate) use experts::{ExpertLinear, SortedPairs};
pub(crate) use gate::Gate;
pub use heads::HeadRows;
pub(crate) use heads::{RotatedHeads, last_rows};
#[cfg(target_os = "linux")]
pub(crate) use host::nodes as host_nodes;
pub(crate) use host::{attend_rows, computes, largest, write_rows};
pub(crate) use linear::Linear;
pub(crate) use mlp::{GatedMlp, gated};
pub(crate) use moe::{ExpertMlp, ExpertNames, ExpertSizes, SharedExpertMlp};
pub(crate) use norm::{HeadNorm, LayerNorm, NormWeight, RmsNorm};
pub(crate) use ops::{AttentionHeads, HeadRotation, LayerOps, gated_mlp};
pub use positions::Positions;
#[cfg(target_os = "linux")]
pub(crate) use program::{
    PassInputs, PassPlaces, PassReads, PassRotation, PassWrites, Program, Recorder, Tail, Value,
};
pub(crate) use quantized_parts::{ExpertParts, QuantizedParts};
pub(crate) use recurrent::fold_accepted;
pub(crate) use rope::{Rope, SectionOrder};
pub(crate) use rope_tables::RopeTables;
#[cfg(target_os = "linux")]
pub(crate) use rope_tables::RotationNumbers;
