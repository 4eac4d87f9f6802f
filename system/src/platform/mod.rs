//! Differences between operating systems: one file for each, with the same functions.

use std::io;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

#[cfg(target_os = "linux")]
mod linux;
#[cfg(target_os = "macos")]
mod macos;

#[cfg(target_os = "linux")]
use linux as system;
#[cfg(target_os = "macos")]
use macos as system;

/// Start time of a process, in units of the system. Pids are reused; pid and start time together
/// identify a process within one boot. `None` if there is no such process; a zombie counts as none.
pub fn process_start(pid: u32) -> Option<u64> {
    system::process_start(pid)
}

/// Time since the start of a process, asleep or not. `None` if there is no such process.
pub fn process_age(pid: u32) -> Option<Duration> {
    system::process_age(pid)
}

/// Whether a process is stopped by job control (SIGSTOP). Then it answers nothing, and only SIGKILL
/// ends it.
pub fn process_stopped(pid: u32) -> bool {
    system::process_stopped(pid)
}

/// The program that listens on a TCP port of this machine, with its pid: `ollama (pid 12)`. `None` if
/// it is another user's, or if the system does not say.
pub fn port_holder(port: u16) -> Option<String> {
    system::port_holder(port).map(|(name, pid)| format!("{name} (pid {pid})"))
}

/// A descriptor that becomes readable when this process has ended. It need not be our child.
///
/// # Errors
/// There is no such process, or the system cannot report its end.
pub fn process_end(pid: u32) -> std::io::Result<std::os::fd::OwnedFd> {
    system::process_end(pid)
}

/// Identity of the current boot of the machine. Pids and start times are only comparable within one
/// boot. Empty if the system has none; then all boots count as one.
pub fn boot_id() -> String {
    system::boot_id().unwrap_or_default()
}

/// Orders writes: data written to `file` before this call reaches the disk before any data written
/// after it. Counters and records need that order, so that a new name never shows an empty file.
/// They need not survive a power cut, because all processes that know their numbers end with it.
///
/// # Errors
/// Errors of the system.
pub fn write_barrier(file: &std::fs::File) -> std::io::Result<()> {
    system::write_barrier(file)
}

/// Protects the memory of this process against other processes of the same user, and keeps it out
/// of core files. How far depends on the system.
pub fn deny_memory_access() {
    system::deny_memory_access();
}

/// Memory that can be used now without swapping, in bytes: of the machine, and on Linux at most
/// what the process's control group allows. `None` if the system does not tell.
pub fn available_memory() -> Option<u64> {
    system::available_memory()
}

/// Bytes of memory that this process could have on the machine if it had it alone; within its
/// control group on Linux. `None` if the system does not tell.
pub fn machine_memory() -> Option<u64> {
    system::machine_memory()
}

/// The most memory that a process has held since its start, in bytes. Linux counts resident pages,
/// those of mapped files included, and no memory of a GPU. macOS counts the footprint, which has
/// the GPU's memory in it. `None` if there is no such process, or the system does not tell.
pub fn peak_memory_bytes(pid: u32) -> Option<u64> {
    system::peak_memory_bytes(pid)
}

/// The processor's name, as its maker wrote it. `None` if the system does not tell.
pub fn processor_name() -> Option<String> {
    system::processor_name().filter(|name| !name.is_empty())
}

/// Wired memory of the machine at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WiredMemory {
    /// Bytes that the system can neither move nor compress.
    pub wired_bytes: u64,
    /// All bytes of the machine.
    pub machine_bytes: u64,
}

/// The machine's wired memory. `None` on systems where a kill strands no memory
/// ([`KILL_STRANDS_MEMORY`]), and if the system does not tell.
pub fn wired_memory() -> Option<WiredMemory> {
    system::wired_memory()
}

/// The clock of deadlines and stamps. It is the same in every process of one boot, and stands still
/// while the machine sleeps. `std::time::Instant`, tokio's timers and the timeouts of `poll` use
/// the same clock.
pub const CLOCK: nix::time::ClockId = system::CLOCK;

/// Whether a socket of an internet family is a TCP socket that listens.
///
/// # Errors
/// The descriptor is no socket.
pub fn is_tcp_listener(socket: BorrowedFd<'_>) -> io::Result<bool> {
    system::is_tcp_listener(socket)
}

/// Gives a Unix socket send and receive buffers of some hundred KiB, if the system's own are much
/// smaller.
pub fn enlarge_buffers(socket: BorrowedFd<'_>) {
    system::enlarge_buffers(socket);
}

/// A path by which the file of standard error can be opened again, in another mode.
///
/// # Errors
/// The system has no path for it.
pub fn stderr_path() -> io::Result<PathBuf> {
    system::stderr_path()
}

/// Returns freed memory that the allocator retains to the system.
pub fn give_back_freed_memory() {
    system::give_back_freed_memory();
}

/// Makes all threads share one heap of the allocator. By default it makes one for every few
/// threads. In a long-lived process each heap grows to the most that it ever held. To be called
/// before there are threads.
pub fn share_heap() {
    system::share_heap();
}

/// Whether a process that is killed in the middle of its work can strand memory of the machine
/// until the machine is restarted.
pub const KILL_STRANDS_MEMORY: bool = system::KILL_STRANDS_MEMORY;

/// Longest time without progress in a worker's teardown, and longest wait for a teardown that makes
/// progress. After it the worker is killed.
pub const TEARDOWN: Duration = teardown(KILL_STRANDS_MEMORY);

/// [`TEARDOWN`] of a system that strands memory, or of one that does not.
pub const fn teardown(kill_strands_memory: bool) -> Duration {
    Duration::from_secs(if kill_strands_memory { 180 } else { 30 })
}

/// Longest path of a Unix socket, without the closing NUL.
pub const MAX_SOCKET_PATH: usize = system::MAX_SOCKET_PATH;

/// Bytes that are free on the file system of `dir`, or of the directory in which it would be made.
/// `None` if it does not tell.
pub fn free_bytes(dir: &Path) -> Option<u64> {
    let there = dir.ancestors().find(|dir| dir.is_dir())?;
    let figures = nix::sys::statvfs::statvfs(there).ok()?;
    #[allow(
        clippy::unnecessary_cast,
        clippy::useless_conversion,
        reason = "the types differ between systems"
    )]
    let free = (figures.blocks_available() as u64).saturating_mul(figures.fragment_size() as u64);
    Some(free)
}

/// The user's configuration directory.
pub fn config_dir() -> Option<std::path::PathBuf> {
    system::config_dir()
}

/// Whether a write failed because there is no room: on the disk, in the user's quota, or within
/// RLIMIT_FSIZE.
pub fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge
    )
}

/// Listening sockets that launchd holds for this job under this key of its `Sockets`. `None` if
/// launchd did not start this process, or if the job has no such key.
///
/// # Errors
/// launchd has them and does not hand them over.
pub fn launchd_sockets(key: &str) -> std::io::Result<Option<Vec<std::os::fd::OwnedFd>>> {
    system::launchd_sockets(key)
}

/// Address of a Unix socket that has a name but no file.
///
/// # Errors
/// The name is too long, or this system has no such addresses.
pub fn abstract_address(name: &str) -> std::io::Result<std::os::unix::net::SocketAddr> {
    system::abstract_address(name)
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd as _, AsRawFd as _};

    use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrIn, bind, socket};

    #[test]
    fn the_holder_of_a_port_is_named() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("bound").port();
        let holder = super::port_holder(port).expect("this process");
        assert!(holder.ends_with(&format!("(pid {})", std::process::id())), "{holder}");
        drop(listener);
        assert_eq!(super::port_holder(port), None);
    }

    #[test]
    fn only_a_tcp_socket_after_listen_is_a_listener() {
        use std::net::{TcpListener, TcpStream, UdpSocket};

        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        assert!(super::is_tcp_listener(listener.as_fd()).expect("a socket"));
        let client = TcpStream::connect(listener.local_addr().expect("bound")).expect("connects");
        assert!(!super::is_tcp_listener(client.as_fd()).expect("a socket"), "a connection");
        let (family, kind) = (AddressFamily::Inet, SockType::Stream);
        let fresh = socket(family, kind, SockFlag::empty(), None).expect("a socket");
        assert!(!super::is_tcp_listener(fresh.as_fd()).expect("a socket"), "an unbound socket");
        bind(fresh.as_raw_fd(), &SockaddrIn::new(127, 0, 0, 1, 0)).expect("a free port");
        assert!(!super::is_tcp_listener(fresh.as_fd()).expect("a socket"), "a bound socket");
        let datagrams = UdpSocket::bind("127.0.0.1:0").expect("a free port");
        assert!(
            !super::is_tcp_listener(datagrams.as_fd()).expect("a socket"),
            "a socket for datagrams"
        );
        super::is_tcp_listener(tempfile::tempfile().expect("a file").as_fd())
            .expect_err("no socket");
    }

    #[test]
    fn the_end_of_a_living_process_is_reported() {
        use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

        let mut child =
            std::process::Command::new("sleep").arg("1000").spawn().expect("sleep exists");
        let end = super::process_end(child.id()).expect("it lives");
        let ended = |wait: u16| {
            poll(&mut [PollFd::new(end.as_fd(), PollFlags::POLLIN)], PollTimeout::from(wait))
        };
        assert_eq!(ended(0), Ok(0));
        child.kill().expect("ours");
        assert_eq!(ended(30_000), Ok(1));
        child.wait().expect("ended");
        assert!(super::process_end(child.id()).is_err());
    }

    #[test]
    fn a_process_has_an_age() {
        let own = super::process_age(std::process::id()).expect("this process runs");
        assert!(own < super::process_age(1).expect("the first process"), "{own:?}");
        assert_eq!(super::process_age(u32::MAX - 1), None);
    }

    #[test]
    fn a_boot_has_one_identity() {
        let boot = super::boot_id();
        assert!(boot.len() >= 32 && boot == super::boot_id(), "{boot:?}");
    }

    #[test]
    fn this_process_has_a_start_and_a_dead_one_has_none() {
        let first = super::process_start(std::process::id());
        assert!(first.is_some());
        assert_eq!(first, super::process_start(std::process::id()));
        assert!(!super::process_stopped(std::process::id()));
        let mut child = std::process::Command::new("true").spawn().expect("true exists");
        child.wait().expect("it ends");
        assert_eq!(super::process_start(child.id()), None);
        assert!(super::available_memory().is_some_and(|bytes| bytes > 1 << 20));
        assert_eq!(super::peak_memory_bytes(child.id()), None);
    }

    #[test]
    fn the_peak_of_memory_does_not_fall() {
        let pid = std::process::id();
        let before = super::peak_memory_bytes(pid).expect("this process lives");
        let bytes = 64 << 20;
        drop(std::hint::black_box(vec![1_u8; bytes]));
        let after = super::peak_memory_bytes(pid).expect("this process lives");
        assert!(before > 1 << 20 && after >= before.max(bytes as u64), "{before} {after}");
    }

    #[test]
    fn wired_memory_is_read_only_where_a_kill_strands_memory() {
        let memory = super::wired_memory();
        assert_eq!(memory.is_some(), super::KILL_STRANDS_MEMORY);
        assert!(memory.is_none_or(|memory| memory.wired_bytes < memory.machine_bytes));
    }
}
