//! `paceline pull`: fetches a checkpoint from a hub. Another program does it, which takes the place
//! of this one, so that the command line has no HTTP client.

use std::os::unix::process::CommandExt as _;
use std::process::Command;

use crate::args::PullArgs;
use crate::failure::Failure;
use crate::serve::program;
use paceline_process::chain;

/// Runs the command. Returns only if the other program cannot be started.
///
/// # Errors
/// The program is not beside this one, or the system does not start it.
pub fn run(args: &PullArgs) -> Result<(), Failure> {
    let program = program("pull").map_err(|error| Failure::refused_here(chain(&error)))?;
    let PullArgs { model, revision, offline, allow_unverified } = args;
    let mut command = Command::new(&program);
    command.arg(model.to_string());
    if let Some(revision) = revision {
        command.args(["--revision", revision]);
    }
    if *offline {
        command.arg("--offline");
    }
    if *allow_unverified {
        command.arg("--allow-unverified");
    }
    let error = command.exec();
    Err(Failure::refused_here(format!("cannot start {}: {error}", program.display())))
}
