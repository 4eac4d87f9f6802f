//! Messages to the service manager by the protocol of sd_notify(3), one datagram a message: to the
//! socket that NOTIFY_SOCKET names (systemd), or over the inherited end of a pair of sockets that
//! [`NOTIFY_FD`] names (`paceline serve`). Without these variables (launchd, a terminal) nothing is
//! sent.
//!
//! The crate `sd-notify` (0.5) does not fit. It connects to no abstract socket (`@name`). Its
//! `send` has no timeout and would block the supervisor on a manager that does not read. It sends
//! line ends within a status, which begin another message.

use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use paceline_system::environment::env;
use paceline_system::platform;
use paceline_system::start;

/// Environment variables that a service manager sets for the one process that it starts. The
/// children of that process must not inherit them.
pub const MANAGER_VARIABLES: [&str; 8] = [
    "LISTEN_FDS",
    "LISTEN_PID",
    "LISTEN_FDNAMES",
    "NOTIFY_SOCKET",
    "WATCHDOG_USEC",
    "WATCHDOG_PID",
    NOTIFY_FD,
    READY_FD,
];

/// Environment variable with the descriptor of a datagram socket to `paceline serve`. It needs no
/// path, which may be too long or be removed.
pub const NOTIFY_FD: &str = "PACELINE_NOTIFY_FD";

/// Environment variable with the descriptor of a stream to the process that this one is to succeed.
/// A byte is written to it once, when this process can be used. Its end is that of the other
/// process.
pub const READY_FD: &str = "PACELINE_READY_FD";

/// Message to `paceline serve`: it is to start a successor of the sender beside it.
pub const SUCCESSOR_WANTED: &str = "PACELINE_SUCCESSOR=wanted";
/// Message of `paceline serve`: the successor can be used.
pub const SUCCESSOR_READY: &str = "PACELINE_SUCCESSOR=ready";
/// Message of `paceline serve`: there is no successor, because it ended before it could be used.
pub const SUCCESSOR_FAILED: &str = "PACELINE_SUCCESSOR=failed";
/// The message that a process can be used.
pub const READY: &str = "READY=1";
/// Longest message in bytes: a line of state of 300 characters and its key.
pub const MESSAGE_BYTES: usize = 2_048;

/// The line of a message that is one of `lines`, if there is one.
pub fn found<'a>(message: &[u8], lines: &[&'a str]) -> Option<&'a str> {
    let text = String::from_utf8_lossy(message);
    text.lines().find_map(|line| lines.iter().find(|wanted| **wanted == line).copied())
}

/// Keep-alives within the watchdog's time. One or two may get lost when the manager has no room.
const BEATS: u32 = 3;
/// Longest wait for room in the manager's socket, of a message that is sent once. After it the
/// message is dropped. Messages that come again are dropped at once: a manager that does not read,
/// as a `serve` that job control has stopped, must not hold this process up.
const SEND_TIMEOUT: Duration = Duration::from_secs(1);
/// The keep-alive.
pub const ALIVE: &str = "WATCHDOG=1";
/// Longest status line in characters.
const STATUS_CHARS: usize = 300;

/// Sends messages to the service manager. Clones share the socket.
#[derive(Clone, Debug, Default)]
pub struct Notifier(Option<Arc<Connection>>);

/// Kind of the service manager that started this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manager {
    /// `paceline serve`.
    Serve,
    /// systemd. It lets a process of a unit name another one as the unit's main process.
    Systemd,
    /// None, or one that starts a process only after the end of the previous one.
    Other,
}

#[derive(Debug)]
struct Connection {
    /// Waits for room.
    patient: UnixDatagram,
    /// Does not.
    quick: UnixDatagram,
    /// `None` if the sockets are connected.
    address: Option<SocketAddr>,
    watchdog: Option<Duration>,
    manager: Manager,
    stopping: AtomicBool,
    /// Another process of the unit is the main one, and sends the messages.
    handed_over: AtomicBool,
    /// The stream that [`READY_FD`] names.
    predecessor: Option<UnixStream>,
}

impl Notifier {
    /// The manager that started this process, if it wants messages. A socket that cannot be used is
    /// logged; the manager then reports that it got no message.
    pub fn inherited() -> Self {
        let [usec, pid] = ["WATCHDOG_USEC", "WATCHDOG_PID"].map(env);
        let watchdog = watchdog(usec.as_deref(), pid.as_deref(), std::process::id());
        let notifier = match env("NOTIFY_SOCKET").filter(|name| !name.is_empty()) {
            // systemd alone names each start of a unit.
            Some(name) if env("INVOCATION_ID").is_some() => {
                Self::connected(&name, watchdog, Manager::Systemd)
            }
            Some(name) => Self::to(&name, watchdog),
            None => start::inherited_fd(NOTIFY_FD)
                .and_then(|fd| fd.map_or(Ok(Self::default()), |fd| Self::over(fd, watchdog))),
        };
        notifier.unwrap_or_else(|error| {
            tracing::warn!(%error, "NOTIFY_SOCKET: expected a path or @name of a datagram socket; the service manager gets no messages");
            Self::default()
        })
    }

    /// A manager at the other end of this socket.
    fn over(fd: OwnedFd, watchdog: Option<Duration>) -> io::Result<Self> {
        let quick = UnixDatagram::from(fd);
        quick.set_nonblocking(true)?;
        Ok(Self::with(quick.try_clone()?, quick, None, watchdog, Manager::Serve))
    }

    fn with(
        patient: UnixDatagram,
        quick: UnixDatagram,
        address: Option<SocketAddr>,
        watchdog: Option<Duration>,
        manager: Manager,
    ) -> Self {
        let predecessor = start::inherited_fd(READY_FD).unwrap_or_else(|error| {
            tracing::warn!(%error, "the earlier process is not told that this one can be used");
            None
        });
        Self(Some(Arc::new(Connection {
            patient,
            quick,
            address,
            watchdog,
            manager,
            stopping: AtomicBool::new(false),
            handed_over: AtomicBool::new(false),
            predecessor: predecessor.map(UnixStream::from),
        })))
    }

    /// A manager at this address. `watchdog` is the time without a keep-alive after which the
    /// manager counts this process as hung.
    ///
    /// # Errors
    /// The name is none, or the system has no sockets left.
    pub fn to(name: &str, watchdog: Option<Duration>) -> io::Result<Self> {
        Self::connected(name, watchdog, Manager::Other)
    }

    fn connected(name: &str, watchdog: Option<Duration>, manager: Manager) -> io::Result<Self> {
        let address = match name.strip_prefix('@') {
            Some(name) => platform::abstract_address(name)?,
            None if name.starts_with('/') => SocketAddr::from_pathname(name)?,
            None => return Err(io::ErrorKind::InvalidInput.into()),
        };
        let (patient, quick) = (UnixDatagram::unbound()?, UnixDatagram::unbound()?);
        patient.set_write_timeout(Some(SEND_TIMEOUT))?;
        quick.set_nonblocking(true)?;
        Ok(Self::with(patient, quick, Some(address), watchdog, manager))
    }

    /// Whether there is a manager to send to.
    pub fn listens(&self) -> bool {
        self.0.is_some()
    }

    /// The manager that started this process.
    pub fn manager(&self) -> Manager {
        self.0.as_ref().map_or(Manager::Other, |connection| connection.manager)
    }

    /// A socket with the messages of `paceline serve` to this process.
    ///
    /// # Errors
    /// There is no manager, or the system has no descriptors left.
    pub fn messages(&self) -> io::Result<tokio::net::UnixDatagram> {
        let connection = self.0.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        tokio::net::UnixDatagram::from_std(connection.quick.try_clone()?)
    }

    /// Asks `paceline serve` to start a successor of this process beside it.
    pub fn ask_for_successor(&self) {
        self.send(|to| &to.patient, SUCCESSOR_WANTED);
    }

    /// Makes process `successor` the main process of the unit. It sends the messages from now on.
    pub fn hand_over(&self, successor: u32) {
        self.send(|to| &to.patient, &format!("MAINPID={successor}"));
        self.set_handed_over(true);
    }

    /// Makes this process the main process of the unit again: its successor has ended.
    pub fn take_back(&self) {
        self.set_handed_over(false);
        self.send(|to| &to.patient, &format!("MAINPID={}", std::process::id()));
    }

    fn set_handed_over(&self, handed_over: bool) {
        if let Some(connection) = &self.0 {
            connection.handed_over.store(handed_over, Ordering::Relaxed);
        }
    }

    /// Interval between two keep-alives: a third of the watchdog's time. `None` without a watchdog.
    pub fn beat(&self) -> Option<Duration> {
        self.0.as_ref()?.watchdog.map(|watchdog| watchdog / BEATS)
    }

    /// Reports that this process can be used from now on, and a line about its state.
    pub fn ready(&self, status: &str) {
        self.send(|to| &to.patient, &format!("{READY}\nSTATUS={}", line(status)));
        if let Some(mut predecessor) = self.predecessor() {
            // Without a reader the predecessor has ended, and waits for nothing.
            let _ = predecessor.write_all(b"1");
        }
    }

    /// A stream to the process that this one succeeds; it ends with that process.
    pub fn predecessor(&self) -> Option<&UnixStream> {
        self.0.as_ref()?.predecessor.as_ref()
    }

    /// Reports a line about the state of this process.
    pub fn status(&self, status: &str) {
        self.send(|to| &to.quick, &format!("STATUS={}", line(status)));
    }

    /// Sends a keep-alive. To be called only after the process was seen to work.
    pub fn alive(&self) {
        if self.beat().is_some() {
            self.send(|to| &to.quick, ALIVE);
        }
    }

    /// Reports that this process stops. Only the first call sends.
    pub fn stopping(&self) {
        if self
            .0
            .as_ref()
            .is_some_and(|connection| !connection.stopping.swap(true, Ordering::Relaxed))
        {
            self.send(|to| &to.patient, "STOPPING=1\nSTATUS=stopping");
        }
    }

    fn send(&self, socket: fn(&Connection) -> &UnixDatagram, message: &str) {
        let Some(connection) = &self.0 else { return };
        if connection.handed_over.load(Ordering::Relaxed) {
            return;
        }
        let socket = socket(connection);
        let sent = match &connection.address {
            Some(address) => socket.send_to_addr(message.as_bytes(), address),
            None => socket.send(message.as_bytes()),
        };
        if let Err(error) = sent {
            tracing::debug!(%error, "the service manager got no message");
        }
    }
}

/// Time without a keep-alive after which the manager counts this process as hung. `None` without a
/// watchdog, or with one for another process.
fn watchdog(usec: Option<&str>, pid: Option<&str>, own: u32) -> Option<Duration> {
    let meant = pid.is_none_or(|pid| pid.parse() == Ok(own));
    let usec: u64 = usec?.parse().ok().filter(|usec| *usec > 0)?;
    meant.then(|| Duration::from_micros(usec))
}

/// One line, of bounded length: a line end would begin another message of the protocol.
fn line(text: &str) -> String {
    text.chars().take(STATUS_CHARS).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manager() -> (tempfile::TempDir, UnixDatagram, String) {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("notify");
        let socket = UnixDatagram::bind(&path).expect("bound");
        socket.set_read_timeout(Some(Duration::from_secs(30))).expect("set");
        (dir, socket, path.display().to_string())
    }

    fn received(socket: &UnixDatagram) -> String {
        let mut buffer = [0; 1024];
        let length = socket.recv(&mut buffer).expect("a message");
        String::from_utf8_lossy(&buffer[..length]).into_owned()
    }

    #[test]
    fn each_message_is_one_datagram_of_the_protocol() {
        let (_dir, socket, name) = manager();
        let notifier = Notifier::to(&name, Some(Duration::from_secs(30))).expect("there");
        assert_eq!((notifier.listens(), notifier.beat()), (true, Some(Duration::from_secs(10))));
        notifier.ready("loading\nREADY=0");
        notifier.alive();
        notifier.status("x".repeat(1_000).as_str());
        notifier.stopping();
        notifier.stopping();
        notifier.status("end");
        let messages: Vec<_> = (0..5).map(|_| received(&socket)).collect();
        let long = format!("STATUS={}", "x".repeat(STATUS_CHARS));
        assert_eq!(
            messages,
            [
                "READY=1\nSTATUS=loading READY=0",
                "WATCHDOG=1",
                long.as_str(),
                "STOPPING=1\nSTATUS=stopping",
                "STATUS=end"
            ]
        );
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn an_abstract_socket_is_reached() {
        use std::os::linux::net::SocketAddrExt as _;
        let name = format!("paceline-notify-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).expect("a name");
        let socket = UnixDatagram::bind_addr(&address).expect("bound");
        Notifier::to(&format!("@{name}"), None).expect("there").ready("up");
        assert_eq!(received(&socket), "READY=1\nSTATUS=up");
    }

    #[test]
    fn no_manager_and_a_vanished_manager_are_no_errors() {
        let without = Notifier::default();
        assert_eq!((without.listens(), without.beat()), (false, None));
        without.ready("");
        without.stopping();
        let (_dir, socket, name) = manager();
        let notifier = Notifier::to(&name, None).expect("there");
        drop(socket);
        notifier.ready("");
        // Without a watchdog no keep-alive is sent.
        notifier.alive();
        assert!(Notifier::to("vsock:2:1", None).is_err());
    }

    #[test]
    fn a_pair_of_sockets_needs_no_path() {
        let (own, manager) = UnixDatagram::pair().expect("descriptors");
        manager.set_read_timeout(Some(Duration::from_secs(30))).expect("set");
        let notifier = Notifier::over(own.into(), Some(Duration::from_secs(3))).expect("a socket");
        notifier.alive();
        assert_eq!(received(&manager), ALIVE);
        drop(manager);
        notifier.alive();
    }

    #[test]
    fn a_process_that_has_handed_over_sends_nothing_until_it_takes_the_place_back() {
        let (_dir, socket, name) = manager();
        let watchdog = Some(Duration::from_secs(30));
        let notifier = Notifier::connected(&name, watchdog, Manager::Systemd).expect("there");
        assert_eq!(notifier.manager(), Manager::Systemd);
        notifier.hand_over(17);
        notifier.alive();
        notifier.status("draining");
        notifier.take_back();
        notifier.alive();
        let messages: Vec<_> = (0..3).map(|_| received(&socket)).collect();
        let own = format!("MAINPID={}", std::process::id());
        assert_eq!(messages, ["MAINPID=17", own.as_str(), ALIVE]);
    }

    #[tokio::test]
    async fn serve_and_its_child_send_to_each_other() {
        let (own, manager) = UnixDatagram::pair().expect("descriptors");
        manager.set_read_timeout(Some(Duration::from_secs(30))).expect("set");
        let notifier = Notifier::over(own.into(), None).expect("a socket");
        assert_eq!(notifier.manager(), Manager::Serve);
        notifier.ask_for_successor();
        assert_eq!(received(&manager), SUCCESSOR_WANTED);
        let messages = notifier.messages().expect("a manager");
        manager.send(SUCCESSOR_READY.as_bytes()).expect("room");
        let mut buffer = [0; MESSAGE_BYTES];
        let length = messages.recv(&mut buffer).await.expect("a message");
        let both = [SUCCESSOR_READY, SUCCESSOR_FAILED];
        assert_eq!(found(&buffer[..length], &both), Some(SUCCESSOR_READY));
        assert_eq!(found(b"STATUS=up\nREADY=1", &[ALIVE, READY]), Some(READY));
        assert_eq!(found(b"STATUS=READY=1", &[ALIVE, READY]), None);
        assert!(Notifier::default().messages().is_err());
    }

    #[test]
    fn a_manager_that_does_not_read_holds_nobody_up() {
        let (_dir, _socket, name) = manager();
        let notifier = Notifier::to(&name, Some(Duration::from_secs(30))).expect("there");
        let clock = paceline_system::Clock::start();
        // The system keeps some hundred datagrams at most; a wait for room would take 1 s each.
        for _ in 0..2_000 {
            notifier.alive();
            notifier.status("up");
        }
        assert!(clock.now().0 < 60_000, "it waited for room");
    }

    #[test]
    fn a_watchdog_for_another_process_is_ignored() {
        assert_eq!(watchdog(Some("3000000"), None, 7), Some(Duration::from_secs(3)));
        assert_eq!(watchdog(Some("3000000"), Some("7"), 7), Some(Duration::from_secs(3)));
        for (usec, pid) in [
            (Some("3000000"), Some("8")),
            (Some("0"), None),
            (Some("soon"), None),
            (None, Some("7")),
        ] {
            assert_eq!(watchdog(usec, pid, 7), None, "{usec:?} {pid:?}");
        }
    }
}
