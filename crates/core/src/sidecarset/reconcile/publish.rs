//! Publishing of what others in this process answer by: the webhooks by a snapshot, also while this process does not write, and
//! the metrics by sums.

use std::sync::Arc;

use super::SidecarSets;
use super::reason::{READY, Reason};
use super::review::SetSums;
use super::world::{KnownSet, Published, SetWorld, StoredSet, set_object};
use super::{SetMemory, Sets};
use crate::sidecarset::selection::SetHistory;
use crate::sidecarset::set::{PinPolicy, SidecarSet};
use crate::sidecarset::snapshot::{RefusingSet, Snapshot, SnapshotSet, SnapshotVersion};
use crate::workload::amount::Amount;

/// Takes what is published.
pub trait Publisher: Send + 'static {
    /// Takes a new snapshot, as something has changed by which pods are injected or sets are judged.
    fn publish_snapshot(&mut self, snapshot: Arc<Snapshot>);

    /// Takes the sums of all sets, as one of them has changed.
    fn publish_totals(&mut self, totals: &SetTotals);
}

/// Publishes nothing.
impl Publisher for () {
    fn publish_snapshot(&mut self, _: Arc<Snapshot>) {}

    fn publish_totals(&mut self, _: &SetTotals) {}
}

/// The reasons of condition `Ready` by which sets are counted. The last one stands for all others, and for no condition.
pub const REASONS: [&str; Reason::ALL.len() + 1] = {
    let mut names = ["None"; Reason::ALL.len() + 1];
    let mut place = 0;
    while place < Reason::ALL.len() {
        names[place] = Reason::ALL[place].as_str();
        place += 1;
    }
    names
};

/// Sums over all sets. A pod counts once for each set that it has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetTotals {
    /// Sets by the reason of their condition `Ready` as the API server has it, in the order of [`REASONS`].
    pub sets: [usize; REASONS.len()],
    /// The sums over the pods of sets.
    pub pods: SetSums,
}

impl SidecarSets {
    pub(super) fn publish_changes(&mut self, world: &mut SetWorld, memory: &Sets) {
        if std::mem::take(&mut world.published.totals_changed) {
            let totals = totals(world, memory);
            self.publisher.publish_totals(&totals);
        }
        // A snapshot with a part of the sets, or of what they depend on, would give pods less than they should get.
        let is_listed = world.sets.is_listed()
            && world.namespaces.is_listed()
            && world.revisions.is_listed()
            && world.configuration.is_listed();
        if is_listed && let Some(snapshot) = self.changed_snapshot(world) {
            world.published = Published {
                last: Some(snapshot.clone()),
                ..Published::default()
            };
            self.publisher.publish_snapshot(Arc::new(snapshot));
        }
    }

    fn changed_snapshot(&self, world: &SetWorld) -> Option<Snapshot> {
        let version = SnapshotVersion {
            sets: world.sets.known_until(),
            revisions: world.revisions.known_until(),
            whitelist: world.configuration.known_until(),
        };
        let published = &world.published;
        let last = published.last.as_ref();
        let is_same = last.is_some_and(|last| last.version == version)
            && !published.sets_changed
            && !published.revisions_changed
            && !published.namespaces_changed
            && !published.whitelist_changed;
        if is_same {
            return None;
        }
        // Most changes are of namespaces, or of versions alone, and share the rest with the snapshot before.
        let mut next = last.cloned().unwrap_or_else(|| Snapshot {
            allows_unlisted_metadata: self.config.allows_unlisted_metadata,
            own_namespace: self.config.namespace.as_str().into(),
            options: self.config.render,
            standing_rule: self.config.standing_rule,
            ..Snapshot::default()
        });
        let is_first = last.is_none();
        // Versions that were known before may never come again, and nothing may wait for them.
        let is_restored = version.lacks(next.version);
        next.version = version;
        if is_first || published.namespaces_changed {
            let namespaces = world.namespaces.iter();
            let labels = namespaces.map(|(_, stored)| (stored.name.clone(), stored.labels.clone()));
            next.namespaces = Arc::new(labels.collect());
        }
        if is_first || published.whitelist_changed {
            let stored = world.whitelist();
            next.whitelist = stored.map(|it| it.whitelist.clone()).unwrap_or_default();
            next.whitelist_errors = stored.map(|it| it.errors.clone()).unwrap_or_default();
        }
        if is_first || published.revisions_changed {
            let owners = world
                .revisions
                .iter()
                .map(|(_, own)| (own.revision_name().clone(), own.revision_owner()));
            next.revisions = Arc::new(owners.collect());
        }
        let may_differ = is_first
            || is_restored
            || published.sets_changed
            || published.revisions_changed
            || published.whitelist_changed;
        if may_differ {
            self.renew_sets(&mut next, world);
        }
        Some(next)
    }

    /// Renews the sets of a snapshot, unless they are as before: what the API servers are told follows from them, and costs
    /// more than to compare them. A status changes with every pod of a roll-out.
    fn renew_sets(&self, next: &mut Snapshot, world: &SetWorld) {
        let all = world.known.iter();
        let known: Vec<_> = all
            .filter_map(|(name, known)| {
                let stored = world.sets.observed(&set_object(name))?;
                Some((&**stored, known))
            })
            .collect();
        let sets = known.iter().filter_map(|(stored, known)| {
            Some(SnapshotSet {
                set: known.active_set()?.clone(),
                history: set_history(known.active_set()?, stored, known).into(),
                needs: self.required_snapshot(stored, known, world),
            })
        });
        let sets: Vec<_> = sets.collect();
        let is_same = |(now, before): (&SnapshotSet, &SnapshotSet)| {
            Arc::ptr_eq(&now.set, &before.set)
                && now.history == before.history
                && now.needs == before.needs
        };
        let before = &next.sets;
        if sets.len() != before.len() || !sets.iter().zip(before.iter()).all(is_same) {
            next.sets = sets.into();
        }
        let refusing = known.iter().filter_map(|(stored, known)| {
            let errors = known.parsed.as_ref().err()?;
            let set = SidecarSet::read_refusing(&stored.wire).filter(|_| !known.is_deleting)?;
            Some(RefusingSet {
                set: set.into(),
                errors: errors.clone(),
                needs: self.required_snapshot(stored, known, world),
            })
        });
        next.refusing = Arc::new(refusing.collect());
    }
}

/// The revisions by which a new pod is injected: it gets the present one or the pinned one.
fn set_history(set: &SidecarSet, stored: &StoredSet, known: &KnownSet) -> SetHistory {
    let pinned = known.history.pinned.as_deref();
    SetHistory {
        revisions: pinned.cloned().into_iter().collect(),
        newest: known.history.newest_name().into(),
        matched: if depends_on_count(set) {
            matched_pods(stored)
        } else {
            0
        },
    }
}

/// How many pods a set has, by its status.
fn matched_pods(stored: &StoredSet) -> usize {
    let matched = stored.status().map(|status| status.matched_pods);
    usize::try_from(matched.unwrap_or_default()).unwrap_or_default()
}

/// Whether new pods depend on how many pods a set has.
fn depends_on_count(set: &SidecarSet) -> bool {
    let is_partial = set
        .pin
        .as_ref()
        .is_some_and(|pin| pin.policy == PinPolicy::Partial);
    is_partial && matches!(set.update.partition, Amount::Number(1..))
}

/// The sums as they are now. They cost a step for each set.
fn totals(world: &SetWorld, memory: &Sets) -> SetTotals {
    let mut totals = SetTotals::default();
    for (_, stored) in world.sets.iter() {
        let status = stored.status().into_iter();
        let mut conditions = status.flat_map(|status| &status.conditions);
        let ready = conditions.find(|condition| condition.type_ == READY);
        let place = ready.and_then(|ready| REASONS.iter().position(|one| *one == ready.reason));
        totals.sets[place.unwrap_or(REASONS.len() - 1)] += 1;
    }
    for SetMemory { sums, .. } in memory.values() {
        totals.pods.add(*sums);
    }
    totals
}
