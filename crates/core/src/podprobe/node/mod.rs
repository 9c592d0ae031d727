//! The probes of one node: its plan in, runs to carry out, and the status to write.
//!
//! The agent decides nothing: [`NodeProbes`] does, which is told what happened and when, and answers with what to do.
//! It knows no socket, no clock and no container runtime.
//!
//! | module | holds |
//! |---|---|
//! | `key` | the identity of a probe: its pod, its container, its marker |
//! | `event` | what the state machine is told, and what it answers with |
//! | `machine` | the state machine, which wires the other modules |
//! | `entries` | the plan, parsed; malformed entries stand aside |
//! | `container` | containers as the runtime lists them |
//! | `worker` | one probe of one container: its phases and its verdict |
//! | `streak` | thresholds: equal results in a row |
//! | `schedule` | due times, on a grid of slots |
//! | `run` | one run, as it is handed to an executor |
//! | `runs` | the runs under way, and the commands that wait for a permit |
//! | `exec_permits` | how many commands may run at once, and which is next |
//! | `previous` | verdicts that an earlier agent left in the status |
//! | `reporter` | when a write of the status is due |
//! | `status_draft` | the status to write, compared with the one that is there |

mod container;
mod entries;
mod event;
mod exec_permits;
mod key;
mod machine;
#[cfg(test)]
mod model;
mod previous;
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

pub use container::{ContainerName, ContainerState, ObservedContainer, ObservedContainers};
pub use entries::MalformedEntry;
pub use event::{NodeAction, NodeEvent, VerdictChange};
pub use key::{PodName, ProbeKey};
pub use machine::{ExecLimits, NodeProbes};
pub use reporter::StatusWriteEnd;
pub use run::{ProbeRun, RunId};
pub use schedule::SLOT;
