//! The subject of a measurement: program, machine and models.

use paceline_proto::v1::{ProcessStatus, StatusResponse};
use serde::Serialize;

/// A model that took part in a measurement.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Model {
    /// Directory of the model.
    pub model: String,
    /// Bytes of the weights in memory.
    pub weight_bytes: u64,
}

/// Program, machine and models of a measurement.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Subject {
    /// Version of this program.
    pub version: &'static str,
    /// Operating system and processor's architecture.
    pub platform: String,
    /// Cores that this process may use.
    pub cores: usize,
    /// The model that was served.
    pub target: Model,
    /// The drafter, if there was one.
    pub drafter: Option<Model>,
}

impl Subject {
    /// This program on this machine, with the models of the service. `drafted`: the drafter took
    /// part.
    pub fn new(status: &StatusResponse, drafted: bool) -> Self {
        let model = |process: &ProcessStatus| Model {
            model: process.model.clone(),
            weight_bytes: process.weight_bytes,
        };
        Self {
            version: env!("CARGO_PKG_VERSION"),
            platform: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            target: status.target.as_ref().map(model).unwrap_or_default(),
            drafter: status.drafter.as_ref().filter(|_| drafted).map(model),
        }
    }
}
