//! The target's process: starting it, signals to it, and seeing its end. Everything here is the operating system's view;
//! what to do about it is the core's.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use paceline_process::config::CONFIG_VAR;
use paceline_process::lifecycle::{self, PARENT_FD, RESTARTS};
use paceline_process::runtime_dir::WorkerRecord;
use paceline_process::{Loaded, RuntimeDir, platform, telemetry};
use paceline_proto::ids::{Epoch, Term};
use tokio::process::{Child, Command};

use crate::core::worker::Exit;

/// Environment variable that names another program to start as the target: for tests of faults.
pub const TARGET_BIN: &str = "PACELINE_TARGET_BIN";

/// What is kept of the target's log before it is set aside.
const LOG_BYTES: u64 = 8 << 20;
/// How often a process that is not our child is looked at.
const LOOK: Duration = Duration::from_millis(20);
/// Lines of the log in `status` after a fall.
const LAST_LINES: usize = 5;

/// The one target process there may be, as the actor handles it. A trait so that tests can put a scripted one in its place.
pub trait Host: Send + 'static {
    /// A target that runs on this directory and is not ours yet; from then on it is the current one.
    fn find(&mut self) -> Option<WorkerRecord>;

    /// Starts a target, which becomes the current one; returns its process id.
    ///
    /// # Errors
    /// It cannot be started.
    fn start(&mut self, epoch: Epoch, term: Term) -> io::Result<u32>;

    /// Sends SIGTERM to the current one, or SIGKILL.
    fn signal(&mut self, hard: bool);

    /// Whether the current one is stopped by job control.
    fn is_frozen(&self) -> bool;

    /// Resolves when the current one has ended, and lets go of it. Never, without one. Safe to drop and call again.
    fn exited(&mut self) -> impl Future<Output = Exit> + Send;

    /// Last lines of its log.
    fn last_words(&self) -> String;
}

/// How a target is started.
#[derive(Debug)]
pub struct ProcessHost {
    program: PathBuf,
    config_file: String,
    threads: Option<u32>,
    dir: RuntimeDir,
    current: Option<Current>,
}

#[derive(Debug)]
enum Current {
    /// Our child.
    Ours(Child),
    /// Somebody else's, found by its record.
    Earlier(WorkerRecord),
}

impl ProcessHost {
    /// Targets of this configuration in this directory: `paceline-target` beside our own program, or what
    /// [`TARGET_BIN`] names.
    ///
    /// # Errors
    /// The system does not say where our own program is.
    pub fn new(loaded: &Loaded, dir: RuntimeDir) -> io::Result<Self> {
        let program = match lifecycle::env(TARGET_BIN) {
            Some(path) => PathBuf::from(path),
            None => std::env::current_exe()?.with_file_name("paceline-target"),
        };
        let config_file = loaded.file.as_ref().map(|file| file.display().to_string()).unwrap_or_default();
        let threads = match loaded.config.target.threads {
            paceline_process::config::Auto::Is(threads) => Some(threads),
            paceline_process::config::Auto::Auto => None,
        };
        Ok(Self { program, config_file, threads, dir, current: None })
    }
}

impl Host for ProcessHost {
    fn find(&mut self) -> Option<WorkerRecord> {
        let record = self.dir.record("target").filter(WorkerRecord::alive)?;
        self.current = Some(Current::Earlier(record.clone()));
        Some(record)
    }

    fn start(&mut self, epoch: Epoch, term: Term) -> io::Result<u32> {
        // A file, never a pipe: the target outlives us for its lease, and must not die of writing to nobody.
        let log = telemetry::child_log(&self.dir.log("target"), LOG_BYTES)?;
        let mut command = Command::new(&self.program);
        command.args(["--epoch", &epoch.to_string(), "--term", &term.to_string()]);
        // Set even when empty: whatever file lies in the working directory, the target reads what we have read.
        command.env(CONFIG_VAR, &self.config_file);
        for ours in [PARENT_FD, RESTARTS, "LISTEN_FDS", "LISTEN_PID", "NOTIFY_SOCKET"] {
            command.env_remove(ours);
        }
        if let Some(threads) = self.threads {
            command.env("OPENBLAS_NUM_THREADS", threads.to_string());
        }
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).kill_on_drop(false);
        // SAFETY: setsid is async-signal-safe and nothing else runs between fork and exec. A session of its own keeps the
        // terminal's signals, and the end of our process group, away from it.
        unsafe {
            command.pre_exec(|| Ok(nix::unistd::setsid().map(drop)?));
        }
        let child = command.spawn().map_err(|cause| {
            io::Error::new(cause.kind(), format!("cannot start {}: {cause}", self.program.display()))
        })?;
        let pid = child.id().unwrap_or_default();
        self.current = Some(Current::Ours(child));
        Ok(pid)
    }

    fn signal(&mut self, hard: bool) {
        let signal = if hard { Signal::SIGKILL } else { Signal::SIGTERM };
        // A child's id is gone once it is reaped and a record is compared with the process's start: no stranger who got
        // the number is hit.
        let pid = match &self.current {
            Some(Current::Ours(child)) => child.id(),
            Some(Current::Earlier(record)) => record.alive().then_some(record.pid),
            None => None,
        };
        if let Some(pid) = pid
            && let Err(error) = kill(Pid::from_raw(pid as i32), signal)
        {
            tracing::warn!(pid, %signal, %error, "signal not sent");
        }
    }

    fn is_frozen(&self) -> bool {
        match &self.current {
            Some(Current::Ours(child)) => child.id().is_some_and(platform::process_stopped),
            Some(Current::Earlier(record)) => platform::process_stopped(record.pid),
            None => false,
        }
    }

    async fn exited(&mut self) -> Exit {
        let exit = match &mut self.current {
            None => std::future::pending().await,
            Some(Current::Ours(child)) => match child.wait().await {
                Ok(status) => match (status.signal(), status.code()) {
                    (Some(signal), _) => Exit::Signal(signal),
                    (None, Some(code)) => Exit::Code(code),
                    (None, None) => Exit::Unknown,
                },
                Err(error) => {
                    tracing::error!(%error, "the target's end cannot be waited for");
                    Exit::Unknown
                }
            },
            Some(Current::Earlier(record)) => {
                while record.alive() {
                    tokio::time::sleep(LOOK).await;
                }
                Exit::Unknown
            }
        };
        self.current = None;
        exit
    }

    fn last_words(&self) -> String {
        telemetry::last_lines(&self.dir.log("target"), LAST_LINES)
    }
}
