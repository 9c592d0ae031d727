//! `leadsman-agent history`, which runs in the agent's pod.

use std::io::{self, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use leadsman_core::podprobe::history::HistoryQuery;

use super::SOCKET;

/// The agent gives up before.
const DEADLINE: Duration = Duration::from_secs(15);

/// Print the recent runs that the agent of this pod keeps, as JSON
///
/// Asked by `kubectl leadsman explain`, `history` and `top`, through `pods/exec` of the agent's pod. The first line says how
/// many runs are kept and how many lines follow, each the recent runs of one probe of one pod.
#[derive(Clone, Debug, clap::Args)]
pub struct PrintHistoryArgs {
    /// Socket of the agent
    #[arg(
        long,
        env = "LEADSMAN_HISTORY_SOCKET",
        value_name = "PATH",
        default_value = SOCKET
    )]
    history_socket: PathBuf,
    /// Show only the probes of pods in this namespace
    #[arg(long, value_name = "NAME")]
    namespace: Option<String>,
    /// Show only the probes of pods of this name
    #[arg(long, value_name = "NAME")]
    pod: Option<String>,
    /// Leave out what each run has printed
    #[arg(long)]
    without_output: bool,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum HistoryError {
    /// Nobody listens.
    #[error(
        "no agent answers at {}: {source}; it keeps recent runs if it runs with --history-socket, and not with --history=0",
        path.display()
    )]
    NoAgent {
        /// The socket.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The answer broke off, or could not be printed.
    #[error("reading the agent's recent runs, or printing them, failed: {0}")]
    Io(#[from] io::Error),
    /// The agent sent no answer.
    #[error(
        "the agent gave no answer: it answers four questions at once, so ask again; its log at level debug says why"
    )]
    NoAnswer,
}

/// Asks the agent of this pod, and prints its answer: JSON, a line for each probe after the first one.
pub fn print_history(args: &PrintHistoryArgs, out: &mut impl Write) -> Result<(), HistoryError> {
    let query = HistoryQuery {
        namespace: args.namespace.clone(),
        pod: args.pod.clone(),
        without_output: args.without_output,
    };
    let mut socket = UnixStream::connect(&args.history_socket).map_err(|source| {
        let path = args.history_socket.clone();
        HistoryError::NoAgent { path, source }
    })?;
    socket.set_read_timeout(Some(DEADLINE))?;
    let query = serde_json::to_string(&query).map_err(io::Error::other)?;
    writeln!(socket, "{query}")?;
    socket.shutdown(Shutdown::Write)?;
    let answered = io::copy(&mut socket, out)?;
    out.flush()?;
    // An agent closes a question that it refuses, without a word.
    if answered == 0 {
        return Err(HistoryError::NoAnswer);
    }
    Ok(())
}
