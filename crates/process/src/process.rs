//! The life of a process of leadsman: log, client, signals and HTTP server are set up, then its work runs until a
//! signal.

use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use crate::client::{self, ClientError, Component};
use crate::descriptors::raise_descriptor_limit;
use crate::logs::{self, LogError};
use crate::metrics::Metrics;
use crate::random::RandomSource;
use crate::readiness::Readiness;
use crate::serve::{self, ListenError};
use crate::server::ApiServer;
use crate::shutdown::{self, Forced, Signals};

/// The flags that manager and agent share.
#[derive(Clone, Debug, clap::Args)]
#[group(skip)]
pub struct ProcessArgs {
    /// The API server.
    #[command(flatten)]
    pub client: client::ClientArgs,
    /// The log.
    #[command(flatten)]
    pub logs: logs::LogArgs,
    /// Metrics and probes.
    #[command(flatten)]
    pub serve: serve::ServeArgs,
    /// The grace period.
    #[command(flatten)]
    pub shutdown: shutdown::ShutdownArgs,
}

/// The environment of a process's work.
#[derive(Clone)]
pub struct Process {
    /// The API server. No request has been sent yet.
    pub server: ApiServer,
    /// Cancelled by the first signal; the work then finishes what it has begun and returns.
    pub shutdown: CancellationToken,
    /// The checks that `/readyz` shows.
    pub readiness: Readiness,
    /// The metrics that `/metrics` shows.
    pub metrics: Metrics,
    /// The source of random numbers.
    pub random: RandomSource,
    /// The host name, which in a pod is the name of the pod.
    pub host_name: Arc<str>,
}

impl Process {
    /// The environment of a process that has just begun.
    pub fn new(server: ApiServer, random: RandomSource, host_name: &str) -> Self {
        Self {
            server,
            shutdown: CancellationToken::new(),
            readiness: Readiness::default(),
            metrics: Metrics::default(),
            random,
            host_name: host_name.into(),
        }
    }
}

/// Why a process stopped with an error.
#[derive(Debug, thiserror::Error)]
pub enum RunError<E: Error + 'static> {
    /// The log could not be set up.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The operating system refused a resource of the runtime, or a signal handler.
    #[error("cannot start the async runtime or catch signals: {0}")]
    Start(std::io::Error),
    /// No client of the API server could be made.
    #[error(transparent)]
    Client(Box<ClientError>),
    /// The address cannot be listened on: it is in use, or not an address of this machine.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The HTTP server failed.
    #[error("serving /metrics, /healthz and /readyz failed: {0}")]
    Serve(std::io::Error),
    /// The shutdown was not finished in time.
    #[error(transparent)]
    Forced(#[from] Forced),
    /// The work itself failed.
    #[error(transparent)]
    Work(E),
}

/// Runs `work` on a runtime of one thread until it returns, or until the grace period after a signal is over.
///
/// Tasks that `work` spawned are dropped when this returns. The caller turns the result into the [`exit_status`].
pub fn run_process<F, E>(
    args: &ProcessArgs,
    component: Component,
    work: impl FnOnce(Process) -> F,
) -> Result<(), RunError<E>>
where
    F: Future<Output = Result<(), E>>,
    E: Error + 'static,
{
    args.logs.init_subscriber()?;
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        "leadsman {}",
        component.as_str()
    );
    if let Err(error) = raise_descriptor_limit() {
        tracing::warn!(
            %error,
            "cannot raise the limit of open files; if connections fail with \"too many open files\", raise the hard limit (LimitNOFILE)"
        );
    }
    // Waking up a second thread costs more than it takes over: an agent with two worker threads needs a tenth more
    // CPU for the same probes.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(RunError::Start)?;
    let ended = runtime.block_on(run_to_end(args, component, work));
    // Blocking tasks, such as name lookups, must not delay the exit.
    runtime.shutdown_background();
    match &ended {
        Ok(()) => tracing::info!("stopped"),
        Err(error) => tracing::error!(%error, "stopped with an error"),
    }
    ended
}

/// The exit status of a process. Its error is in the log already, unless the log could not be set up.
pub fn exit_status<E: Error>(program: &str, ended: &Result<(), RunError<E>>) -> ExitCode {
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(RunError::Log(error)) => {
            eprintln!("{program}: {error}");
            ExitCode::FAILURE
        }
        Err(_) => ExitCode::FAILURE,
    }
}

async fn run_to_end<F, E>(
    args: &ProcessArgs,
    component: Component,
    work: impl FnOnce(Process) -> F,
) -> Result<(), RunError<E>>
where
    F: Future<Output = Result<(), E>>,
    E: Error + 'static,
{
    // First: a signal during the start is not lost, and ends the process as any other does.
    let mut signals = Signals::catch_signals().map_err(RunError::Start)?;
    let client = args
        .client
        .build_client(component)
        .await
        .map_err(|error| RunError::Client(Box::new(error)))?;
    let random = RandomSource::from_entropy();
    let process = Process::new(ApiServer::new(client), random, &read_host_name());
    process
        .server
        .metrics
        .register_client_metrics(&process.metrics);
    // Serving begins before the work, so that /readyz answers during a start that waits for the API
    // server, and says for what.
    let served = serve_beside(args, process.clone()).await?;
    let token = process.shutdown.clone();
    let readiness = process.readiness.clone();
    let worked = work(process);
    let work_and_serving = async {
        tokio::select! {
            // Either ends the process; the end of its work says more.
            biased;
            worked = worked => worked.map_err(RunError::Work),
            error = served => Err(RunError::Serve(error)),
        }
    };
    let grace = args.shutdown.grace_period();
    shutdown::until_stopped(
        work_and_serving,
        async || signals.next_signal().await,
        token,
        grace,
        |signal| {
            // Not ready, so that no Service sends requests here from now on.
            readiness
                // A check of its own: the work goes on until it has drained, and may set its own checks to ready
                // meanwhile.
                .add_check("running", format!("stopping after {signal}"))
                .set_not_ready(format!("stopping after {signal}"));
        },
    )
    .await?
}

fn read_host_name() -> String {
    let text = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = text.trim();
    if name.is_empty() {
        "unknown".to_owned()
    } else {
        name.to_owned()
    }
}

/// Listens; the returned future serves until it fails, also while the process is stopping.
async fn serve_beside(
    args: &ProcessArgs,
    process: Process,
) -> Result<impl Future<Output = std::io::Error>, ListenError> {
    let Process {
        readiness, metrics, ..
    } = process;
    let health_listener = args.serve.listen_for_health().await?;
    let health = serve::serve_if_any(health_listener, serve::health_router(readiness.clone()));
    let metrics_listener = args.serve.listen_for_metrics().await?;
    let all = serve::serve_if_any(metrics_listener, serve::metrics_router(readiness, metrics));
    // A process without its endpoints would look dead to the kubelet, and is ended with a reason instead.
    Ok(async move {
        tokio::select! {
            // Either ends the process.
            biased;
            error = health => error,
            error = all => error,
        }
    })
}
