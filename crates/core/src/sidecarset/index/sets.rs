//! The sets, with what is counted of their pods.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use leadsman_api::sidecar_set::InForce;
use leadsman_api::{SidecarSet as SidecarSetWire, SidecarSetStatus};

use super::conflicts::{Conflicts, SetChange};
use super::context::{PodName, SetName};
use super::pods::{Hold, Lack, Membership};
use super::refusals::Purpose;
use super::revisions::History;
use crate::cluster::{Invalid, ResourceVersion};
use crate::sidecarset::event::{EventNote, WatchedKind};
use crate::sidecarset::pod::PodVersion;
use crate::sidecarset::rollout::queue::RollingPods;
use crate::sidecarset::set::SidecarSet;
use crate::sidecarset::snapshot::SnapshotVersion;
use crate::sidecarset::status::Counts;

/// A set.
#[derive(Debug)]
pub(super) struct SetEntry {
    pub(super) wire: Arc<SidecarSetWire>,
    pub(super) version: ResourceVersion,
    /// The set, or what is wrong with it.
    pub(super) parsed: Result<Arc<SidecarSet>, Arc<[Invalid]>>,
    /// What a snapshot must include to inject it as it is now, but for the whitelist. Unknown is what its status says is in
    /// force.
    needs: SnapshotVersion,
    /// The revision that new pods are pinned to, and the generation that pins them.
    pinned: Option<(i64, Arc<str>)>,
    pub(super) in_force: Option<InForce>,
    pub(super) history: History,
    pub(super) members: SetMembers,
    /// What of each revision that pods were injected with differs from the set, and is in no hash.
    pub(super) drift: BTreeMap<Arc<str>, Vec<&'static str>>,
    /// The pods that it selects and that lack it.
    pub(super) lacking: BTreeMap<PodName, Lack>,
    /// What is to be told when the status that was sent has been written, and what is to be told now.
    pub(super) event: SetEvents,
    /// What the last write of its hashes that was carried out was to achieve.
    pub(super) written_hashes: Option<Purpose>,
}

/// Events about a set: at most one of either kind.
#[derive(Debug, Default)]
pub(super) struct SetEvents {
    pub(super) with_status: Option<EventNote>,
    pub(super) due: Option<EventNote>,
}

/// What is counted of the pods of a set.
#[derive(Debug, Default)]
pub(super) struct SetMembers {
    pub(super) counts: Counts,
    pub(super) rolling: RollingPods,
    pub(super) pods: BTreeSet<PodName>,
    /// How many pods have each revision.
    pub(super) revisions: BTreeMap<Arc<str>, usize>,
    /// How many were injected with each revision.
    pub(super) injected: BTreeMap<Arc<str>, usize>,
    pub(super) not_upgradable: BTreeSet<PodName>,
    pub(super) refused: BTreeSet<PodName>,
    pub(super) former: BTreeSet<PodName>,
    pub(super) pinned: BTreeSet<PodName>,
    /// Those that lack a variable which the set transfers.
    pub(super) without_variable: BTreeSet<PodName>,
}

impl SetMembers {
    pub(super) fn add_member(&mut self, pod: &PodName, member: &Membership) {
        self.counts.add(member.state);
        let candidate = member.candidate.clone();
        self.rolling.add(member.assumed, &member.labels, candidate);
        self.pods.insert(pod.clone());
        for (uses, revision) in self.usage_counts(member) {
            *uses.entry(revision.clone()).or_default() += 1;
        }
        if let Some(list) = self.list_of(member) {
            list.insert(pod.clone());
        }
        if member.lacks_variable {
            self.without_variable.insert(pod.clone());
        }
    }

    pub(super) fn remove_member(&mut self, pod: &PodName, member: &Membership) {
        self.counts.remove(member.state);
        let candidate = member.candidate.as_deref();
        self.rolling
            .remove(member.assumed, &member.labels, candidate);
        self.pods.remove(pod);
        for (all, revision) in self.usage_counts(member) {
            let uses = all.get_mut(revision).map(|uses| {
                *uses -= 1;
                *uses
            });
            debug_assert!(uses.is_some(), "a pod is removed that was not added");
            if uses == Some(0) {
                all.remove(revision);
            }
        }
        if let Some(list) = self.list_of(member) {
            list.remove(pod);
        }
        self.without_variable.remove(pod);
    }

    /// The counts that a pod is in by its revisions.
    fn usage_counts<'a>(
        &'a mut self,
        member: &'a Membership,
    ) -> impl Iterator<Item = (&'a mut BTreeMap<Arc<str>, usize>, &'a Arc<str>)> {
        let present = member.revision.as_ref();
        // A pod that no upgrade has changed was injected with the revision that it has.
        let injected = member.injected.as_ref().or(present);
        let present = present.map(|revision| (&mut self.revisions, revision));
        let injected = injected.map(|revision| (&mut self.injected, revision));
        present.into_iter().chain(injected)
    }

    /// The list that names a pod, if one does.
    fn list_of(&mut self, member: &Membership) -> Option<&mut BTreeSet<PodName>> {
        match (&member.hold, member.state.version) {
            // The lists are of pods that wait, and an updated one has what it is to have.
            (_, PodVersion::Updated) => None,
            (Some(Hold::Refused(_)), _) => Some(&mut self.refused),
            (Some(Hold::Former), _) => Some(&mut self.former),
            (Some(Hold::Pinned), _) => Some(&mut self.pinned),
            (_, PodVersion::NotUpgradable) => Some(&mut self.not_upgradable),
            _ => None,
        }
    }
}

impl SetEntry {
    pub(super) fn new(wire: Arc<SidecarSetWire>) -> Self {
        let version = ResourceVersion::parse(wire.metadata.resource_version.as_deref());
        let in_force = wire.status.as_ref();
        let in_force = in_force.and_then(|status| status.in_force.clone());
        let generation = in_force.as_ref().map(|in_force| in_force.generation);
        Self {
            parsed: SidecarSet::parse(&wire).map(Arc::new).map_err(Into::into),
            version,
            needs: SnapshotVersion {
                sets: if generation == wire.metadata.generation {
                    ResourceVersion::UNKNOWN
                } else {
                    version
                },
                ..SnapshotVersion::default()
            },
            pinned: None,
            in_force,
            history: History::default(),
            members: SetMembers::default(),
            drift: BTreeMap::new(),
            lacking: BTreeMap::new(),
            event: SetEvents::default(),
            written_hashes: None,
            wire,
        }
    }

    /// The set, if it is acted on: it is valid and not being deleted.
    pub(super) fn active_set(&self) -> Option<&Arc<SidecarSet>> {
        let set = self.parsed.as_ref().ok();
        set.filter(|_| self.wire.metadata.deletion_timestamp.is_none())
    }

    pub(super) fn status(&self) -> Option<&SidecarSetStatus> {
        self.wire.status.as_ref()
    }

    pub(super) fn uid(&self) -> Option<&str> {
        self.wire.metadata.uid.as_deref()
    }

    pub(super) fn generation(&self) -> i64 {
        self.wire.metadata.generation.unwrap_or_default()
    }

    /// Since when it is in force, in whatever generation: a pod from before was not missed.
    pub(super) fn in_force_since(&self) -> Option<Timestamp> {
        self.in_force.as_ref().map(|in_force| in_force.since.0)
    }

    /// Takes in another state. Returns whether anything but its status has changed.
    pub(super) fn replace_state(&mut self, wire: Arc<SidecarSetWire>) -> bool {
        let (before, after) = (&self.wire.metadata, &wire.metadata);
        let is_same = before.generation == after.generation
            && before.labels == after.labels
            && before.annotations == after.annotations
            && before.deletion_timestamp == after.deletion_timestamp
            && self.wire.spec == wire.spec;
        self.version = ResourceVersion::parse(after.resource_version.as_deref());
        // Once etcd was restored, a generation may come a second time, with another spec.
        let is_restored = after.generation < before.generation
            || (after.generation == before.generation && self.wire.spec != wire.spec);
        if is_restored {
            let status = wire.status.as_ref();
            self.in_force = status.and_then(|status| status.in_force.clone());
        }
        // The status moves the version too, and nobody who injects has to catch up with that.
        if is_restored || before.generation != after.generation {
            self.needs.sets = self.version;
        }
        if !is_same {
            let parsed = SidecarSet::parse(&wire).map(Arc::new).map_err(Into::into);
            if !selects_the_same(&self.parsed, &parsed) {
                // Pods that it selects only now were not missed before, so the time starts again.
                self.in_force = None;
            }
            self.parsed = parsed;
        }
        self.wire = wire;
        !is_same
    }

    /// Notes the revision that new pods are pinned to, and its version. A replica that does not know it gives them another.
    /// `is_initial` before all is listed: what the status says is in force then includes it.
    pub(super) fn note_pinned(
        &mut self,
        pinned: Option<(&Arc<str>, ResourceVersion)>,
        is_initial: bool,
    ) {
        let generation = self.generation();
        let (pinned, version) = pinned.unzip();
        let pinned = pinned.map(|name| (generation, name.clone()));
        if pinned == self.pinned {
            return;
        }
        let is_known = is_initial && self.is_in_force_as_stored();
        self.pinned = pinned;
        self.needs.revisions = version.filter(|_| !is_known).unwrap_or_default();
    }

    /// Asks for no later version of a kind than what is known of it now. `pinned` is the version of the pinned revision.
    pub(super) fn forget_later_versions(
        &mut self,
        kind: WatchedKind,
        pinned: Option<ResourceVersion>,
    ) {
        match kind {
            WatchedKind::Set => self.needs.sets = self.needs.sets.min(self.version),
            WatchedKind::Revision => {
                self.needs.revisions = self.needs.revisions.min(pinned.unwrap_or_default());
            }
            // The whitelist is one for all sets, and no other kind has a version in a snapshot.
            WatchedKind::Configuration | WatchedKind::Pod | WatchedKind::Namespace => {}
        }
    }

    /// Whether its status says that it is in force as it is now.
    fn is_in_force_as_stored(&self) -> bool {
        let in_force = self.status().and_then(|status| status.in_force.as_ref());
        in_force.is_some_and(|in_force| in_force.generation == self.generation())
    }

    /// What a snapshot must include to inject it as it is now, with a whitelist that is as it is since a version.
    pub(super) fn required_snapshot(&self, whitelist: ResourceVersion) -> SnapshotVersion {
        let present = self.active_set().map(|set| &set.template);
        let pinned = self.history.pinned.as_ref();
        let pinned = pinned.map(|pinned| &pinned.template);
        let mut templates = present.into_iter().chain(pinned);
        // A set that patches nothing need not wait until replicas have the whitelist.
        let patches = templates.any(|template| !template.patches.is_empty());
        SnapshotVersion {
            whitelist: if patches {
                whitelist
            } else {
                ResourceVersion::UNKNOWN
            },
            ..self.needs
        }
    }

    /// Compares its generation with what the webhook injects by. Returns whether that has changed anything.
    pub(super) fn read_in_force(
        &mut self,
        barrier: KnownBarrier,
        whitelist: ResourceVersion,
        now: Timestamp,
    ) -> bool {
        let generation = self.generation();
        let stored = self.status().and_then(|status| status.in_force.clone());
        let stored = stored.filter(|stored| stored.generation == generation);
        let next = match barrier {
            // After a start: what was in force stays so until the configuration shows otherwise.
            KnownBarrier::Unknown => stored.or_else(|| self.in_force.clone()),
            KnownBarrier::NoWebhook => None,
            KnownBarrier::At(_) if self.active_set().is_none() => None,
            KnownBarrier::At(barrier) => {
                if stored.is_some() {
                    self.needs.sets = ResourceVersion::UNKNOWN;
                }
                let is_reached = !barrier.lacks(self.required_snapshot(whitelist));
                // Kept from one generation to the next: pods count as missed from the first one
                // that selects them.
                let since = self.in_force.as_ref().map(|before| before.since.clone());
                let reached = InForce {
                    generation,
                    since: since.unwrap_or(Time(crate::cluster::whole_seconds(now))),
                };
                stored.or_else(|| {
                    if is_reached {
                        Some(reached)
                    } else {
                        self.in_force.clone()
                    }
                })
            }
        };
        let changed = next != self.in_force;
        self.in_force = next;
        changed
    }
}

fn selects_the_same<E>(
    before: &Result<Arc<SidecarSet>, E>,
    after: &Result<Arc<SidecarSet>, E>,
) -> bool {
    match (before, after) {
        (Ok(before), Ok(after)) => {
            before.selector == after.selector
                && before.namespaces == after.namespaces
                && before.is_injection_paused == after.is_injection_paused
        }
        _ => false,
    }
}

/// What the webhook injects by, as far as it is known.
#[derive(Clone, Copy, Debug)]
pub(super) enum KnownBarrier {
    /// Nothing is known yet.
    Unknown,
    /// There is no webhook.
    NoWebhook,
    /// By this version, or a later one.
    At(SnapshotVersion),
}

/// The sets by name, and what two of them cannot both do.
#[derive(Debug, Default)]
pub(super) struct Sets {
    by_name: BTreeMap<SetName, SetEntry>,
    pub(super) conflicts: Conflicts,
}

impl Sets {
    pub(super) fn get(&self, name: &str) -> Option<&SetEntry> {
        self.by_name.get(name)
    }

    pub(super) fn get_mut(&mut self, name: &str) -> Option<&mut SetEntry> {
        self.by_name.get_mut(name)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&SetName, &SetEntry)> {
        self.by_name.iter()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (&SetName, &mut SetEntry)> {
        self.by_name.iter_mut()
    }

    pub(super) fn names(&self) -> Vec<SetName> {
        self.by_name.keys().cloned().collect()
    }

    pub(super) fn insert(&mut self, name: SetName, entry: SetEntry) {
        self.by_name.insert(name, entry);
    }

    pub(super) fn remove(&mut self, name: &str) -> Option<SetEntry> {
        self.by_name.remove(name)
    }

    /// Compares a set, which has changed or is gone, with others. Returns what that affects.
    pub(super) fn compare_with_others(&mut self, name: &SetName) -> SetChange {
        let set = self.by_name.get(name).and_then(SetEntry::active_set);
        self.conflicts.compare(name, set)
    }
}
