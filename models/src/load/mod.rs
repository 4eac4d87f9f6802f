//! From a model directory to named tensors: strict about what is there, exact about what is wrong.

mod arrays;
mod config;
mod context;
mod embedding_model;
mod error;
mod expand;
mod files;
mod head;
mod header;
mod layer_heads;
mod layout;
mod matrix;
mod plan;
mod quantization;
mod tokenizer;
mod unserved;
mod weights;

pub use config::ConfigJson;
pub use context::ContextLength;
pub use error::LoadError;
pub use files::TensorFiles;
pub use header::HeaderError;
pub use layer_heads::HeadSizes;
pub use layout::Layout;
pub(crate) use matrix::{MatrixPart, MatrixSizes, QuantizedMatrix, StoredMatrix};
pub use plan::{CheckpointPlan, FormatUse, KvHeads, Packing, PlannedLayers, StoragePlan};
pub use quantization::{QuantFormat, QuantMode, Quantization};
pub use tokenizer::{count_token_ids, special_ids, stop_ids, token_digest};
pub use unserved::Unserved;
pub use weights::{Precision, WeightForms, Weights};
