//! The kinds that are watched, and the keys that read what a change of one is about.

use std::sync::Arc;

use leadsman_api::SidecarSet as SidecarSetWire;
use leadsman_api::slim::config_map::ConfigMap;
use leadsman_api::slim::revision::ControllerRevision;
use leadsman_api::slim::{Namespace, Pod};
use leadsman_reconcile::{Change, Store, Stored, Watch};

use super::revisions::StoredRevision;
use super::world::{Configuration, KnownBarrier, SetWorld, StoredNamespace, StoredPod, StoredSet};
use super::{SetKey, SetName, SidecarSets};
use crate::sidecarset::revision::SET_LABEL;
use crate::sidecarset::snapshot::SnapshotVersion;

impl SetWorld {
    /// The webhook configuration that the API server has stored has every replica inject by this version or a later one; None
    /// if there is no webhook. Before the first such event nothing is known.
    pub fn set_barrier(
        &mut self,
        barrier: Option<SnapshotVersion>,
        affected: &mut dyn FnMut(SetKey),
    ) {
        self.barrier = barrier.map_or(KnownBarrier::NoWebhook, KnownBarrier::At);
        self.affect_sets(affected);
    }

    fn affect_sets(&self, affected: &mut dyn FnMut(SetKey)) {
        self.known
            .keys()
            .cloned()
            .map(SetKey::Set)
            .for_each(affected);
    }
}

impl Watch<SidecarSetWire> for SidecarSets {
    type Stored = StoredSet;

    fn store(world: &mut SetWorld) -> &mut Store<StoredSet> {
        &mut world.sets
    }

    fn read(&self, set: &Arc<SidecarSetWire>) -> Arc<StoredSet> {
        Arc::new(StoredSet::new(set))
    }

    fn note_change(&self, change: &Change<StoredSet>, world: &mut SetWorld) {
        self.note_set(change, world);
    }

    fn find_affected(
        &self,
        change: &Change<StoredSet>,
        world: &SetWorld,
        affected: &mut dyn FnMut(SetKey),
    ) {
        let name: SetName = change.name.name.as_str().into();
        affected(SetKey::Set(name.clone()));
        let states = change.before.as_ref().zip(change.now.as_ref());
        if states.is_some_and(|(before, now)| now.says_the_same(before)) {
            return;
        }
        for pod in world.pods.find(&name) {
            affected(SetKey::Pod(pod.name().clone()));
        }
        // Two sets of which one has changed may be in each other's way, or are not any more.
        for other in &world.affected_by_conflict {
            affected(SetKey::Set(other.clone()));
        }
    }

    fn note_fields_kept(world: &mut SetWorld, kept: bool) {
        world.drops_fields = !kept;
    }
}

impl Watch<Pod> for SidecarSets {
    type Stored = StoredPod;

    fn store(world: &mut SetWorld) -> &mut Store<StoredPod> {
        &mut world.pods
    }

    fn read(&self, pod: &Arc<Pod>) -> Arc<StoredPod> {
        Arc::new(StoredPod::new(pod, &mut self.interners.borrow_mut()))
    }

    fn find_affected(
        &self,
        change: &Change<StoredPod>,
        _: &SetWorld,
        affected: &mut dyn FnMut(SetKey),
    ) {
        let states = || change.before.iter().chain(&change.now);
        let is_selected_as_before = match (&change.before, &change.now) {
            (Some(before), Some(now)) => now.is_selected_as(before),
            (None, None) => true,
            _ => false,
        };
        let pod = states().find(|pod| !is_selected_as_before || pod.has_writes());
        if let Some(pod) = pod {
            affected(SetKey::Pod(pod.name().clone()));
        }
        for set in states().flat_map(|pod| pod.injected.iter()) {
            affected(SetKey::Set(set.clone()));
        }
    }
}

impl Watch<Namespace> for SidecarSets {
    type Stored = StoredNamespace;

    fn store(world: &mut SetWorld) -> &mut Store<StoredNamespace> {
        &mut world.namespaces
    }

    fn read(&self, namespace: &Arc<Namespace>) -> Arc<StoredNamespace> {
        let mut interners = self.interners.borrow_mut();
        Arc::new(StoredNamespace::new(namespace, &mut interners))
    }

    fn note_change(&self, _: &Change<StoredNamespace>, world: &mut SetWorld) {
        world.published.namespaces_changed = true;
    }

    fn find_affected(
        &self,
        change: &Change<StoredNamespace>,
        world: &SetWorld,
        affected: &mut dyn FnMut(SetKey),
    ) {
        for pod in world.pods.in_namespace(&change.name.name) {
            affected(SetKey::Pod(pod.name().clone()));
            for set in pod.injected.iter() {
                affected(SetKey::Set(set.clone()));
            }
        }
    }
}

impl Watch<ControllerRevision> for SidecarSets {
    type Stored = StoredRevision;

    fn store(world: &mut SetWorld) -> &mut Store<StoredRevision> {
        &mut world.revisions
    }

    fn read(&self, revision: &Arc<ControllerRevision>) -> Arc<StoredRevision> {
        Arc::new(StoredRevision::new(revision))
    }

    fn note_change(&self, change: &Change<StoredRevision>, world: &mut SetWorld) {
        world.published.revisions_changed = true;
        for set in sets_of_revision(change, world) {
            self.note_history(&set, world);
        }
    }

    fn find_affected(
        &self,
        change: &Change<StoredRevision>,
        world: &SetWorld,
        affected: &mut dyn FnMut(SetKey),
    ) {
        let sets = sets_of_revision(change, world).into_iter();
        sets.map(SetKey::Set).for_each(affected);
    }
}

/// The sets whose history a revision belongs to. Without a label it may be any.
fn sets_of_revision(change: &Change<StoredRevision>, world: &SetWorld) -> Vec<SetName> {
    let states = change.before.iter().chain(&change.now);
    let labels: Option<Vec<SetName>> = states
        .map(|revision| revision.label(SET_LABEL).map(SetName::from))
        .collect();
    labels.unwrap_or_else(|| world.known.keys().cloned().collect())
}

impl Watch<ConfigMap> for SidecarSets {
    type Stored = Configuration;

    fn store(world: &mut SetWorld) -> &mut Store<Configuration> {
        &mut world.configuration
    }

    fn read(&self, configuration: &Arc<ConfigMap>) -> Arc<Configuration> {
        Arc::new(Configuration::new(configuration))
    }

    fn note_change(&self, change: &Change<Configuration>, world: &mut SetWorld) {
        world.published.whitelist_changed = true;
        // The time of a deletion is not known, and a replica that listed earlier may never come as far as the list that shows
        // it. One that has not heard of it yet patches an annotation too many, and injects all sidecars.
        let now = change.now.as_ref();
        world.whitelist_since = now.map(|now| now.version()).unwrap_or_default();
    }

    fn find_affected(
        &self,
        _: &Change<Configuration>,
        world: &SetWorld,
        affected: &mut dyn FnMut(SetKey),
    ) {
        world.affect_sets(affected);
    }
}
