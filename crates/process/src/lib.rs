//! What both processes of leadsman share: how they meet the API server, the clock, signals and their operator.
//!
//! One mechanism per module, and [`run`] puts them together. No rule of any feature and no Kubernetes kind lives
//! here; the crates of the project are unknown to it.
//!
//! | module | holds |
//! |---|---|
//! | `backoff` | distances between attempts, and the one jitter |
//! | `clock` | the one door to the time of day and to the monotonic clock |
//! | `client` | how to reach the API server |
//! | `list` | a page of a list |
//! | `logs` | format and filter of the log |
//! | `metrics` | the registry and its text form |
//! | `reach` | whether the API server can be reached, as all requests have seen it |
//! | `readiness` | named conditions, each with the reason why it does not hold |
//! | `reply` | what a reply of the API server means |
//! | `serve` | `/healthz`, `/readyz`, `/metrics` |
//! | `server` | the API server, asked with deadlines |
//! | `shutdown` | signals, and an end that comes in time |
//! | `watch` | a list and what follows it, through every outage |
//! | `process` | all of them together |
#![doc(html_no_source)]

pub mod backoff;
pub mod client;
pub mod clock;
pub mod list;
pub mod logs;
pub mod metrics;
mod process;
pub mod reach;
pub mod readiness;
pub mod reply;
pub mod serve;
pub mod server;
pub mod shutdown;
pub mod watch;

pub use backoff::Backoff;
pub use metrics::Metrics;
pub use process::{Args, Component, Process, RunError, run};
pub use readiness::{Condition, Readiness};
pub use server::ApiServer;
