//! How a connection to a pod is opened.
//!
//! The agent connects to the pod's address ([`Direct`]). A person has no route to it, but may have the right to a tunnel
//! that ends in the pod; whoever has one implements [`Dial`].

use std::future::Future;
use std::net::SocketAddr;

use nix::errno::Errno;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

/// Opens connections to a pod.
pub trait Dial {
    /// A connection.
    type Stream: AsyncRead + AsyncWrite + Unpin + Send;

    /// Connects to a port of the pod. The future may be dropped at any time.
    fn dial(
        &self,
        address: SocketAddr,
    ) -> impl Future<Output = Result<Self::Stream, DialError>> + Send;
}

/// Why there is no connection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DialError {
    /// The pod did not accept it: the probe failed.
    #[error("{0}")]
    Refused(String),
    /// The connection could not be tried: that says nothing about the pod.
    #[error("{0}")]
    Local(String),
}

/// TCP to the address itself.
#[derive(Clone, Copy, Debug)]
pub struct Direct;

impl Dial for Direct {
    type Stream = TcpStream;

    async fn dial(&self, address: SocketAddr) -> Result<TcpStream, DialError> {
        TcpStream::connect(address).await.map_err(|error| {
            let errno = error.raw_os_error().map(Errno::from_raw);
            match errno {
                Some(errno) if is_local(errno) => DialError::Local(errno.desc().to_owned()),
                Some(errno) => DialError::Refused(errno.desc().to_owned()),
                None => DialError::Refused(error.to_string()),
            }
        })
    }
}

/// Whether a failed `connect` says that this node is out of something: descriptors, memory, local ports (connect(2),
/// socket(2)).
fn is_local(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::EMFILE | Errno::ENFILE | Errno::ENOBUFS | Errno::ENOMEM | Errno::EADDRNOTAVAIL
    )
}
