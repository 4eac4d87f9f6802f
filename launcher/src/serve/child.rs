//! Starting gateway and supervisor: what they inherit, where their output goes, and how their end
//! is read.
//!
//! A child inherits its log file as standard output and error, and no input. It inherits the read
//! end of a pipe whose only write end this process holds: end of file means that this process has
//! ended. The gateway also inherits the listening sockets, from descriptor 3 on. Each child has a
//! process group of its own, so that a terminal's Ctrl-C reaches only this process. It sends signs
//! of life over a pair of sockets, as it does to systemd.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use command_fds::{CommandFdExt as _, FdMapping};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use paceline_process::notify::{
    self, ALIVE, MANAGER_VARIABLES, MESSAGE_BYTES, NOTIFY_FD, READY, SUCCESSOR_WANTED,
};
use paceline_process::{Loaded, RuntimeDir, listen, telemetry};
use paceline_service_core::launch::ChildEnd;
use paceline_service_core::member::Member;
use paceline_system::platform;
use paceline_system::start::{PARENT_FD, RESTARTS};

use super::listeners::{FrontListeners, TurnedAway};

/// Log files are set aside above this.
const LOG_BYTES: u64 = 8 << 20;
/// Descriptor of the pipe in the child, after those of all listeners: gRPC, HTTP and Ollama.
const PIPE_FD: i32 = listen::FIRST_FD + 3;
/// Descriptor of the socket for signs of life in the child.
const BEATS_FD: i32 = PIPE_FD + 1;
/// Log lines that are shown when a child ended badly.
const LAST_LINES: usize = 6;

/// Starts the children of one service, with all that they inherit.
pub struct ChildSpawner {
    programs: PathBuf,
    /// The configuration, whose files and flags the children read.
    loaded: Loaded,
    dir: RuntimeDir,
    /// Kept here so that connections wait, and are not refused, while the gateway is restarted.
    /// `None` while the service stops.
    listeners: Option<FrontListeners>,
    /// Time in which each child gives a sign of life.
    beat_within: Duration,
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
        beat_within: Duration,
    ) -> io::Result<Self> {
        // Both ends are closed on exec, so the children get none but the one they are given.
        let (read_end, write_end) = io::pipe()?;
        Ok(Self {
            programs,
            loaded,
            dir,
            listeners: Some(listeners),
            beat_within,
            read_end: read_end.into(),
            _write_end: write_end.into(),
        })
    }

    /// The program of a child.
    pub fn program(programs: &Path, member: Member) -> PathBuf {
        programs.join(format!("paceline-{}", member.name()))
    }

    /// Time in which each child gives a sign of life.
    pub fn beat_within(&self) -> Duration {
        self.beat_within
    }

    /// Turns clients away as long as the returned value lives; `None` if there is no port to do so.
    pub fn turn_away(&self) -> Option<TurnedAway> {
        // Without a descriptor for it, clients wait.
        self.listeners.as_ref()?.turn_away().ok()
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
        let log = open_log(&self.dir, member)?;
        let log_start = log.metadata()?.len();
        let mut command = Command::new(Self::program(&self.programs, member));
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        command.envs(self.loaded.variables());
        command.env(PARENT_FD, PIPE_FD.to_string()).env(RESTARTS, restarts.to_string());
        for word in MANAGER_VARIABLES {
            command.env_remove(word);
        }
        let (beats, childs_end) = UnixDatagram::pair()?;
        beats.set_nonblocking(true)?;
        command.env(NOTIFY_FD, BEATS_FD.to_string());
        command.env("WATCHDOG_USEC", self.beat_within.as_micros().to_string());
        let mut fds = vec![
            FdMapping { parent_fd: self.read_end.try_clone()?, child_fd: PIPE_FD },
            FdMapping { parent_fd: childs_end.into(), child_fd: BEATS_FD },
        ];
        if let (Member::Gateway | Member::SecondGateway, Some(listeners)) =
            (member, &self.listeners)
        {
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
        let beats = tokio::net::UnixDatagram::from_std(beats)?;
        Ok(Child { process, beats, log_path, log_start, ended: false })
    }
}

/// Opens the log of a child.
///
/// # Errors
/// It cannot be opened.
pub fn open_log(dir: &RuntimeDir, member: Member) -> io::Result<File> {
    telemetry::child_log(&dir.log(member.name()), LOG_BYTES)
}

/// Changes that a child makes by itself.
pub enum News {
    /// The process ended.
    Ended(ChildEnd),
    /// The process gave a sign of life.
    Alive,
    /// The process can be used.
    Ready,
    /// The process asks for a successor beside it.
    SuccessorWanted,
}

/// A child that runs, or has just ended.
pub struct Child {
    process: tokio::process::Child,
    beats: tokio::net::UnixDatagram,
    log_path: PathBuf,
    log_start: u64,
    ended: bool,
}

impl Child {
    /// Waits for its next sign of life, or for its end, which is returned once. The wait may be
    /// dropped and begun again.
    pub async fn next(&mut self) -> News {
        if self.ended {
            return std::future::pending().await;
        }
        let outcome = tokio::select! {
            biased;
            outcome = self.process.wait() => outcome,
            news = message(&self.beats) => return news,
        };
        self.ended = true;
        News::Ended(match outcome {
            Ok(status) => read(status),
            Err(error) => ChildEnd::NotStarted(format!("its end cannot be waited for: {error}")),
        })
    }

    /// Asks it to stop. A process that job control has stopped cannot read the question.
    pub fn ask_to_stop(&self) {
        let stopped = self.process.id().is_some_and(platform::process_stopped);
        self.signal(if stopped { Signal::SIGKILL } else { Signal::SIGTERM });
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        // `None` after the process was waited for: no process has this id any more.
        if let Some(pid) = self.process.id() {
            let _ = kill(Pid::from_raw(pid as i32), signal);
        }
    }

    /// Sends it a message of [`notify`].
    pub fn send(&self, message: &str) {
        // A child that reads no messages counts as frozen, and has bounds of its own.
        let _ = self.beats.try_send(message.as_bytes());
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

/// Waits for a message of the child.
async fn message(beats: &tokio::net::UnixDatagram) -> News {
    let mut message = [0; MESSAGE_BYTES];
    loop {
        match beats.recv(&mut message).await {
            Ok(length) if length > 0 => {
                match notify::found(&message[..length], &[ALIVE, READY, SUCCESSOR_WANTED]) {
                    Some(ALIVE) => return News::Alive,
                    Some(READY) => return News::Ready,
                    Some(_) => return News::SuccessorWanted,
                    None => {}
                }
            }
            // The child has closed its end: it ends, or counts as frozen later.
            _ => std::future::pending().await,
        }
    }
}

fn read(status: ExitStatus) -> ChildEnd {
    match (status.code(), status.signal()) {
        (Some(code), _) => ChildEnd::Code(code),
        (None, signal) => ChildEnd::Signal(signal.unwrap_or(0)),
    }
}
