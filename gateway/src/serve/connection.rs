//! Connections of clients: accepted, bounded in number, spoken HTTP/2 with, closed in order.
//!
//! hyper is used directly: tonic's server has a timer of its own on `grpc-timeout` that ends calls with CANCELLED, spins
//! when accept fails, and keeps connections that never speak HTTP/2.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use paceline_process::config::LimitsConfig;
use paceline_process::task;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;

use super::opening::{self, Opened, Openings};
use crate::guard::{Door, Guard};

const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(5);
const MAX_HEADER_LIST_BYTES: u32 = 16 << 10;
/// Bytes of one stream that are kept for a socket that takes none at this moment.
const SEND_BUFFER_BYTES: usize = 64 << 10;
/// Pause after `accept` failed, as it does without free descriptors: as it stands, the next try would fail as well.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(50);

/// What every connection has.
#[derive(Clone, Debug)]
struct House {
    routes: Routes,
    guard: Guard,
    streams: u32,
    closing: CancellationToken,
}

/// Serves `routes` behind `guard` until `closing` is cancelled; then sends GOAWAY everywhere and returns when every connection
/// is closed.
pub async fn serve(listener: TcpListener, routes: Routes, guard: Guard, limits: &LimitsConfig, closing: CancellationToken) {
    let places = Arc::new(Semaphore::new(limits.connections as usize));
    let house = House { routes: routes.prepare(), guard, streams: limits.streams_per_connection, closing: closing.clone() };
    let (mut openings, mut failing, full) = (Openings::default(), false, Arc::new(AtomicBool::new(false)));
    loop {
        let accepted = tokio::select! {
            biased;
            () = closing.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // One line for each row of failures.
                if !std::mem::replace(&mut failing, true) {
                    tracing::warn!(%error, "accept failed; connections that have not said anything are closed");
                }
                // A peer that left before it was accepted (ECONNABORTED) took nothing that others lack.
                if error.kind() != std::io::ErrorKind::ConnectionAborted {
                    openings.cut_half();
                    tokio::time::sleep(ACCEPT_BACKOFF).await;
                }
                continue;
            }
        };
        failing = false;
        let (moment, places, house, full) = (openings.begin(), Arc::clone(&places), house.clone(), Arc::clone(&full));
        task::spawn("connection", async move {
            let opened = tokio::select! {
                biased;
                () = house.closing.cancelled() => return,
                () = moment.cut() => return,
                opened = opening::open(stream, house.guard.tls.clone()) => opened,
            };
            drop(moment);
            let opened = match opened {
                Ok(opened) => opened,
                Err(error) => return tracing::debug!(%error, "a connection that does not speak as expected was closed"),
            };
            // A closed connection is a clear answer; one that hangs is none.
            let Ok(place) = places.try_acquire_owned() else {
                // One line for each row of them.
                if !full.swap(true, Ordering::Relaxed) {
                    tracing::warn!("too many connections (limits.connections): new ones are closed");
                }
                return;
            };
            full.store(false, Ordering::Relaxed);
            let peer = peer.ip();
            match opened {
                Opened::Plain(stream) => house.converse(stream, peer).await,
                Opened::Tls(stream) => house.converse(stream, peer).await,
            }
            drop(place);
        });
    }
    drop(listener);
    // All places back: every connection is closed.
    let _ = places.acquire_many(limits.connections).await;
}

impl House {
    /// One connection, to its end.
    async fn converse<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(self, stream: S, peer: IpAddr) {
        let Self { routes, guard, streams, closing } = self;
        let mut builder = auto::Builder::new(TokioExecutor::new()).http2_only();
        builder
            .http2()
            .timer(TokioTimer::new())
            .max_concurrent_streams(streams)
            .keep_alive_interval(KEEPALIVE_INTERVAL)
            .keep_alive_timeout(KEEPALIVE_TIMEOUT)
            .max_send_buf_size(SEND_BUFFER_BYTES)
            .max_header_list_size(MAX_HEADER_LIST_BYTES);
        let service = TowerToHyperService::new(Door::new(routes, guard, peer));
        let mut connection = std::pin::pin!(builder.serve_connection(TokioIo::new(stream), service));
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
}
