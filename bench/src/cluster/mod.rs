//! The manager against a real API server and etcd. Nodes and pods are objects that nobody runs; the bench plays
//! ReplicaSet controller, kubelet and agent, and reads what the manager makes of it.
//!
//! | module | what lives there |
//! |---|---|
//! | `cold_start`, `flips`, `restart` | the scenarios |
//! | `stage` | a control plane with leadsman's manifests, and runs of the manager or a floor on it |
//! | `floor` | the bare loop, a process of its own |
//! | `world` | nodes, pods and markers |
//! | `agents` | what agents report, and what pods then have |
//! | `expected` | waiting until all is planned, marked, counted |
//! | `api` | requests and watches of the bench's own |

mod agents;
mod api;
pub(crate) mod cold_start;
mod expected;
pub(crate) mod flips;
pub(crate) mod floor;
pub(crate) mod restart;
mod stage;
mod world;

use std::time::Duration;

use crate::figures::{FAILED, LEASE_REQUESTS, OTHER_WRITES};
use crate::report::{Amount as _, Kind, Section, Target};
use crate::requests::Requests;
use stage::Run;

pub(crate) use world::filled;

/// How long anything may take before the bench gives up and says what is missing. Generous: a build may run beside it.
const PATIENCE: Duration = Duration::from_mins(2);
/// After a run, when all is right: what is written for so long yet is too much, and counts.
const QUIET: Duration = Duration::from_secs(3);

/// The middle one of an odd number; of an even one the worse of the two in the middle.
///
/// # Panics
/// When there is none.
fn middle<T>(mut runs: Vec<T>, by: impl Fn(&T) -> Duration) -> T {
    runs.sort_by_key(by);
    runs.swap_remove(runs.len() / 2)
}

/// Of each kind of request the largest count of some runs.
fn most_requests<T>(runs: &[Run<T>]) -> Requests {
    Requests::largest(runs.iter().map(|run| &run.requests))
}

/// Adds the figures of requests: those of these kinds with what they should be, all others, failures.
fn add_requests(add: &mut Section<'_>, requests: &Requests, kinds: &[(&Kind, u64, Option<usize>)]) {
    let mut note = requests.listed();
    for (kind, count, exactly) in kinds {
        let figure = add.add(kind, *count).note(std::mem::take(&mut note));
        let target = exactly.map(|exactly| Target::Exactly(exactly.amount()));
        figure.targets.extend(target);
    }
    let known: u64 = kinds.iter().map(|(_, count, _)| count).sum();
    add.add(&OTHER_WRITES, requests.writes().saturating_sub(known));
    add.add(&FAILED, requests.failed());
    add.add(&LEASE_REQUESTS, requests.lease());
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
