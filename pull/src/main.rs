//! `paceline-pull`: fetches a checkpoint from a hub into the user's cache. Started by `paceline
//! pull`.

use std::process::ExitCode;

use clap::Parser as _;
use paceline_pull::{Args, run};

fn main() -> ExitCode {
    run(&Args::parse())
}
