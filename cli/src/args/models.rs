//! Commands about models on this machine: they need no service.

use clap::Args;

use paceline_client::args::ConfigArg;

use super::ShowArgs;

/// Arguments of `paceline models`
#[derive(Debug, Args)]
pub struct ModelsArgs {
    /// The models that are known to work, whether they are here or not: what they need, and whether
    /// they fit this machine
    #[arg(long)]
    pub known: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `paceline rm`
#[derive(Debug, Args)]
pub struct RmArgs {
    /// The model: org/name of a hub that was pulled, or the short name of a known model
    #[arg(value_name = "NAME")]
    pub model: String,
    /// Do not ask
    #[arg(long, short)]
    pub yes: bool,
    /// Where the settings of the service are that may serve it.
    #[command(flatten)]
    pub config: ConfigArg,
}

/// Arguments of `paceline inspect`
#[derive(Debug, Args)]
pub struct InspectArgs {
    /// The model: a directory or a GGUF file, ORG/NAME or ORG/NAME:Q4_K_M of a hub, pulled or not,
    /// ollama:NAME, lmstudio:PUBLISHER/REPO, or the short name of a known or an embedded model
    #[arg(value_name = "DIR|NAME")]
    pub model: String,
    /// A drafter to check with it
    #[arg(long, value_name = "DIR|NAME|lookup|target")]
    pub drafter: Option<String>,
    /// What fits on this machine, as "M4 Pro 24 GB" or H100, and not on the present one
    #[arg(long, value_name = "NAME", conflicts_with = "drafter")]
    pub machine: Option<String>,
    /// How to show it, and where the settings are.
    #[command(flatten)]
    pub show: ShowArgs,
}
