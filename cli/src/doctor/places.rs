//! Where a service listens, reads and writes on this machine: addresses, directories, key files, and
//! the limit of open files.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::time::Duration;

use nix::sys::resource::{Resource, getrlimit};
use nix::unistd::{AccessFlags, access};
use paceline_client::channel::{OwnAddresses, reachable};
use paceline_client::print::bytes;
use paceline_launcher::serve::listeners::unusable;
use paceline_launcher::service;
use paceline_process::config::GatewayConfig;
use paceline_process::{Loaded, RuntimeDir, chain, keys, runtime_dir};
use paceline_system::platform;
use paceline_system::start::OPEN_FILES;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::{Check, State};

/// Longest wait for a connection to an address of this machine.
const CONNECT_LIMIT: Duration = Duration::from_secs(3);
/// Free bytes of a file system below which logs, or a model that is pulled, soon find no room.
const LOW_BYTES: u64 = 1 << 30;

/// Whether each address is free, or the running service accepts connections there.
pub(super) async fn addresses(loaded: &Loaded, runs: bool) -> Vec<Check> {
    let OwnAddresses { grpc, http, .. } = OwnAddresses::find(loaded).await;
    let mut found = vec![];
    for (key, address) in [("gateway.grpc", grpc), ("gateway.http", http)] {
        found.push(match address.parse::<SocketAddr>() {
            Err(_) => Check::ok(key, "none, so it is not served"),
            Ok(address) if runs => answers(key, address).await,
            Ok(address) => is_free(key, address),
        });
    }
    found
}

async fn answers(key: &'static str, address: SocketAddr) -> Check {
    let place = reachable(&address.to_string());
    let connected = timeout(CONNECT_LIMIT, TcpStream::connect(&place)).await;
    match connected.unwrap_or_else(|_| Err(ErrorKind::TimedOut.into())) {
        Ok(_) => Check::ok(key, format!("{address}, held by the service that runs")),
        Err(error) => {
            let fact = format!("a service runs, but {address} takes no connection: {error}");
            Check::problem(key, fact, "`paceline restart gateway`")
        }
    }
}

fn is_free(key: &'static str, address: SocketAddr) -> Check {
    match TcpListener::bind(address) {
        Ok(_) => Check::ok(key, format!("{address} is free")),
        Err(error) => not_free(key, address, &error, service::is_installed()),
    }
}

fn not_free(key: &'static str, address: SocketAddr, error: &io::Error, installed: bool) -> Check {
    if installed && error.kind() == ErrorKind::AddrInUse {
        let fact = format!("{address} is in use, as by the manager of the installed service");
        return Check::warning(key, fact, "`paceline service status` shows whether it holds it");
    }
    Check::problem(key, unusable(&address.to_string(), error), "")
}

/// The runtime directory, and the cache directory.
pub(super) fn directories(loaded: &Loaded) -> Vec<Check> {
    let name = "runtime directory";
    let located = RuntimeDir::locate(&loaded.config).and_then(|dir| {
        let exists = dir.path().symlink_metadata().is_ok();
        if exists { runtime_dir::private_dir(dir.path()).map(|()| dir) } else { Ok(dir) }
    });
    let run = match located {
        Ok(dir) => directory(name, dir.path()),
        Err(error) => Check::problem(name, chain(&error), ""),
    };
    let name = "cache directory";
    let cache = match paceline_checkpoint::cache_dir() {
        Some(dir) => directory(name, &dir.join("paceline")),
        None => Check::warning(name, "none", "set $HOME, so that models can be pulled"),
    };
    vec![run, cache]
}

/// Whether a directory, or the one in which it would be made, may be written, and has room.
fn directory(name: &'static str, dir: &Path) -> Check {
    let shown = dir.display();
    let there = dir.ancestors().find(|dir| dir.is_dir()).unwrap_or(Path::new("/"));
    if let Err(error) = access(there, AccessFlags::W_OK | AccessFlags::X_OK) {
        let fact = format!("{shown}: cannot write in {}: {error}", there.display());
        return Check::problem(name, fact, "make that directory this user's, or set another");
    }
    let made = if there == dir { "" } else { ", made by the first start" };
    room(name, format!("{shown}{made}"), platform::free_bytes(there))
}

fn room(name: &'static str, place: String, free: Option<u64>) -> Check {
    match free {
        // The file system does not tell.
        None => Check::ok(name, place),
        Some(free @ LOW_BYTES..) => Check::ok(name, format!("{place}: {} free", bytes(free))),
        Some(free) => {
            let fact = format!("{place}: only {} free", bytes(free));
            Check::warning(name, fact, "make room on its file system")
        }
    }
}

/// How many descriptors a process may use, which each process of ours raises as far as it may.
pub(super) fn open_files() -> Check {
    let soft = getrlimit(Resource::RLIMIT_NOFILE).map_or(0, |(soft, _)| soft);
    let fact = format!("at most {soft} a process; many clients need {OPEN_FILES}");
    let remedy = "raise the hard limit (`ulimit -Hn`, or LimitNOFILE= of systemd)";
    match soft >= OPEN_FILES {
        true => Check::ok("open files", fact),
        false => Check::warning("open files", fact, remedy),
    }
}

/// The files of keys and of TLS that are set.
pub(super) fn key_files(settings: &GatewayConfig) -> Vec<Check> {
    let GatewayConfig { api_keys_file, tls_cert, tls_key, .. } = settings;
    let files = [
        ("gateway.api_keys_file", api_keys_file),
        ("gateway.tls_cert", tls_cert),
        ("gateway.tls_key", tls_key),
    ];
    let set = files.into_iter().filter(|(_, path)| !path.is_empty());
    set.map(|(key, path)| {
        let fact = match std::fs::read_to_string(path) {
            Err(error) => Err(format!("cannot read {path}: {error}")),
            Ok(text) if key == "gateway.api_keys_file" => match keys::parse(&text) {
                Ok(lines) => Ok(format!("{path}: {} keys", lines.len())),
                Err(error) => Err(format!("{path}: {}", chain(&error))),
            },
            Ok(text) if !text.contains("-----BEGIN ") => {
                Err(format!("{path}: expected PEM, found no \"-----BEGIN\""))
            }
            Ok(_) => Ok(format!("{path} can be read")),
        };
        let state = if fact.is_ok() { State::Ok } else { State::Problem };
        Check::new(key, state, fact.unwrap_or_else(|fact| fact), "")
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn at(text: &str) -> SocketAddr {
        text.parse().expect("an address")
    }

    #[tokio::test]
    async fn an_address_in_use_is_no_free_one() {
        let held = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = held.local_addr().expect("bound");
        let check = is_free("gateway.http", address);
        assert!(check.state != State::Ok && check.fact.contains("is in use"), "{check:?}");
        assert_eq!(answers("gateway.http", address).await.state, State::Ok);
        drop(held);
        assert_eq!(is_free("gateway.http", address).state, State::Ok);
        assert_eq!(answers("gateway.http", address).await.state, State::Problem);
    }

    #[test]
    fn an_address_has_its_remedy_and_one_of_an_installed_service_is_a_warning() {
        let of = |kind: ErrorKind, installed| {
            not_free("gateway.http", at("127.0.0.1:80"), &kind.into(), installed)
        };
        let denied = of(ErrorKind::PermissionDenied, true);
        assert_eq!(denied.state, State::Problem);
        assert!(denied.fact.contains("a port of 1024 or more"), "{denied:?}");
        assert_eq!(of(ErrorKind::AddrInUse, true).state, State::Warning);
        let held = of(ErrorKind::AddrInUse, false);
        assert_eq!(held.state, State::Problem);
        assert!(held.fact.starts_with("address 127.0.0.1:80 is in use by another program"));
    }

    #[test]
    fn a_runtime_directory_is_checked_and_not_made() {
        let temp = tempfile::tempdir().expect("a directory");
        let (run, open) = (temp.path().join("run"), temp.path().join("open"));
        let of = |dir: &Path| {
            let text = format!("supervisor.runtime_dir = {dir:?}\n");
            directories(&Loaded::from_text(&text, &[]).expect("accepted"))[0].clone()
        };
        let check = of(&run);
        assert!(check.state != State::Problem && check.fact.contains("first start"), "{check:?}");
        assert!(!run.exists());
        std::fs::create_dir(&open).expect("made");
        std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o755)).expect("changed");
        let check = of(&open);
        assert!(check.state == State::Problem && check.fact.contains("chmod 700"), "{check:?}");
        let check = of(&temp.path().join("x".repeat(120)));
        assert!(check.state == State::Problem && check.fact.contains("shorter path"), "{check:?}");
    }

    #[test]
    fn little_room_is_a_warning() {
        assert_eq!(room("cache directory", "f".into(), Some(LOW_BYTES)).state, State::Ok);
        assert_eq!(room("cache directory", "f".into(), Some(LOW_BYTES - 1)).state, State::Warning);
    }

    #[test]
    fn key_files_that_are_set_have_to_be_readable_and_of_their_form() {
        let temp = tempfile::tempdir().expect("a directory");
        let file = |name: &str, text: &str| {
            let path = temp.path().join(name);
            std::fs::write(&path, text).expect("written");
            path.display().to_string()
        };
        let of = |keys: &str, cert: &str| {
            let settings = GatewayConfig {
                api_keys_file: keys.into(),
                tls_cert: cert.into(),
                ..GatewayConfig::default()
            };
            key_files(&settings).iter().map(|check| check.state).collect::<Vec<_>>()
        };
        let good = file("keys", &format!("alice:{}\n", "0a".repeat(32)));
        let pem = file("cert", "-----BEGIN CERTIFICATE-----\n");
        assert_eq!(of("", ""), []);
        assert_eq!(of(&good, &pem), [State::Ok, State::Ok]);
        assert_eq!(of(&pem, &good), [State::Problem, State::Problem]);
        assert_eq!(of("/nowhere", ""), [State::Problem]);
    }
}
