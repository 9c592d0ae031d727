//! Deletions that nobody has asked for.
//!
//! A set has too many pods after an edit, or by a few after a change of leaders. Where there are suddenly many more without an
//! edit, something is wrong with what is known of them, and deleting them is an outage: the set is stopped, and says so.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use leadsman_reconcile::ObjectName;

use super::claims::ClaimNotes;
use super::round::Round;
use super::set::PodSet;
use super::status::{FAILED_SCALE, TOO_MANY_DELETIONS};
use super::steps::Ways;

/// Pods that may be too many at any time, and so many of a hundred.
const FEW: usize = 10;
const SHARE: usize = 20;
/// How long a deletion counts.
const WINDOW: Duration = Duration::from_mins(10);

/// Notes on all sets: nothing that has to outlive this process.
#[derive(Debug, Default)]
pub struct Memory {
    brakes: BTreeMap<ObjectName, Brake>,
    claims: BTreeMap<ObjectName, ClaimNotes>,
    ways: BTreeMap<ObjectName, Ways>,
}

/// Notes on a set.
#[derive(Debug, Default)]
pub(super) struct Brake {
    /// The set, and the edit since which it counts.
    cause: (String, i64),
    /// How many pods may be deleted because they are too many.
    allowed: usize,
    /// Uids of the pods whose deletion was wanted for it, and may have been refused.
    deleted: BTreeSet<String>,
    last: Duration,
}

impl Memory {
    /// Forgets a set that is gone.
    pub(super) fn forget(&mut self, set: &ObjectName) {
        self.brakes.remove(set);
        self.claims.remove(set);
        self.ways.remove(set);
    }

    /// The ways of a set's pods as they were last worked out.
    pub(super) fn ways(&mut self, set: &PodSet) -> &mut Ways {
        self.ways.entry(set.name.clone()).or_default()
    }

    /// The notes on the claims of a set.
    pub(super) fn claims(&mut self, set: &PodSet) -> &mut ClaimNotes {
        self.claims.entry(set.name.clone()).or_default()
    }

    /// Finds the notes on a set. An edit lets it delete what is too many then.
    pub(super) fn of(&mut self, set: &PodSet, round: &Round<'_>, now: Duration) -> &mut Brake {
        let brake = self.brakes.entry(set.name.clone()).or_default();
        let (status, surplus) = (&set.status, round.difference.delete);
        let replicas = set.spec.replicas;
        let few = FEW.max((replicas * SHARE).div_ceil(100)) + round.targets.surge;
        let is_new = brake.cause != (set.uid.clone(), set.generation);
        if is_new {
            // The last leader may have had the edit already: then what it has counted is what was asked for.
            let is_handled = status.observed_generation == set.generation;
            let counted = usize::try_from(status.replicas).unwrap_or(0);
            let is_stopped = is_handled && was_stopped(set);
            let asked = if is_handled {
                counted.saturating_sub(replicas).min(surplus)
            } else {
                surplus
            };
            *brake = Brake {
                cause: (set.uid.clone(), set.generation),
                allowed: if is_stopped { 0 } else { asked + few },
                ..Brake::default()
            };
        } else if surplus == 0 && brake.last.saturating_add(WINDOW) <= now {
            brake.deleted.clear();
            brake.allowed = few;
        }
        brake
    }
}

impl Brake {
    /// How many more pods may be deleted because they are too many. Those that are still there were not.
    pub(super) fn allowance(&self, round: &Round<'_>) -> usize {
        let members = round.members.iter();
        let there = members.filter(|one| self.deleted.contains(&*one.pod.observed.uid));
        let sent = self.deleted.len().saturating_sub(there.count());
        self.allowed.saturating_sub(sent)
    }

    /// Counts a pod that is deleted because there are too many.
    pub(super) fn count(&mut self, uid: &str, now: Duration) {
        self.last = now;
        if !self.deleted.contains(uid) {
            self.deleted.insert(uid.to_owned());
        }
    }
}

fn was_stopped(set: &PodSet) -> bool {
    let mut conditions = set.status.conditions.iter();
    conditions
        .any(|one| one.type_ == FAILED_SCALE && one.reason.as_deref() == Some(TOO_MANY_DELETIONS))
}
