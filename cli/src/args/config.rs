//! Arguments of `paceline config`.

use clap::{Args, Subcommand};
use paceline_client::args::ConfigArg;

/// Arguments of `paceline config`.
#[derive(Debug, Args)]
pub struct ConfigArgs {
    /// Order about the settings.
    #[command(subcommand)]
    pub command: ConfigCommand,
}

/// Orders about the settings.
#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Show each setting, its value, and where the value is from
    Show(ConfigShow),
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
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
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
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    /// Where the settings are.
    #[command(flatten)]
    pub config: ConfigArg,
}

/// Arguments of `paceline config unset`.
#[derive(Debug, Args)]
pub struct ConfigUnset {
    /// Keys, as routing.max_concurrent
    #[arg(value_name = "KEY", required = true)]
    pub keys: Vec<String>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    /// Where the settings are.
    #[command(flatten)]
    pub config: ConfigArg,
}
