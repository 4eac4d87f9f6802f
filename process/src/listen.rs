//! Listening sockets handed down by whoever started us, by the LISTEN_FDS convention (sd_listen_fds(3)).

use std::io;
use std::net::TcpListener;
use std::os::fd::{BorrowedFd, FromRawFd};

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::socket::{AddressFamily, SockaddrLike, SockaddrStorage, getsockname};
use std::os::fd::AsRawFd;

/// First descriptor of the convention.
pub const FIRST_FD: i32 = 3;

/// The TCP listener handed down as descriptor 3; `None` if none was. LISTEN_PID is checked where it is set: a parent that
/// forks and execs us may not know our pid beforehand.
///
/// # Errors
/// LISTEN_FDS is set but descriptor 3 is no listening TCP socket.
pub fn inherited_tcp() -> io::Result<Option<TcpListener>> {
    let Some(count) = crate::lifecycle::env("LISTEN_FDS") else { return Ok(None) };
    if let Some(pid) = crate::lifecycle::env("LISTEN_PID")
        && pid.parse() != Ok(std::process::id())
    {
        return Ok(None);
    }
    let expected = "expected LISTEN_FDS=1 and a listening TCP socket as descriptor 3";
    if count != "1" {
        return Err(io::Error::other(format!("{expected}, found LISTEN_FDS={count}")));
    }
    // SAFETY: only borrowed to look at; a closed number makes the calls below fail.
    let fd = unsafe { BorrowedFd::borrow_raw(FIRST_FD) };
    let address: SockaddrStorage =
        getsockname(fd.as_raw_fd()).map_err(|error| io::Error::other(format!("{expected}, found: {error}")))?;
    if !matches!(address.family(), Some(AddressFamily::Inet | AddressFamily::Inet6)) {
        return Err(io::Error::other(format!("{expected}, found a socket of another family")));
    }
    fcntl(fd, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))?;
    // SAFETY: the convention gives descriptor 3 to us, and this is the only place that takes it.
    let listener = unsafe { TcpListener::from_raw_fd(FIRST_FD) };
    listener.set_nonblocking(true)?;
    Ok(Some(listener))
}
