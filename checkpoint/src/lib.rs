//! What a model directory holds: names of models, the places where they lie, and readers of their
//! files. Pure: no network, no runtime, no process. Not here: what the numbers of a model mean.
//!
//! A module imports only modules of the lines above its own.
//!
//! ```text
//!  error · files          why a file cannot be used; how one is opened, and which hold the weights
//!  config                 the configuration, for lists and guesses
//!  name · digest          names of models; digests of files
//!  places                 where models lie on this machine
//!  gguf · package         the reader of GGUF files; packages that carry a model
//!  samples                a tiny GGUF file for tests
//!  llama                  the checkpoint in MLX's layout that a GGUF file of this architecture becomes
//! ```

pub mod config;
pub mod digest;
mod error;
pub mod files;
pub mod gguf;
pub mod llama;
mod name;
pub mod package;
mod places;
#[cfg(any(test, feature = "samples"))]
pub mod samples;

pub use error::FormatError;
pub use name::{
    DEMO_TARGET, EMBEDDED, EmbeddedModel, KnownModel, ModelName, ModelRef, NameError, SMOLLM2,
    demo_dir,
};
pub use places::{
    CURRENT, CheckpointKind, ListedCheckpoint, ModelNotFound, ModelPlaces, cache_dir, home_dir,
    known_model, missing_files, name_of, xdg,
};
