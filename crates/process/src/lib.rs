//! Infrastructure that all processes of leadsman share: the client of the API server, the clocks, signals, the log,
//! metrics and readiness.
//!
//! One mechanism per module, and [`run_process`] puts them together. No rule of any feature and no Kubernetes kind lives
//! here; the crates of the project are unknown to it.
//!
//! | module | holds |
//! |---|---|
//! | `backoff` | delays between attempts, with the one jitter |
//! | `clock` | the only access to the time of day and to the monotonic clock |
//! | `client` | the client of the API server, from flags |
//! | `descriptors` | the limit of open file descriptors |
//! | `list` | a page of a list |
//! | `logs` | format and filter of the log |
//! | `metrics` | the registry and its text form |
//! | `random` | the source of all random numbers |
//! | `reach` | reachability of the API server, from the outcomes of all requests |
//! | `readiness` | named checks for `/readyz` |
//! | `reply` | what a reply of the API server means |
//! | `serve` | `/healthz`, `/readyz`, `/metrics` |
//! | `server` | requests to the API server, each with a deadline |
//! | `shutdown` | signals, and a shutdown within the grace period |
//! | `watch` | a channel of the latest value, whose receivers are woken in order |
//! | `watcher` | a list and the changes after it, through every outage |
//! | `process` | the life of a process, put together from the others |
#![doc(html_no_source)]

pub mod backoff;
pub mod client;
pub mod clock;
pub mod descriptors;
pub mod list;
pub mod logs;
pub mod metrics;
mod process;
mod random;
pub mod reach;
pub mod readiness;
pub mod reply;
pub mod serve;
pub mod server;
pub mod shutdown;
pub mod watch;
pub mod watcher;

pub use backoff::Backoff;
pub use client::Component;
pub use metrics::Metrics;
pub use process::{Process, ProcessArgs, RunError, exit_status, run_process};
pub use random::RandomSource;
pub use readiness::{Readiness, ReadinessCheck};
pub use server::ApiServer;
