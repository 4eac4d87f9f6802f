//! The gateway that takes this one's place while this one drains. Both accept on the same listening
//! sockets for a moment, so that no connection waits and none is refused.
//!
//! ```text
//! serve:    this one asks ──▶ serve starts it, with the sockets ──▶ ready ──▶ serve reports it
//! systemd:  this one starts it, with the sockets ──▶ ready ──▶ this one names it as MAINPID
//! launchd:  no successor beside this one
//! ```
//!
//! systemd starts one main process of a unit at a time, but takes another process of the unit as
//! the main one if that is named to it. If the successor ends while this one drains, this one
//! becomes the main process again, and its exit code has systemd start the next one.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::process::Command;

use command_fds::{CommandFdExt as _, FdMapping};
use paceline_process::listen::{self, Front};
use paceline_process::notify::{
    self, Manager, Notifier, READY_FD, SUCCESSOR_FAILED, SUCCESSOR_READY,
};
use paceline_service_core::ending::Event;
use tokio::io::AsyncReadExt as _;
use tokio::net::{UnixDatagram, UnixStream};
use tokio::process::Child;

use crate::FrontListeners;

/// The successor of this gateway, and who starts it.
#[derive(Debug)]
pub struct Successor {
    notifier: Notifier,
    starter: Starter,
}

#[derive(Debug)]
enum Starter {
    /// `paceline serve`, whose messages these are.
    Serve(UnixDatagram),
    /// This process starts the successor itself.
    Own(Box<Launch>),
    /// Nobody starts a gateway beside this one.
    Nobody,
}

/// A successor that this process starts.
#[derive(Debug)]
struct Launch {
    /// The listening sockets, in the order in which the successor gets them.
    sockets: Vec<(Front, OwnedFd)>,
    /// The gateway that started this one, while it drains. It ends before a successor is started,
    /// so that at most two gateways run.
    predecessor: Option<UnixStream>,
    /// The successor is to be started at the end of the predecessor.
    is_wanted: bool,
    running: Option<Running>,
}

/// A successor that runs.
#[derive(Debug)]
struct Running {
    process: Child,
    /// Its stream to this process. It notices the end of this process by the end of the stream.
    stream: UnixStream,
    stage: Stage,
}

/// Stage of a successor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Starting,
    /// It accepts connections.
    Accepting,
    /// It has closed its stream before it accepted connections.
    Closed,
}

impl Successor {
    /// The successor of a gateway with these listening sockets.
    ///
    /// # Errors
    /// The system has no descriptors left.
    pub fn new(notifier: Notifier, listeners: &FrontListeners) -> io::Result<Self> {
        let FrontListeners { grpc, http, ollama, are_held: _ } = listeners;
        let starter = match notifier.manager() {
            Manager::Serve => Starter::Serve(notifier.messages()?),
            Manager::Systemd => {
                let fronts = [
                    (Front::Grpc, Some(grpc)),
                    (Front::Http, http.as_ref()),
                    (Front::Ollama, ollama.as_ref()),
                ];
                let mut sockets = vec![];
                for (front, listener) in fronts {
                    if let Some(listener) = listener {
                        sockets.push((front, listener.try_clone()?.into()));
                    }
                }
                let predecessor = notifier.predecessor().map(own_end).transpose()?;
                Starter::Own(Box::new(Launch {
                    sockets,
                    predecessor,
                    is_wanted: false,
                    running: None,
                }))
            }
            Manager::Other => Starter::Nobody,
        };
        Ok(Self { notifier, starter })
    }

    /// Whether a successor can be started beside this gateway.
    pub fn is_possible(&self) -> bool {
        !matches!(self.starter, Starter::Nobody)
    }

    /// Has the successor started; an event if that fails at once.
    pub fn ask(&mut self) -> Option<Event> {
        match &mut self.starter {
            Starter::Serve(_) => {
                self.notifier.ask_for_successor();
                None
            }
            Starter::Own(launch) => launch.ask(),
            Starter::Nobody => Some(Event::SuccessorFailed),
        }
    }

    /// Waits for the successor to accept connections, or to fail before that. The wait may be
    /// dropped and begun again.
    pub async fn next(&mut self) -> Event {
        match &mut self.starter {
            Starter::Serve(messages) => answer(messages).await,
            Starter::Own(launch) => launch.next(&self.notifier).await,
            Starter::Nobody => std::future::pending().await,
        }
    }

    /// Ends a successor that does not accept connections yet: this gateway ends without one.
    pub fn abandon(&mut self) {
        let Starter::Own(launch) = &mut self.starter else { return };
        launch.is_wanted = false;
        if let Some(running) = &mut launch.running
            && running.stage != Stage::Accepting
            && let Err(error) = running.process.start_kill()
        {
            tracing::warn!(%error, "the next gateway, which does not accept connections, goes on");
        }
    }
}

/// A copy of a stream, for a task.
fn own_end(stream: &std::os::unix::net::UnixStream) -> io::Result<UnixStream> {
    stream.set_nonblocking(true)?;
    UnixStream::from_std(stream.try_clone()?)
}

/// The answer of `paceline serve`.
async fn answer(messages: &UnixDatagram) -> Event {
    let mut message = [0; notify::MESSAGE_BYTES];
    loop {
        let Ok(length) = messages.recv(&mut message).await else {
            return std::future::pending().await;
        };
        // serve has ended; the pipe to it reports that.
        if length == 0 {
            return std::future::pending().await;
        }
        match notify::found(&message[..length], &[SUCCESSOR_READY, SUCCESSOR_FAILED]) {
            Some(SUCCESSOR_READY) => return Event::SuccessorReady,
            Some(_) => return Event::SuccessorFailed,
            None => {}
        }
    }
}

impl Launch {
    /// Starts the successor, at once or at the end of the predecessor; an event if that fails.
    fn ask(&mut self) -> Option<Event> {
        self.is_wanted = self.predecessor.is_some();
        if self.is_wanted {
            tracing::info!("the next gateway is started when the earlier one has ended");
            return None;
        }
        let error = self.start().err()?;
        tracing::warn!(%error, "the next gateway cannot be started; this one goes on");
        Some(Event::SuccessorFailed)
    }

    /// Starts the successor as this process was started: the same program, arguments and
    /// environment.
    fn start(&mut self) -> io::Result<()> {
        let mut arguments = std::env::args_os();
        let mut command = Command::new(program(arguments.next())?);
        command.args(arguments);
        let (stream, its_end) = UnixStream::pair()?;
        let its_end = its_end.into_std()?;
        let mut fds = vec![];
        for (child_fd, (_, socket)) in (listen::FIRST_FD..).zip(&self.sockets) {
            fds.push(FdMapping { parent_fd: socket.try_clone()?, child_fd });
        }
        let ready_fd = listen::FIRST_FD + self.sockets.len() as i32;
        fds.push(FdMapping { parent_fd: its_end.into(), child_fd: ready_fd });
        command.fd_mappings(fds).map_err(io::Error::other)?;
        let fronts: Vec<Front> = self.sockets.iter().map(|(front, _)| *front).collect();
        command.envs(listen::variables(&fronts)).env(READY_FD, ready_fd.to_string());
        // They name this process.
        for variable in ["LISTEN_PID", "WATCHDOG_PID"] {
            command.env_remove(variable);
        }
        let process = tokio::process::Command::from(command).spawn()?;
        tracing::info!(pid = process.id(), "the next gateway is started");
        self.running = Some(Running { process, stream, stage: Stage::Starting });
        Ok(())
    }

    async fn next(&mut self, notifier: &Notifier) -> Event {
        loop {
            let event = tokio::select! {
                biased;
                () = ended(self.predecessor.as_mut()) => {
                    self.predecessor = None;
                    if self.is_wanted { self.ask() } else { None }
                }
                event = change(self.running.as_mut(), notifier), if self.running.is_some() => {
                    if event != Some(Event::SuccessorReady) {
                        self.running = None;
                    }
                    event
                }
            };
            if let Some(event) = event {
                return event;
            }
        }
    }
}

/// Waits for the end of this stream's other process; without a stream for ever.
async fn ended(stream: Option<&mut UnixStream>) {
    match stream {
        // It writes nothing, so the read ends only with it.
        Some(stream) => _ = stream.read(&mut [0; 1]).await,
        None => std::future::pending().await,
    }
}

/// Waits until a successor accepts connections, or ends. No event if it ends afterwards: then this
/// process becomes the main process of the unit again, unless the successor was asked to stop.
async fn change(running: Option<&mut Running>, notifier: &Notifier) -> Option<Event> {
    let Running { process, stream, stage } = running?;
    loop {
        let mut byte = [0; 1];
        tokio::select! {
            biased;
            length = stream.read(&mut byte), if *stage == Stage::Starting => {
                match (length, process.id()) {
                    (Ok(1), Some(pid)) => {
                        *stage = Stage::Accepting;
                        notifier.hand_over(pid);
                        return Some(Event::SuccessorReady);
                    }
                    _ => *stage = Stage::Closed,
                }
            }
            end = process.wait() => {
                if *stage != Stage::Accepting {
                    tracing::warn!(?end, "the next gateway ended before it accepted connections");
                    return Some(Event::SuccessorFailed);
                }
                tracing::warn!(?end, "the next gateway ended while this one drains");
                if !end.is_ok_and(|status| status.success()) {
                    notifier.take_back();
                }
                return None;
            }
        }
    }
}

/// The program of this process by the path under which it was started: after an update another file
/// is there. Without a whole path, the name of the gateway beside the file that runs.
fn program(name: Option<OsString>) -> io::Result<OsString> {
    match name.filter(|name| std::path::Path::new(name).is_absolute()) {
        Some(name) => Ok(name),
        None => Ok(std::env::current_exe()?.with_file_name("paceline-gateway").into()),
    }
}
