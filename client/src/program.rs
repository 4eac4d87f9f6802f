//! The life of a program at a terminal: reading its words, running its command, its exit code; and
//! the other programs beside it.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{ExitCode, Output, Stdio};

use clap::Parser;
use paceline_process::Loaded;
use paceline_system::start;
use paceline_vocabulary::Exit;

use crate::failure::{Failure, USAGE};
use crate::screen::Screen;

/// The path of another program of ours, which lies beside this one.
///
/// # Errors
/// The program, or the directory of this one, cannot be found.
pub fn beside(name: &str) -> Result<PathBuf, Failure> {
    let own = std::env::current_exe().and_then(|path| path.canonicalize());
    let own = own.map_err(|error| {
        Failure::refused_here(format!("cannot find this program's own directory: {error}"))
    })?;
    found(own.with_file_name(name), " beside this program")
}

/// The path of a program of ours in the directory of a build.
///
/// # Errors
/// It is not there.
pub fn within(dir: &Path, name: &str) -> Result<PathBuf, Failure> {
    found(dir.join(name), "")
}

fn found(path: PathBuf, place: &str) -> Result<PathBuf, Failure> {
    match path.is_file() {
        true => Ok(path),
        false => Err(Failure::refused_here(format!(
            "expected {}{place}, found nothing; build or install all of them",
            path.display()
        ))),
    }
}

/// Runs a program of ours to its end, under the settings of `loaded`. It ends with the future.
///
/// # Errors
/// The program is not there, or does not start.
pub async fn output(
    name: &str,
    words: impl IntoIterator<Item = impl AsRef<OsStr>>,
    loaded: Option<&Loaded>,
) -> Result<Output, Failure> {
    let path = beside(name)?;
    let mut command = tokio::process::Command::new(&path);
    command.args(words).stdin(Stdio::null()).kill_on_drop(true);
    command.envs(loaded.map(Loaded::variables).into_iter().flatten());
    command
        .output()
        .await
        .map_err(|error| Failure::refused_here(format!("cannot start {}: {error}", path.display())))
}

/// The words of a program that failed, else how it ended; `None` if it succeeded.
pub fn complaint(output: &Output) -> Option<String> {
    let words = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    let words = if words.is_empty() { output.status.to_string() } else { words };
    (!output.status.success()).then_some(words)
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
    start::settle();
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
