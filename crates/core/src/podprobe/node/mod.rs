//! The probes of one node: from its plan and its containers to runs, verdicts and the status to write.
//!
//! The agent carries out what [`NodeProbes`] decides: it passes events in, each with its time, and gets actions back.
//! [`NodeProbes`] knows no socket, no clock and no container runtime.
//!
//! | module | holds |
//! |---|---|
//! | `key` | the identity of a probe: its pod, its container, its marker |
//! | `event` | the events that the state machine takes, and the actions that it returns |
//! | `machine` | the state machine, which wires the other modules |
//! | `entries` | the parsed plan; malformed entries are listed apart |
//! | `container` | containers as the runtime lists them |
//! | `worker` | one probe of one container: its phases and its verdict |
//! | `judged_output` | what the output of a run means where it is expected to be something |
//! | `streak` | thresholds: counting equal results in a row |
//! | `schedule` | due times, on a grid of slots |
//! | `run` | one run, as an executor gets it |
//! | `runs` | the runs under way, and those that wait for a permit |
//! | `permits` | how many runs may be under way at once, and which one is next |
//! | `loop_lag` | how late the agent is, by which a timeout is extended |
//! | `recent_runs` | the last runs of each probe, kept for people who ask |
//! | `previous` | verdicts that an earlier agent left in the status |
//! | `reporter` | when a write of the status is due |
//! | `status_draft` | the status to write, compared with the one that is there |
//! | `message_limits` | whose messages are cut while the status is too large |

mod container;
mod entries;
mod event;
mod judged_output;
mod key;
mod loop_lag;
mod machine;
mod message_limits;
#[cfg(test)]
mod model;
mod permits;
mod previous;
mod recent_runs;
mod reporter;
mod run;
mod runs;
mod schedule;
#[cfg(test)]
mod sim;
mod status_draft;
mod streak;
#[cfg(test)]
mod tests;
mod worker;

pub use container::{ContainerName, RuntimeContainer, RuntimeContainers, RuntimeState};
pub use entries::{AllowedHandlers, MalformedEntry};
pub use event::{NodeAction, NodeEvent, VerdictChange};
pub use key::{PodIdentity, ProbeKey};
pub use loop_lag::LoopLag;
pub use machine::{ExecLimits, NodeProbes};
pub use recent_runs::HistoryLimits;
pub use reporter::StatusWriteEnd;
pub use run::{ProbeRun, RunId};
pub use runs::MAX_CONNECTIONS;
pub use schedule::SLOT;
