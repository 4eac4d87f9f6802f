//! The life of a program at a terminal: reading its words, running its command, its exit code; and
//! the other programs beside it.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use paceline_process::{Exit, chain, lifecycle};

use crate::failure::{Failure, USAGE};
use crate::screen::Screen;

/// Why a program of ours cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// The system does not tell where this program is.
    #[error("cannot find this program's own directory")]
    OwnDirectory(#[source] io::Error),
    /// It is not beside this program.
    #[error("expected {} beside this program, found nothing; build or install all of them", .0.display())]
    Missing(PathBuf),
}

impl From<ProgramError> for Failure {
    fn from(error: ProgramError) -> Self {
        Self::refused_here(chain(&error))
    }
}

/// The path of another program of ours, which lies beside this one.
///
/// # Errors
/// The program, or the directory of this one, cannot be found.
pub fn beside(name: &str) -> Result<PathBuf, ProgramError> {
    let own = std::env::current_exe().and_then(|path| path.canonicalize());
    let path = own.map_err(ProgramError::OwnDirectory)?.with_file_name(name);
    if path.is_file() { Ok(path) } else { Err(ProgramError::Missing(path)) }
}

/// Reads the command line.
///
/// # Errors
/// The exit code, after help, version or a usage error has been printed.
pub fn parse<P: Parser>(words: impl IntoIterator<Item = OsString>) -> Result<P, ExitCode> {
    P::try_parse_from(words).map_err(|error| {
        // Help and version are answers, not errors. A closed terminal is no failure.
        let _ = error.print();
        ExitCode::from(if error.use_stderr() { USAGE } else { 0 })
    })
}

/// Runs a command on a runtime of its own, and returns the exit code of the process.
pub fn run(command: impl AsyncFnOnce(&mut Screen) -> ExitCode) -> ExitCode {
    lifecycle::settle();
    let mut screen = Screen::standard();
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            screen.complain(&format!("cannot start: {error}"));
            return Exit::Bug.into();
        }
    };
    let code = runtime.block_on(command(&mut screen));
    // A thread may still wait for a line of standard input; it ends with the process.
    runtime.shutdown_background();
    code
}

/// Prints a failure as an object, if `--json` asks for objects.
///
/// # Errors
/// That failure.
pub fn show_object<T>(
    outcome: Result<T, Failure>,
    json: bool,
    screen: &mut Screen,
) -> Result<T, Failure> {
    if let (Err(failure), true) = (&outcome, json)
        && !failure.message.is_empty()
    {
        screen.line(&failure.object().to_string());
    }
    outcome
}

/// The exit code of a command. Shows why it failed.
pub fn exit(outcome: Result<(), Failure>, screen: &mut Screen) -> ExitCode {
    let Err(failure) = outcome else { return ExitCode::SUCCESS };
    if !failure.message.is_empty() {
        screen.complain(&failure.to_string());
    }
    ExitCode::from(failure.exit)
}
