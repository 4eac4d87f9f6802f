//! `paceline-target`: started by the supervisor, in a session of its own, on a lease.

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    paceline_target::run(&paceline_target::Args::parse()).into()
}
