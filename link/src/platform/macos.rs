//! macOS: POSIX shared memory. Names and signatures checked against nix's and libc's sources; not
//! run on a Mac yet.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl};
use nix::sys::mman::{shm_open, shm_unlink};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, setsockopt, socket, sockopt};
use nix::sys::stat::{Mode, fstat};
use nix::time::ClockId;

/// CLOCK_MONOTONIC of macOS goes on during sleep. This clock stands still, as do poll's timeouts.
/// Source: Apple's Libc, gen/clock_gettime.c.
pub(super) const CLOCK: ClockId = ClockId::from_raw(libc::CLOCK_UPTIME_RAW);

/// There is no MSG_CMSG_CLOEXEC here.
pub(super) const RECEIVE_FLAGS: libc::c_int = 0;

/// Near the 208 KiB that Linux gives a socket by default.
const SOCKET_BUFFER_BYTES: usize = 256 << 10;

pub(super) fn create_segment(bytes: u64) -> io::Result<OwnedFd> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let length = i64::try_from(bytes).map_err(|_| io::ErrorKind::InvalidInput)?;
    let segment = loop {
        // PSHMNAMLEN is 31: 10 + 10 + 1 + 10 at most. The name lives until the next line but one.
        let name = format!("/paceline.{}.{}", std::process::id(), NEXT.fetch_add(1, Relaxed));
        match shm_open(
            name.as_str(),
            OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_RDWR,
            Mode::S_IRUSR | Mode::S_IWUSR,
        ) {
            Ok(segment) => {
                shm_unlink(name.as_str())?;
                break segment;
            }
            // Left by a process of this number that died between the two calls.
            Err(Errno::EEXIST) => {}
            Err(error) => return Err(error.into()),
        }
    };
    fcntl(&segment, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))?;
    // Shared memory takes its size once; a second call is refused, which is what seals are for
    // elsewhere.
    nix::unistd::ftruncate(&segment, length)?;
    Ok(segment)
}

pub(super) fn check_fixed_size(segment: BorrowedFd<'_>) -> io::Result<()> {
    // Shared memory takes its size once. fstat gives it no file type, unlike files, which may be
    // cut (bsd/kern/posix_shm.c).
    match fstat(segment)?.st_mode & libc::S_IFMT {
        0 => Ok(()),
        _ => Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "expected shared memory, found a file that may be resized",
        )),
    }
}

pub(super) fn enlarge_buffers(socket: BorrowedFd<'_>) {
    // Unix sockets start with 8 KiB (PIPSIZ of bsd/kern/uipc_usrreq.c). Smaller buffers cost
    // wake-ups and nothing else, so errors are ignored.
    let _ = setsockopt(&socket, sockopt::SndBuf, &SOCKET_BUFFER_BYTES);
    let _ = setsockopt(&socket, sockopt::RcvBuf, &SOCKET_BUFFER_BYTES);
}

pub(super) fn peer_uid(socket: BorrowedFd<'_>) -> io::Result<u32> {
    let (uid, _) = nix::unistd::getpeereid(socket)?;
    Ok(uid.as_raw())
}

pub(super) fn close_on_exec(descriptor: RawFd) {
    // SAFETY: sets a flag of a descriptor that was just received and that no other thread has.
    unsafe { libc::fcntl(descriptor, libc::F_SETFD, libc::FD_CLOEXEC) };
}

pub(super) fn stream_socket() -> io::Result<OwnedFd> {
    // No SOCK_CLOEXEC and no SOCK_NONBLOCK here.
    let socket = socket(AddressFamily::Unix, SockType::Stream, SockFlag::empty(), None)?;
    fcntl(&socket, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))?;
    fcntl(&socket, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    Ok(socket)
}
