//! Linux: memfd and its seals.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};

use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, getsockopt, socket, sockopt};
use nix::time::ClockId;

/// This clock stands still during sleep, as do poll's timeouts.
pub(super) const CLOCK: ClockId = ClockId::CLOCK_MONOTONIC;

pub(super) const RECEIVE_FLAGS: libc::c_int = libc::MSG_CMSG_CLOEXEC;

const FIXED_SIZE: SealFlag = SealFlag::F_SEAL_GROW.union(SealFlag::F_SEAL_SHRINK);

pub(super) fn create_segment(bytes: u64) -> io::Result<OwnedFd> {
    let segment =
        memfd_create("paceline-link", MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING)?;
    let length = i64::try_from(bytes).map_err(|_| io::ErrorKind::InvalidInput)?;
    nix::unistd::ftruncate(&segment, length)?;
    // The last seal: no process can add one that would forbid the other side to write.
    fcntl(&segment, FcntlArg::F_ADD_SEALS(FIXED_SIZE.union(SealFlag::F_SEAL_SEAL)))?;
    Ok(segment)
}

pub(super) fn check_fixed_size(segment: BorrowedFd<'_>) -> io::Result<()> {
    // EINVAL where the file has no seals at all.
    let seals = SealFlag::from_bits_truncate(fcntl(segment, FcntlArg::F_GET_SEALS)?);
    match seals.contains(FIXED_SIZE) {
        true => Ok(()),
        false => Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "shared memory that may still be resized",
        )),
    }
}

pub(super) fn enlarge_buffers(_socket: BorrowedFd<'_>) {
    // net.core.wmem_default is 208 KiB, which is enough.
}

pub(super) fn peer_uid(socket: BorrowedFd<'_>) -> io::Result<u32> {
    Ok(getsockopt(&socket, sockopt::PeerCredentials)?.uid())
}

pub(super) fn close_on_exec(_descriptor: RawFd) {
    // MSG_CMSG_CLOEXEC has done it.
}

pub(super) fn stream_socket() -> io::Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    Ok(socket(AddressFamily::Unix, SockType::Stream, flags, None)?)
}
