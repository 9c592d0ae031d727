//! The agent: its tasks and their context.

use leadsman_cri::Runtime;
use leadsman_process::{Component, Process, RunError, clock};

use crate::args::Args;
use crate::health::HealthChecks;
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
pub fn run(args: &Args) -> Result<(), RunError<AgentError>> {
    leadsman_process::run(&args.process, Component::Agent, async |process| {
        let context = task_context(args, &process)?;
        let mut tasks = Tasks::new(&context);
        tasks.start("probing", probing::run(context, args.probing()));
        Ok(tasks.run().await?)
    })
}

fn task_context(args: &Args, process: &Process) -> Result<TaskContext, AgentError> {
    Ok(TaskContext {
        node_name: args.node_name.as_str().into(),
        start: clock::monotonic(),
        server: process.server.clone(),
        runtime: Runtime::connect(&args.runtime_endpoint)?,
        health: HealthChecks::new(process.readiness.clone()),
        metrics: process.metrics.clone(),
        stop: process.shutdown.child_token(),
    })
}
