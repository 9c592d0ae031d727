//! The connections of the HTTP server, of which only so many are open at once.
//!
//! Whoever reaches the port may open connections and send nothing. Each takes a descriptor and memory, which probes and
//! the requests to the API server need. When the limit is reached, the oldest connection is closed for the new one: so
//! such a client locks out neither a scraper nor the kubelet, whose requests take milliseconds.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};

use axum::serve::Listener;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

/// A listener with a limit of open connections.
pub(super) struct BoundedListener {
    listener: TcpListener,
    limit: usize,
    /// The oldest first. Some may have ended.
    open: VecDeque<Weak<Closing>>,
}

/// Whether a connection has to make room for another one.
#[derive(Debug, Default)]
struct Closing(CancellationToken);

/// A connection that ends when it has to make room.
pub(super) struct BoundedStream {
    stream: TcpStream,
    closed: Pin<Box<WaitForCancellationFutureOwned>>,
    /// The guard by which the connection counts.
    _counted: Arc<Closing>,
}

impl BoundedListener {
    pub(super) fn new(listener: TcpListener, limit: usize) -> Self {
        Self {
            listener,
            limit,
            open: VecDeque::new(),
        }
    }

    fn make_room(&mut self) {
        // Ended ones are forgotten only here: below the limit nobody has to go, and an accept need not look at all
        // others.
        if self.open.len() >= self.limit {
            self.open.retain(|one| one.strong_count() > 0);
        }
        while self.open.len() >= self.limit {
            let oldest = self.open.pop_front();
            if let Some(oldest) = oldest.and_then(|oldest| oldest.upgrade()) {
                tracing::debug!("closing the oldest connection to /metrics for another one");
                oldest.0.cancel();
            }
        }
    }
}

impl Listener for BoundedListener {
    type Io = BoundedStream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (BoundedStream, SocketAddr) {
        // The listener retries by itself where descriptors are short.
        let (stream, address) = Listener::accept(&mut self.listener).await;
        self.make_room();
        let counted = Arc::<Closing>::default();
        self.open.push_back(Arc::downgrade(&counted));
        let stream = BoundedStream {
            stream,
            closed: Box::pin(counted.0.clone().cancelled_owned()),
            _counted: counted,
        };
        (stream, address)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

impl BoundedStream {
    /// An error once it has to make room; until then the task is woken for that, too.
    fn check_open(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        match self.closed.as_mut().poll(cx) {
            Poll::Ready(()) => Err(io::ErrorKind::ConnectionAborted.into()),
            Poll::Pending => Ok(()),
        }
    }
}

impl AsyncRead for BoundedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check_open(cx)?;
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for BoundedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check_open(cx)?;
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    // Reading and writing alone end for others: a stream that is flushed or closed ends by itself.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
