//! Names of models. A setting or flag names a model in one of four ways ([`ModelRef`]): by a
//! directory, by the name of an embedded model ([`EmbeddedModel`]), by the short name of a known one
//! ([`KnownModel`]), or as on a hub ([`ModelName`]): by `org/name`, or by `org/name/folder`.

mod embedded;
mod known;
mod model_name;
mod model_ref;

pub use embedded::{DEMO_TARGET, EMBEDDED, EmbeddedModel, demo_dir};
pub use known::{KnownModel, SMOLLM2};
pub use model_name::{ModelName, NameError};
pub use model_ref::ModelRef;
