//! Messages to the service manager by the protocol of sd_notify(3): one datagram a message, to the
//! socket that NOTIFY_SOCKET names. Without that variable (`paceline serve`, launchd, a terminal)
//! nothing is sent.
//!
//! The crate `sd-notify` (0.5) does not fit. It connects to no abstract socket (`@name`). Its
//! `send` has no timeout and would block the supervisor on a manager that does not read. It sends
//! line ends within a status, which begin another message.

use std::io;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::{lifecycle, platform};

/// Environment variables that a service manager sets for the one process that it starts. The
/// children of that process must not inherit them.
pub const MANAGER_VARIABLES: [&str; 6] = [
    "LISTEN_FDS",
    "LISTEN_PID",
    "LISTEN_FDNAMES",
    "NOTIFY_SOCKET",
    "WATCHDOG_USEC",
    "WATCHDOG_PID",
];

/// Longest wait for room in the manager's socket. After it the message is dropped.
const SEND_TIMEOUT: Duration = Duration::from_secs(1);
/// Longest status line in characters.
const STATUS_CHARS: usize = 300;

/// Sends messages to the service manager. Clones share the socket.
#[derive(Clone, Debug, Default)]
pub struct Notifier(Option<Arc<Connection>>);

#[derive(Debug)]
struct Connection {
    socket: UnixDatagram,
    address: SocketAddr,
    watchdog: Option<Duration>,
    stopping: AtomicBool,
}

impl Notifier {
    /// The manager that started this process, if it wants messages. A socket that cannot be used is
    /// logged; the manager then reports that it got no message.
    pub fn inherited() -> Self {
        let Some(name) = lifecycle::env("NOTIFY_SOCKET").filter(|name| !name.is_empty()) else {
            return Self::default();
        };
        let [usec, pid] = ["WATCHDOG_USEC", "WATCHDOG_PID"].map(lifecycle::env);
        match Self::to(&name, watchdog(usec.as_deref(), pid.as_deref(), std::process::id())) {
            Ok(notifier) => notifier,
            Err(error) => {
                tracing::warn!(name, %error, "NOTIFY_SOCKET: expected a path or @name of a datagram socket; the service manager gets no messages");
                Self::default()
            }
        }
    }

    /// A manager at this address. `watchdog` is the time without a keep-alive after which the
    /// manager counts this process as hung.
    ///
    /// # Errors
    /// The name is none, or the system has no sockets left.
    pub fn to(name: &str, watchdog: Option<Duration>) -> io::Result<Self> {
        let address = match name.strip_prefix('@') {
            Some(name) => platform::abstract_address(name)?,
            None if name.starts_with('/') => SocketAddr::from_pathname(name)?,
            None => return Err(io::ErrorKind::InvalidInput.into()),
        };
        let socket = UnixDatagram::unbound()?;
        socket.set_write_timeout(Some(SEND_TIMEOUT))?;
        Ok(Self(Some(Arc::new(Connection {
            socket,
            address,
            watchdog,
            stopping: AtomicBool::new(false),
        }))))
    }

    /// Whether there is a manager to send to.
    pub fn listens(&self) -> bool {
        self.0.is_some()
    }

    /// Interval between two keep-alives: half the watchdog's time. `None` without a watchdog.
    pub fn beat(&self) -> Option<Duration> {
        self.0.as_ref()?.watchdog.map(|watchdog| watchdog / 2)
    }

    /// Reports that this process can be used from now on, and a line about its state.
    pub fn ready(&self, status: &str) {
        self.send(&format!("READY=1\nSTATUS={}", line(status)));
    }

    /// Reports a line about the state of this process.
    pub fn status(&self, status: &str) {
        self.send(&format!("STATUS={}", line(status)));
    }

    /// Sends a keep-alive. To be called only after the process was seen to work.
    pub fn alive(&self) {
        if self.beat().is_some() {
            self.send("WATCHDOG=1");
        }
    }

    /// Reports that this process stops. Only the first call sends.
    pub fn stopping(&self) {
        if self
            .0
            .as_ref()
            .is_some_and(|connection| !connection.stopping.swap(true, Ordering::Relaxed))
        {
            self.send("STOPPING=1\nSTATUS=stopping");
        }
    }

    fn send(&self, message: &str) {
        let Some(connection) = &self.0 else { return };
        if let Err(error) = connection.socket.send_to_addr(message.as_bytes(), &connection.address)
        {
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
        assert_eq!((notifier.listens(), notifier.beat()), (true, Some(Duration::from_secs(15))));
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
