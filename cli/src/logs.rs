//! `paceline logs`: the logs of the processes, which lie in the runtime directory. `tail` shows them.

use std::path::{Path, PathBuf};

use clap::ValueEnum as _;
use paceline_client::Failure;
use paceline_launcher::service::orders::Order;
use paceline_process::{Loaded, RuntimeDir};

use crate::args::{LogsArgs, Process};

/// Runs the command. Returns only if it cannot show anything.
///
/// # Errors
/// There is no log, or none that grows; `tail` cannot be started.
pub fn run(args: &LogsArgs) -> Result<(), Failure> {
    let Loaded { config, .. } = Loaded::find(args.config.config.as_deref())?;
    let dir = RuntimeDir::locate(&config)?;
    let place = dir.path().display();
    if args.follow && !dir.is_locked("supervisor") {
        return Err(Failure::unreachable(format!(
            "expected a service that runs in {place}, found none; without -f the logs of the last one are shown"
        )));
    }
    let logs = logs_of(args.process, dir.path());
    if logs.is_empty() {
        return Err(Failure::unreachable(format!(
            "expected logs of the processes in {place}, found none; `paceline service logs` shows those of a service of systemd or launchd"
        )));
    }
    Err(Order::tail(&logs, args.follow, args.lines).become_it())
}

/// The logs of a process, or of all.
fn logs_of(process: Option<Process>, dir: &Path) -> Vec<PathBuf> {
    let processes = process.map_or(Process::value_variants().to_vec(), |one| vec![one]);
    let names = processes.into_iter().flat_map(|process| match process {
        Process::Gateway => &["gateway"][..],
        Process::Target => &["target"],
        // Two live at once while one takes the other's place.
        Process::Drafter => &["drafter-0", "drafter-1"],
        Process::Supervisor => &["supervisor"],
    });
    names.map(|name| dir.join(format!("{name}.log"))).filter(|path| path.is_file()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_are_found_by_their_process() {
        let dir = tempfile::tempdir().expect("a directory");
        for name in ["target.log", "target.log.1", "drafter-0.log", "drafter-1.log", "x.log"] {
            std::fs::write(dir.path().join(name), "").expect("written");
        }
        let names = |process| {
            let logs = logs_of(process, dir.path());
            let name = |path: &PathBuf| path.file_name()?.to_str().map(str::to_owned);
            logs.iter().filter_map(name).collect::<Vec<String>>()
        };
        assert_eq!(names(None), ["target.log", "drafter-0.log", "drafter-1.log"]);
        assert_eq!(names(Some(Process::Drafter)), ["drafter-0.log", "drafter-1.log"]);
        assert_eq!(names(Some(Process::Gateway)), [""; 0]);
    }
}
