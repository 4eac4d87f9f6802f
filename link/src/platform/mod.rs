//! Differences between the systems we run on. One small file each, the same functions in both.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd, RawFd};

#[cfg(target_os = "linux")]
mod linux;
#[cfg(target_os = "macos")]
mod macos;

#[cfg(target_os = "linux")]
use linux as system;
#[cfg(target_os = "macos")]
use macos as system;

/// Shared memory of a fixed size that has no name and is not inherited by children.
///
/// # Errors
/// Errors of the system.
pub fn create_segment(bytes: u64) -> io::Result<OwnedFd> {
    system::create_segment(bytes)
}

/// Whether this memory keeps its size for good, where the system can say so: a peer that shrinks it
/// would end us by SIGBUS.
///
/// # Errors
/// It may be resized, or it is something else.
pub fn check_fixed_size(segment: BorrowedFd<'_>) -> io::Result<()> {
    system::check_fixed_size(segment)
}

/// User id of the process at the other end of a Unix socket, as of connect or listen.
///
/// # Errors
/// Errors of the system.
pub fn peer_uid(socket: BorrowedFd<'_>) -> io::Result<u32> {
    system::peer_uid(socket)
}

/// The clock of deadlines. It stands still while the machine sleeps.
pub(crate) const CLOCK: nix::time::ClockId = system::CLOCK;

/// Flags for `recvmsg`, so that descriptors do not reach our children, where it can be had in one
/// go.
pub(crate) const RECEIVE_FLAGS: libc::c_int = system::RECEIVE_FLAGS;

/// Closes a received descriptor on exec where [`RECEIVE_FLAGS`] does not.
pub(crate) fn close_on_exec(descriptor: RawFd) {
    system::close_on_exec(descriptor);
}

/// A pair of connected stream sockets that children do not inherit.
///
/// # Errors
/// Errors of the system.
pub fn socket_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    // std sets close-on-exec the way the system allows.
    let (a, b) = std::os::unix::net::UnixStream::pair()?;
    system::enlarge_buffers(a.as_fd());
    system::enlarge_buffers(b.as_fd());
    Ok((a.into(), b.into()))
}

/// A Unix stream socket that children do not inherit and that never waits.
pub(crate) fn stream_socket() -> io::Result<OwnedFd> {
    system::stream_socket()
}
