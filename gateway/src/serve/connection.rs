//! Connections of clients: accepted, bounded in number, spoken HTTP/2 with, closed in order.
//!
//! hyper is used directly: tonic's server has a timer of its own on `grpc-timeout` that ends calls with CANCELLED, spins
//! when accept fails, and keeps connections that never speak HTTP/2.

use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use paceline_process::{socket, task};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_stream::StreamExt;
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;

/// Connections at once; each is a descriptor, and systems give 1024 or fewer by default.
const MAX_CONNECTIONS: usize = 512;
/// Calls at once on one connection.
const MAX_STREAMS: u32 = 128;
/// A client that did not send the 24 bytes every HTTP/2 connection begins with is no client.
const PREFACE: Duration = Duration::from_secs(2);
const PREFACE_BYTES: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Pause before looking again at a preface that is there in part.
const PREFACE_PAUSE: Duration = Duration::from_millis(20);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(5);
const MAX_HEADER_LIST_BYTES: u32 = 16 << 10;

/// Serves `routes` until `closing` is cancelled; then sends GOAWAY everywhere and returns when every connection is closed.
pub async fn serve(listener: TcpListener, routes: Routes, closing: CancellationToken) {
    let mut incoming = socket::accept_tcp(listener);
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let routes = routes.prepare();
    let mut turned_away = 0u64;
    loop {
        let accepted = tokio::select! {
            biased;
            () = closing.cancelled() => break,
            accepted = incoming.next() => accepted,
        };
        let Some(Ok(stream)) = accepted else { break };
        match Arc::clone(&places).try_acquire_owned() {
            Ok(place) => {
                turned_away = 0;
                let (routes, closing) = (routes.clone(), closing.clone());
                task::spawn("connection", async move {
                    converse(stream, routes, closing).await;
                    drop(place);
                });
            }
            Err(_) => {
                // A closed connection is a clear answer; one that hangs is none. One line for each row of them.
                if turned_away == 0 {
                    tracing::warn!(MAX_CONNECTIONS, "too many connections: new ones are closed");
                }
                turned_away += 1;
            }
        }
    }
    drop(incoming);
    // All places back: every connection is closed. The number is constant and fits.
    let _ = places.acquire_many(MAX_CONNECTIONS as u32).await;
}

/// One connection, to its end.
async fn converse(stream: TcpStream, routes: Routes, closing: CancellationToken) {
    if !matches!(tokio::time::timeout(PREFACE, speaks_http2(&stream)).await, Ok(true)) {
        tracing::debug!("a connection that does not speak HTTP/2 was closed");
        return;
    }
    let mut builder = auto::Builder::new(TokioExecutor::new()).http2_only();
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS)
        .keep_alive_interval(KEEPALIVE_INTERVAL)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT)
        .max_header_list_size(MAX_HEADER_LIST_BYTES);
    let mut connection = std::pin::pin!(builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(routes)));
    let outcome = tokio::select! {
        outcome = connection.as_mut() => outcome,
        () = closing.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = outcome {
        tracing::debug!(error, "connection ended");
    }
}

/// Looks at the first bytes without taking them.
async fn speaks_http2(stream: &TcpStream) -> bool {
    let mut seen = [0; PREFACE_BYTES.len()];
    loop {
        match stream.peek(&mut seen).await {
            Ok(0) | Err(_) => return false,
            Ok(n) if seen[..n] != PREFACE_BYTES[..n] => return false,
            Ok(n) if n == PREFACE_BYTES.len() => return true,
            Ok(_) => tokio::time::sleep(PREFACE_PAUSE).await,
        }
    }
}
