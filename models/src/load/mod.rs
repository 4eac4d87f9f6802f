//! From a model directory to named tensors: strict about what is there, exact about what is wrong.

mod config;
mod error;
mod files;
mod header;
mod weights;

pub use config::ConfigJson;
pub use error::LoadError;
pub use files::TensorFiles;
pub use header::HeaderError;
pub use weights::{Precision, Weights};
