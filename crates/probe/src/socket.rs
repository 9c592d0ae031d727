//! Sockets: connecting to a target, and parting from it so that a healthy one never sees a reset.
//!
//! A kernel answers with RST when a socket is closed over data nobody read, or when data come after the close. So a
//! connection is parted from in three steps: say that nothing more will be sent, read what is still on its way until the
//! other side closes too, close. A target that does not close gets [`PARTING`], one that does not stop sending
//! [`PARTING_BYTES`]; then it is closed on. No linger option is set: 0 would reset, and a positive one blocks the thread in
//! `close`.

use std::error::Error;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use leadsman_core::podprobe::{CannotProbe, Outcome};
use nix::errno::Errno;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::message::bounded;

/// The longest a target is waited for to close a connection we are done with.
pub const PARTING: Duration = Duration::from_millis(100);

/// Most bytes that are read only to be thrown away while parting.
const PARTING_BYTES: usize = 1024 * 1024;

/// Why a run ended early.
#[derive(Debug)]
pub(crate) enum Stop {
    /// It told us nothing about the target.
    Cannot(CannotProbe),
    /// The probe failed, and the words for it.
    Failed(String),
}

impl Stop {
    /// What the run came to.
    pub(crate) fn into_result(self) -> Result<Outcome, CannotProbe> {
        match self {
            Self::Cannot(cannot) => Err(cannot),
            Self::Failed(words) => Ok(Outcome::Failed(bounded(words))),
        }
    }
}

/// Connects.
pub(crate) async fn dial(address: SocketAddr) -> Result<TcpStream, Stop> {
    TcpStream::connect(address).await.map_err(|error| {
        let errno = error.raw_os_error().map(Errno::from_raw);
        match errno {
            Some(errno) if is_local(errno) => {
                Stop::Cannot(CannotProbe::Local(errno.desc().to_owned()))
            }
            Some(errno) => Stop::Failed(format!("connecting to {address}: {}", errno.desc())),
            None => Stop::Failed(format!("connecting to {address}: {error}")),
        }
    })
}

/// Whether an error of connecting says that we are out of something: descriptors, memory, ports.
fn is_local(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::EMFILE | Errno::ENFILE | Errno::ENOBUFS | Errno::ENOMEM | Errno::EADDRNOTAVAIL
    )
}

/// The words for a connection that was not accepted in time.
pub(crate) fn not_connected(address: SocketAddr, timeout: Duration) -> String {
    format!("connecting to {address}: no answer within {timeout:?}")
}

/// An error and its causes on one line.
pub(crate) fn chain(error: &dyn Error) -> String {
    let mut words = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !words.ends_with(&more) {
            words.push_str(": ");
            words.push_str(&more);
        }
        cause = error.source();
    }
    words
}

/// Closes a connection we are done with. Errors mean that it is closed already.
pub(crate) async fn part(mut stream: TcpStream) {
    let _ = tokio::time::timeout(PARTING, async {
        stream.shutdown().await?;
        drain(&stream).await
    })
    .await;
}

/// Reads to the end, or until it is too much.
async fn drain(stream: &TcpStream) -> io::Result<()> {
    let mut left = PARTING_BYTES;
    while left > 0 {
        stream.readable().await?;
        // Not held over an await: it would make every run's future that much larger. Mostly there is nothing to read but
        // the end, and clearing a large buffer would cost more than the rest of the parting.
        match stream.try_read(&mut [0; 2 * 1024]) {
            Ok(0) => break,
            Ok(n) => left = left.saturating_sub(n),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
