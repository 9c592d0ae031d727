//! The agent of one node: a host for tasks, of which probing is the first.
//!
//! | module | holds |
//! |---|---|
//! | `args` | the flags |
//! | `host` | the life of the tasks: start, health checks, end; what each is given |
//! | `health` | health checks, for `/readyz` |
//! | `probing` | the task that runs probes and reports their verdicts |
//! | `request` | a request to the API server, with a deadline |
//! | `rights` | the rights that the agent needs |
//! | `runtime` | whether the container runtime answers, for preflight checks |
#![doc(html_no_source)]

mod args;
mod health;
mod host;
mod probing;
mod request;
mod rights;
mod runtime;

pub use args::Args;
pub use host::{AgentError, TaskError, run};
pub use rights::RIGHTS;
pub use runtime::runtime_version;
