//! The connection to the runtime, which wakes the agent only for what the runtime sends.
//!
//! Tokio's own socket asks for both directions at once. A unix socket then reports, each time its peer has read
//! something, that it can be written again, though nobody waits to write: one wake-up in three while commands run, and a
//! wake-up costs more than a call. So this one asks for readability alone, writes at once, and asks for writability only
//! while a write has found no room.

use std::io::{self, IoSlice, Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};

pub(crate) struct RuntimeSocket {
    socket: AsyncFd<UnixStream>,
    /// The same socket under another descriptor, while a write waits for room.
    writable: Option<AsyncFd<UnixStream>>,
}

impl RuntimeSocket {
    pub(crate) async fn connect(path: &str) -> io::Result<Self> {
        // Tokio leaves the socket in non-blocking mode.
        let socket = tokio::net::UnixStream::connect(path).await?.into_std()?;
        Ok(Self {
            socket: watched_for(socket, Interest::READABLE)?,
            writable: None,
        })
    }

    fn poll_write_by(
        &mut self,
        cx: &mut Context<'_>,
        mut write: impl FnMut(&UnixStream) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        loop {
            match write(self.socket.get_ref()) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let writable = if let Some(writable) = &mut self.writable {
                        writable
                    } else {
                        let socket = self.socket.get_ref().try_clone()?;
                        self.writable
                            .insert(watched_for(socket, Interest::WRITABLE)?)
                    };
                    ready!(writable.poll_write_ready(cx))?.clear_ready();
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                written => {
                    self.writable = None;
                    return Poll::Ready(written);
                }
            }
        }
    }
}

#[expect(
    deprecated,
    reason = "its successor is unsafe code, which is denied; a UnixStream keeps the one descriptor that it has"
)]
fn watched_for(socket: UnixStream, interest: Interest) -> io::Result<AsyncFd<UnixStream>> {
    AsyncFd::with_interest(socket, interest)
}

impl AsyncRead for RuntimeSocket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            let mut ready = ready!(self.socket.poll_read_ready(cx))?;
            let unfilled = buffer.initialize_unfilled();
            match ready.try_io(|socket| socket.get_ref().read(unfilled)) {
                Ok(Ok(read)) => {
                    // A short read has emptied the socket (epoll(7)): the next one would find nothing.
                    if 0 < read && read < unfilled.len() {
                        ready.clear_ready();
                    }
                    buffer.advance(read);
                    return Poll::Ready(Ok(()));
                }
                Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(Err(error)) => return Poll::Ready(Err(error)),
                Err(_would_block) => {}
            }
        }
    }
}

impl AsyncWrite for RuntimeSocket {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.get_mut()
            .poll_write_by(cx, |mut socket| socket.write(bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.get_mut()
            .poll_write_by(cx, |mut socket| socket.write_vectored(bytes))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.socket.get_ref().shutdown(Shutdown::Write))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    async fn pair() -> (RuntimeSocket, tokio::net::UnixStream) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let listener = tokio::net::UnixListener::bind(&path).unwrap();
        let ours = RuntimeSocket::connect(path.to_str().unwrap()).await;
        (ours.unwrap(), listener.accept().await.unwrap().0)
    }

    #[tokio::test]
    async fn more_than_fits_is_written_when_the_peer_makes_room() {
        let (mut ours, mut theirs) = pair().await;
        let sent: Vec<u8> = (0..4_000_000_u32).map(|n| n.to_le_bytes()[0]).collect();
        let expected = sent.clone();
        let writing = tokio::spawn(async move {
            ours.write_all(&sent).await.unwrap();
            ours.shutdown().await.unwrap();
            ours
        });
        tokio::time::sleep(Duration::from_millis(50)).await;
        let mut received = Vec::new();
        theirs.read_to_end(&mut received).await.unwrap();
        assert!(received == expected);
        assert!(writing.await.unwrap().writable.is_none());
    }

    #[tokio::test]
    async fn what_comes_in_pieces_is_read_to_the_end() {
        let (mut ours, mut theirs) = pair().await;
        let writing = tokio::spawn(async move {
            for _ in 0..100 {
                theirs.write_all(&[7; 1_000]).await.unwrap();
                tokio::task::yield_now().await;
            }
        });
        let mut received = Vec::new();
        ours.read_to_end(&mut received).await.unwrap();
        writing.await.unwrap();
        assert_eq!(received, vec![7; 100_000]);
    }
}
