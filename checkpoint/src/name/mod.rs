//! Names of models. A setting or flag names a model in one of these ways ([`ModelRef`]):
//!
//! - by a directory, or by a GGUF file;
//! - by the name of an embedded model ([`EmbeddedModel`]);
//! - by the short name of a known one ([`KnownModel`]);
//! - as on a hub ([`ModelName`]): `org/name`, `org/name/folder`, or `org/name:Q4_K_M`;
//! - by its name in another program ([`ForeignName`]).

mod embedded;
mod foreign;
mod known;
mod model_name;
mod model_ref;

pub use embedded::{DEMO_TARGET, EMBEDDED, EmbeddedModel, demo_dir};
pub use foreign::{ForeignName, ForeignProgram};
pub(crate) use known::decimal;
pub use known::{KnownModel, SMOLLM2};
pub use model_name::{ModelName, NameError};
pub use model_ref::ModelRef;
