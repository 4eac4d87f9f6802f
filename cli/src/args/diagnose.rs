//! Arguments of `paceline diagnose`.

use std::path::PathBuf;

use clap::Args;
use paceline_client::args::ConfigArg;

/// Arguments of `paceline diagnose`.
#[derive(Debug, Args)]
pub struct DiagnoseArgs {
    /// Archive to write, a .tar.gz that is not there yet; without it
    /// paceline-diagnose-TIME.tar.gz in the working directory
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Write without a question
    #[arg(long, short)]
    pub yes: bool,
    /// Where the settings are.
    #[command(flatten)]
    pub config: ConfigArg,
}
