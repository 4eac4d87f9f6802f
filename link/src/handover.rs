//! How a link comes to a worker: the supervisor connects to `<name>.link.sock` and sends a
//! `LinkHandover` with two descriptors, this worker's end and the segment; the worker answers with
//! one byte when it has taken them.
//!
//! The answer is necessary. Until it comes, the supervisor keeps its copies open: on macOS a
//! descriptor in flight may be lost if its last owner closes it.

use std::io::{self, IoSlice, Read as _, Write as _};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    ControlMessage, MsgFlags, SockType, UnixAddr, connect, getsockopt, sendmsg, sockopt,
};
use paceline_proto::internal::v1::{LinkHandover, Stamp};
use prost::Message as _;

use crate::deadline::Deadline;
use crate::frame::HEADER_BYTES;
use crate::segment::SharedSegment;
use crate::{descriptors, platform};

/// A handover's frame is a few numbers.
const MAX_HANDOVER_BYTES: usize = 128;
/// The worker has the link.
const TAKEN: u8 = 1;
/// Time in which a caller must send its handover. A second is ample: the caller is the supervisor
/// of the same user on the same machine.
const CALLER_BOUND: Duration = Duration::from_secs(1);
/// Pause after a failed accept: it fails again at once while there are no descriptors.
const ACCEPT_PAUSE_MS: u16 = 50;
/// Pause between two looks whether the socket's file is there, as for the other sockets.
const UPKEEP_MS: u16 = 1_000;
/// Pause between attempts to connect to a worker whose backlog is full.
const CONNECT_PAUSE: Duration = Duration::from_millis(5);

/// A link as it was handed to a worker.
#[derive(Debug)]
pub struct Handover {
    /// Lives of supervisor and worker it belongs to; not checked here.
    pub stamp: Stamp,
    /// Counts links up over the supervisor's life.
    pub generation: u64,
    /// This worker's end of the pair.
    pub socket: OwnedFd,
    /// Shared memory.
    pub segment: OwnedFd,
    /// Size of the shared memory.
    pub segment_bytes: u64,
}

/// The supervisor's side: hands one end of a link to the worker that listens at `socket_path`;
/// returns when the worker has taken it. Blocks for `timeout` at most.
///
/// # Errors
/// No process listens, a process of another user does, the worker refused it (connection aborted)
/// or did not answer in time.
pub fn send(
    socket_path: &Path,
    stamp: Stamp,
    generation: u64,
    end: BorrowedFd<'_>,
    segment: BorrowedFd<'_>,
    segment_bytes: u64,
    timeout: Duration,
) -> io::Result<()> {
    let deadline = Deadline::after(timeout);
    let mut stream = connect_by(socket_path, deadline)?;
    if platform::peer_uid(stream.as_fd())? != nix::unistd::geteuid().as_raw() {
        let text = format!("{} belongs to another user", socket_path.display());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
    }
    let message = LinkHandover { stamp: Some(stamp), generation, segment_bytes };
    let mut bytes = (message.encoded_len() as u32).to_le_bytes().to_vec();
    bytes.extend(message.encode_to_vec());
    let rights = [end.as_raw_fd(), segment.as_raw_fd()];
    let mut sent = by(&stream, deadline, PollFlags::POLLOUT, |stream| {
        let parts = [IoSlice::new(&bytes)];
        Ok(sendmsg::<()>(
            stream.as_raw_fd(),
            &parts,
            &[ControlMessage::ScmRights(&rights)],
            MsgFlags::empty(),
            None,
        )?)
    })?;
    while sent < bytes.len() {
        sent +=
            by(&stream, deadline, PollFlags::POLLOUT, |mut stream| stream.write(&bytes[sent..]))?;
    }
    let mut answer = [0];
    match by(&stream, deadline, PollFlags::POLLIN, |mut stream| stream.read(&mut answer)) {
        Ok(1) if answer == [TAKEN] => stream.flush(),
        Ok(_) => Err(io::Error::new(
            io::ErrorKind::ConnectionAborted,
            "the worker refused the link; its log says why",
        )),
        Err(error) => Err(error),
    }
}

fn connect_by(path: &Path, deadline: Deadline) -> io::Result<UnixStream> {
    let socket = platform::stream_socket()?;
    let address = UnixAddr::new(path)?;
    loop {
        match connect(socket.as_raw_fd(), &address) {
            Ok(()) | Err(Errno::EISCONN) => return Ok(socket.into()),
            // Linux: the backlog is full, there is nothing to wait on.
            Err(Errno::EAGAIN) if !deadline.left().is_zero() => {
                std::thread::sleep(CONNECT_PAUSE.min(deadline.left()))
            }
            Err(Errno::EAGAIN) => return Err(io::ErrorKind::TimedOut.into()),
            Err(Errno::EINTR) => {}
            Err(Errno::EINPROGRESS) => {
                wait(socket.as_fd(), PollFlags::POLLOUT, deadline)?;
                match getsockopt(&socket, sockopt::SocketError)? {
                    0 => return Ok(socket.into()),
                    error => return Err(io::Error::from_raw_os_error(error)),
                }
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Does something with a socket that never waits, as often as it takes, until `deadline`.
fn by<T>(
    stream: &UnixStream,
    deadline: Deadline,
    event: PollFlags,
    mut attempt: impl FnMut(&UnixStream) -> io::Result<T>,
) -> io::Result<T> {
    loop {
        match attempt(stream) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                wait(stream.as_fd(), event, deadline)?
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}

fn wait(descriptor: BorrowedFd<'_>, event: PollFlags, deadline: Deadline) -> io::Result<()> {
    if deadline.left().is_zero() {
        return Err(io::ErrorKind::TimedOut.into());
    }
    match poll(&mut [PollFd::new(descriptor, event)], deadline.poll_timeout()) {
        Ok(_) | Err(Errno::EINTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// A worker's socket for links. Dropping it ends its thread and removes the socket.
#[derive(Debug)]
pub struct Listener {
    path: PathBuf,
    /// Closed to end the thread.
    awake: Option<UnixStream>,
    thread: Option<JoinHandle<UnixListener>>,
}

impl Drop for Listener {
    fn drop(&mut self) {
        drop(self.awake.take());
        // After the thread, which would bind it again, and before the socket closes: then the path
        // may belong to another process. The thread panicked if the callback did; that was printed.
        let _listener = self.thread.take().map(JoinHandle::join);
        if let Err(error) = std::fs::remove_file(&self.path) {
            tracing::debug!(%error, "the link's socket was gone already");
        }
    }
}

/// Something else than a socket is in the place of one.
fn occupied(path: &Path, error: &io::Error) -> io::Error {
    let found = if path.is_dir() { "a directory" } else { "something else" };
    let path = path.display();
    let text =
        format!("{path}: expected a socket or nothing, found {found} ({error}); move it away");
    io::Error::new(error.kind(), text)
}

/// The worker's side: takes links from the supervisor on a thread of its own, and gives each to
/// `on_handover`. That function must not wait, because later callers would wait too. A caller of
/// another user, a slow one, or one that sends anything but a handover with its two descriptors is
/// refused; the listener stays.
///
/// # Errors
/// Another process listens at `path`, or the system fails.
pub fn listen(
    path: &Path,
    mut on_handover: impl FnMut(Handover) + Send + 'static,
) -> io::Result<Listener> {
    let taken = || {
        io::Error::new(
            io::ErrorKind::AddrInUse,
            format!("another process listens on {}", path.display()),
        )
    };
    match connect_by(path, Deadline::after(CALLER_BOUND)) {
        Ok(_) => return Err(taken()),
        Err(error) if error.kind() == io::ErrorKind::TimedOut => return Err(taken()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        // Left by a dead process: a worker starts only if no other process of its name lives.
        // Anything but a socket is not ours to remove.
        Err(_) if std::fs::symlink_metadata(path)?.file_type().is_socket() => {
            std::fs::remove_file(path)?
        }
        Err(error) => return Err(occupied(path, &error)),
    }
    let mut listener = bind(path)?;
    let (awake, asleep) = UnixStream::pair()?;
    let own_path = path.to_owned();
    let thread = std::thread::Builder::new().name("handover".into()).spawn(move || {
        while let Some(stream) = next_caller(&mut listener, &own_path, &asleep) {
            match take(stream) {
                Ok(handover) => on_handover(handover),
                Err(error) => tracing::warn!(%error, "a link was refused"),
            }
        }
        listener
    })?;
    Ok(Listener { path: path.to_owned(), awake: Some(awake), thread: Some(thread) })
}

fn bind(path: &Path) -> io::Result<UnixListener> {
    let bind = || {
        // The directory is 0700, so no other user can connect between bind and chmod.
        let listener = UnixListener::bind(path)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
        listener.set_nonblocking(true)?;
        Ok(listener)
    };
    bind().map_err(|error: io::Error| {
        io::Error::new(error.kind(), format!("{}: {error}", path.display()))
    })
}

/// Binds the listener again if a cleaner removed its socket. Without a directory, or without room,
/// it is tried again at the next look.
fn bind_if_removed(listener: &mut UnixListener, path: &Path) {
    let is_gone =
        std::fs::symlink_metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
    if is_gone && let Ok(again) = bind(path) {
        tracing::warn!(path = %path.display(), "a socket was removed and is bound again");
        *listener = again;
    }
}

/// Waits for a connection; `None` when the listener is to end.
fn next_caller(
    listener: &mut UnixListener,
    path: &Path,
    asleep: &UnixStream,
) -> Option<UnixStream> {
    let mut pause = false;
    loop {
        let mut watch = [
            PollFd::new(asleep.as_fd(), PollFlags::POLLIN),
            PollFd::new(listener.as_fd(), PollFlags::POLLIN),
        ];
        let (watched, timeout) = if pause { (1, ACCEPT_PAUSE_MS) } else { (2, UPKEEP_MS) };
        let polled = poll(&mut watch[..watched], PollTimeout::from(timeout));
        let is_asked_to_end = watch[0].any() == Some(true);
        match polled {
            Ok(0) if !pause => {
                bind_if_removed(listener, path);
                continue;
            }
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => {
                tracing::error!(%error, "cannot wait for links");
                return None;
            }
        }
        if is_asked_to_end {
            return None;
        }
        pause = false;
        match listener.accept() {
            Ok((stream, _)) => return Some(stream),
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                ) => {}
            Err(error) => {
                tracing::warn!(%error, "accept failed");
                pause = true;
            }
        }
    }
}

/// Reads one handover and answers it.
fn take(stream: UnixStream) -> io::Result<Handover> {
    let deadline = Deadline::after(CALLER_BOUND);
    stream.set_nonblocking(true)?;
    let uid = platform::peer_uid(stream.as_fd())?;
    if uid != nix::unistd::geteuid().as_raw() {
        let text = format!("the caller is user {uid}");
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
    }
    let Taken { message, descriptors } = read_handover(&stream, deadline)?;
    let found = descriptors.len();
    let Ok([socket, segment]) = <[OwnedFd; 2]>::try_from(descriptors) else {
        return Err(refused(format!("expected 2 descriptors, found {found}")));
    };
    let stamp = message.stamp.ok_or_else(|| refused("expected a stamp, found none"))?;
    if getsockopt(&socket, sockopt::SockType).ok() != Some(SockType::Stream) {
        return Err(refused("expected a stream socket first, found something else"));
    }
    SharedSegment::check(segment.as_fd(), message.segment_bytes)?;
    // A caller that has given up meanwhile will try again with a newer link, which replaces this
    // one.
    by(&stream, deadline, PollFlags::POLLOUT, |mut stream| stream.write(&[TAKEN]))?;
    let LinkHandover { generation, segment_bytes, .. } = message;
    Ok(Handover { stamp, generation, socket, segment, segment_bytes })
}

/// A handover as it came, with the descriptors of its first byte.
struct Taken {
    message: LinkHandover,
    descriptors: Vec<OwnedFd>,
}

fn read_handover(stream: &UnixStream, deadline: Deadline) -> io::Result<Taken> {
    let mut bytes = Vec::new();
    let mut received: Option<Vec<OwnedFd>> = None;
    loop {
        // The first byte alone: a longer read may join bytes without descriptors to the next with
        // some.
        let mut buffer = [0; HEADER_BYTES + MAX_HANDOVER_BYTES];
        let length = if received.is_none() { 1 } else { buffer.len() };
        let (count, descriptors) = by(stream, deadline, PollFlags::POLLIN, |stream| {
            descriptors::receive(stream.as_fd(), &mut buffer[..length])
        })?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if received.is_some() && !descriptors.is_empty() {
            return Err(refused("expected descriptors with the first byte, found some later"));
        }
        let descriptors = received.take().unwrap_or(descriptors);
        bytes.extend_from_slice(&buffer[..count]);
        if let Some(message) = decode_handover(&bytes)? {
            return Ok(Taken { message, descriptors });
        }
        received = Some(descriptors);
    }
}

/// The message in `bytes`; `None` if it is not complete yet.
fn decode_handover(bytes: &[u8]) -> io::Result<Option<LinkHandover>> {
    let Some((header, rest)) = bytes.split_first_chunk::<HEADER_BYTES>() else { return Ok(None) };
    let length = u32::from_le_bytes(*header) as usize;
    if length > MAX_HANDOVER_BYTES || rest.len() > length {
        return Err(refused(format!(
            "expected one handover of {MAX_HANDOVER_BYTES} bytes at most, found more"
        )));
    }
    if rest.len() < length {
        return Ok(None);
    }
    let message = LinkHandover::decode(rest).map_err(refused)?;
    if message.encoded_len() != length {
        return Err(refused("a handover with fields this version does not know"));
    }
    Ok(Some(message))
}

fn refused(cause: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, cause)
}
