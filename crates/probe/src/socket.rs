//! Why a run ends early, and closing a connection so that a healthy target never sees a reset.
//!
//! A kernel sends RST when a socket is closed with unread data, or when data arrive after the close (RFC 9293,
//! 3.6.1). So a connection is closed in three steps: shut down writing, read what is still in flight
//! until the other side closes too, close. A target that does not close gets [`CLOSE_TIMEOUT`], one that does not stop
//! sending [`MAX_DRAINED`]. `SO_LINGER` is not set: 0 would reset, and a positive value, such as the
//! kubelet's second (`pkg/probe/dialer_others.go`), blocks the thread in `close`.

use std::error::Error;
use std::future::poll_fn;
use std::io;
use std::iter::successors;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use leadsman_core::podprobe::{CannotProbe, Outcome};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};

use crate::dial::{Dial, DialError};
use crate::message::truncate_message;

/// How long a target may take to close its side of a connection.
pub const CLOSE_TIMEOUT: Duration = Duration::from_millis(100);

/// Most bytes that are read and discarded before a connection is closed.
const MAX_DRAINED: usize = 1024 * 1024;

/// Why a run ended early.
#[derive(Debug)]
pub(crate) enum EarlyEnd {
    /// The error says nothing about the target.
    Cannot(CannotProbe),
    /// The probe failed, with this message.
    Failed(String),
}

impl EarlyEnd {
    /// The result of the run.
    pub(crate) fn into_result(self) -> Result<Outcome, CannotProbe> {
        match self {
            Self::Cannot(cannot) => Err(cannot),
            Self::Failed(message) => Ok(Outcome::Failed(truncate_message(message))),
        }
    }
}

/// Connects, with the errors that are about the target told apart from those that are not.
pub(crate) async fn connect_within<D: Dial>(
    dialer: &D,
    address: SocketAddr,
) -> Result<D::Stream, EarlyEnd> {
    let dialled = dialer.dial(address).await;
    dialled.map_err(|error| match error {
        DialError::Refused(reason) => {
            EarlyEnd::Failed(format!("connecting to {address}: {reason}"))
        }
        DialError::Local(reason) => EarlyEnd::Cannot(CannotProbe::Local(reason)),
    })
}

/// The message for a connection that was not accepted in time.
pub(crate) fn connect_timed_out(address: SocketAddr, timeout: Duration) -> String {
    format!("connecting to {address}: no answer within {timeout:?}")
}

/// An error and its causes, on one line. The crate `process` has its own, since neither of the two may know the other.
pub(crate) fn error_chain(error: &dyn Error) -> String {
    let mut message = error.to_string();
    let causes = successors(error.source(), |cause| (*cause).source());
    for cause in causes.map(ToString::to_string) {
        if !message.ends_with(&cause) {
            message.push_str(": ");
            message.push_str(&cause);
        }
    }
    message
}

/// The message for an exchange over HTTP/2 that failed.
pub(crate) fn http2_error(error: &h2::Error) -> String {
    let error_chain = error_chain(error);
    // h2 itself gives a connection up on which something else than HTTP/2 has come.
    if error.is_go_away() && error.is_library() {
        format!("the answer is not HTTP/2: {error_chain}")
    } else {
        error_chain
    }
}

/// Closes a connection without a reset. An error means that it is closed already.
pub(crate) async fn close_gracefully(mut stream: impl AsyncRead + AsyncWrite + Unpin) {
    let _ = tokio::time::timeout(CLOSE_TIMEOUT, async {
        stream.shutdown().await?;
        drain_bounded(&mut stream).await
    })
    .await;
}

/// Reads and discards to the end, or up to [`MAX_DRAINED`].
async fn drain_bounded(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<()> {
    // `CLOSE_TIMEOUT` bounds the time, this the work: a target may send as fast as it can.
    let mut left = MAX_DRAINED;
    while left > 0 {
        match poll_fn(|cx| poll_discard(Pin::new(&mut *stream), cx)).await? {
            0 => break,
            read => left = left.saturating_sub(read),
        }
    }
    Ok(())
}

/// Reads and discards what there is. The buffer is not held over an await, which would make every run's future that much
/// larger, and is small: mostly there is nothing to read but the end.
fn poll_discard(stream: Pin<&mut impl AsyncRead>, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
    let mut bytes = [MaybeUninit::uninit(); 2 * 1024];
    let mut buffer = ReadBuf::uninit(&mut bytes);
    ready!(stream.poll_read(cx, &mut buffer))?;
    Poll::Ready(Ok(buffer.filled().len()))
}
