//! Names of models, and the places where their files lie. Not here: weights, and what a
//! configuration means.
//!
//! A setting or flag names a model in one of four ways ([`ModelRef`]): by a directory, by the name of
//! an embedded model ([`EmbeddedModel`]), by the short name of a known one ([`KnownModel`]), or as on
//! a hub: by `org/name`, or by `org/name/folder`. [`ModelPlaces`] finds the directory. A process
//! resolves a name once, and passes the directory to the processes that it starts, so a model that
//! is pulled meanwhile changes nothing for a service that runs.

mod embedded;
mod known;
mod model_ref;
mod name;
mod places;

pub use embedded::{DEMO_TARGET, EMBEDDED, EmbeddedModel, demo_dir};
pub use known::{KnownModel, SMOLLM2};
pub use model_ref::ModelRef;
pub use name::{ModelName, NameError};
pub use places::{
    CURRENT, CheckpointKind, ListedCheckpoint, ModelNotFound, ModelPlaces, known_model,
    missing_files, name_of,
};
