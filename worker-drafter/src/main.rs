//! `paceline-drafter`: started by the supervisor, in a session of its own, on a lease.

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    paceline_drafter::run(&paceline_drafter::Args::parse()).into()
}
