//! Reading bytes and descriptors from a Unix socket. nix's `recvmsg` does not fit. If control data
//! was cut off, it returns an error instead of the descriptors that did arrive, and they would stay
//! open until the process ends.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use crate::platform;

/// Room for as many descriptors as one message can carry on any system (253), so that none is cut
/// off unseen.
const CONTROL_WORDS: usize = 160;

/// Reads into `buffer` and takes the descriptors that came with it.
///
/// # Errors
/// The system's own; invalid data if descriptors were cut off. All that arrived are closed then.
pub(crate) fn receive(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut control = [0u64; CONTROL_WORDS];
    let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: msghdr is plain data for which all nought is valid; its fields are set below as far
    // as they matter.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = std::mem::size_of_val(&control) as _;
    // SAFETY: the message points to `buffer` and `control`, which outlive the call, with their
    // sizes.
    let count =
        unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, platform::RECEIVE_FLAGS) };
    let count = usize::try_from(count).map_err(|_| io::Error::last_os_error())?;
    let descriptors = descriptors(&message);
    if message.msg_flags & libc::MSG_CTRUNC != 0 {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "descriptors were cut off"));
    }
    Ok((count, descriptors))
}

/// Every descriptor in a received message; they are ours from here on.
#[allow(clippy::unnecessary_cast, reason = "lengths are usize on Linux, u32 on macOS")]
fn descriptors(message: &libc::msghdr) -> Vec<OwnedFd> {
    let end = message.msg_control as usize + message.msg_controllen as usize;
    let mut found = vec![];
    // SAFETY: `message` was filled by recvmsg, its control buffer is alive. The macros step through
    // the headers the kernel wrote and end in null. Only descriptors that lie inside the buffer are
    // read; each is new in this process and taken once.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(message);
        while !header.is_null() {
            let of_rights =
                (*header).cmsg_level == libc::SOL_SOCKET && (*header).cmsg_type == libc::SCM_RIGHTS;
            let data = libc::CMSG_DATA(header);
            let stop = (header as usize + (*header).cmsg_len as usize).min(end);
            let count = stop.saturating_sub(data as usize) / size_of::<RawFd>();
            for at in 0..if of_rights { count } else { 0 } {
                let descriptor = data.cast::<RawFd>().add(at).read_unaligned();
                platform::close_on_exec(descriptor);
                found.push(OwnedFd::from_raw_fd(descriptor));
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
    found
}
