//! The program itself, in a process of its own: for tests of memory and time.

#[path = "../../../tests/harness/built.rs"]
pub mod built;

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use command_fds::{CommandFdExt, FdMapping};
use paceline_proto::v1::inference_client::InferenceClient;
use tonic::transport::{Channel, Endpoint};

use self::built::built;

/// The gateway's program on a port of its own; killed when dropped.
pub struct Program {
    child: Child,
    /// Where it speaks gRPC.
    pub address: SocketAddr,
    /// Where it speaks HTTP.
    pub http: SocketAddr,
    pub client: InferenceClient<Channel>,
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Program {
    /// Starts it for `model`, with `dir/run` as its runtime directory.
    pub fn start(dir: &Path, model: &Path) -> Self {
        Self::configured(dir, model, "")
    }

    /// The program with the keys of this file.
    pub fn with_keys(dir: &Path, model: &Path, keys: &Path) -> Self {
        Self::configured(dir, model, &format!("[gateway]\napi_keys_file = {keys:?}\n"))
    }

    fn configured(dir: &Path, model: &Path, more: &str) -> Self {
        let (run, model) = (dir.join("run").display().to_string(), model.display().to_string());
        let config = dir.join("paceline.toml");
        std::fs::write(
            &config,
            format!("[supervisor]\nruntime_dir = {run:?}\n[target]\nmodel = {model:?}\n{more}"),
        )
        .expect("writable");
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let http_listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound");
        let http = http_listener.local_addr().expect("bound");
        let mut command = Command::new(built("paceline-gateway"));
        command
            .arg("--config")
            .arg(config)
            .env("LISTEN_FDS", "2")
            .env("LISTEN_FDNAMES", "grpc:http")
            .env_remove("PACELINE_PARENT_FD")
            .stderr(Stdio::null());
        command
            .fd_mappings(vec![
                FdMapping { parent_fd: OwnedFd::from(listener), child_fd: 3 },
                FdMapping { parent_fd: OwnedFd::from(http_listener), child_fd: 4 },
            ])
            .expect("two");
        let child = command.spawn().expect("it starts");
        let client = InferenceClient::new(channel(address)).max_encoding_message_size(32 << 20);
        Self { child, address, http, client }
    }

    /// A connection of its own, as another client has it.
    pub fn connection(&self) -> Channel {
        channel(self.address)
    }

    /// A line of its status in /proc, in bytes.
    pub fn memory(&self, name: &str) -> u64 {
        let status =
            std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).expect("alive");
        let line = status.lines().find(|line| line.starts_with(name)).expect("a line of this name");
        line.split_whitespace().nth(1).expect("a number").parse::<u64>().expect("a number") << 10
    }
}

fn channel(address: SocketAddr) -> Channel {
    Endpoint::from_shared(format!("http://{address}")).expect("an address").connect_lazy()
}
