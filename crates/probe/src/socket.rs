//! Sockets: connecting to a target, and parting from it so that a healthy one never sees a reset.
//!
//! A kernel answers with RST when a socket is closed over data nobody read, or when data come after the close. So a
//! connection is parted from in three steps: say that nothing more will be sent, read what is still on its way until the
//! other side closes too, close. A target that does not close gets [`PARTING`], then it is closed on. No linger option is
//! set: 0 would reset, and a positive one blocks the thread in `close`.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU16;
use std::time::Duration;

use leadsman_core::podprobe::CannotProbe;
use nix::errno::Errno;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The longest a target is waited for to close a connection we are done with.
pub const PARTING: Duration = Duration::from_millis(100);

/// Most bytes that are read only to be thrown away while parting; a target that sends more is closed on.
const PARTING_BYTES: usize = 1024 * 1024;

/// Connects.
///
/// # Errors
/// Outer: we could not even try. Inner: the target did not accept.
pub(crate) async fn dial(
    ip: IpAddr,
    port: NonZeroU16,
) -> Result<Result<TcpStream, io::Error>, CannotProbe> {
    match TcpStream::connect(SocketAddr::new(ip, port.get())).await {
        Ok(stream) => Ok(Ok(stream)),
        Err(error) if is_local(&error) => Err(CannotProbe::Local(error.to_string())),
        Err(error) => Ok(Err(error)),
    }
}

/// Whether an error of connecting says that we are out of something: descriptors, memory, ports.
fn is_local(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error().map(Errno::from_raw),
        Some(Errno::EMFILE | Errno::ENFILE | Errno::ENOBUFS | Errno::ENOMEM | Errno::EADDRNOTAVAIL)
    )
}

/// Closes a connection we are done with. Errors mean that it is closed already.
pub(crate) async fn part(mut stream: TcpStream) {
    let _ = tokio::time::timeout(PARTING, async {
        stream.shutdown().await?;
        let mut scrap = [0; 8 * 1024];
        let mut left = PARTING_BYTES;
        while left > 0 {
            match stream.read(&mut scrap).await? {
                0 => break,
                n => left = left.saturating_sub(n),
            }
        }
        io::Result::Ok(())
    })
    .await;
}
