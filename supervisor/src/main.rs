//! The supervisor's program: `paceline-supervisor [--config FILE]`. Everything is in the library.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;

/// Starts the target worker, keeps it running, and decides which request it serves when.
#[derive(Parser)]
#[command(name = "paceline-supervisor", version)]
struct Arguments {
    /// Configuration file; without it PACELINE_CONFIG, ./paceline.toml or the user's configuration directory.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

fn main() -> ExitCode {
    match Arguments::try_parse() {
        Ok(arguments) => paceline_supervisor::start(arguments.config.as_deref()).into(),
        Err(error) => {
            // Help and version go to standard output and are no failure; a wrong flag is bad configuration.
            let failed = error.use_stderr();
            let _ = error.print();
            if failed { ExitCode::from(64) } else { ExitCode::SUCCESS }
        }
    }
}
