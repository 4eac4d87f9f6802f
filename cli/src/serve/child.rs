//! Starting gateway and supervisor: what they inherit, where their output goes, and how their end
//! is read.
//!
//! A child inherits its log file as standard output and error, and no input. It inherits the read
//! end of a pipe whose only write end this process holds: end of file means that this process has
//! ended. The gateway also inherits the listening sockets, from descriptor 3 on. Each child has a
//! process group of its own, so that a terminal's Ctrl-C reaches only this process.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use command_fds::{CommandFdExt as _, FdMapping};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use paceline_process::config::CONFIG_VAR;
use paceline_process::lifecycle::{PARENT_FD, RESTARTS};
use paceline_process::notify::MANAGER_VARIABLES;
use paceline_process::{Loaded, RuntimeDir, listen, telemetry};

use super::core::{ChildEnd, Member};
use super::listeners::FrontListeners;

/// Log files are set aside above this.
const LOG_BYTES: u64 = 8 << 20;
/// Descriptor of the pipe in the child, after those of the listeners of gRPC and HTTP.
const PIPE_FD: i32 = listen::FIRST_FD + 2;
/// Log lines that are shown when a child ended badly.
const LAST_LINES: usize = 6;

/// Starts the children of one service, with all that they inherit.
pub struct ChildSpawner {
    programs: PathBuf,
    /// The configuration's file, if any, and its models as directories.
    loaded: Loaded,
    dir: RuntimeDir,
    /// Kept here so that connections wait, and are not refused, while the gateway is restarted.
    /// `None` while the service stops.
    listeners: Option<FrontListeners>,
    read_end: OwnedFd,
    /// Never used: the children react to its closing.
    _write_end: OwnedFd,
}

impl ChildSpawner {
    /// Prepares to start the programs of directory `programs`.
    ///
    /// # Errors
    /// The system has no descriptors left.
    pub fn new(
        programs: PathBuf,
        loaded: Loaded,
        dir: RuntimeDir,
        listeners: FrontListeners,
    ) -> io::Result<Self> {
        // Both ends are closed on exec, so the children get none but the one they are given.
        let (read_end, write_end) = io::pipe()?;
        Ok(Self {
            programs,
            loaded,
            dir,
            listeners: Some(listeners),
            read_end: read_end.into(),
            _write_end: write_end.into(),
        })
    }

    /// The program of a child.
    pub fn program(programs: &Path, member: Member) -> PathBuf {
        programs.join(format!("paceline-{}", member.name()))
    }

    /// Refuses new connections from now on, once the gateway does so too.
    pub fn close_door(&mut self) {
        self.listeners = None;
    }

    /// Starts a child that was restarted `restarts` times without being asked.
    ///
    /// # Errors
    /// The system refuses.
    pub fn start(&self, member: Member, restarts: u32) -> io::Result<Child> {
        let log_path = self.dir.log(member.name());
        let log = telemetry::child_log(&log_path, LOG_BYTES)?;
        let log_start = log.metadata()?.len();
        let mut command = Command::new(Self::program(&self.programs, member));
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        command.env(CONFIG_VAR, self.loaded.file.as_deref().unwrap_or(Path::new("")));
        command.envs(self.loaded.config.model_variables());
        command.env(PARENT_FD, PIPE_FD.to_string()).env(RESTARTS, restarts.to_string());
        for word in MANAGER_VARIABLES {
            command.env_remove(word);
        }
        let mut fds = vec![FdMapping { parent_fd: self.read_end.try_clone()?, child_fd: PIPE_FD }];
        if let (Member::Gateway, Some(listeners)) = (member, &self.listeners) {
            let mut fronts = vec![];
            for (child_fd, (front, socket)) in (listen::FIRST_FD..).zip(listeners.sockets()) {
                fronts.push(front);
                fds.push(FdMapping { parent_fd: socket.as_fd().try_clone_to_owned()?, child_fd });
            }
            command.envs(listen::variables(&fronts));
        }
        command.fd_mappings(fds).map_err(io::Error::other)?;
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let process = tokio::process::Command::from(command).spawn()?;
        Ok(Child { process, log_path, log_start, ended: false })
    }
}

/// A child that runs, or has just ended.
pub struct Child {
    process: tokio::process::Child,
    log_path: PathBuf,
    log_start: u64,
    ended: bool,
}

impl Child {
    /// Waits for its end, which is returned once. The wait may be dropped and begun again.
    pub async fn end(&mut self) -> ChildEnd {
        if self.ended {
            return std::future::pending().await;
        }
        let outcome = self.process.wait().await;
        self.ended = true;
        match outcome {
            Ok(status) => read(status),
            Err(error) => ChildEnd::NotStarted(format!("its end cannot be waited for: {error}")),
        }
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        // `None` after the process was waited for: no process has this id any more.
        if let Some(pid) = self.process.id() {
            let _ = kill(Pid::from_raw(pid as i32), signal);
        }
    }

    /// The last lines it logged in this life.
    pub fn last_words(&self) -> String {
        let written =
            File::open(&self.log_path).and_then(|file| Ok(file.metadata()?.len())).unwrap_or(0);
        if written == self.log_start {
            String::new()
        } else {
            telemetry::last_lines(&self.log_path, LAST_LINES)
        }
    }
}

fn read(status: ExitStatus) -> ChildEnd {
    match (status.code(), status.signal()) {
        (Some(code), _) => ChildEnd::Code(code),
        (None, signal) => ChildEnd::Signal(signal.unwrap_or(0)),
    }
}
