//! The agent: its tasks and their context.

use std::convert::Infallible;

use leadsman_core::podprobe::node::HistoryLimits;
use leadsman_cri::Runtime;
use leadsman_process::{Component, Process, RunError, clock};

use tokio::sync::mpsc;

use crate::args::AgentArgs;
use crate::health::HealthChecks;
use crate::history::HistorySocket;
use crate::host::{TaskFailure, Tasks};
use crate::probing;
use crate::task::TaskContext;

/// Why the agent ended.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The endpoint of the container runtime is invalid.
    #[error("--runtime-endpoint: {0}")]
    Endpoint(#[from] leadsman_cri::Error),
    /// A task failed.
    #[error(transparent)]
    Task(#[from] TaskFailure),
}

/// Runs the agent until SIGTERM or SIGINT.
pub fn run_agent(args: &AgentArgs) -> Result<(), RunError<AgentError>> {
    leadsman_process::run_process(&args.process, Component::Agent, async |process| {
        let runtime = Runtime::connect_lazily(&args.runtime_endpoint)?;
        run_tasks(args, process, runtime).await
    })
}

/// Name and version of the container runtime at this endpoint.
///
/// # Errors
/// Why it does not answer, with the endpoint in it.
pub async fn runtime_version(endpoint: &str) -> Result<String, String> {
    let runtime = Runtime::connect_lazily(endpoint).map_err(|error| error.to_string())?;
    let version = runtime.read_version().await;
    version
        .map(|version| version.to_string())
        .map_err(|error| error.to_string())
}

/// Runs the tasks of the agent until the process is to stop. All of them end with the future: one that is dropped is a process
/// that is killed, but for events that wait to be sent.
pub async fn run_tasks(
    args: &AgentArgs,
    process: Process,
    runtime: Runtime,
) -> Result<(), AgentError> {
    let context = task_context(args, &process, runtime);
    let mut tasks = Tasks::new(&context);
    // The socket answers a few at once, and each waits for its answer anyway.
    let (sender, questions) = mpsc::channel(1);
    let history = match bind_history_socket(args) {
        Some(socket) => {
            let stop = context.stop.clone();
            tasks.start("history", async {
                socket.serve_queries(sender, stop).await;
                Ok::<_, Infallible>(())
            });
            HistoryLimits::with_runs_per_probe(args.history.into())
        }
        // Runs are not kept if nobody can ask for them.
        None => HistoryLimits::NONE,
    };
    let probing = probing::run_probing(context, args.probing_config(history), questions);
    tasks.start("probing", probing);
    Ok(tasks.run().await?)
}

/// The socket for questions about recent runs. Probing does not depend on it.
fn bind_history_socket(args: &AgentArgs) -> Option<HistorySocket> {
    let path = args.history_socket.as_ref().filter(|_| args.history > 0)?;
    HistorySocket::bind_in_place(path, args.history.into())
        .inspect_err(|error| tracing::warn!(%error, "keeping no recent runs of probes"))
        .ok()
}

fn task_context(args: &AgentArgs, process: &Process, runtime: Runtime) -> TaskContext {
    TaskContext {
        node_name: args.node_name.as_str().into(),
        start: clock::monotonic(),
        server: process.server.clone(),
        runtime,
        health: HealthChecks::new(process.readiness.clone()),
        metrics: process.metrics.clone(),
        random: process.random.clone(),
        // A child, so that a task that fails can stop the others; the process ends by its error.
        stop: process.shutdown.child_token(),
    }
}

#[cfg(test)]
mod tests;
