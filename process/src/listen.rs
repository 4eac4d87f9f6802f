//! Listening sockets that this process inherits, one for each front: by the LISTEN_FDS convention
//! (sd_listen_fds(3); systemd and `paceline serve`), or from launchd.

use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::socket::{AddressFamily, SockaddrLike, SockaddrStorage, getsockname};

use paceline_system::environment::env;
use paceline_system::platform;

/// First descriptor of the convention.
pub const FIRST_FD: i32 = 3;
/// Most descriptors of the convention: no unit of ours has more, so a larger number is a mistake.
const MOST_FDS: usize = 16;
/// Why a socket for HTTP is refused if the configuration says that there is no HTTP.
pub const HTTP_NOT_SERVED: &str = "expected gateway.http to be the address of the socket \"http\" that was handed down, found \"\" (no HTTP); set it, or \
     take the socket out of the unit or job";

/// A front socket, which another process may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Front {
    /// Where gRPC is served. Always there.
    Grpc,
    /// Where HTTP is served. A parent of an earlier version does not know it.
    Http,
    /// Where Ollama's API is served besides. A parent holds it if `serve` was told of it.
    Ollama,
}

impl Front {
    /// Name of the listener by the LISTEN_FDS convention (`FileDescriptorName=`).
    pub fn name(self) -> &'static str {
        match self {
            Front::Grpc => "grpc",
            Front::Http => "http",
            Front::Ollama => "ollama",
        }
    }

    /// The setting of its address.
    pub fn key(self) -> &'static str {
        match self {
            Front::Grpc => "gateway.grpc",
            Front::Http => "gateway.http",
            Front::Ollama => "gateway.ollama",
        }
    }

    /// Key of the listener in the job's `Sockets` of launchd.
    fn launchd_key(self) -> &'static str {
        match self {
            Front::Grpc => "Grpc",
            Front::Http => "Http",
            Front::Ollama => "Ollama",
        }
    }
}

/// The front listeners that this process inherited; non-blocking. `None` for each that the parent
/// does not hold.
#[derive(Debug, Default)]
pub struct Inherited {
    /// Where gRPC is served.
    pub grpc: Option<TcpListener>,
    /// Where HTTP is served.
    pub http: Option<TcpListener>,
    /// Where Ollama's API is served.
    pub ollama: Option<TcpListener>,
}

/// The inherited front listeners. LISTEN_PID is checked if it is set: a parent that forks and execs
/// this process may not know its pid beforehand. To be called once, because it takes the
/// descriptors.
///
/// # Errors
/// An inherited descriptor is no listening TCP socket, or several were inherited and their names do
/// not say which is which.
pub fn inherited_tcp() -> io::Result<Inherited> {
    if let Some(fds) = listen_fds()? {
        let Fronts { grpc, http, ollama } = fds;
        return Ok(Inherited {
            grpc: grpc.map(|fd| checked(fd, Front::Grpc)).transpose()?,
            http: http.map(|fd| checked(fd, Front::Http)).transpose()?,
            ollama: ollama.map(|fd| checked(fd, Front::Ollama)).transpose()?,
        });
    }
    Ok(Inherited {
        grpc: of_launchd(Front::Grpc)?,
        http: of_launchd(Front::Http)?,
        ollama: of_launchd(Front::Ollama)?,
    })
}

/// The variables by which a child finds these listeners with [`inherited_tcp`], in the order in which
/// their descriptors follow [`FIRST_FD`].
pub fn variables(listeners: &[Front]) -> [(&'static str, String); 2] {
    let names: Vec<&str> = listeners.iter().map(|front| front.name()).collect();
    [("LISTEN_FDS", listeners.len().to_string()), ("LISTEN_FDNAMES", names.join(":"))]
}

/// The listener that launchd holds for this job, if it does.
fn of_launchd(front: Front) -> io::Result<Option<TcpListener>> {
    match platform::launchd_sockets(front.launchd_key())?.map(<[OwnedFd; 1]>::try_from) {
        None => Ok(None),
        Some(Ok([fd])) => checked(fd, front).map(Some),
        Some(Err(found)) => {
            let (expected, found) = (expected(front), found.len());
            Err(io::Error::other(format!(
                "{expected}, found {found} of launchd: name one address and family"
            )))
        }
    }
}

fn expected(front: Front) -> String {
    let name = front.name();
    format!("expected one listening TCP socket for {name}, handed down by LISTEN_FDS or launchd")
}

/// This descriptor as a listener.
fn checked(fd: OwnedFd, front: Front) -> io::Result<TcpListener> {
    let expected = expected(front);
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
    Ok(listener)
}

/// One value for each front socket.
#[derive(Debug, Default, PartialEq)]
struct Fronts<T> {
    grpc: Option<T>,
    http: Option<T>,
    ollama: Option<T>,
}

/// The front sockets' descriptors of the LISTEN_FDS convention; `None` without the convention.
fn listen_fds() -> io::Result<Option<Fronts<OwnedFd>>> {
    let Some(count) = env("LISTEN_FDS") else { return Ok(None) };
    if let Some(pid) = env("LISTEN_PID")
        && pid.parse() != Ok(std::process::id())
    {
        return Ok(None);
    }
    let places = places(&count, env("LISTEN_FDNAMES").as_deref()).map_err(io::Error::other)?;
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
    // SAFETY: the convention gives these descriptors to this process, the loop above found them
    // open, their places differ, and this is the only place that takes them.
    let own = |place| unsafe { OwnedFd::from_raw_fd(FIRST_FD + place) };
    let Fronts { grpc, http, ollama } = places;
    Ok(Some(Fronts { grpc: grpc.map(own), http: http.map(own), ollama: ollama.map(own) }))
}

/// Places of the front sockets among `count` descriptors. A single one is gRPC's unless it is named
/// `http`; of several, one is named `grpc`, at most one `http` and one `ollama`, and others are left
/// alone.
fn places(count: &str, names: Option<&str>) -> Result<Fronts<i32>, String> {
    let words: Vec<&str> = names.unwrap_or_default().split(':').collect();
    let bad = |found: String| {
        Err(format!(
            "expected LISTEN_FDS to be 1, or of LISTEN_FDNAMES one to be \"grpc\", at most one \"http\" and one \"ollama\", found {found}"
        ))
    };
    // The one place of a front; nothing if there are several.
    let named = |front: Front, many: usize| {
        let mut places = (0..).zip(words.iter().take(many));
        let place = places.find(|(_, name)| **name == front.name()).map(|(place, _)| place);
        let is_alone = !places.any(|(_, name)| *name == front.name());
        is_alone.then_some(place)
    };
    match count.parse::<usize>() {
        Ok(0) => Ok(Fronts::default()),
        Ok(1) if words == [Front::Http.name()] => Ok(Fronts { http: Some(0), ..Fronts::default() }),
        Ok(1) => Ok(Fronts { grpc: Some(0), ..Fronts::default() }),
        Ok(many) if many <= MOST_FDS => {
            match [Front::Grpc, Front::Http, Front::Ollama].map(|front| named(front, many)) {
                [Some(grpc @ Some(_)), Some(http), Some(ollama)] => {
                    Ok(Fronts { grpc, http, ollama })
                }
                _ => bad(format!("LISTEN_FDS={count}, LISTEN_FDNAMES={}", words.join(":"))),
            }
        }
        _ => bad(format!("LISTEN_FDS={count}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(count: &str, names: Option<&str>) -> (Option<i32>, Option<i32>) {
        let places = places(count, names).expect("clear");
        (places.grpc, places.http)
    }

    #[test]
    fn a_single_descriptor_is_that_of_grpc_unless_it_is_named_http() {
        assert_eq!(found("0", None), (None, None));
        assert_eq!(found("1", None), (Some(0), None));
        assert_eq!(found("1", Some("paceline-gateway.socket")), (Some(0), None));
        assert_eq!(found("1", Some("grpc")), (Some(0), None));
        assert_eq!(found("1", Some("http")), (None, Some(0)));
    }

    #[test]
    fn of_several_descriptors_the_names_say_which_is_which() {
        assert_eq!(found("2", Some("http:grpc")), (Some(1), Some(0)));
        assert_eq!(found("2", Some("grpc:http")), (Some(0), Some(1)));
        assert_eq!(found("2", Some("grpc:other")), (Some(0), None));
        assert_eq!(found("3", Some("other:http:grpc")), (Some(2), Some(1)));
        for (count, names) in [
            ("2", None),
            ("2", Some("a:b")),
            ("2", Some("grpc:grpc")),
            ("2", Some("http:http")),
            ("2", Some("http:other")),
            ("3", Some("ollama:grpc:ollama")),
            ("3", Some("http:grpc:http")),
            ("2", Some("a:b:grpc")),
            ("99", None),
        ] {
            let message = places(count, names).expect_err("not clear");
            assert!(
                message.contains(&format!("LISTEN_FDS={count}")) && message.contains("grpc"),
                "{message}"
            );
        }
        for count in ["", "-1", "one"] {
            assert!(places(count, None).is_err(), "{count}");
        }
    }

    #[test]
    fn what_is_handed_down_is_found_by_its_name() {
        let orders = [
            [Front::Grpc, Front::Http, Front::Ollama],
            [Front::Ollama, Front::Http, Front::Grpc],
            [Front::Http, Front::Grpc, Front::Ollama],
        ];
        for order in orders {
            let [(_, count), (_, names)] = variables(&order);
            let found = places(&count, Some(&names)).expect("clear");
            let place = |front: Front| match front {
                Front::Grpc => found.grpc,
                Front::Http => found.http,
                Front::Ollama => found.ollama,
            };
            assert_eq!(order.map(place), [Some(0), Some(1), Some(2)]);
        }
    }
}
