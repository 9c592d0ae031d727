//! A connection that counts what is received, and fails when that is too much work.
//!
//! The time of a run is bounded, but may be an hour, and a server may send without end what no client shows: PING and
//! SETTINGS (RFC 9113, 6.5 and 6.7), empty DATA, responses 1xx (RFC 9110, 15.2), empty records of TLS. All runs share
//! one thread.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Most bytes that are received over a connection before it is closed: several times what the handshake, the head and as
/// much of a body as is read can come to.
const MAX_RECEIVED: usize = 256 * 1024;

/// The least that a read counts as: a wake-up costs more than the bytes of a small one.
const MIN_READ: usize = 32;

pub(crate) struct MeteredStream<S> {
    stream: S,
    received: usize,
}

impl<S> MeteredStream<S> {
    pub(crate) fn new(stream: S) -> Self {
        Self {
            stream,
            received: 0,
        }
    }

    /// Whether a byte was received.
    pub(crate) fn has_received(&self) -> bool {
        self.received > 0
    }

    /// The connection, to be closed.
    pub(crate) fn into_stream(self) -> S {
        self.stream
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for MeteredStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
        let read = buf.filled().len() - before;
        if read > 0 {
            self.received = self.received.saturating_add(read.max(MIN_READ));
        }
        if self.received > MAX_RECEIVED {
            let kibibytes = MAX_RECEIVED / 1024;
            return Poll::Ready(Err(io::Error::other(format!(
                "the server has sent more than {kibibytes} KiB, or as many small pieces, without an answer"
            ))));
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for MeteredStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
