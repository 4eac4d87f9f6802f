//! From a model directory to named tensors: strict about what is there, exact about what is wrong.

mod config;
mod files;
mod header;
mod weights;

pub use config::ModelConfig;
pub use files::Checkpoint;
pub use header::HeaderError;
pub use weights::{Precision, Weights};
