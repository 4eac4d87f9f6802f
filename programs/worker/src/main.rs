//! `paceline-worker`: the two processes that have MLX, by the name under which it is started: `paceline-target` or
//! `paceline-drafter`. The supervisor starts them, in sessions of their own, on a lease.

use std::path::Path;
use std::process::ExitCode;

use clap::Parser;
use paceline_process::telemetry;
use paceline_vocabulary::Exit;

fn main() -> ExitCode {
    let name = std::env::args_os().next().unwrap_or_default();
    match Path::new(&name).file_name().and_then(|name| name.to_str()) {
        Some("paceline-target") => paceline_target::run(&paceline_target::Args::parse()).into(),
        Some("paceline-drafter") => paceline_drafter::run(&paceline_drafter::Args::parse()).into(),
        _ => {
            telemetry::complain(&format!(
                "expected to be started as paceline-target or paceline-drafter, found {}; `paceline serve` does that",
                name.display()
            ));
            Exit::Config.into()
        }
    }
}
