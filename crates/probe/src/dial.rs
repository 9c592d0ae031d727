//! How a connection to a pod is opened.
//!
//! The agent connects to the pod's address ([`Direct`]). A person has no route to it, but may have the right to a tunnel
//! that ends in the pod; whoever has one implements [`Dial`].

use std::future::Future;
use std::net::SocketAddr;

use leadsman_core::podprobe::CannotProbe;
use nix::errno::Errno;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use crate::socket::EarlyEnd;

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

impl DialError {
    /// The end of the run that needed the connection.
    pub(crate) fn into_early_end(self, address: SocketAddr) -> EarlyEnd {
        match self {
            Self::Refused(reason) => EarlyEnd::Failed(format!("connecting to {address}: {reason}")),
            Self::Local(reason) => EarlyEnd::Cannot(CannotProbe::Local(reason)),
        }
    }
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
