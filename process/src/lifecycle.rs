//! The end of a process: signals, and the end of the parent.

use std::io;
use std::time::Duration;

use nix::fcntl::{FcntlArg, fcntl};
use paceline_system::platform;
use paceline_system::start::{PARENT_FD, ignore, inherited_fd};
use tokio::io::AsyncReadExt;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Longest time that the supervisor takes to stop. It is the sum of 30 s for running requests, 5 s
/// to cancel them, three times the longest teardown (order, SIGTERM, SIGKILL), and 15 s of margin.
/// The argument is whether a kill strands memory on this system. A parent waits longer before it
/// kills the supervisor.
pub const fn supervisor_stop(kill_strands_memory: bool) -> Duration {
    Duration::from_secs(50 + 3 * platform::teardown(kill_strands_memory).as_secs())
}

/// Requests to stop by signal: the first drains, the second cancels, the third kills.
#[derive(Debug)]
pub struct Signals {
    term: Signal,
    /// Ctrl-C of an interactive process, SIGUSR1 of a child.
    other: Signal,
}

impl Signals {
    /// For a process that a person may have started in a terminal: SIGTERM and Ctrl-C both count.
    pub fn interactive() -> io::Result<Self> {
        Ok(Self { term: signal(SignalKind::terminate())?, other: signal(SignalKind::interrupt())? })
    }

    /// For a child of ours: SIGTERM counts, and SIGUSR1 for the parent's second request, because
    /// two signals of one kind in quick succession are delivered as one. Ctrl-C is ignored: a
    /// terminal sends it to the whole group, and the parent passes the request on.
    pub fn child() -> io::Result<Self> {
        ignore(nix::sys::signal::Signal::SIGINT);
        Ok(Self {
            term: signal(SignalKind::terminate())?,
            other: signal(SignalKind::user_defined1())?,
        })
    }

    /// The next request to stop.
    pub async fn next(&mut self) {
        tokio::select! { _ = self.term.recv() => {}, _ = self.other.recv() => {} }
    }
}

/// The read end of a pipe whose write end only the parent holds.
#[derive(Debug)]
pub struct ParentWatch(Option<tokio::net::unix::pipe::Receiver>);

impl ParentWatch {
    /// Takes over the inherited descriptor named by [`PARENT_FD`]; without one the watch never
    /// fires.
    ///
    /// # Errors
    /// The variable is set but names no pipe of ours.
    pub fn inherited() -> io::Result<Self> {
        let Some(fd) = inherited_fd(PARENT_FD)? else { return Ok(Self(None)) };
        let flags = nix::fcntl::OFlag::from_bits_truncate(fcntl(&fd, FcntlArg::F_GETFL)?);
        fcntl(&fd, FcntlArg::F_SETFL(flags | nix::fcntl::OFlag::O_NONBLOCK))?;
        Ok(Self(Some(tokio::net::unix::pipe::Receiver::from_owned_fd(fd)?)))
    }

    /// Resolves when the parent is gone.
    pub async fn gone(&mut self) {
        match &mut self.0 {
            // Nothing is ever written, so the read ends only with the parent.
            Some(pipe) => {
                let _ = pipe.read(&mut [0u8; 1]).await;
            }
            None => std::future::pending().await,
        }
    }
}
