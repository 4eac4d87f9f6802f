//! Every setting, declared once: [`table`] has its key, type, default, bound, when a change applies,
//! and its line of text. The structs of the sections, their defaults and checks are made of it, and
//! so are `paceline.example.toml` and `docs/settings.md`.
//!
//! Pure data: no file, no environment. Reading and laying sources over each other is in
//! `paceline_process::config`, as are checks that concern several settings.
//!
//! - [`declare`] has the macro of the table.
//! - [`bounds`] has the bounds of values.
//! - [`applies`] has the readers of a changed setting, [`lookup`] finds them by key.
//! - [`auto`], [`words`], [`names`] and [`drafter_models`] have the types of values.

mod applies;
mod auto;
mod bounds;
mod declare;
mod drafter_models;
#[cfg(test)]
mod example;
mod lookup;
mod names;
mod table;
mod words;

pub use applies::Applies;
pub use auto::Auto;
pub use declare::{Declared, OutOfBounds};
pub use drafter_models::{AUTO_DRAFTER, DrafterModels};
pub use lookup::{changes_at_once, policy_keys};
pub use names::{ModelAliases, OllamaApi};
pub use table::{
    DECLARED, DrafterConfig, DrainConfig, GatewayConfig, KvConfig, LimitsConfig, LogConfig,
    RoutingConfig, SupervisorConfig, TargetConfig,
};
pub use words::{
    AUTO_COSTS, Device, DrafterQuantize, DrafterStart, ExactLanes, LOOKUP, LogFormat, MTP,
    ProductsSetting, TARGET_HEAD, ToolFormat, WITH_LOOKUP, WITHOUT_DIRECTORY, WiredMemory,
};
