//! The generation from which on the webhooks inject a set, and what a replica has to know for it.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use leadsman_api::sidecar_set::InForce;
use leadsman_reconcile::{Change, Stored};

use super::revisions::History;
use super::world::{KnownBarrier, KnownSet, SetWorld, StoredSet};
use super::{SetName, SidecarSets};
use crate::cluster::{Now, ResourceVersion, whole_seconds};
use crate::sidecarset::set::SidecarSet;
use crate::sidecarset::snapshot::SnapshotVersion;

/// The generation of a set that is in force, as long as its status does not say so.
#[derive(Debug, Default)]
pub(super) struct InForceMemory {
    pub(super) in_force: Option<InForce>,
    /// The set of that, and how often a generation of it had come a second time.
    of: Option<(Arc<SidecarSet>, u32)>,
}

impl SidecarSets {
    /// A set has changed, or is gone.
    pub(super) fn note_set(&self, change: &Change<StoredSet>, world: &mut SetWorld) {
        let name: SetName = change.name.name.as_str().into();
        world.published.sets_changed = true;
        world.published.totals_changed = true;
        let Some(now) = &change.now else {
            world.known.remove(&name);
            world.affected_by_conflict = world.conflicts.compare(&name, None);
            return;
        };
        let former = change.before.as_ref();
        let before = former.filter(|before| before.wire.metadata.uid == now.wire.metadata.uid);
        let known = world.known.get_mut(&name).filter(|_| before.is_some());
        if let (Some(before), Some(known)) = (before, known) {
            known.restores += u32::from(now.is_restored(before));
            if !now.is_of_generation(before) {
                known.since = now.version();
            }
            if now.says_the_same(before) {
                return;
            }
            known.parsed = parse(now);
            known.is_deleting = now.is_deleting();
        } else {
            let known = KnownSet {
                parsed: parse(now),
                is_deleting: now.is_deleting(),
                since: now.version(),
                restores: 0,
                history: History::default(),
                pinned: None,
                pinned_since: ResourceVersion::UNKNOWN,
            };
            world.known.insert(name.clone(), known);
        }
        let set = world.known.get(&name).and_then(KnownSet::active_set);
        world.affected_by_conflict = world.conflicts.compare(&name, set);
        self.note_history(&name, world);
    }

    /// Works out the history of a set anew.
    pub(super) fn note_history(&self, name: &SetName, world: &mut SetWorld) {
        let Some((stored, known)) = world.set(name) else {
            return;
        };
        let collisions = stored.status().and_then(|status| status.collision_count);
        let history = known
            .active_set()
            .map(|set| self.history_of(set, collisions.unwrap_or_default(), world))
            .unwrap_or_default();
        let generation = stored.generation();
        let pin = history.pinned.as_ref();
        let revision = pin.and_then(|pin| self.revision(&pin.revision.name, world));
        let version = revision.map(|revision| revision.version());
        let pinned = revision.map(|revision| (generation, revision.revision_name().clone()));
        // A generation that the status says is in force as this process begins includes the revision.
        let is_initial = !(world.sets.is_listed() && world.revisions.is_listed());
        let is_known = is_initial && is_in_force_as_stored(stored);
        if let Some(known) = world.known.get_mut(name) {
            known.history = history;
            if known.pinned != pinned {
                known.pinned = pinned;
                known.pinned_since = version.filter(|_| !is_known).unwrap_or_default();
            }
        }
    }

    /// The versions that a snapshot must include to inject a set as it is now. No later version is asked for than what is
    /// known: once etcd was restored, versions that were known before may never come again.
    pub(super) fn required_snapshot(
        &self,
        stored: &StoredSet,
        known: &KnownSet,
        world: &SetWorld,
    ) -> SnapshotVersion {
        let present = known.active_set().map(|set| &set.template);
        let pinned = known.history.pinned.as_ref();
        let mut templates = present
            .into_iter()
            .chain(pinned.map(|pinned| &pinned.template));
        // A set that patches nothing need not wait until replicas have the whitelist.
        let patches = templates.any(|template| !template.patches.is_empty());
        let sets = if is_in_force_as_stored(stored) {
            ResourceVersion::UNKNOWN
        } else {
            known.since.min(stored.version())
        };
        let revision = pinned
            .and_then(|pinned| self.revision(&pinned.revision.name, world))
            .map(|stored| stored.version());
        let whitelist = world.whitelist().filter(|_| patches).map(Stored::version);
        SnapshotVersion {
            sets,
            revisions: known.pinned_since.min(revision.unwrap_or_default()),
            whitelist: world.whitelist_since.min(whitelist.unwrap_or_default()),
        }
    }

    /// Updates which generation of a set is in force.
    pub(super) fn update_in_force(
        &self,
        (stored, known): (&StoredSet, &KnownSet),
        world: &SetWorld,
        memory: &mut InForceMemory,
        now: Now,
    ) {
        let generation = stored.generation();
        let said = stored.status().and_then(|status| status.in_force.clone());
        let before = match (&memory.of, known.active_set()) {
            // Pods that it selects only now, or that are older than it, were not missed before, so the time starts again.
            (Some((before, _)), Some(set)) if !selects_the_same(before, set) => None,
            (Some((_, restores)), _) if *restores != known.restores => said.clone(),
            (Some(_), _) => memory.in_force.clone(),
            (None, _) => said.clone(),
        };
        let said = said.filter(|said| said.generation == generation);
        memory.in_force = match world.barrier {
            // Nothing is known after a start: what was in force stays so until the configuration shows otherwise.
            KnownBarrier::Unknown => said.or(before),
            KnownBarrier::NoWebhook => None,
            KnownBarrier::At(_) if known.active_set().is_none() => None,
            KnownBarrier::At(barrier) => said.or_else(|| {
                if barrier.lacks(self.required_snapshot(stored, known, world)) {
                    return before;
                }
                // Kept from one generation to the next: pods count as missed from the first one that selects them.
                let since = before.map(|before| before.since);
                Some(InForce {
                    generation,
                    since: since.unwrap_or(Time(whole_seconds(now.wall))),
                })
            }),
        };
        memory.of = known.active_set().map(|set| (set.clone(), known.restores));
    }
}

fn parse(stored: &StoredSet) -> Result<Arc<SidecarSet>, Arc<[crate::cluster::Invalid]>> {
    SidecarSet::parse(&stored.wire)
        .map(Arc::new)
        .map_err(Into::into)
}

/// Whether the status says that the set is in force as it is now.
fn is_in_force_as_stored(stored: &StoredSet) -> bool {
    let in_force = stored.status().and_then(|status| status.in_force.as_ref());
    in_force.is_some_and(|in_force| in_force.generation == stored.generation())
}

/// Whether it is the same set, and not one that was made anew under its name, and selects the same pods for an injection.
fn selects_the_same(before: &SidecarSet, after: &SidecarSet) -> bool {
    before.created == after.created
        && before.selector == after.selector
        && before.namespaces == after.namespaces
        && before.is_injection_paused == after.is_injection_paused
}
