//! From the tensors of a model directory to arrays: strict about what is there, exact about what is
//! wrong. The directory itself is read by the crate `paceline-checkpoint`.

mod arrays;
mod error;
mod expand;
mod gguf;
mod mapped;
mod matrix;
mod tokenizer;
mod weights;

pub use error::LoadError;
pub(crate) use gguf::scaled_row;
pub(crate) use matrix::{MatrixPart, MatrixSizes, QuantizedMatrix, StoredMatrix};
pub use paceline_checkpoint::plan::{Packing, Precision, StoragePlan, WeightForms};
pub use paceline_checkpoint::{
    CheckpointError, ConfigJson, HeadSizes, Layout, QuantFormat, QuantMode, Quantization, Tensors,
};
pub use tokenizer::{count_token_ids, special_ids, stop_ids, token_digest};
pub use weights::Weights;
