//! Processes of one stack: all that carry its mark in their environment, however they were started
//! and by whom.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use paceline_system::platform::{process_start, process_stopped};

/// A living process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Id of the process.
    pub pid: u32,
    /// Command line of the process.
    pub command: String,
}

impl Process {
    /// Sends it a signal; it may have ended already.
    pub fn signal(&self, signal: Signal) {
        let _ = kill(Pid::from_raw(self.pid as i32), signal);
    }
}

/// Kills these processes so that none of them acts on another one's end. Each is stopped first, and
/// the first is killed when all stand still.
pub fn kill_at_once(processes: &[Process]) {
    stop_at_once(processes);
    processes.iter().for_each(|process| process.signal(Signal::SIGKILL));
}

/// Stops these processes and waits until all stand still. The signal alone does not suffice: on a
/// busy machine another thread of the process goes on for a while.
pub fn stop_at_once(processes: &[Process]) {
    processes.iter().for_each(|process| process.signal(Signal::SIGSTOP));
    for process in processes {
        crate::wait("a process to stand still", || {
            let gone = process_start(process.pid).is_none();
            (gone || process_stopped(process.pid)).then_some(())
        });
    }
}

/// Sends a signal to a process that runs.
///
/// # Panics
/// It does not.
pub fn signal(pid: u32, signal: Signal) {
    kill(Pid::from_raw(pid as i32), signal).expect("it runs");
}

/// The environment variable by which processes are found.
pub const MARK: &str = "STACK_UNDER_TEST";

/// Living processes whose environment has [`MARK`] with this value. Zombies are none.
pub fn marked(value: &str) -> Vec<Process> {
    let mark = format!("{MARK}={value}");
    all()
        .into_iter()
        .filter(|(process, environment)| {
            environment.contains(&mark) && process_start(process.pid).is_some()
        })
        .map(|(p, _)| p)
        .collect()
}

/// Every process of this user with its environment.
#[cfg(target_os = "linux")]
fn all() -> Vec<(Process, String)> {
    let text = |pid: u32, name: &str| {
        let bytes = std::fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).replace('\0', " ")
    };
    let entries = std::fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.map(|pid| (Process { pid, command: text(pid, "cmdline") }, text(pid, "environ"))).collect()
}

/// Every process of this user with its environment.
#[cfg(not(target_os = "linux"))]
fn all() -> Vec<(Process, String)> {
    let output =
        std::process::Command::new("ps").args(["-axEwwo", "pid=,command="]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let lines = text.lines().filter_map(|line| line.trim().split_once(' '));
    lines
        .filter_map(|(pid, rest)| {
            Some((Process { pid: pid.parse().ok()?, command: rest.to_owned() }, rest.to_owned()))
        })
        .collect()
}
