//! The manager against a real API server and etcd. Nodes and pods are objects that nobody runs; the bench plays
//! ReplicaSet controller, kubelet and agent, and reads what the manager makes of it.
//! `cold_start`, `flips`, `restart`, `roll_out`, `injection`, `jobs`, `clone_sets`, `record`, `sets` and `tenants` are the scenarios.

mod agents;
mod api;
pub(crate) mod clone_sets;
pub(crate) mod cold_start;
mod expected;
pub(crate) mod flips;
pub(crate) mod floor;
pub(crate) mod injection;
pub(crate) mod jobs;
pub(crate) mod record;
pub(crate) mod restart;
pub(crate) mod roll_out;
pub(crate) mod sets;
mod sidecars;
mod stage;
pub(crate) mod tenants;
mod world;

use std::time::Duration;

use crate::figures::{FAILED, LEASE_REQUESTS, OTHER_WRITES};
use crate::report::{Amount as _, Kind, Report, Target};
use crate::requests::Requests;

pub(crate) use world::filled;

/// How long anything may take before the bench gives up and says what is missing. Generous: a build may run beside it.
const PATIENCE: Duration = Duration::from_mins(10);
/// After a run, when all is right: what is written for so long yet is too much, and counts.
const QUIET: Duration = Duration::from_secs(3);

/// Adds the figures of requests: the writes of these resources with what they should be, all others, failures.
fn add_requests(add: &mut Report, requests: &Requests, kinds: &[(&Kind, &str, Option<usize>)]) {
    let (mut note, mut known) = (requests.listed(), 0);
    for (kind, resource, exactly) in kinds {
        let writes = requests.writes_of(resource);
        let figure = add.add(kind, writes).note(std::mem::take(&mut note));
        let target = exactly.map(|exactly| Target::Exactly(exactly.amount()));
        figure.targets.extend(target);
        known += writes;
    }
    add.add(&OTHER_WRITES, requests.writes() - known);
    add.add(&FAILED, requests.failed());
    add.add(&LEASE_REQUESTS, requests.lease());
}

/// As many writes as a status may have in this time: one each two seconds, and the last one.
fn most_statuses(wall: Duration) -> f64 {
    (wall.as_secs_f64() / 2.0).ceil() + 1.0
}
