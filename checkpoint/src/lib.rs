//! What a model directory holds: names of models, the places where they lie, and readers of their
//! files. Pure: no network, no runtime, no process. Not here: what the numbers of a model mean.
//!
//! A module imports only modules of the lines above its own.
//!
//! ```text
//!  header                 the header of a safetensors file
//!  error · files          why a file cannot be used; how one is opened, and which hold the weights
//!  index                  which shard holds which tensor
//!  gguf · from_gguf       the reader of GGUF files; such a file as a checkpoint on Hugging Face
//!  config · quantization  the configuration, and the formats of weights that it names
//!  numbers · tensors      how files store numbers; names, types and places of all tensors
//!  layout · head          names of tensors that differ by where a checkpoint comes from; a head that is tied
//!  layers                 what layers remember
//!  families               what is known of each family of targets
//!  kv_sizes · plan        bytes of keys, values and states; what a model takes on a device, and whether it fits
//!  machine                machines that are not this one, by name
//!  name · digest          names of models; digests of files
//!  places                 where models lie on this machine
//!  package                packages that carry a model
//!  samples                tiny GGUF files for tests
//!  llama                  the checkpoint in MLX's layout that a GGUF file of this architecture becomes
//! ```

mod config;
pub mod digest;
mod error;
pub mod families;
pub mod files;
pub mod from_gguf;
pub mod gguf;
mod head;
pub mod header;
mod index;
pub mod kv_sizes;
pub mod layers;
mod layout;
pub mod llama;
pub mod machine;
mod name;
pub mod numbers;
pub mod package;
mod places;
pub mod plan;
mod quantization;
#[cfg(any(test, feature = "samples"))]
pub mod samples;
pub mod tensors;

pub use config::{ConfigJson, ContextLength, HeadSizes, ModelSummary};
pub use error::{CheckpointError, FormatError};
pub use header::HeaderError;
pub use index::ShardIndex;
pub use kv_sizes::KvSizes;
pub use layers::{KvHeads, RecurrentSizes};
pub use layout::Layout;
pub use name::{
    DEMO_TARGET, EMBEDDED, EmbeddedModel, ForeignName, ForeignProgram, KnownModel, ModelName,
    ModelRef, NameError, SMOLLM2, demo_dir,
};
pub use places::{
    CURRENT, CheckpointKind, ListedCheckpoint, ModelNotFound, ModelPlaces, cache_dir, home_dir,
    known_model, missing_files, name_of, xdg,
};
pub use quantization::{QuantFormat, QuantMode, Quantization};
pub use tensors::{TensorEntry, Tensors, Unserved};
