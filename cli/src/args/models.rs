//! Commands about models on this machine: they need no service.

use clap::Args;
use paceline_process::checkpoints::ModelName;

use super::ConfigArg;

/// Arguments of `paceline pull`
#[derive(Debug, Args)]
pub struct PullArgs {
    /// Model of the hub ($HF_ENDPOINT, without it huggingface.co; $HF_TOKEN for models that need an
    /// account)
    #[arg(value_name = "ORG/NAME")]
    pub model: ModelName,
    /// Branch, tag or commit; without it main
    #[arg(long, value_name = "R")]
    pub revision: Option<String>,
    /// Use no network, and show what is there; as with HF_HUB_OFFLINE=1
    #[arg(long)]
    pub offline: bool,
    /// Fetch weights also if the hub gives no digest for them, so that they cannot be checked
    #[arg(long)]
    pub allow_unverified: bool,
}

/// Arguments of `paceline models`
#[derive(Debug, Args)]
pub struct ModelsArgs {
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `paceline inspect`
#[derive(Debug, Args)]
pub struct InspectArgs {
    /// The model: a directory, org/name of a hub that was pulled, or smollm2
    #[arg(value_name = "DIR|NAME")]
    pub model: String,
    /// A drafter to check with it
    #[arg(long, value_name = "DIR|NAME|lookup|target")]
    pub drafter: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    /// Where the settings are.
    #[command(flatten)]
    pub config: ConfigArg,
}
