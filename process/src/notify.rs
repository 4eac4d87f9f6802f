//! What a service manager is told of us, by the protocol of sd_notify(3): one datagram a message,
//! to the socket that NOTIFY_SOCKET names. Where nobody listens (`paceline serve`, launchd, a
//! terminal) nothing is sent.

use std::io;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::{lifecycle, platform};

/// Variables by which a service manager speaks to the one process it started, and not to that one's
/// children.
pub const MANAGERS_WORDS: [&str; 6] = [
    "LISTEN_FDS",
    "LISTEN_PID",
    "LISTEN_FDNAMES",
    "NOTIFY_SOCKET",
    "WATCHDOG_USEC",
    "WATCHDOG_PID",
];

/// A manager that does not read for so long is not told.
const PATIENCE: Duration = Duration::from_secs(1);
/// Longest status line in characters.
const STATUS_CHARS: usize = 300;

/// The way to the service manager. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Notifier(Option<Arc<Way>>);

#[derive(Debug)]
struct Way {
    socket: UnixDatagram,
    address: SocketAddr,
    watchdog: Option<Duration>,
    stopping: AtomicBool,
}

impl Notifier {
    /// The manager that started us, if one did and wants to hear. A socket that cannot be used is
    /// said in the log: the manager will find us silent and say so too.
    pub fn inherited() -> Self {
        let Some(name) = lifecycle::env("NOTIFY_SOCKET").filter(|name| !name.is_empty()) else {
            return Self::default();
        };
        let [usec, pid] = ["WATCHDOG_USEC", "WATCHDOG_PID"].map(lifecycle::env);
        match Self::to(&name, watchdog(usec.as_deref(), pid.as_deref(), std::process::id())) {
            Ok(notifier) => notifier,
            Err(error) => {
                tracing::warn!(name, %error, "NOTIFY_SOCKET: expected a path or @name of a datagram socket; nobody is told");
                Self::default()
            }
        }
    }

    /// A manager at this address; `watchdog` is how long it waits for a sign of life.
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
        socket.set_write_timeout(Some(PATIENCE))?;
        Ok(Self(Some(Arc::new(Way {
            socket,
            address,
            watchdog,
            stopping: AtomicBool::new(false),
        }))))
    }

    /// Whether anybody listens.
    pub fn listens(&self) -> bool {
        self.0.is_some()
    }

    /// How often the manager wants a sign of life: twice in the time after which it counts us as
    /// hung. `None` if it does not.
    pub fn beat(&self) -> Option<Duration> {
        self.0.as_ref()?.watchdog.map(|watchdog| watchdog / 2)
    }

    /// We can be used from now on; in a line, in what state we are.
    pub fn ready(&self, status: &str) {
        self.send(&format!("READY=1\nSTATUS={}", line(status)));
    }

    /// In a line, in what state we are.
    pub fn status(&self, status: &str) {
        self.send(&format!("STATUS={}", line(status)));
    }

    /// We work. To be called only where that was seen.
    pub fn alive(&self) {
        if self.beat().is_some() {
            self.send("WATCHDOG=1");
        }
    }

    /// We end. Said once, however often it is called.
    pub fn stopping(&self) {
        if self.0.as_ref().is_some_and(|way| !way.stopping.swap(true, Ordering::Relaxed)) {
            self.send("STOPPING=1\nSTATUS=stopping");
        }
    }

    fn send(&self, message: &str) {
        let Some(way) = &self.0 else { return };
        if let Err(error) = way.socket.send_to_addr(message.as_bytes(), &way.address) {
            tracing::debug!(%error, "the service manager was not told");
        }
    }
}

/// How long the manager waits for a sign of life; `None` if it does not, or means another process.
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

    fn heard(socket: &UnixDatagram) -> String {
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
        let words: Vec<_> = (0..5).map(|_| heard(&socket)).collect();
        let long = format!("STATUS={}", "x".repeat(STATUS_CHARS));
        assert_eq!(
            words,
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
    fn a_name_without_a_file_is_reached_too() {
        use std::os::linux::net::SocketAddrExt as _;
        let name = format!("paceline-notify-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).expect("a name");
        let socket = UnixDatagram::bind_addr(&address).expect("bound");
        Notifier::to(&format!("@{name}"), None).expect("there").ready("up");
        assert_eq!(heard(&socket), "READY=1\nSTATUS=up");
    }

    #[test]
    fn nobody_is_told_nothing_and_a_manager_that_is_gone_stops_nobody() {
        let nobody = Notifier::default();
        assert_eq!((nobody.listens(), nobody.beat()), (false, None));
        nobody.ready("");
        nobody.stopping();
        let (_dir, socket, name) = manager();
        let notifier = Notifier::to(&name, None).expect("there");
        drop(socket);
        notifier.ready("");
        // Without a watchdog there is no sign of life to give.
        notifier.alive();
        assert!(Notifier::to("vsock:2:1", None).is_err());
    }

    #[test]
    fn the_watchdog_is_for_the_process_that_is_meant() {
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
