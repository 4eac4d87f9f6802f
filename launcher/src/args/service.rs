//! Arguments of `paceline service`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

/// Orders about the service of systemd or launchd.
#[derive(Debug, Subcommand)]
pub enum ServiceCommand {
    /// Write the units of systemd or the jobs of launchd for the programs beside this one, enable
    /// them, start them, and wait until the service answers
    Install(ServiceInstall),
    /// Stop the service and remove every file that install wrote; models and configuration stay
    Uninstall(ServiceUninstall),
    /// Start it
    Start(ServiceStart),
    /// Stop it; running requests get 30 seconds
    Stop(ServiceScope),
    /// Restart both processes, as after an update of the programs; no request is lost where the
    /// system allows it
    Restart(ServiceScope),
    /// Show what systemd or launchd knows of it, then what `paceline status` shows
    Status(ServiceScope),
    /// Show its log
    Logs(ServiceLogs),
}

/// Whose service it is.
#[derive(Clone, Copy, Debug, Default, Args)]
pub struct ServiceScope {
    /// The machine's service, for systemd and for root; without it that of this user
    #[arg(long)]
    pub system: bool,
    /// Service manager; without it the one of this operating system
    #[arg(long, value_enum, hide = true)]
    pub manager: Option<ManagerName>,
}

/// `--manager`
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ManagerName {
    /// Linux
    Systemd,
    /// macOS
    Launchd,
}

/// `paceline service install`
#[derive(Clone, Debug, Default, Args)]
pub struct ServiceInstall {
    /// Configuration file of the service; without it paceline.toml in the user's configuration
    /// directory, with --system /etc/paceline/paceline.toml
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Write and enable, and start nothing now
    #[arg(long)]
    pub no_start: bool,
    /// Replace units or jobs of the same names that install did not write
    #[arg(long)]
    pub force: bool,
    /// Print the files and the commands, and do nothing
    #[arg(long, visible_alias = "print")]
    pub dry_run: bool,
    /// How to start it.
    #[command(flatten)]
    pub start: ServiceStart,
}

/// `paceline service uninstall`
#[derive(Clone, Copy, Debug, Default, Args)]
pub struct ServiceUninstall {
    /// Print the files and the commands, and do nothing
    #[arg(long, visible_alias = "print")]
    pub dry_run: bool,
    /// Whose service it is.
    #[command(flatten)]
    pub scope: ServiceScope,
}

/// `paceline service start`
#[derive(Clone, Copy, Debug, Default, Args)]
pub struct ServiceStart {
    /// Seconds to wait until the model is loaded
    #[arg(long, value_name = "S", default_value_t = 120, value_parser = clap::value_parser!(u32).range(1..=4_000_000))]
    pub timeout: u32,
    /// Whose service it is.
    #[command(flatten)]
    pub scope: ServiceScope,
}

/// `paceline service logs`
#[derive(Clone, Copy, Debug, Default, Args)]
pub struct ServiceLogs {
    /// Go on with what is logged next
    #[arg(long, short)]
    pub follow: bool,
    /// How many lines there are to begin with
    #[arg(long, short = 'n', value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    pub lines: u32,
    /// Whose service it is.
    #[command(flatten)]
    pub scope: ServiceScope,
}
