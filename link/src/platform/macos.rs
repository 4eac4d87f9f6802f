//! macOS: POSIX shared memory. Names and signatures checked against nix's and libc's sources; not run on a Mac yet.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl};
use nix::sys::mman::{shm_open, shm_unlink};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
use nix::sys::stat::Mode;

/// There is no MSG_CMSG_CLOEXEC here.
pub(super) const RECEIVE_FLAGS: libc::c_int = 0;

pub(super) fn create_segment(bytes: u64) -> io::Result<OwnedFd> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let length = i64::try_from(bytes).map_err(|_| io::ErrorKind::InvalidInput)?;
    let segment = loop {
        // PSHMNAMLEN is 31: 10 + 10 + 1 + 10 at most. The name lives until the next line but one.
        let name = format!("/paceline.{}.{}", std::process::id(), NEXT.fetch_add(1, Relaxed));
        match shm_open(name.as_str(), OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_RDWR, Mode::S_IRUSR | Mode::S_IWUSR) {
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
    // Shared memory takes its size once; a second call is refused, which is what seals are for elsewhere.
    nix::unistd::ftruncate(&segment, length)?;
    Ok(segment)
}

pub(super) fn check_fixed_size(_segment: BorrowedFd<'_>) -> io::Result<()> {
    Ok(())
}

pub(super) fn peer_uid(socket: BorrowedFd<'_>) -> io::Result<u32> {
    let (uid, _) = nix::unistd::getpeereid(socket)?;
    Ok(uid.as_raw())
}

pub(super) fn close_on_exec(descriptor: RawFd) {
    // SAFETY: sets a flag of a descriptor that was just received and that nobody else knows.
    unsafe { libc::fcntl(descriptor, libc::F_SETFD, libc::FD_CLOEXEC) };
}

pub(super) fn stream_socket() -> io::Result<OwnedFd> {
    // No SOCK_CLOEXEC and no SOCK_NONBLOCK here.
    let socket = socket(AddressFamily::Unix, SockType::Stream, SockFlag::empty(), None)?;
    fcntl(&socket, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))?;
    fcntl(&socket, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    Ok(socket)
}
