//! Arguments of `paceline service`.

use clap::{Args, Subcommand};

/// Arguments of `paceline service`.
#[derive(Debug, Args)]
pub struct ServiceCommandArgs {
    /// Order about the service.
    #[command(subcommand)]
    pub command: ServiceCommand,
}

/// Orders about the service of systemd or launchd.
#[derive(Debug, Subcommand)]
pub enum ServiceCommand {
    /// Start it
    Start,
}
