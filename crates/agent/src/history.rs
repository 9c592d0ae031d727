//! The recent runs of this node's probes, for whoever may run a command in the agent's pod.
//!
//! The agent listens on a unix socket in its pod, and `leadsman-agent history` asks there. Not on the port of `/metrics`:
//! that is plain HTTP for everybody who reaches the node, runs show what the probes of all namespaces print, and through
//! the API server's proxy the agent could not know who asks: the API server removes the caller's credentials from a
//! request that it has authenticated (`staging/src/k8s.io/apiserver/pkg/endpoints/filters/authentication.go`).
//!
//! | module | holds |
//! |---|---|
//! | here | the socket, and one answer |
//! | `client` | `leadsman-agent history` |

mod client;

use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use leadsman_core::podprobe::history::{HistoryHead, HistoryQuery, ProbeHistory};
use serde::Serialize;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

pub use client::{HistoryError, PrintHistoryArgs, print_history};

/// The path of the socket in the agent's pod.
pub(crate) const SOCKET: &str = "/run/leadsman/history.sock";
/// Questions that are answered at once.
const CONCURRENCY: usize = 4;
/// How long one may take.
const DEADLINE: Duration = Duration::from_secs(10);
/// The length of a question.
const QUERY_BYTES: u64 = 1024;
/// Between attempts to accept one.
const RETRY: Duration = Duration::from_secs(1);

/// A question to the task that probes.
pub(crate) struct HistoryRequest {
    pub(crate) query: HistoryQuery,
    pub(crate) reply: oneshot::Sender<Vec<ProbeHistory>>,
}

/// The questions that come in. Without a socket there are none.
pub(crate) type HistoryRequests = mpsc::Receiver<HistoryRequest>;

/// A socket that cannot be listened on.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {} (--history-socket): {source}", path.display())]
pub(crate) struct SocketError {
    path: PathBuf,
    source: io::Error,
}

/// Why a question has no answer.
#[derive(Debug, thiserror::Error)]
enum AnswerError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("user {0} may not ask for recent runs: only the user that the agent runs as may")]
    Stranger(u32),
    #[error("the question cannot be decoded: {0}")]
    Query(#[from] serde_json::Error),
    #[error("the agent is stopping")]
    Stopping,
}

/// The socket.
#[derive(Debug)]
pub(crate) struct HistorySocket {
    listener: UnixListener,
    runs_kept: usize,
}

impl HistorySocket {
    /// Listens there, in the place of an agent that has ended.
    pub(crate) fn bind_in_place(path: &Path, runs_kept: usize) -> Result<Self, SocketError> {
        let listener = bind_socket(path).map_err(|source| SocketError {
            path: path.to_owned(),
            source,
        })?;
        tracing::info!(socket = %path.display(), runs_kept, "keeping recent runs of each probe for `leadsman-agent history`");
        Ok(Self {
            listener,
            runs_kept,
        })
    }

    /// Answers until the agent is to stop.
    pub(crate) async fn serve_queries(
        self,
        requests: mpsc::Sender<HistoryRequest>,
        stop: CancellationToken,
    ) {
        let mut answers = JoinSet::new();
        loop {
            tokio::select! {
                // New questions come last: however many are asked, the agent stops and ended answers are joined, of which
                // there are few.
                biased;
                () = stop.cancelled() => return,
                // Joined as they end, or they would still count as being answered.
                Some(_ended) = answers.join_next() => {}
                accepted = self.listener.accept() => {
                    let stream = match accepted {
                        Ok((stream, _)) => stream,
                        Err(error) => {
                            tracing::warn!(%error, "cannot accept a connection on the history socket, retrying");
                            // Descriptors are short, which they may be for a while.
                            sleep(RETRY).await;
                            continue;
                        }
                    };
                    if answers.len() >= CONCURRENCY {
                        // Each that waited would be a process in this pod.
                        tracing::debug!("refused a question about recent runs: {CONCURRENCY} are being answered");
                        continue;
                    }
                    let (requests, runs_kept) = (requests.clone(), self.runs_kept);
                    answers.spawn(async move {
                        let answered = timeout(DEADLINE, answer_query(stream, runs_kept, &requests)).await;
                        match answered {
                            Ok(Ok(())) => {}
                            Ok(Err(error)) => tracing::debug!(%error, "a question about recent runs has no answer"),
                            Err(_) => tracing::debug!("a question about recent runs was given up after {DEADLINE:?}"),
                        }
                    });
                }
            }
        }
    }
}

fn bind_socket(path: &Path) -> io::Result<UnixListener> {
    match std::fs::symlink_metadata(path) {
        // A container before this one in the same pod left it. Anything else is not ours to remove.
        Ok(known) if known.file_type().is_socket() => std::fs::remove_file(path)?,
        _ => {}
    }
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

async fn answer_query(
    stream: UnixStream,
    runs_kept: usize,
    requests: &mpsc::Sender<HistoryRequest>,
) -> Result<(), AnswerError> {
    // The mode of the socket says the same, from the moment on at which it is set.
    let user = stream.peer_cred()?.uid();
    if user != nix::unistd::geteuid().as_raw() {
        return Err(AnswerError::Stranger(user));
    }
    let (reader, mut writer) = stream.into_split();
    let query = read_query(reader).await?;
    let (reply, replied) = oneshot::channel();
    let request = HistoryRequest { query, reply };
    let sent = requests.send(request).await;
    sent.map_err(|_| AnswerError::Stopping)?;
    let probes = replied.await.map_err(|_| AnswerError::Stopping)?;
    let head = HistoryHead {
        runs_kept,
        probes: probes.len(),
    };
    write_line(&mut writer, &head).await?;
    for probe in probes {
        write_line(&mut writer, &probe).await?;
    }
    writer.shutdown().await?;
    Ok(())
}

async fn read_query(reader: OwnedReadHalf) -> Result<HistoryQuery, AnswerError> {
    let mut line = String::new();
    let mut reader = BufReader::new(reader.take(QUERY_BYTES));
    reader.read_line(&mut line).await?;
    Ok(serde_json::from_str(&line)?)
}

async fn write_line(
    writer: &mut OwnedWriteHalf,
    value: &impl Serialize,
) -> Result<(), AnswerError> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    writer.write_all(&line).await?;
    Ok(())
}

#[cfg(test)]
mod tests;
