//! Flags that several commands have.

use std::path::PathBuf;

use clap::Args;

/// Where the settings are.
#[derive(Clone, Debug, Default, Args)]
pub struct ConfigArg {
    /// Configuration file; without it $PACELINE_CONFIG, ./paceline.toml, the user's configuration
    /// directory
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
}

/// Where the service is, for commands that speak to the gateway.
#[derive(Clone, Debug, Default, Args)]
pub struct ServiceArgs {
    /// Where the settings are.
    #[command(flatten)]
    pub config: ConfigArg,
    /// Address of the service, https:// before it for TLS; without it gateway.grpc of the
    /// configuration
    #[arg(long, value_name = "HOST:PORT")]
    pub address: Option<String>,
    /// With TLS: certificates (PEM) that sign the service's; without it gateway.tls_cert itself, or
    /// the system's with --address
    #[arg(long, value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// File with the API key; without it $PACELINE_API_KEY. Never an argument: every user of the
    /// machine could read it
    #[arg(long, value_name = "FILE")]
    pub api_key_file: Option<PathBuf>,
    /// Model asked for; without it the served one
    #[arg(long, value_name = "NAME")]
    pub model: Option<String>,
}
