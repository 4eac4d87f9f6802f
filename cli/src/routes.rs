//! `paceline routes replay`: what another policy would have decided. The decision is the
//! supervisor's, so its program is asked.

use std::ffi::OsStr;

use paceline_client::program::output;
use paceline_client::{Failure, Screen};

use crate::args::RoutesCommand;

/// The supervisor's exit codes for what was typed: a setting that is refused, and a log that cannot be read.
const BAD_WORDS: [i32; 2] = [64, 69];

/// Runs the command.
///
/// # Errors
/// The log cannot be read, a setting is refused, or the supervisor's program is not there.
pub async fn run(command: &RoutesCommand, screen: &mut Screen) -> Result<(), Failure> {
    let RoutesCommand::Replay(replay) = command;
    let mut words = vec![OsStr::new("replay")];
    words.extend(replay.json.then_some(OsStr::new("--json")));
    words.extend(replay.set.iter().flat_map(|setting| [OsStr::new("--set"), OsStr::new(setting)]));
    words.extend([OsStr::new("--"), replay.log.as_os_str()]);
    let output = output("paceline-supervisor", words, None).await?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match output.status.code() {
        Some(0) => screen.text(&text(&output.stdout)),
        Some(code) if BAD_WORDS.contains(&code) => Err(Failure::usage(text(&output.stderr).trim())),
        _ => Err(Failure::refused_here(text(&output.stderr).trim())),
    }
}
