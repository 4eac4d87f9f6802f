//! Connections of clients: accepted, bounded in number, served over HTTP/2 or HTTP/1, closed in
//! order.
//!
//! hyper is used directly: tonic's server has a timer of its own on `grpc-timeout` that ends
//! requests with CANCELLED, spins when accept fails, and keeps connections that never speak HTTP/2.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::header::{CONNECTION, HeaderValue};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use paceline_process::config::LimitsConfig;
use paceline_process::task;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

use super::WireProtocol;
use super::connections::{ConnectionSlot, Connections, OpenConnection, UNUSED};
use super::key::AskKey;
use super::layer::Layered;
use super::opening::{self, Opened, OpeningGuard, Openings};
use super::places::AnswerPlaces;
use super::timed::MessageBounds;
use super::track::{AnswerBounds, TrackRequests, UNSENT_BYTES};
use crate::guard::Guard;
use crate::inference::admission::ByteBudget;

const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(5);
const MAX_HEADER_LIST_BYTES: u32 = 16 << 10;
/// HTTP/2 window of one request's body, in bytes. A body that waits for room in the budget holds as
/// much here. 128 KiB are 10 Mbit/s at a round trip of 100 ms.
const STREAM_WINDOW: u32 = 128 << 10;
/// Largest window of HTTP/2 (RFC 9113, section 6.9.1).
const LARGEST_WINDOW: u32 = (1 << 31) - 1;
/// Bytes of a connection of HTTP/1 that are kept for a socket that takes none at this moment. This is
/// also the bound of a request's headers.
const HTTP1_BUFFER_BYTES: usize = 64 << 10;
/// Time for the headers of a request of HTTP/1, from the end of the one before. An idle connection
/// of HTTP/1 is closed after it: clients that keep connections expect that, and cannot be asked by
/// a ping whether they are still there.
const HTTP1_HEADER_TIMEOUT: Duration = UNUSED;
/// A connection of HTTP/1 that a leaving gateway has is closed after this time without a request. A
/// client cannot be asked to send no further one, and must not send it at the moment of the close.
/// Clients that keep connections for 5 s, such as httpx, have dropped theirs by then.
const LEFT_IDLE: Duration = Duration::from_secs(6);
/// Pause after `accept` failed, as it does without free descriptors: as it stands, the next try
/// would fail as well.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(50);

/// The two ends of the connections of a gateway.
#[derive(Clone, Debug)]
pub struct Ends {
    /// Cancelled when a successor serves further connections: none is accepted, and each that is
    /// open is closed after its requests, those on their way included. `closing` cancels it too.
    pub leaving: CancellationToken,
    /// Cancelled to close every connection.
    pub closing: CancellationToken,
}

impl Default for Ends {
    fn default() -> Self {
        let closing = CancellationToken::new();
        Self { leaving: closing.child_token(), closing }
    }
}

/// State that the connections of all listening sockets share.
#[derive(Clone, Debug)]
pub struct Listeners {
    guard: Guard,
    streams: u32,
    messages: MessageBounds,
    answers: AnswerBounds,
    connections: Connections,
    openings: Openings,
    ends: Ends,
    /// Whether the last connection was closed because all slots are taken.
    is_full: Arc<AtomicBool>,
}

impl Listeners {
    /// No connections, within `limits`. Bodies take their bytes from `budget`. The connections are
    /// closed when a token of `ends` is cancelled.
    pub fn new(guard: Guard, limits: &LimitsConfig, budget: ByteBudget, ends: Ends) -> Self {
        let messages = MessageBounds {
            time: Duration::from_secs(limits.message_s),
            bytes: limits.max_message_bytes,
            budget,
        };
        let unread = Duration::from_secs(limits.unread_s);
        Self {
            guard,
            streams: limits.streams_per_connection,
            messages,
            answers: AnswerBounds { places: AnswerPlaces::default(), unread },
            connections: Connections::new(limits),
            openings: Openings::default(),
            ends,
            is_full: Arc::default(),
        }
    }

    /// The guard of the connections.
    pub fn guard(&self) -> Guard {
        self.guard.clone()
    }

    /// Serves `protocol` on one listening socket until the end; then asks every connection to close
    /// and returns when all connections of all sockets are closed.
    pub async fn serve<P: WireProtocol>(self, listener: TcpListener, protocol: P) {
        let mut failing = false;
        let upkeep = task::spawn("freed memory", self.connections.clone().give_back_memory());
        loop {
            let accepted = tokio::select! {
                biased;
                () = self.ends.leaving.cancelled() => break,
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, peer)) => {
                    failing = false;
                    let accepted = self.connections.accepted();
                    let opening = self.openings.begin();
                    let work =
                        self.clone().connection(stream, peer.ip(), opening, protocol.clone());
                    task::spawn("connection", async move {
                        let _open: OpenConnection = accepted;
                        work.await;
                    });
                }
                Err(error) => {
                    // One line for each row of failures.
                    if !std::mem::replace(&mut failing, true) {
                        tracing::warn!(%error, "accept failed; connections that have not said anything, and idle ones, are closed");
                    }
                    // A peer that left before it was accepted (ECONNABORTED) took nothing that
                    // others lack.
                    if error.kind() != std::io::ErrorKind::ConnectionAborted {
                        self.openings.cut_half();
                        self.connections.free_descriptor();
                        tokio::time::sleep(ACCEPT_BACKOFF).await;
                    }
                }
            }
        }
        drop(listener);
        self.connections.all_closed().await;
        upkeep.abort();
    }

    /// An accepted connection, to its end.
    async fn connection<P: WireProtocol>(
        self,
        stream: TcpStream,
        peer: IpAddr,
        moment: OpeningGuard,
        protocol: P,
    ) {
        let opened = tokio::select! {
            biased;
            () = self.ends.closing.cancelled() => return,
            () = moment.cut() => return,
            opened = opening::open(stream, P::tls(&self.guard), P::HTTP1) => opened,
        };
        drop(moment);
        let opened = match opened {
            Ok(opened) => opened,
            Err(error) => {
                return tracing::debug!(%error, "a connection that does not speak as expected was closed");
            }
        };
        // A client understands a closed connection, and waits at one that hangs.
        let slot = match self.connections.enter(peer) {
            Ok(slot) => slot,
            Err(bound) => {
                // One line for each row of them.
                if !self.is_full.swap(true, Ordering::Relaxed) {
                    let setting = bound.setting();
                    tracing::warn!(
                        setting,
                        "too many connections, and each has open requests: new ones are closed"
                    );
                }
                return;
            }
        };
        self.is_full.store(false, Ordering::Relaxed);
        match opened {
            Opened::Plain(stream) => {
                let is_http2 = stream.is_http2();
                self.serve_stream(stream, is_http2, peer, slot, protocol).await;
            }
            Opened::Tls(stream) => {
                let is_http2 = stream.is_http2();
                self.serve_stream(stream, is_http2, peer, slot, protocol).await;
            }
        }
    }

    /// A connection that has shown its version of HTTP, to its end.
    async fn serve_stream<S, P>(
        self,
        stream: S,
        is_http2: bool,
        peer: IpAddr,
        slot: ConnectionSlot,
        protocol: P,
    ) where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        P: WireProtocol,
    {
        let builder = self.builder(is_http2);
        let track = TrackRequests::<P>::new(
            slot.handle(),
            self.guard.has_keys(),
            self.messages.clone(),
            self.answers.clone(),
        );
        let requests = Layered::new(protocol.service(), track);
        let service = Layered::new(requests, AskKey::new(protocol, self.guard.clone(), peer));
        let leaving = self.ends.leaving.clone();
        let service = service.map_response(move |mut response: http::Response<_>| {
            // HTTP/2 has GOAWAY for it.
            if !is_http2 && leaving.is_cancelled() {
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            response
        });
        let service = TowerToHyperService::new(service);
        let mut connection =
            std::pin::pin!(builder.serve_connection(TokioIo::new(stream), service));
        let outcome = tokio::select! {
            outcome = connection.as_mut() => Some(outcome),
            () = self.ends.closing.cancelled() => None,
            () = slot.leaves() => None,
            () = self.left(is_http2, &slot) => None,
        };
        let outcome = match outcome {
            Some(outcome) => outcome,
            None => {
                // GOAWAY, or no further request of HTTP/1; what is open goes on.
                connection.as_mut().graceful_shutdown();
                tokio::select! {
                    outcome = connection.as_mut() => outcome,
                    () = slot.is_overdue() => Ok(()),
                }
            }
        };
        if let Err(error) = outcome {
            tracing::debug!(error, "connection ended");
        }
    }

    /// Resolves when this gateway leaves and its client can be asked to close the connection.
    /// HTTP/2 has a message for that, which cannot cross a request: the requests before its answer
    /// are served. A connection of HTTP/1 is closed with the next answer, or after a time without a
    /// request.
    async fn left(&self, is_http2: bool, slot: &ConnectionSlot) {
        self.ends.leaving.cancelled().await;
        if !is_http2 {
            slot.idle_for(LEFT_IDLE).await;
        }
    }

    fn builder(&self, is_http2: bool) -> auto::Builder<TokioExecutor> {
        let builder = auto::Builder::new(TokioExecutor::new());
        let mut builder = if is_http2 { builder.http2_only() } else { builder.http1_only() };
        builder
            .http2()
            .timer(TokioTimer::new())
            .max_concurrent_streams(self.streams)
            .initial_stream_window_size(STREAM_WINDOW)
            // The sum of the streams' windows: a body that is not read stops no other one.
            .initial_connection_window_size(connection_window(self.streams))
            .keep_alive_interval(KEEPALIVE_INTERVAL)
            .keep_alive_timeout(KEEPALIVE_TIMEOUT)
            .max_send_buf_size(UNSENT_BYTES)
            .max_header_list_size(MAX_HEADER_LIST_BYTES);
        builder
            .http1()
            .timer(TokioTimer::new())
            .header_read_timeout(HTTP1_HEADER_TIMEOUT)
            .max_buf_size(HTTP1_BUFFER_BYTES);
        builder
    }
}

fn connection_window(streams: u32) -> u32 {
    STREAM_WINDOW.saturating_mul(streams).min(LARGEST_WINDOW)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use h2::client::SendRequest;
    use paceline_process::Config;
    use paceline_proto::status::{Reason, ReasonStatus as _};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::sync::watch;
    use tokio::task::JoinHandle;

    use super::super::connections::CLOSE_GRACE;
    use super::*;
    use crate::front::grpc::{GrpcWire, health};
    use crate::front::http::{Cors, HttpWire, Sites};
    use crate::inference::standing::Standing;

    fn listeners(guard: Guard, ends: Ends) -> Listeners {
        let limits = LimitsConfig::default();
        Listeners::new(guard, &limits, ByteBudget::new(limits.body_bytes), ends)
    }

    /// A connection of this client, in one process and in paused time, and its task on the
    /// gateway's side.
    async fn connected() -> (SendRequest<Bytes>, JoinHandle<()>, watch::Sender<Standing>) {
        let (requests, served, _, standing) = connected_with_ends().await;
        (requests, served, standing)
    }

    /// As [`connected`], and the ends of the gateway's connections.
    async fn connected_with_ends()
    -> (SendRequest<Bytes>, JoinHandle<()>, Ends, watch::Sender<Standing>) {
        let (standing, seen) = watch::channel(Standing::default());
        let ends = Ends::default();
        let routes = tonic::service::Routes::new(health(seen, ends.leaving.clone()));
        let guard = Guard::prepare(&Config::default()).expect("no files");
        let server = listeners(guard, ends.clone());
        let here = IpAddr::from([127, 0, 0, 1]);
        let slot = server.connections.enter(here).expect("room");
        let (client, socket) = tokio::io::duplex(64 << 10);
        let served = task::spawn(
            "connection",
            server.serve_stream(socket, true, here, slot, GrpcWire::new(routes)),
        );
        let (requests, connection) = h2::client::handshake(client).await.expect("HTTP/2");
        // The tests check its end on the gateway's side.
        task::spawn("client", async { drop(connection.await) });
        (requests, served, ends, standing)
    }

    /// Sends the headers of a request to health, and its message if there is one. Returns the
    /// headers of its answer.
    async fn ask(
        requests: &SendRequest<Bytes>,
        method: &str,
        message: Option<&[u8]>,
    ) -> http::Response<h2::RecvStream> {
        let mut requests = requests.clone().ready().await.expect("open");
        let request =
            http::Request::post(format!("http://localhost/grpc.health.v1.Health/{method}"))
                .header("content-type", "application/grpc")
                .body(())
                .expect("a request");
        let (answer, mut body) = requests.send_request(request, false).expect("sent");
        if let Some(message) = message {
            body.send_data(Bytes::copy_from_slice(message), true).expect("sent");
        }
        answer.await.expect("an answer")
    }

    const EMPTY: &[u8] = &[0; 5];

    #[tokio::test(start_paused = true)]
    async fn a_connection_without_a_request_is_closed_after_thirty_seconds() {
        let (_requests, mut served, _standing) = connected().await;
        assert!(tokio::time::timeout(UNUSED - Duration::from_secs(1), &mut served).await.is_err());
        assert!(tokio::time::timeout(Duration::from_secs(1) + CLOSE_GRACE, served).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_with_an_open_watch_or_an_earlier_request_stays() {
        for method in ["Watch", "Check"] {
            let (requests, mut served, _standing) = connected().await;
            let answer = ask(&requests, method, Some(EMPTY)).await;
            assert!(tokio::time::timeout(UNUSED * 10, &mut served).await.is_err(), "{method}");
            drop((answer, requests));
            served.await.expect("closed by its client");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_to_health_without_its_message_ends_after_ten_seconds() {
        let (requests, _served, _standing) = connected().await;
        for method in ["Check", "Watch"] {
            let begun = tokio::time::sleep(Duration::ZERO).deadline();
            let answer = ask(&requests, method, None).await;
            let status = tonic::Status::from_header_map(answer.headers()).expect("a status");
            assert_eq!(Reason::of(&status), Some(Reason::MessageTimeout), "{status:?}");
            assert_eq!(
                (tokio::time::sleep(Duration::ZERO).deadline() - begun).as_secs(),
                10,
                "{method}"
            );
        }
    }

    /// A connection of HTTP/1 in paused time, and its task on the gateway's side.
    async fn connected_http1() -> (tokio::io::DuplexStream, JoinHandle<()>) {
        let (client, served, _) = connected_http1_with_ends().await;
        (client, served)
    }

    /// As [`connected_http1`], and the ends of the gateway's connections.
    async fn connected_http1_with_ends() -> (tokio::io::DuplexStream, JoinHandle<()>, Ends) {
        let guard = Guard::prepare(&Config::default()).expect("no files");
        let ends = Ends::default();
        let server = listeners(guard, ends.clone());
        let here = IpAddr::from([127, 0, 0, 1]);
        let slot = server.connections.enter(here).expect("room");
        let (client, socket) = tokio::io::duplex(64 << 10);
        let echo = axum::routing::post(|body: String| async { body });
        let router = axum::Router::new().route("/echo", echo);
        let wire = HttpWire::new(router, Sites::new(&[], Cors::new(&[])));
        let served =
            task::spawn("connection", server.serve_stream(socket, false, here, slot, wire));
        (client, served, ends)
    }

    /// Reads from a connection of HTTP/1 until an empty body's answer is there.
    async fn answer(client: &mut tokio::io::DuplexStream) -> String {
        let mut text = Vec::new();
        while !text.ends_with(b"\r\n\r\n") {
            text.push(client.read_u8().await.expect("an answer"));
        }
        String::from_utf8(text).expect("text")
    }

    const ECHO: &[u8] = b"POST /echo HTTP/1.1\r\ncontent-length: 0\r\n\r\n";

    #[tokio::test(start_paused = true)]
    async fn a_leaving_gateway_closes_a_connection_with_the_answer_to_its_next_request() {
        let (mut client, served, ends) = connected_http1_with_ends().await;
        client.write_all(ECHO).await.expect("open");
        let first = answer(&mut client).await;
        assert!(!first.contains("connection: close"), "{first}");
        ends.leaving.cancel();
        let nearly = LEFT_IDLE - Duration::from_secs(1);
        tokio::time::sleep(nearly).await;
        client.write_all(ECHO).await.expect("open");
        let last = answer(&mut client).await;
        assert!(last.starts_with("HTTP/1.1 200") && last.contains("connection: close"), "{last}");
        served.await.expect("closed");
    }

    #[tokio::test(start_paused = true)]
    async fn a_leaving_gateway_closes_a_connection_without_a_request_after_six_seconds() {
        for requests in [0, 1] {
            let (mut client, mut served, ends) = connected_http1_with_ends().await;
            for _ in 0..requests {
                client.write_all(ECHO).await.expect("open");
                answer(&mut client).await;
            }
            ends.leaving.cancel();
            let nearly = LEFT_IDLE - Duration::from_secs(1);
            assert!(tokio::time::timeout(nearly, &mut served).await.is_err(), "{requests}");
            let rest = Duration::from_secs(2);
            assert!(tokio::time::timeout(rest, served).await.is_ok(), "{requests}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_leaving_gateway_closes_a_connection_of_http_2_after_its_requests() {
        let (requests, mut served, ends, _standing) = connected_with_ends().await;
        assert_eq!(ask(&requests, "Check", Some(EMPTY)).await.status(), 200);
        // Its message is still to come.
        let mut open = requests.clone().ready().await.expect("open");
        let request = http::Request::post("http://localhost/grpc.health.v1.Health/Check")
            .header("content-type", "application/grpc")
            .body(())
            .expect("a request");
        let (response, mut body) = open.send_request(request, false).expect("sent");
        ends.leaving.cancel();
        let some = Duration::from_secs(3);
        assert!(tokio::time::timeout(some, &mut served).await.is_err(), "a request is open");
        body.send_data(Bytes::from_static(EMPTY), true).expect("sent");
        assert_eq!(response.await.expect("served").status(), 200);
        tokio::time::timeout(some, served).await.expect("closed").expect("no panic");
        assert!(requests.ready().await.is_err(), "the client is asked to connect again");
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_of_http_1_is_closed_when_no_request_comes_in_time() {
        let request = b"POST /echo HTTP/1.1\r\ncontent-length: 0\r\n\r\n";
        for first in [&b""[..], b"POST /echo HT", request] {
            let (mut client, mut served) = connected_http1().await;
            client.write_all(first).await.expect("open");
            let just_before = HTTP1_HEADER_TIMEOUT - Duration::from_secs(1);
            assert!(tokio::time::timeout(just_before, &mut served).await.is_err(), "{first:?}");
            let grace = Duration::from_secs(2) + CLOSE_GRACE;
            assert!(tokio::time::timeout(grace, served).await.is_ok(), "{first:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_of_http_1_that_does_not_come_ends_its_request_after_ten_seconds() {
        let (mut client, served) = connected_http1().await;
        client
            .write_all(b"POST /echo HTTP/1.1\r\ncontent-length: 9\r\n\r\nab")
            .await
            .expect("open");
        let begun = tokio::time::sleep(Duration::ZERO).deadline();
        let mut first = [0; 12];
        client.read_exact(&mut first).await.expect("an answer");
        let seconds = (tokio::time::sleep(Duration::ZERO).deadline() - begun).as_secs();
        assert_eq!((&first[..], seconds), (&b"HTTP/1.1 400"[..], 10));
        // The rest does not come either.
        assert!(tokio::time::timeout(Duration::from_secs(5), served).await.is_ok());
    }
}
