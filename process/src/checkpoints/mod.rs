//! Names of models, the places where their files lie, and the names of their tensors ([`header`]).
//! Not here: weights, and what a configuration means.
//!
//! A setting or flag names a model in one of four ways ([`ModelRef`]): not at all (the embedded
//! one), by a directory, by `smollm2`, or as on a hub: by `org/name`, or by `org/name/folder`. [`ModelPlaces`] finds the
//! directory. A process resolves a name once, and passes the directory to the processes that it
//! starts, so a model that is pulled meanwhile changes nothing for a service that runs.

mod name;
mod places;

pub use name::{ModelName, ModelRef, NameError, SMOLLM2};
pub use places::{
    CURRENT, CheckpointKind, ListedCheckpoint, ModelNotFound, ModelPlaces, demo_dir, missing_files,
    name_of,
};
