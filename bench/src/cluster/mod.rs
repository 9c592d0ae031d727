//! The manager against a real API server and etcd. Nodes and pods are objects that nobody runs; the bench plays
//! ReplicaSet controller, kubelet and agent, and reads what the manager makes of it.
//!
//! | room | what lives there |
//! |---|---|
//! | `cold_start`, `flips`, `restart` | what is measured |
//! | `floor` | the bare loop, a process of its own |
//! | `stage` | a control plane with leadsman's manifests, taken away at the end |
//! | `world`, `objects` | nodes, pods and markers |
//! | `specs`, `marks`, `settled` | waiting until all is planned, marked, at rest |
//! | `agents` | what agents say, and what pods then bear |
//! | `subject` | the process that is measured: a manager, or a floor |
//! | `sight`, `exchange` | watches and requests of the bench's own |
//! | `requests`, `bytes` | what the process under test has sent and received |

mod agents;
mod bytes;
pub(crate) mod cold_start;
mod exchange;
pub(crate) mod flips;
pub(crate) mod floor;
mod marks;
mod objects;
mod requests;
pub(crate) mod restart;
mod settled;
mod sight;
mod specs;
mod stage;
mod subject;
mod world;

use std::time::Duration;

/// How long anything may take before the bench gives up and says what is missing. Generous: a build may run beside it.
const PATIENCE: Duration = Duration::from_mins(2);
/// After a run: whatever the manager still has to say, a marker's status after two seconds included, is said by then.
const QUIET: Duration = Duration::from_secs(3);

/// The middle one of an odd number; of an even one the worse of the two in the middle.
fn middle<T>(mut runs: Vec<T>, by: impl Fn(&T) -> Duration) -> Option<T> {
    runs.sort_by_key(by);
    let place = runs.len() / 2;
    runs.into_iter().nth(place)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_run_is_no_better_than_half() {
        let middle = |runs: &[u64]| middle(runs.to_vec(), |run| Duration::from_secs(*run));
        assert_eq!(middle(&[3, 1, 2]), Some(2));
        assert_eq!(middle(&[4, 1, 3, 2]), Some(3));
        assert_eq!(middle(&[]), None);
    }
}
