//! A server whose successor takes over its listening socket: a sidecar of a hot upgrade, with neither mesh nor proxy in it.
//!
//! Both containers of a hot upgrade run in one pod, so the port can be bound once only, and a port that is given up and
//! bound again refuses connections in between. So the successor asks its predecessor for the socket itself, over a unix
//! socket in a folder that both mount. From then on the predecessor accepts nothing more; it ends the connections that it
//! has, and waits to be ended.

use std::io::{IoSlice, IoSliceMut, Write as _};
use std::mem::MaybeUninit;
use std::net::TcpListener as StdListener;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream as StdStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio::task::JoinSet;

use crate::state::State;
use crate::{Failure, USAGE, http1, listen, port};

/// The release of a container, as `SidecarSet` tells it to the containers of a hot upgrade; "0" for the idle one.
const VERSION: &str = "SIDECARSET_VERSION";
/// Between two looks at who serves.
const PAUSE: Duration = Duration::from_millis(20);
/// How long a predecessor may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Where predecessor and successor meet.
struct Place {
    socket: PathBuf,
}

impl Default for Place {
    fn default() -> Self {
        Self {
            socket: "/handover/socket".into(),
        }
    }
}

impl Place {
    /// A file with the version of whoever serves.
    fn serving(&self) -> PathBuf {
        self.socket.with_extension("serving")
    }

    fn version() -> String {
        std::env::var(VERSION).unwrap_or_else(|_| "1".into())
    }

    /// Says who serves. The file is replaced as a whole.
    fn announce(&self) -> std::io::Result<()> {
        let new = self.socket.with_extension("new");
        std::fs::write(&new, Self::version())?;
        std::fs::rename(new, self.serving())
    }

    /// The socket at which a successor asks. Whoever was here before has ended or has handed over.
    fn listen(&self) -> std::io::Result<UnixListener> {
        match std::fs::remove_file(&self.socket) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
            _ => UnixListener::bind(&self.socket),
        }
    }
}

/// Serves HTTP as `serve` does, on the listening socket of the predecessor if there is one.
pub(crate) async fn serve(arguments: &[&str]) -> Result<(), Failure> {
    let (mut http, mut place) = (7000, Place::default());
    let state = Arc::new(State::default());
    for pair in arguments.chunks(2) {
        match pair {
            ["--http", port] => http = port.parse()?,
            ["--socket", socket] => place.socket = socket.into(),
            ["--set", setting] => {
                let (key, value) = setting.split_once('=').ok_or(USAGE)?;
                state.set(key, value)?;
            }
            _ => return Err(USAGE.into()),
        }
    }
    if let Some(folder) = place.socket.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let (listener, predecessor) = match StdStream::connect(&place.socket) {
        Ok(predecessor) => (take_over(&predecessor)?, Some(predecessor)),
        // No predecessor, or one that has ended.
        Err(_) => (listen(http).await?, None),
    };
    writeln!(std::io::stdout(), "listening http={}", port(&listener)?)?;
    serve_until_succeeded(listener, predecessor, &place, &state).await
}

/// Waits until the container of this version serves; does nothing in the idle one. For a postStart hook.
pub(crate) async fn wait_until_served(arguments: &[&str]) -> Result<(), Failure> {
    let place = match arguments {
        [] => Place::default(),
        ["--socket", socket] => Place {
            socket: socket.into(),
        },
        _ => return Err(USAGE.into()),
    };
    let version = Place::version();
    while version != "0" && std::fs::read_to_string(place.serving()).ok() != Some(version.clone()) {
        tokio::time::sleep(PAUSE).await;
    }
    Ok(())
}

async fn serve_until_succeeded(
    listener: TcpListener,
    predecessor: Option<StdStream>,
    place: &Place,
    state: &Arc<State>,
) -> Result<(), Failure> {
    let mut connections = JoinSet::new();
    let arrival = arrive(predecessor, place);
    tokio::pin!(arrival);
    let mut successors = None;
    let mut successor = loop {
        tokio::select! {
            accepted = listener.accept() => {
                let (peer, _) = accepted?;
                let state = Arc::clone(state);
                connections.spawn(async move { http1::converse(peer, &state).await });
            }
            // A peer that goes away in the middle is a client's right.
            Some(_) = connections.join_next() => {}
            arrived = &mut arrival, if successors.is_none() => successors = Some(arrived?),
            successor = next(successors.as_ref()) => break hand_over(successor?, &listener)?,
        }
    };
    drop((listener, successors));
    while connections.join_next().await.is_some() {}
    successor.shutdown().await?;
    std::future::pending().await
}

/// Waits until the predecessor has ended its last connection, and takes its place.
async fn arrive(predecessor: Option<StdStream>, place: &Place) -> std::io::Result<UnixListener> {
    if let Some(predecessor) = predecessor {
        predecessor.set_nonblocking(true)?;
        let mut predecessor = UnixStream::from_std(predecessor)?;
        predecessor.read_to_end(&mut Vec::new()).await?;
    }
    let successors = place.listen()?;
    place.announce()?;
    Ok(successors)
}

async fn next(successors: Option<&UnixListener>) -> std::io::Result<UnixStream> {
    match successors {
        Some(successors) => Ok(successors.accept().await?.0),
        None => std::future::pending().await,
    }
}

/// Gives the successor the listening socket.
fn hand_over(successor: UnixStream, listener: &TcpListener) -> std::io::Result<UnixStream> {
    let successor = successor.into_std()?;
    let descriptors = [listener.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut message = SendAncillaryBuffer::new(&mut space);
    message.push(SendAncillaryMessage::ScmRights(&descriptors));
    let byte = [IoSlice::new(b"s")];
    rustix::net::sendmsg(&successor, &byte, &mut message, SendFlags::empty())?;
    UnixStream::from_std(successor)
}

/// Receives the listening socket of the predecessor.
fn take_over(predecessor: &StdStream) -> Result<TcpListener, Failure> {
    predecessor.set_read_timeout(Some(PATIENCE))?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut message = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut bytes = [IoSliceMut::new(&mut byte)];
    rustix::net::recvmsg(
        predecessor,
        &mut bytes,
        &mut message,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    let descriptor = message.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    let listener = StdListener::from(descriptor.ok_or("the predecessor sent no socket")?);
    listener.set_nonblocking(true)?;
    Ok(TcpListener::from_std(listener)?)
}
