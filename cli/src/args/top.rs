//! Arguments of `paceline top`.

use clap::Args;
use paceline_client::args::ConfigArg;

/// Arguments of `paceline top`.
#[derive(Debug, Args)]
pub struct TopArgs {
    /// Where the settings are.
    #[command(flatten)]
    pub config: ConfigArg,
}
