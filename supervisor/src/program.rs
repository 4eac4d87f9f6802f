//! The command line of `paceline-supervisor [--config FILE]`.

#![expect(clippy::print_stdout, reason = "the answer of `replay` is its output")]

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::replay::{Replay, ReplayError};

/// Starts the target worker, keeps it running, and decides which request it serves when.
#[derive(Parser)]
#[command(name = "paceline-supervisor", version)]
struct Arguments {
    /// Configuration file; without it PACELINE_CONFIG, ./paceline.toml or the user's configuration
    /// directory.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(subcommand)]
    command: Option<Command>,
}

/// Commands beside serving.
#[derive(Subcommand)]
enum Command {
    /// Compares recorded decisions with those of another policy; asked by `paceline routes replay`.
    #[command(hide = true)]
    Replay {
        log: PathBuf,
        #[arg(long, value_name = "KEY=VALUE")]
        set: Vec<String>,
        #[arg(long)]
        json: bool,
    },
}

/// Runs the process with the words of its command line, and returns its exit code.
pub fn main(words: Vec<OsString>) -> ExitCode {
    match Arguments::try_parse_from(words) {
        Ok(Arguments { command: Some(Command::Replay { log, set, json }), .. }) => {
            match Replay::of(&log, &set) {
                Ok(replay) => {
                    print!(
                        "{}",
                        if json { format!("{}\n", replay.object()) } else { replay.text() }
                    );
                    ExitCode::SUCCESS
                }
                Err(error) => {
                    paceline_process::telemetry::complain(&paceline_process::chain(&error));
                    ExitCode::from(if matches!(error, ReplayError::Read { .. }) { 69 } else { 64 })
                }
            }
        }
        Ok(arguments) => crate::start(arguments.config.as_deref()).into(),
        Err(error) => {
            // Help and version go to standard output and are no failure; a wrong flag is bad
            // configuration.
            let failed = error.use_stderr();
            let _ = error.print();
            if failed { ExitCode::from(64) } else { ExitCode::SUCCESS }
        }
    }
}
