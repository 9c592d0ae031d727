//! The agent of one node: a host for tasks, of which probing is the first.
//!
//! | module | holds |
//! |---|---|
//! | `args` | the flags |
//! | `agent` | which tasks there are, and whether the container runtime answers |
//! | `host` | the host of the tasks: start, health checks, shutdown |
//! | `task` | the interface between host and tasks |
//! | `health` | health checks, for `/readyz` |
//! | `probing` | the task that runs probes and reports their verdicts |
//! | `history` | recent runs, for whoever may run a command in the agent's pod |
//! | `request` | a request to the API server, with a deadline, and the rights of all of them |
#![doc(html_no_source)]

mod agent;
mod args;
mod health;
pub mod history;
mod host;
mod probing;
mod request;
mod task;

pub use agent::{AgentError, run_agent, run_tasks, runtime_version};
pub use args::AgentArgs;
pub use host::TaskFailure;
pub use request::RIGHTS;
pub use task::TaskError;
