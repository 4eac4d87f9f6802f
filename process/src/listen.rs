//! Listening sockets that this process inherits: by the LISTEN_FDS convention (sd_listen_fds(3);
//! systemd and `paceline serve`), or from launchd.

use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::socket::{AddressFamily, SockaddrLike, SockaddrStorage, getsockname};

use crate::{lifecycle, platform};

/// First descriptor of the convention.
pub const FIRST_FD: i32 = 3;
/// Most descriptors of the convention: no unit of ours has more, so a larger number is a mistake.
const MOST_FDS: usize = 16;
/// Name of the front socket among several (`FileDescriptorName=`).
const NAME: &str = "grpc";
/// Its key in the job's `Sockets` of launchd.
const LAUNCHD_KEY: &str = "Grpc";

/// The inherited front listener, if there is one. LISTEN_PID is checked if it is set: a parent that
/// forks and execs this process may not know its pid beforehand. To be called once, because it
/// takes the descriptor.
///
/// # Errors
/// An inherited descriptor is no listening TCP socket, or several were inherited and none of them
/// is named `grpc`.
pub fn inherited_tcp() -> io::Result<Option<TcpListener>> {
    let expected = "expected one listening TCP socket, handed down by LISTEN_FDS or launchd";
    let fd = match listen_fd()? {
        Some(fd) => fd,
        None => match platform::launchd_sockets(LAUNCHD_KEY)?.map(<[OwnedFd; 1]>::try_from) {
            None => return Ok(None),
            Some(Ok([fd])) => fd,
            Some(Err(found)) => {
                let found = found.len();
                return Err(io::Error::other(format!(
                    "{expected}, found {found} of launchd: name one address and family"
                )));
            }
        },
    };
    let address: SockaddrStorage = getsockname(fd.as_raw_fd())
        .map_err(|error| io::Error::other(format!("{expected}, found: {error}")))?;
    if !matches!(address.family(), Some(AddressFamily::Inet | AddressFamily::Inet6)) {
        return Err(io::Error::other(format!("{expected}, found a socket of another family")));
    }
    if !platform::is_tcp_listener(fd.as_fd())? {
        return Err(io::Error::other(format!(
            "{expected}, found one that does not listen; a socket unit needs Accept=no"
        )));
    }
    let listener = TcpListener::from(fd);
    listener.set_nonblocking(true)?;
    Ok(Some(listener))
}

/// The front socket's descriptor of the LISTEN_FDS convention.
fn listen_fd() -> io::Result<Option<OwnedFd>> {
    let Some(count) = lifecycle::env("LISTEN_FDS") else { return Ok(None) };
    if let Some(pid) = lifecycle::env("LISTEN_PID")
        && pid.parse() != Ok(std::process::id())
    {
        return Ok(None);
    }
    let Some(place) =
        ours(&count, lifecycle::env("LISTEN_FDNAMES").as_deref()).map_err(io::Error::other)?
    else {
        return Ok(None);
    };
    for raw in (FIRST_FD..).take(count.parse().unwrap_or(0)) {
        // SAFETY: only borrowed for the call, which fails where the number is not open.
        let fd = unsafe { BorrowedFd::borrow_raw(raw) };
        let closed = |error| {
            io::Error::other(format!(
                "LISTEN_FDS={count}: expected descriptor {raw} to be open, found: {error}"
            ))
        };
        // Our own children must not keep it open.
        fcntl(fd.as_fd(), FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC)).map_err(closed)?;
    }
    // SAFETY: the convention gives these descriptors to this process, the loop above found it open,
    // and this is the only place that takes it.
    Ok(Some(unsafe { OwnedFd::from_raw_fd(FIRST_FD + place) }))
}

/// Index of the front socket among `count` descriptors: the only one, or the one named `grpc`.
fn ours(count: &str, names: Option<&str>) -> Result<Option<i32>, String> {
    let bad = |found: String| {
        Err(format!(
            "expected LISTEN_FDS to be 1, or one of LISTEN_FDNAMES to be {NAME:?}, found {found}"
        ))
    };
    match count.parse::<usize>() {
        Ok(0) => Ok(None),
        Ok(1) => Ok(Some(0)),
        Ok(many) if many <= MOST_FDS => {
            let names: Vec<&str> = names.unwrap_or_default().split(':').collect();
            let mut places = (0..)
                .zip(names.iter().take(many))
                .filter(|(_, name)| **name == NAME)
                .map(|(place, _)| place);
            match (places.next(), places.next()) {
                (Some(place), None) => Ok(Some(place)),
                _ => bad(format!("LISTEN_FDS={count}, LISTEN_FDNAMES={}", names.join(":"))),
            }
        }
        _ => bad(format!("LISTEN_FDS={count}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_front_socket_is_the_only_descriptor_or_the_one_named_grpc() {
        assert_eq!(ours("0", None), Ok(None));
        assert_eq!(ours("1", None), Ok(Some(0)));
        assert_eq!(ours("1", Some("paceline-gateway.socket")), Ok(Some(0)));
        assert_eq!(ours("2", Some("http:grpc")), Ok(Some(1)));
        for (count, names) in [
            ("2", None),
            ("2", Some("a:b")),
            ("2", Some("grpc:grpc")),
            ("2", Some("a:b:grpc")),
            ("99", None),
        ] {
            let message = ours(count, names).expect_err("not clear");
            assert!(
                message.contains(&format!("LISTEN_FDS={count}")) && message.contains("grpc"),
                "{message}"
            );
        }
        for count in ["", "-1", "one"] {
            assert!(ours(count, None).is_err(), "{count}");
        }
    }
}
