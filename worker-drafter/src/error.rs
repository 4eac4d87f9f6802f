//! Why the drafter cannot be served.

use std::path::PathBuf;

use paceline_models::{DeviceError, Dtype, LoadError, ModelError, ProductsError};
use paceline_process::config::ConfigError;

/// Why the worker does not come up. It is logged, and shown in the supervisor's status.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    #[error("cannot compute on the configured device")]
    Device(#[source] DeviceError),
    #[error(transparent)]
    Products(ProductsError),
    #[error("no drafter is configured; set drafter.model to its directory, or to lookup")]
    NoModel,
    #[error("cannot find the target, in whose checkpoint the drafter is")]
    Target(#[source] ConfigError),
    #[error("cannot load the drafter in {}", dir.display())]
    Load {
        dir: PathBuf,
        #[source]
        cause: LoadError,
    },
    #[error("expected weights that compute in float32, float16 or bfloat16, found {0:?}")]
    Dtype(Dtype),
    #[error("cannot draft for the first time")]
    WarmUp(#[source] ModelError),
}
