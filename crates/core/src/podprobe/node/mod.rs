//! The probes of one node: its plan in, runs to carry out, and the status to write.
//!
//! The agent decides nothing: [`NodeProbes`] does, which is told what happened and when, and answers with what to do.
//! It knows no socket, no clock and no container runtime.
//!
//! | module | holds |
//! |---|---|
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

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

pub use container::{ContainerName, ContainerState, ObservedContainer, ObservedContainers};
pub use entries::MalformedEntry;
pub use event::{NodeAction, NodeEvent, VerdictChange};
pub use machine::{ExecLimits, NodeProbes};
pub use reporter::StatusWriteEnd;
pub use run::{ProbeRun, RunId};
pub use schedule::SLOT;

use super::probe::ProbeId;

/// The identity of a pod.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PodName {
    /// Its namespace.
    pub namespace: Arc<str>,
    /// Its name.
    pub name: Arc<str>,
    /// Its uid, by which it differs from a later pod of the same name.
    pub uid: Arc<str>,
}

/// The identity of one probe of one container of one pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeKey {
    /// The pod, whose namespace is the marker's.
    pub pod: PodName,
    /// The container.
    pub container: Arc<str>,
    /// The probe of its marker.
    pub id: ProbeId,
}

/// Only what differs mostly: a key is hashed several times a run, and the names are long.
impl Hash for ProbeKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.pod.uid.hash(state);
        self.id.hash(state);
    }
}

impl fmt::Display for ProbeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PodName {
            namespace, name, ..
        } = &self.pod;
        write!(f, "{namespace}/{name}/{}/{}", self.container, self.id)
    }
}
