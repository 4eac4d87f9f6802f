//! Arguments of `paceline config`.

use clap::{Args, Subcommand};

use super::{ConfigArg, ShowArgs};

/// Orders about the settings.
#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Show each setting, its value, and where the value is from
    Show(ConfigShow),
    /// Print the value of one setting and nothing else
    Get(ConfigGet),
    /// Change settings for good. Flags and environment win over them, they over paceline.toml
    Set(ConfigSet),
    /// Take changes back
    Unset(ConfigUnset),
}

/// Arguments of `paceline config show`.
#[derive(Debug, Args)]
pub struct ConfigShow {
    /// Only the keys that begin with this: a key, or a section as routing
    #[arg(value_name = "KEY")]
    pub keys: Vec<String>,
    /// Only settings that are not at their default
    #[arg(long)]
    pub changed: bool,
    /// How to show it, and where the settings are.
    #[command(flatten)]
    pub show: ShowArgs,
}

/// Arguments of `paceline config get`.
#[derive(Debug, Args)]
pub struct ConfigGet {
    /// A key, as routing.max_concurrent
    #[arg(value_name = "KEY")]
    pub key: String,
    /// Where the settings are.
    #[command(flatten)]
    pub config: ConfigArg,
}

/// Arguments of `paceline config set`.
#[derive(Debug, Args)]
pub struct ConfigSet {
    /// Settings, as routing.max_concurrent=2
    #[arg(value_name = "KEY=VALUE", required = true)]
    pub settings: Vec<String>,
    /// How to show it, and where the settings are.
    #[command(flatten)]
    pub show: ShowArgs,
}

/// Arguments of `paceline config unset`.
#[derive(Debug, Args)]
pub struct ConfigUnset {
    /// Keys, as routing.max_concurrent
    #[arg(value_name = "KEY", required = true)]
    pub keys: Vec<String>,
    /// How to show it, and where the settings are.
    #[command(flatten)]
    pub show: ShowArgs,
}
