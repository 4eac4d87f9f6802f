//! The configuration: one struct a section, defaults in code, file and environment over them,
//! checked before a port is bound or a weight is read.
//!
//! The value of a key comes from a flag of `paceline serve`, else from the environment
//! (`PACELINE_ROUTING__MAX_CONCURRENT=2`; an empty value is a value), else from the kept settings
//! (`paceline config set`), else from the file, else from the defaults. An unknown key is refused
//! with the nearest known name.
//!
//! One file for each section. [`load`] finds and reads · [`layers`] lays one source over another ·
//! [`environment`], [`assignment`], [`kept`] are sources · [`known_keys`] names unknown keys ·
//! [`validate`] checks · [`default_model`] decides what is served if nothing is named · [`applies`] decides what a change needs · [`worker_digest`] decides which
//! settings reload a worker.

mod applies;
mod assignment;
mod auto;
mod default_model;
mod drafter;
mod drafter_models;
mod drain;
mod environment;
mod error;
mod gateway;
mod kept;
mod known_keys;
mod kv;
mod layers;
mod limits;
mod load;
mod log;
mod model_dirs;
mod names;
mod policy;
mod routing;
mod source;
mod supervisor;
mod target;
mod trained_length;
mod validate;
mod warnings;
mod worker_digest;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use applies::Applies;
pub use assignment::{Assignment, FLAGS_VAR, NoAssignment, flags_text};
pub use auto::Auto;
pub use default_model::DEFAULT_MODEL_VAR;
pub use drafter::{
    DRAFTER_KINDS, DrafterChoice, DrafterConfig, DrafterQuantize, DrafterStart, LOOKUP, MTP,
    TARGET_HEAD, WITHOUT_DIRECTORY,
};
pub use drafter_models::{AUTO_DRAFTER, DrafterModels};
pub use drain::DrainConfig;
pub use error::ConfigError;
pub use gateway::{GatewayConfig, Operators, ToolFormat};
pub use kept::{KeptChange, SETTINGS_VAR};
pub use kv::KvConfig;
pub use limits::LimitsConfig;
pub use load::Loaded;
pub use log::{LogConfig, LogFormat};
pub use model_dirs::DrafterFiles;
pub use names::ModelAliases;
pub use policy::POLICY_KEYS;
pub use routing::{Force, RoutingConfig};
pub use source::{Setting, Source};
pub use supervisor::SupervisorConfig;
pub use target::{
    AUTO_COSTS, Device, ExactLanes, MOST_SEQUENCES, ProductsSetting, TargetConfig, WiredMemory,
};

/// Environment variable with the path of the configuration file. Set but empty means no file.
pub const CONFIG_VAR: &str = "PACELINE_CONFIG";

/// All settings.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// The process that clients connect to.
    pub gateway: GatewayConfig,
    /// The process that owns the workers.
    pub supervisor: SupervisorConfig,
    /// The model that is served.
    pub target: TargetConfig,
    /// The model that proposes tokens.
    pub drafter: DrafterConfig,
    /// API key name → traffic class.
    pub classes: BTreeMap<String, String>,
    /// When speculation is allowed.
    pub routing: RoutingConfig,
    /// The target's KV memory.
    pub kv: KvConfig,
    /// Limits of requests and clients.
    pub limits: LimitsConfig,
    /// What precedes a drain.
    pub drain: DrainConfig,
    /// Logs.
    pub log: LogConfig,
}

#[cfg(test)]
mod tests;
