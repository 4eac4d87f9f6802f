//! The configuration: the sections of `paceline_settings` with file and environment over their
//! defaults, checked before a port is bound or a weight is read.
//!
//! The value of a key comes from a flag of `paceline serve`, else from the environment
//! (`PACELINE_ROUTING__MAX_CONCURRENT=2`; an empty value is a value), else from the kept settings
//! (`paceline config set`), else from the file, else from the defaults. An unknown key is refused
//! with the nearest known name.
//!
//! - [`load`] finds and reads a configuration, [`layers`] lays one source over another.
//! - [`environment`], [`assignment`] and [`kept`] are sources. [`known_keys`] names unknown keys.
//! - [`validate`] checks texts, and settings that depend on each other; [`exposure`] checks addresses.
//! - [`default_model`] decides what is served if nothing is named.
//! - [`policy`] changes keys of a running service, [`message`] shows settings.
//! - [`planned`] says how a model is planned for, [`worker_digest`] which settings reload a worker.

mod assignment;
mod default_model;
mod drafter_choice;
mod environment;
mod error;
mod exposure;
mod kept;
mod known_keys;
mod layers;
mod load;
mod message;
mod model_dirs;
mod planned;
mod policy;
mod source;
mod trained_length;
mod validate;
mod warnings;
mod worker_digest;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use assignment::{Assignment, FLAGS_VAR, NoAssignment, flags_text};
pub use default_model::DEFAULT_MODEL_VAR;
pub use drafter_choice::DrafterChoice;
pub use error::ConfigError;
pub use exposure::check_exposure;
pub use kept::{KeptChange, SETTINGS_VAR};
pub use load::Loaded;
pub use model_dirs::DrafterFiles;
pub use paceline_settings::{
    AUTO_COSTS, AUTO_DRAFTER, Applies, Auto, Device, DrafterConfig, DrafterModels, DrafterQuantize,
    DrafterStart, DrainConfig, ExactLanes, GatewayConfig, KvConfig, LOOKUP, LimitsConfig,
    LogConfig, LogFormat, MTP, ModelAliases, OllamaApi, ProductsSetting, RoutingConfig,
    SupervisorConfig, TARGET_HEAD, TargetConfig, ToolFormat, WITH_LOOKUP, WITHOUT_DIRECTORY,
    WiredMemory, changes_at_once, policy_keys,
};
pub use source::{Setting, Source};

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
