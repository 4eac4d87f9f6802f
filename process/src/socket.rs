//! Unix sockets that only this user can use, channels to them, and an accept loop. tonic's own loop
//! spins when no descriptors are left, and keeps silent connections without a bound.

use std::io;
use std::os::fd::{AsFd as _, AsRawFd, RawFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use nix::sys::socket::{MsgFlags, recv};
use tokio::io::Interest;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint, Server};
use tower::service_fn;

use crate::runtime_dir::{UPKEEP_INTERVAL, file_error};
use crate::task;
use paceline_system::platform;

/// Longest wait for the first byte of a new connection.
const FIRST_BYTE: Duration = Duration::from_secs(2);
/// Pause after `accept` failed, for example because no descriptor was free.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(50);
/// Accepted connections that wait for the server.
const BACKLOG: usize = 64;

/// HTTP/2 window of one stream between our processes, in bytes. An unread stream holds this much at
/// each hop.
pub const STREAM_WINDOW: u32 = 256 << 10;
/// Most streams at once on one connection between our processes: 256 requests of the gateway with
/// 16 samples each. Further streams wait at the client until one ends.
const LINK_STREAMS: u32 = 4_096;
/// Largest window of HTTP/2 (RFC 9113, section 6.9.1).
const LARGEST_WINDOW: u32 = (1 << 31) - 1;

/// HTTP/2 window of a connection with this many streams, in bytes: the sum of the streams' windows.
/// Unread streams then never stop another one. A window is a permission, not memory: only unread
/// data is held.
pub const fn connection_window(streams: u32) -> u32 {
    let window = STREAM_WINDOW.saturating_mul(streams);
    if window < LARGEST_WINDOW { window } else { LARGEST_WINDOW }
}

/// A server for the Unix socket of one of our processes, with at most as many streams as its
/// connection window covers. All of them may be reset before the server comes to accept them, as
/// after a crowd of clients hung up: by default 20 of those would close the whole connection.
pub fn server() -> Server {
    Server::builder()
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(connection_window(LINK_STREAMS))
        .max_concurrent_streams(LINK_STREAMS)
        .http2_max_pending_accept_reset_streams(Some(LINK_STREAMS as usize))
}

/// Accepted connections, ready for tonic's `serve_with_incoming`.
pub type Incoming<S> = ReceiverStream<io::Result<S>>;

/// Binds a Unix socket that only this user can reach. The socket file of a dead process is removed
/// first; that of a living process is not.
///
/// macOS refuses connections to a living process that has a full backlog. The caller therefore
/// makes sure that no other process of its name lives. The supervisor has its lock for that, a
/// worker the record of its name.
///
/// # Errors
/// A process listens there, or the system refuses.
pub fn bind(path: &Path) -> io::Result<UnixListener> {
    match std::os::unix::net::UnixStream::connect(path) {
        Ok(_) => {
            return Err(io::Error::new(
                io::ErrorKind::AddrInUse,
                format!("another process listens on {}", path.display()),
            ));
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(_) => std::fs::remove_file(path).map_err(|cause| file_error(path, cause))?,
    }
    // The directory is 0700, so no other user can connect between bind and chmod.
    let bind = || {
        let listener = UnixListener::bind(path)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
        Ok(listener)
    };
    bind().map_err(|cause| file_error(path, cause))
}

/// Accepts connections of this user that send a first byte in time. Others are closed before HTTP/2
/// begins. A socket whose file was removed is bound again at its path. Ends when the returned
/// stream is dropped.
pub fn accept_unix(mut listener: UnixListener) -> Incoming<UnixStream> {
    let (tx, rx) = mpsc::channel(BACKLOG);
    let own_uid = nix::unistd::geteuid().as_raw();
    let address = listener.local_addr().ok();
    let path = address.and_then(|address| address.as_pathname().map(Path::to_path_buf));
    task::spawn("accept", async move {
        let mut looks = tokio::time::interval(UPKEEP_INTERVAL);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let accepted = tokio::select! {
                biased;
                () = tx.closed() => return,
                accepted = listener.accept() => accepted,
                _ = looks.tick() => {
                    if let Some(again) = path.as_deref().and_then(bound_again) {
                        listener = again;
                    }
                    continue;
                }
            };
            match accepted {
                Ok((stream, _)) => match caller(stream.peer_cred().map(|peer| peer.uid()), own_uid)
                {
                    CallingProcess::ThisUser => hand_over(stream, tx.clone()),
                    CallingProcess::OtherUser(uid) => {
                        tracing::warn!(uid, "connection of another user refused")
                    }
                    CallingProcess::Unknown(error) => {
                        tracing::debug!(%error, "connection closed before its user was known")
                    }
                },
                Err(error) => back_off(&error).await,
            }
        }
    });
    ReceiverStream::new(rx)
}

/// A new listener at this path, if its file is gone from a directory that is there. Without room it
/// is tried again at the next look.
fn bound_again(path: &Path) -> Option<UnixListener> {
    let is_gone =
        std::fs::symlink_metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
    if !is_gone || !path.parent().is_some_and(Path::exists) {
        return None;
    }
    let bound = bind(path);
    match &bound {
        Ok(_) => tracing::warn!(path = %path.display(), "a socket was removed and is bound again"),
        Err(error) => tracing::warn!(path = %path.display(), %error, "a removed socket stays away"),
    }
    bound.ok()
}

/// The process at the other end of an accepted connection.
#[derive(Debug)]
enum CallingProcess {
    /// The user this process runs as.
    ThisUser,
    /// Another user, by id.
    OtherUser(u32),
    /// The system no longer has it. macOS forgets the peer when it closes, as the probe of [`bind`]
    /// does at once.
    Unknown(io::Error),
}

/// Classifies a caller by its user id.
fn caller(uid: io::Result<u32>, own_uid: u32) -> CallingProcess {
    match uid {
        Ok(uid) if uid == own_uid => CallingProcess::ThisUser,
        Ok(uid) => CallingProcess::OtherUser(uid),
        Err(error) => CallingProcess::Unknown(error),
    }
}

async fn back_off(error: &io::Error) {
    tracing::warn!(%error, "accept failed");
    tokio::time::sleep(ACCEPT_BACKOFF).await;
}

fn peek(fd: RawFd) -> io::Result<usize> {
    Ok(recv(fd, &mut [0u8; 1], MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT)?)
}

fn hand_over(stream: UnixStream, tx: mpsc::Sender<io::Result<UnixStream>>) {
    platform::enlarge_buffers(stream.as_fd());
    task::spawn("first byte", async move {
        if let Ok(Ok(())) = tokio::time::timeout(FIRST_BYTE, first_byte(&stream)).await {
            // The server may have stopped meanwhile.
            let _ = tx.send(Ok(stream)).await;
        }
    });
}

/// Waits for the first byte. A fresh socket may be reported ready without data, so the loop peeks.
async fn first_byte(stream: &UnixStream) -> io::Result<()> {
    loop {
        stream.readable().await?;
        match stream.try_io(Interest::READABLE, || peek(stream.as_raw_fd())) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}

/// A channel to one of our processes. It connects at the first use, and again after a loss. The
/// peer's process must be this user's.
pub fn channel(path: PathBuf) -> Channel {
    let own_uid = nix::unistd::geteuid().as_raw();
    Endpoint::from_static("http://paceline.local")
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(connection_window(LINK_STREAMS))
        .connect_with_connector_lazy(service_fn(move |_| {
            let path = path.clone();
            async move {
                let stream = UnixStream::connect(&path).await?;
                if stream.peer_cred()?.uid() != own_uid {
                    let text = format!("{} belongs to another user", path.display());
                    return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
                }
                platform::enlarge_buffers(stream.as_fd());
                Ok(TokioIo::new(stream))
            }
        }))
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;

    use paceline_proto::internal::v1::worker_client::WorkerClient;
    use paceline_proto::internal::v1::worker_server::{Worker, WorkerServer};
    use paceline_proto::internal::v1::{
        Heartbeat, LinkReport, StopRequest, StopResponse, WatchRequest,
    };
    use prost::Message as _;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio_stream::StreamExt;
    use tonic::{Request, Response, Status};

    use super::*;

    #[test]
    fn a_connections_window_is_that_of_all_its_streams() {
        assert_eq!(connection_window(1), STREAM_WINDOW);
        assert_eq!(
            u64::from(connection_window(LINK_STREAMS)),
            u64::from(LINK_STREAMS) * u64::from(STREAM_WINDOW)
        );
        assert_eq!(connection_window(u32::MAX), LARGEST_WINDOW);
    }

    /// A frame of HTTP/2 (RFC 9113, section 4.1).
    fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let length = (payload.len() as u32).to_be_bytes();
        [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
    }

    #[tokio::test]
    async fn requests_that_are_reset_at_once_close_no_connection() {
        let [headers, rst_stream, settings, ping, goaway] = [1, 3, 4, 6, 7];
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("x.sock");
        let incoming = accept_unix(bind(&path).expect("bound"));
        let serving = server().add_routes(tonic::service::Routes::default());
        let serving = task::spawn("server", serving.serve_with_incoming(incoming));
        // `POST http://` of the path `/`, as entries of the static table (RFC 7541, appendix A).
        let request = [0x83, 0x86, 0x84];
        let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        bytes.extend(frame(settings, 0, 0, &[]));
        for stream in (1..1000).step_by(2) {
            bytes.extend(frame(headers, 4, stream, &request));
            bytes.extend(frame(rst_stream, 0, stream, &8_u32.to_be_bytes()));
        }
        bytes.extend(frame(ping, 0, 0, b"12345678"));
        let mut client = UnixStream::connect(&path).await.expect("connects");
        client.write_all(&bytes).await.expect("written");
        loop {
            let mut head = [0; 9];
            client.read_exact(&mut head).await.expect("the connection stays open");
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
            let mut payload = vec![0; length as usize];
            client.read_exact(&mut payload).await.expect("a whole frame");
            assert_ne!(head[3], goaway, "{:?}", String::from_utf8_lossy(&payload));
            if head[3] == ping {
                break;
            }
        }
        serving.abort();
    }

    #[tokio::test]
    async fn a_stale_socket_is_replaced_and_a_living_one_is_not() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("x.sock");
        drop(bind(&path).expect("bound"));
        let living = bind(&path).expect("the stale file is removed");
        assert_eq!(std::fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o600);
        assert_eq!(bind(&path).expect_err("taken").kind(), io::ErrorKind::AddrInUse);
        drop(living);
    }

    #[tokio::test]
    async fn a_removed_socket_is_bound_again() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("run/x.sock");
        let folder = path.parent().expect("a folder");
        std::fs::create_dir(folder).expect("made");
        let mut incoming = accept_unix(bind(&path).expect("bound"));
        for remade in [true, false] {
            if remade {
                std::fs::remove_dir_all(folder).expect("removed");
                std::fs::create_dir(folder).expect("made");
            } else {
                std::fs::remove_file(&path).expect("removed");
            }
            let connected = async {
                loop {
                    match UnixStream::connect(&path).await {
                        Ok(stream) => return stream,
                        Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
                    }
                }
            };
            let within = Duration::from_secs(30);
            let mut caller =
                tokio::time::timeout(within, connected).await.expect("it is bound again");
            caller.write_all(b"P").await.expect("written");
            let taken = tokio::time::timeout(within, incoming.next()).await.expect("in time");
            taken.expect("still accepting").expect("a connection");
        }
    }

    #[test]
    fn a_vanished_caller_is_not_reported_as_another_user() {
        assert!(matches!(caller(Ok(501), 501), CallingProcess::ThisUser));
        assert!(matches!(caller(Ok(0), 501), CallingProcess::OtherUser(0)));
        assert!(matches!(
            caller(Err(io::ErrorKind::NotConnected.into()), 501),
            CallingProcess::Unknown(_)
        ));
    }

    #[tokio::test]
    async fn silent_connections_do_not_keep_others_out() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("x.sock");
        let mut incoming = accept_unix(bind(&path).expect("bound"));
        let mut silent = Vec::new();
        for _ in 0..100 {
            silent.push(UnixStream::connect(&path).await.expect("connects"));
        }
        let mut talking = UnixStream::connect(&path).await.expect("connects");
        talking.write_all(b"PRI").await.expect("written");
        let first =
            tokio::time::timeout(Duration::from_secs(30), incoming.next()).await.expect("in time");
        first.expect("still accepting").expect("a connection");
    }

    /// A worker whose heartbeats have no end.
    struct Flood;

    #[tonic::async_trait]
    impl Worker for Flood {
        type WatchStream = Pin<Box<dyn futures::Stream<Item = Result<Heartbeat, Status>> + Send>>;

        async fn watch(
            &self,
            _: Request<WatchRequest>,
        ) -> Result<Response<Self::WatchStream>, Status> {
            let link = LinkReport { reason: "x".repeat(8 << 10), ..Default::default() };
            let beat = Heartbeat { link: Some(link), ..Default::default() };
            Ok(Response::new(Box::pin(futures::stream::repeat(beat).map(Ok))))
        }

        async fn stop(&self, _: Request<StopRequest>) -> Result<Response<StopResponse>, Status> {
            Ok(Response::new(StopResponse {}))
        }
    }

    #[tokio::test]
    async fn unread_streams_of_a_link_never_stop_another_one() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("x.sock");
        let incoming = accept_unix(bind(&path).expect("bound"));
        task::spawn(
            "server",
            server().add_service(WorkerServer::new(Flood)).serve_with_incoming(incoming),
        );
        let mut client = WorkerClient::new(channel(path));
        let within = async |client: &mut WorkerClient<Channel>, bytes: usize| {
            let reading = async {
                let mut beats =
                    client.watch(WatchRequest::default()).await.expect("open").into_inner();
                let mut read = 0;
                while read < bytes {
                    read += beats.message().await.expect("no error").expect("no end").encoded_len();
                }
                beats
            };
            tokio::time::timeout(Duration::from_secs(30), reading).await.expect("in time")
        };
        let mut unread = vec![];
        for _ in 0..80 {
            unread.push(within(&mut client, 1).await);
            // Later streams come when the earlier ones have filled what there is.
            within(&mut client, 2 * STREAM_WINDOW as usize).await;
        }
        within(&mut client, 4 << 20).await;
    }
}
