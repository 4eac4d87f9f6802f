//! The front listeners, which outlive the gateway's restarts: inherited from the process that started
//! this one, else bound here.

use std::io;
use std::net::{SocketAddr, TcpListener};

use paceline_process::config::GatewayConfig;
use paceline_process::listen::{self, Front, HTTP_NOT_SERVED};
use paceline_process::task;
use paceline_system::Clock;
use paceline_system::platform::port_holder;
use paceline_vocabulary::Exit;
use tokio::task::JoinHandle;

use super::refusal::{EARLIER_SERVICE_TIMEOUT, Refusal, STATUS_POLL, refuse};

/// A listening socket and its address.
pub struct FrontListener {
    /// The listening socket.
    pub socket: TcpListener,
    /// The address for clients to connect to, as host and port.
    pub address: String,
}

/// Where clients connect.
pub struct FrontListeners {
    /// The listener of the gRPC port.
    pub grpc: FrontListener,
    /// The listener of the HTTP port; `None` if `gateway.http` is empty.
    pub http: Option<FrontListener>,
    /// The listener of Ollama's port; `None` without one.
    pub ollama: Option<FrontListener>,
}

impl FrontListeners {
    /// Takes the listeners that were handed down and binds the others. `retry`: a gateway of an
    /// earlier service may hold an address a moment longer than its supervisor lives.
    ///
    /// # Errors
    /// An inherited descriptor is none of ours; an address cannot be used.
    pub(super) async fn open(settings: &GatewayConfig, retry: bool) -> Result<Self, Refusal> {
        let handed = listen::inherited_tcp().map_err(|error| refuse(Exit::Config, error))?;
        let grpc = match handed.grpc {
            Some(socket) => socket,
            None => bind(Front::Grpc, &settings.grpc, retry).await?,
        };
        let http = match (handed.http, settings.http.as_str()) {
            (None, "") => None,
            // Its clients would wait for ever while the parent holds it too.
            (Some(_), "") => return Err(refuse(Exit::Config, HTTP_NOT_SERVED)),
            (Some(socket), _) => Some(socket),
            (None, address) => Some(bind(Front::Http, address, retry).await?),
        };
        let ollama = match (handed.ollama, settings.ollama.address()) {
            (_, None) => None,
            (Some(socket), Some(address)) => Some(listener(socket, address)),
            (None, Some(address)) => {
                Some(listener(bind(Front::Ollama, address, retry).await?, address))
            }
        };
        Ok(Self {
            grpc: listener(grpc, &settings.grpc),
            http: http.map(|socket| listener(socket, &settings.http)),
            ollama,
        })
    }

    /// Accepts connections and closes them, until the returned value is dropped. Without a gateway
    /// for a minute or more, clients get an error at once, and do not wait for it.
    ///
    /// # Errors
    /// The system has no descriptors left.
    pub fn turn_away(&self) -> io::Result<TurnedAway> {
        let mut tasks = vec![];
        for (_, socket) in self.sockets() {
            let socket = socket.try_clone()?;
            socket.set_nonblocking(true)?;
            let socket = tokio::net::TcpListener::from_std(socket)?;
            tasks.push(task::spawn("turn away", async move {
                loop {
                    // The connection is closed by being dropped.
                    if socket.accept().await.is_err() {
                        tokio::time::sleep(STATUS_POLL).await;
                    }
                }
            }));
        }
        Ok(TurnedAway(tasks))
    }

    /// The sockets in the order in which the gateway inherits them.
    pub fn sockets(&self) -> impl Iterator<Item = (Front, &TcpListener)> {
        let http = self.http.as_ref().map(|http| (Front::Http, &http.socket));
        let ollama = self.ollama.as_ref().map(|ollama| (Front::Ollama, &ollama.socket));
        std::iter::once((Front::Grpc, &self.grpc.socket)).chain(http).chain(ollama)
    }
}

/// Clients are turned away as long as this lives.
pub struct TurnedAway(Vec<JoinHandle<()>>);

impl Drop for TurnedAway {
    fn drop(&mut self) {
        self.0.iter().for_each(JoinHandle::abort);
    }
}

fn listener(socket: TcpListener, configured: &str) -> FrontListener {
    let address =
        socket.local_addr().map_or_else(|_| configured.to_owned(), |address| address.to_string());
    FrontListener { socket, address }
}

/// What is wrong with an address that cannot be bound, and what to do.
pub fn unusable(address: &str, error: &io::Error) -> String {
    let (what, advice) = match error.kind() {
        io::ErrorKind::AddrInUse => {
            ("is in use by another program", "stop that one, or set another address")
        }
        io::ErrorKind::PermissionDenied => (
            "may not be used by this user",
            "only root may use ports below 1024: set a port of 1024 or more",
        ),
        io::ErrorKind::AddrNotAvailable => (
            "is no address of this machine",
            "set 127.0.0.1 for this machine alone, or 0.0.0.0 for every address of it",
        ),
        _ => ("cannot be used", "set another address"),
    };
    format!("address {address} {what} ({error}); {advice}")
}

/// As [`unusable`], for Ollama's port: mostly Ollama itself holds it.
fn ollama_unusable(address: &str, error: &io::Error) -> String {
    let port = address.parse().map_or(0, |address: SocketAddr| address.port());
    let holder = match port_holder(port) {
        Some(holder) if error.kind() == io::ErrorKind::AddrInUse => format!(", which is {holder}"),
        _ => String::new(),
    };
    let without = "or set on for Ollama's API on the address of http alone";
    format!("{}: {}{holder}; {without}", Front::Ollama.key(), unusable(address, error))
}

async fn bind(front: Front, address: &str, retry: bool) -> Result<TcpListener, Refusal> {
    let clock = Clock::start();
    loop {
        match TcpListener::bind(address) {
            Ok(listener) => return Ok(listener),
            Err(error)
                if error.kind() == io::ErrorKind::AddrInUse
                    && retry
                    && clock.now().0 < EARLIER_SERVICE_TIMEOUT.as_millis() as u64 =>
            {
                tokio::time::sleep(STATUS_POLL).await;
            }
            Err(error) if front == Front::Ollama => {
                return Err(refuse(Exit::Config, ollama_unusable(address, &error)));
            }
            Err(error) => {
                let none = if front == Front::Http { ", or \"\" for no HTTP" } else { "" };
                let message = format!("{}: {}{none}", front.key(), unusable(address, &error));
                return Err(refuse(Exit::Unavailable, message));
            }
        }
    }
}
