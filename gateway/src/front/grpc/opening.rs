//! The opening of a connection: until it has sent the HTTP/2 preface, over TLS where that is set,
//! it has a few seconds. When there are too many such connections, the oldest is closed.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// Time for the TLS handshake and the preface together.
const OPENING_TIMEOUT: Duration = Duration::from_secs(3);
/// Most connections that open at once.
pub const MAX_OPENINGS: usize = 256;
/// What every HTTP/2 connection begins with.
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A connection that speaks HTTP/2.
#[derive(Debug)]
pub enum Opened {
    /// As it is.
    Plain(Prefaced<TcpStream>),
    /// Inside TLS.
    Tls(Box<Prefaced<TlsStream<TcpStream>>>),
}

/// Waits for a connection to show that it speaks HTTP/2.
///
/// # Errors
/// It does not, or not in time.
pub async fn open(stream: TcpStream, tls: Option<Arc<ServerConfig>>) -> io::Result<Opened> {
    let opened = async {
        // Tokens are small messages that must not wait for one another.
        stream.set_nodelay(true)?;
        Ok(match tls {
            None => Opened::Plain(Prefaced::of(stream).await?),
            Some(tls) => Opened::Tls(Box::new(
                Prefaced::of(TlsAcceptor::from(tls).accept(stream).await?).await?,
            )),
        })
    };
    tokio::time::timeout(OPENING_TIMEOUT, opened)
        .await
        .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

/// A stream whose preface was read, and is there to be read again.
#[derive(Debug)]
pub struct Prefaced<S> {
    inner: S,
    /// Bytes of the preface that were given.
    given: usize,
}

impl<S: AsyncRead + Unpin> Prefaced<S> {
    /// Reads the preface. The first byte that is another ends it.
    async fn of(mut inner: S) -> io::Result<Self> {
        let (mut seen, mut count) = ([0; PREFACE.len()], 0);
        while count < seen.len() {
            match inner.read(&mut seen[count..]).await? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                more => count += more,
            }
            if seen[..count] != PREFACE[..count] {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "no HTTP/2"));
            }
        }
        Ok(Self { inner, given: 0 })
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Prefaced<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let left = &PREFACE[self.given..];
        if left.is_empty() {
            return Pin::new(&mut self.inner).poll_read(context, buffer);
        }
        let count = left.len().min(buffer.remaining());
        buffer.put_slice(&left[..count]);
        self.given += count;
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Prefaced<S> {
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

/// The connections that open, oldest first.
#[derive(Debug, Default)]
pub struct Openings(VecDeque<Arc<Opening>>);

#[derive(Debug, Default)]
struct Opening {
    cut: Notify,
    over: AtomicBool,
}

/// One connection that opens. The opening is over when this is dropped.
#[derive(Debug)]
pub struct OpeningGuard(Arc<Opening>);

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
    pub fn begin(&mut self) -> OpeningGuard {
        if self.0.len() >= MAX_OPENINGS {
            self.0.retain(|opening| !opening.over.load(Ordering::Relaxed));
        }
        if self.0.len() >= MAX_OPENINGS {
            self.cut(1);
        }
        let opening = Arc::new(Opening::default());
        self.0.push_back(Arc::clone(&opening));
        OpeningGuard(opening)
    }

    /// Ends the older half: each holds a descriptor.
    pub fn cut_half(&mut self) {
        self.0.retain(|opening| !opening.over.load(Ordering::Relaxed));
        self.cut(self.0.len().div_ceil(2));
    }

    fn cut(&mut self, count: usize) {
        for opening in self.0.drain(..count) {
            opening.cut.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use tokio::io::AsyncWriteExt as _;

    use super::*;

    #[tokio::test]
    async fn the_preface_in_pieces_is_read_and_given_again() {
        let (mut client, server) = tokio::io::duplex(64);
        let reading = tokio::join!(Prefaced::of(server), async {
            for piece in PREFACE.chunks(5) {
                client.write_all(piece).await.expect("open");
                tokio::task::yield_now().await;
            }
            client.write_all(b"more").await.expect("open");
        });
        let mut stream = reading.0.expect("a preface");
        let mut all = vec![0; PREFACE.len() + 4];
        stream.read_exact(&mut all).await.expect("there");
        assert_eq!(all, [&PREFACE[..], b"more"].concat());
        for other in [&b"GET / HTTP/1.1\r\n\r\n"[..], b"PRI * HTTP/2.1", b"PRI"] {
            let (mut client, server) = tokio::io::duplex(64);
            client.write_all(other).await.expect("open");
            drop(client);
            assert!(Prefaced::of(server).await.is_err());
        }
    }

    #[test]
    fn the_oldest_opening_is_cut_and_finished_ones_do_not_count() {
        let mut openings = Openings::default();
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
