//! The agent of one node: its plan in, probes run, verdicts out.
//!
//! It decides nothing: [`leadsman_core::podprobe::node`] does. This room knows how to follow one object, look at the
//! container runtime, run probes and write a status and events, on one thread, and how to keep going when any of these
//! does not answer.
//!
//! | module | holds |
//! |---|---|
//! | `args` | the flags |
//! | `agent` | the loop that owns the node's state machine |
//! | `plan` | the watch of the node's `NodePodProbe`, and which sight of it is newer |
//! | `look` | the looks at the container runtime, once a second while there is something to probe |
//! | `targets` | which address a run dials |
//! | `prober` | runs on their way |
//! | `request` | one request to the API server, judged |
//! | `status` | one write of the status |
//! | `tell` | events on pods |
//! | `rights` | what it may do |
//! | `runtime` | whether the container runtime answers at all |
//! | `spam` | how many events a pod may have |
//! | `standing` | what works, for `/readyz` |
//! | `metrics` | what is counted |
#![doc(html_no_source)]

mod agent;
mod args;
mod look;
mod metrics;
mod plan;
mod prober;
mod request;
mod rights;
mod runtime;
mod spam;
mod standing;
mod status;
mod targets;
mod tell;

pub use agent::{AgentError, run};
pub use args::Args;
pub use rights::RIGHTS;
pub use runtime::runtime_version;
