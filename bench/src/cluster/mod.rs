//! The manager against a real API server and etcd. Nodes and pods are objects that nobody runs; the bench plays
//! ReplicaSet controller, kubelet and agent, and reads what the manager makes of it.
//!
//! | module | what lives there |
//! |---|---|
//! | `cold_start`, `flips`, `restart` | what is measured |
//! | `floor` | the bare loop, a process of its own |
//! | `stage` | a control plane with leadsman's manifests, and the manager on it |
//! | `world`, `objects` | nodes, pods and markers |
//! | `agents` | what agents report, and what pods then have |
//! | `expected` | waiting until all is planned, marked, at rest |
//! | `watched`, `exchange` | watches and requests of the bench's own |
//! | `bytes` | what the process under test has sent and received |

mod agents;
mod bytes;
pub(crate) mod cold_start;
mod exchange;
mod expected;
pub(crate) mod flips;
pub(crate) mod floor;
pub(crate) mod objects;
pub(crate) mod restart;
mod stage;
mod watched;
mod world;

use std::time::Duration;

use crate::report::{Section, Target};
use crate::requests::Requests;

/// How long anything may take before the bench gives up and says what is missing. Generous: a build may run beside it.
const PATIENCE: Duration = Duration::from_mins(2);
/// After a run: whatever the manager still has to write, a marker's status after two seconds included, is written by then.
const QUIET: Duration = Duration::from_secs(3);

/// The middle one of an odd number; of an even one the worse of the two in the middle.
///
/// # Panics
/// When there is none.
fn middle<T>(mut runs: Vec<T>, by: impl Fn(&T) -> Duration) -> T {
    runs.sort_by_key(by);
    runs.swap_remove(runs.len() / 2)
}

/// Writes figures of the requests of some runs: those of these kinds with what they should be, all others, failures.
fn add_requests(add: &mut Section<'_>, requests: &Requests, kinds: &[(&str, u64, Option<f64>)]) {
    let mut note = requests.listed();
    for (kind, count, exactly) in kinds {
        let figure = add
            .add(kind, *count, "requests")
            .note(std::mem::take(&mut note));
        figure.targets.extend(exactly.map(Target::Exactly));
    }
    let known: u64 = kinds.iter().map(|(_, count, _)| count).sum();
    let no_requests = Target::Exactly(0.0);
    add.add(
        "other writes",
        requests.writes().saturating_sub(known),
        "requests",
    )
    .reach(no_requests);
    add.add("failed", requests.failed(), "requests")
        .reach(no_requests);
    add.add("Lease requests", requests.lease(), "requests");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_run_is_no_better_than_half() {
        let middle = |runs: &[u64]| middle(runs.to_vec(), |run| Duration::from_secs(*run));
        assert_eq!(middle(&[3, 1, 2]), 2);
        assert_eq!(middle(&[4, 1, 3, 2]), 3);
    }
}
