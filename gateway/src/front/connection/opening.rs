//! The opening of a connection: until its first bytes have shown which version of HTTP it speaks,
//! over TLS where that is set, it has a few seconds. When there are too many such connections, the
//! oldest is closed.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::lock::lock;

/// Time for the TLS handshake and the first bytes together.
const OPENING_TIMEOUT: Duration = Duration::from_secs(3);
/// Most connections that open at once, of all listeners.
const MAX_OPENINGS: usize = 256;
/// First bytes of every HTTP/2 connection.
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A connection that has sent its first bytes.
#[derive(Debug)]
pub enum Opened {
    /// As it is.
    Plain(Rewound<TcpStream>),
    /// Inside TLS.
    Tls(Box<Rewound<TlsStream<TcpStream>>>),
}

/// Waits for a connection to show which HTTP it speaks.
///
/// # Errors
/// It speaks no HTTP/2, and HTTP/1 is not allowed here; it does not speak in time.
pub async fn open(
    stream: TcpStream,
    tls: Option<Arc<ServerConfig>>,
    allows_http1: bool,
) -> io::Result<Opened> {
    let opened = async {
        // Tokens are small messages that must not wait for one another.
        stream.set_nodelay(true)?;
        Ok(match tls {
            None => Opened::Plain(Rewound::of(stream, allows_http1).await?),
            Some(tls) => {
                let stream = TlsAcceptor::from(tls).accept(stream).await?;
                Opened::Tls(Box::new(Rewound::of(stream, allows_http1).await?))
            }
        })
    };
    tokio::time::timeout(OPENING_TIMEOUT, opened)
        .await
        .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

/// A stream whose first bytes were read, and are there to be read again.
#[derive(Debug)]
pub struct Rewound<S> {
    inner: S,
    first: [u8; PREFACE.len()],
    /// Bytes of `first` that were read.
    read: usize,
    /// Bytes of `first` that were given again.
    given: usize,
}

impl<S: AsyncRead + Unpin> Rewound<S> {
    /// Reads until the bytes are the preface of HTTP/2 or differ from it.
    async fn of(mut inner: S, allows_http1: bool) -> io::Result<Self> {
        let (mut first, mut read) = ([0; PREFACE.len()], 0);
        while read < first.len() {
            match inner.read(&mut first[read..]).await? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                more => read += more,
            }
            if first[..read] != PREFACE[..read] {
                if allows_http1 {
                    break;
                }
                return Err(io::Error::new(io::ErrorKind::InvalidData, "no HTTP/2"));
            }
        }
        Ok(Self { inner, first, read, given: 0 })
    }
}

impl<S> Rewound<S> {
    /// Whether it began with the preface of HTTP/2.
    pub fn is_http2(&self) -> bool {
        self.first == *PREFACE
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Rewound<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let left = &self.first[self.given..self.read];
        if left.is_empty() {
            return Pin::new(&mut self.inner).poll_read(context, buffer);
        }
        let count = left.len().min(buffer.remaining());
        buffer.put_slice(&left[..count]);
        self.given += count;
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Rewound<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}

/// The connections that open, oldest first; one list for all listeners.
#[derive(Clone, Debug, Default)]
pub struct Openings(Arc<Mutex<VecDeque<Arc<OpeningConnection>>>>);

#[derive(Debug, Default)]
struct OpeningConnection {
    cut: Notify,
    over: AtomicBool,
}

/// One connection that opens. The opening is over when this is dropped.
#[derive(Debug)]
pub struct OpeningGuard(Arc<OpeningConnection>);

impl OpeningGuard {
    /// Resolves when room is needed for others.
    pub async fn cut(&self) {
        self.0.cut.notified().await;
    }
}

impl Drop for OpeningGuard {
    fn drop(&mut self) {
        self.0.over.store(true, Ordering::Relaxed);
    }
}

impl Openings {
    /// One more; the oldest goes if there are too many.
    pub fn begin(&self) -> OpeningGuard {
        let mut all = lock(&self.0);
        if all.len() >= MAX_OPENINGS {
            all.retain(|opening| !opening.over.load(Ordering::Relaxed));
        }
        if all.len() >= MAX_OPENINGS {
            cut(&mut all, 1);
        }
        let opening = Arc::new(OpeningConnection::default());
        all.push_back(Arc::clone(&opening));
        OpeningGuard(opening)
    }

    /// Ends the older half: each holds a descriptor.
    pub fn cut_half(&self) {
        let mut all = lock(&self.0);
        all.retain(|opening| !opening.over.load(Ordering::Relaxed));
        let half = all.len().div_ceil(2);
        cut(&mut all, half);
    }
}

fn cut(openings: &mut VecDeque<Arc<OpeningConnection>>, count: usize) {
    for opening in openings.drain(..count) {
        opening.cut.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use tokio::io::AsyncWriteExt as _;

    use super::*;

    /// Sends these pieces. Returns the protocol that the server finds by the first bytes, and all
    /// bytes that it reads.
    async fn opened(
        pieces: impl IntoIterator<Item = &[u8]>,
        allows_http1: bool,
    ) -> io::Result<(bool, Vec<u8>)> {
        let (mut client, server) = tokio::io::duplex(64);
        let (opened, ()) = tokio::join!(Rewound::of(server, allows_http1), async {
            for piece in pieces {
                // A server that has gone does not need the rest.
                let _ = client.write_all(piece).await;
                tokio::task::yield_now().await;
            }
            drop(client);
        });
        let mut opened = opened?;
        let mut all = vec![];
        opened.read_to_end(&mut all).await?;
        Ok((opened.is_http2(), all))
    }

    #[tokio::test]
    async fn the_preface_in_pieces_is_read_and_given_again() {
        for allows_http1 in [true, false] {
            let pieces = PREFACE.chunks(5).chain([&b"more"[..]]);
            let (is_http2, all) = opened(pieces, allows_http1).await.expect("a preface");
            assert!(is_http2);
            assert_eq!(all, [&PREFACE[..], b"more"].concat());
        }
        for other in [&b"GET / HTTP/1.1\r\n\r\n"[..], b"PRI * HTTP/2.1", b"PRI"] {
            assert!(opened([other], false).await.is_err());
        }
    }

    #[tokio::test]
    async fn other_first_bytes_are_http1_where_that_is_allowed() {
        for first in [&b"GET / HTTP/1.1\r\n\r\n"[..], b"PRI * HTTP/2.1", b"POST / HTTP/1.1\r\n"] {
            let (is_http2, all) = opened(first.chunks(3), true).await.expect("no preface");
            assert!(!is_http2);
            assert_eq!(all, first);
        }
        assert!(opened([&b"PRI"[..]], true).await.is_err(), "nothing is known yet");
    }

    #[test]
    fn the_oldest_opening_is_cut_and_finished_ones_do_not_count() {
        let openings = Openings::default();
        let mut moments: Vec<OpeningGuard> = (0..MAX_OPENINGS).map(|_| openings.begin()).collect();
        drop(moments.remove(0));
        let _fits = openings.begin();
        assert!(
            moments.iter().all(|moment| moment.cut().now_or_never().is_none()),
            "there was room"
        );
        let _next = openings.begin();
        assert!(moments[0].cut().now_or_never().is_some(), "the oldest");
        assert!(
            moments[1..].iter().all(|moment| moment.cut().now_or_never().is_none()),
            "the others"
        );
        openings.cut_half();
        let cut =
            moments[1..].iter().filter(|moment| moment.cut().now_or_never().is_some()).count();
        assert_eq!(cut, MAX_OPENINGS / 2);
    }
}
