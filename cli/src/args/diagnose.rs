//! Arguments of `paceline diagnose`.

use clap::Args;
use paceline_client::args::ConfigArg;

/// Arguments of `paceline diagnose`.
#[derive(Debug, Args)]
pub struct DiagnoseArgs {
    /// Where the settings are.
    #[command(flatten)]
    pub config: ConfigArg,
}
