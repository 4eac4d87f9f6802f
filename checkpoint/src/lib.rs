//! Contents of a model directory: readers of its files, and what other formats become in it. Pure: no
//! network, no runtime, no process. Not here: what the numbers of a model mean.
//!
//! A module imports only modules of the lines above its own.
//!
//! ```text
//!  error                  why a file cannot be used
//!  gguf · package         the reader of GGUF files; packages that carry a model
//!  samples                a tiny GGUF file for tests
//!  llama                  the checkpoint in MLX's layout that a GGUF file of this architecture becomes
//! ```

mod error;
pub mod gguf;
pub mod llama;
pub mod package;
#[cfg(any(test, feature = "samples"))]
pub mod samples;

pub use error::FormatError;
