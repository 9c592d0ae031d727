//! A process of leadsman from its first line to its last: log, client, signals, serving, and the work in the middle.

use std::error::Error;

use tokio_util::sync::CancellationToken;

use crate::client::{self, ClientError};
use crate::logs::{self, LogError};
use crate::metrics::Metrics;
use crate::readiness::Readiness;
use crate::serve::{self, ListenError};
use crate::server::ApiServer;
use crate::shutdown::{self, Forced, Signals};

/// The flags that both processes know.
#[derive(Clone, Debug, clap::Args)]
#[group(skip)]
pub struct Args {
    /// The API server.
    #[command(flatten)]
    pub client: client::Args,
    /// The log.
    #[command(flatten)]
    pub logs: logs::Args,
    /// Metrics and probes.
    #[command(flatten)]
    pub serve: serve::Args,
    /// The end.
    #[command(flatten)]
    pub shutdown: shutdown::Args,
}

/// Which process this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Component {
    /// The cluster's one.
    Manager,
    /// A node's one.
    Agent,
    /// The look before the first start, which is no process that stays.
    Preflight,
}

impl Component {
    /// The name, as in the user agent.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Manager => "manager",
            Self::Agent => "agent",
            Self::Preflight => "preflight",
        }
    }
}

/// What the work of a process is given.
#[derive(Clone)]
pub struct Process {
    /// The API server. No request has been sent yet.
    pub server: ApiServer,
    /// Cancelled by the first signal; the work then finishes what it has begun and returns.
    pub shutdown: CancellationToken,
    /// Conditions that `/readyz` shows.
    pub readiness: Readiness,
    /// What `/metrics` shows.
    pub metrics: Metrics,
}

/// Why a process did not end well.
#[derive(Debug, thiserror::Error)]
pub enum RunError<E: Error + 'static> {
    /// The log could not be set up.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The system gave no runtime or no signals.
    #[error("cannot start: {0}")]
    Start(std::io::Error),
    /// There is no client.
    #[error(transparent)]
    Client(Box<ClientError>),
    /// The address is taken or not ours.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// Serving metrics broke off.
    #[error("serving /metrics broke off: {0}")]
    Serve(std::io::Error),
    /// The end was forced.
    #[error(transparent)]
    Forced(#[from] Forced),
    /// The work itself failed.
    #[error(transparent)]
    Work(E),
}

/// Runs `work` on a runtime of one thread until it returns or the grace period after a signal is over.
///
/// Whatever it spawned is dropped when this returns. The caller turns the result into the exit status.
pub fn run<F, E>(
    args: &Args,
    component: Component,
    work: impl FnOnce(Process) -> F,
) -> Result<(), RunError<E>>
where
    F: Future<Output = Result<(), E>>,
    E: Error + 'static,
{
    args.logs.init()?;
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        "leadsman {}",
        component.as_str()
    );
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(RunError::Start)?;
    let ended = runtime.block_on(run_to_end(args, component, work));
    // Blocking tasks (name lookups, say) must not hold up the end.
    runtime.shutdown_background();
    match &ended {
        Ok(()) => tracing::info!("ended"),
        Err(error) => tracing::error!(%error, "ended"),
    }
    ended
}

async fn run_to_end<F, E>(
    args: &Args,
    component: Component,
    work: impl FnOnce(Process) -> F,
) -> Result<(), RunError<E>>
where
    F: Future<Output = Result<(), E>>,
    E: Error + 'static,
{
    let mut signals = Signals::catch().map_err(RunError::Start)?;
    let client = args.client.client(component).await;
    let client = client.map_err(|error| RunError::Client(Box::new(error)))?;
    let process = Process {
        server: ApiServer::new(client),
        shutdown: CancellationToken::new(),
        readiness: Readiness::default(),
        metrics: Metrics::default(),
    };
    let served = serve_beside(args, process.clone()).await?;
    let token = process.shutdown.clone();
    let readiness = process.readiness.clone();
    let worked = work(process);
    let work_and_serving = async {
        tokio::select! {
            worked = worked => worked.map_err(RunError::Work),
            error = served => Err(RunError::Serve(error)),
        }
    };
    let grace = args.shutdown.grace();
    shutdown::until_stopped(
        work_and_serving,
        async || signals.next().await,
        token,
        grace,
        |signal| {
            // From here on the process takes on nothing new.
            readiness
                .condition("running", format!("stopping after {signal}"))
                .not_ready(format!("stopping after {signal}"));
        },
    )
    .await?
}

/// Starts serving; the future ends only when serving breaks off. Serving goes on while the process is stopping.
async fn serve_beside(
    args: &Args,
    process: Process,
) -> Result<impl Future<Output = std::io::Error>, ListenError> {
    let listener = serve::listen(args.serve.metrics_bind_address).await?;
    Ok(async move {
        let Some(listener) = listener else {
            return std::future::pending().await;
        };
        match serve::serve(listener, process.readiness, process.metrics).await {
            Ok(()) => std::io::Error::other("the listener closed"),
            Err(error) => error,
        }
    })
}
