use std::ffi::OsString;

use clap::{Args, ValueEnum};
use paceline_client::args::ConfigArg;

/// `paceline launch`
#[derive(Debug, Args)]
pub struct LaunchArgs {
    /// Agent to start; it has to be installed
    #[arg(value_enum)]
    pub agent: Agent,
    /// Words for the agent, as it takes them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub words: Vec<OsString>,
    /// Start it although the model lacks tools or context; before the agent's name
    #[arg(long)]
    pub anyway: bool,
    /// Where the settings are.
    #[command(flatten)]
    pub config: ConfigArg,
}

/// A coding agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Agent {
    /// Claude Code
    Claude,
    /// Codex CLI
    Codex,
    /// opencode
    Opencode,
    /// Qwen Code
    Qwen,
    /// aider
    Aider,
}
