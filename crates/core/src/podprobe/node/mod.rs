//! One node: its plan in, runs to carry out, verdicts to publish.
//!
//! Everything the agent decides is decided here, by [`Node`], which is told what happened and at what time and answers
//! with what to do. It opens no socket, reads no clock and knows no runtime; `leadsman-agent` carries out.
//!
//! | module | holds |
//! |---|---|
//! | `entries` | the plan as it comes from the API server, parsed; malformed entries stand aside |
//! | `container` | what the runtime says about a container, as far as a verdict depends on it |
//! | `schedule` | due times on a shared grid of slots |
//! | `execs` | how many commands may run at once, and who waits |
//! | `verdict` | what a row of results adds up to |
//! | `worker` | one probe of one container, from phase to phase |
//! | `report` | verdicts on their way into the status: what is due, how large, how often |
//! | `machine` | all of them together |

mod container;
mod entries;
mod execs;
mod machine;
#[cfg(test)]
mod model;
mod report;
mod schedule;
#[cfg(test)]
mod sim;
#[cfg(test)]
mod tests;
mod verdict;
mod worker;

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

pub use container::{Container, ContainerName, ContainerState, Containers};
pub use entries::Malformed;
pub use machine::{Action, Change, Event, Node, Run, RunId, Settings};
pub use report::WriteEnd;
pub use schedule::SLOT;

use super::probe::ProbeId;

/// One moment by both clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// Monotonic, since the agent's start; due times are on it.
    pub since_start: Duration,
    /// The time of day; times on the wire are on it.
    pub wall: Timestamp,
}

/// A pod.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PodName {
    /// Its namespace.
    pub namespace: Arc<str>,
    /// Its name.
    pub name: Arc<str>,
    /// Its uid: a namesake with another one is another pod.
    pub uid: Arc<str>,
}

/// Names one probe of one container of one pod; no two markers share one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeKey {
    /// The pod, whose namespace is the marker's.
    pub pod: PodName,
    /// The container.
    pub container: Arc<str>,
    /// The probe of its marker.
    pub id: ProbeId,
}

/// What tells keys apart, mostly: they are hashed many times a run, and all the names are long.
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

/// At most `bytes` of `message`, cut on the boundary of a character.
pub fn cut(message: &str, bytes: usize) -> &str {
    &message[..message.floor_char_boundary(bytes)]
}
