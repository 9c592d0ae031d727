//! The state of the cluster, as far as it is known and sets need it: a store for each kind, and beside them what follows from
//! several objects and is read often.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use jiff::Timestamp;
use leadsman_api::slim::config_map::ConfigMap;
use leadsman_api::slim::{Namespace, Pod, PodStatus};
use leadsman_api::{SidecarSet as SidecarSetWire, SidecarSetStatus, limits};
use leadsman_reconcile::{Store, Stored};

use super::SetName;
use super::conflicts::Conflicts;
use super::revisions::{History, StoredRevision};
use crate::cluster::{Interners, Invalid, ObjectName, PodName, ResourceVersion, SortedMap};
use crate::sidecarset::annotations::{IN_PLACE_STATE, INJECTED_LIST, injected_sets};
use crate::sidecarset::condition::UPGRADABLE;
use crate::sidecarset::metadata::{WHITELIST, Whitelist};
use crate::sidecarset::pod::PodState;
use crate::sidecarset::rollout::UpgradePlace;
use crate::sidecarset::set::SidecarSet;
use crate::sidecarset::snapshot::{Snapshot, SnapshotVersion};
use crate::workload::pod::ObservedPod;
use crate::workload::scatter::LabelPair;

/// Annotation of a pod by which the API server shows one that a kubelet runs from a file (`MirrorPodAnnotationKey` in
/// `k8s.io/kubernetes/pkg/kubelet/types`): no set is injected into it, and none upgrades it.
const MIRROR_POD: &str = "kubernetes.io/config.mirror";
/// Annotations that no two pods have in common: this one has the ids of containers.
const UNIQUE: &[&str] = &[IN_PLACE_STATE];
/// The least bytes that the record of one set takes in a pod's annotations.
const RECORD_BYTES: usize = 256;
/// The most sets that a pod is taken to be injected by: the annotations of a pod have no room for the records of more. Mere
/// names would take a few bytes, and each costs a look-up here.
pub(super) const MOST_SETS: usize = limits::ANNOTATIONS_BYTES / RECORD_BYTES;

/// The known state of the cluster.
#[derive(Default)]
pub struct SetWorld {
    pub(super) sets: Store<StoredSet>,
    pub(super) pods: Store<StoredPod>,
    pub(super) namespaces: Store<StoredNamespace>,
    pub(super) revisions: Store<StoredRevision>,
    pub(super) configuration: Store<Configuration>,
    /// The facts that follow from each set and its revisions.
    pub(super) known: BTreeMap<SetName, KnownSet>,
    pub(super) conflicts: Conflicts,
    /// The other sets to which the last change of one is something else.
    pub(super) affected_by_conflict: BTreeSet<SetName>,
    pub(super) barrier: KnownBarrier,
    /// Whether the API server drops our fields of a set's status, as with `OpenKruise`'s CRD.
    pub(super) drops_fields: bool,
    /// The version since which the whitelist is as it is.
    pub(super) whitelist_since: ResourceVersion,
    no_rules: Whitelist,
    pub(super) published: Published,
}

/// The version that the webhook injects by, as far as it is known.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum KnownBarrier {
    /// Nothing is known yet.
    #[default]
    Unknown,
    /// No webhook exists.
    NoWebhook,
    /// The webhook injects by this version, or a later one.
    At(SnapshotVersion),
}

/// The last snapshot that was published, and what has changed since.
#[expect(clippy::struct_excessive_bools, reason = "each kind changes by itself")]
#[derive(Default)]
pub(super) struct Published {
    /// Whether a set has changed, or its revisions.
    pub(super) sets_changed: bool,
    /// Whether a set has changed since the sums were published.
    pub(super) totals_changed: bool,
    pub(super) revisions_changed: bool,
    pub(super) namespaces_changed: bool,
    pub(super) whitelist_changed: bool,
    pub(super) last: Option<Snapshot>,
}

/// A set as it is stored.
pub struct StoredSet {
    pub(super) wire: Arc<SidecarSetWire>,
    version: ResourceVersion,
}

/// The facts that follow from a set and its revisions.
pub(super) struct KnownSet {
    /// The set, or what is wrong with it. The same as long as nothing but its status changes.
    pub(super) parsed: Result<Arc<SidecarSet>, Arc<[Invalid]>>,
    pub(super) is_deleting: bool,
    /// The version since which its generation is as it is. The status moves the version too, and nobody who injects has to
    /// catch up with that.
    pub(super) since: ResourceVersion,
    /// How often a generation has come a second time, with another spec: etcd was restored.
    pub(super) restores: u32,
    pub(super) history: History,
    /// The revision that new pods are pinned to, and the generation that pins them.
    pub(super) pinned: Option<(i64, Arc<str>)>,
    /// The version of that revision, unless it was in force already when this process began.
    pub(super) pinned_since: ResourceVersion,
}

/// A pod as it is stored. A clone is cheap.
#[derive(Clone)]
pub struct StoredPod {
    pub(super) pod: Arc<ObservedPod>,
    /// The sets that it was injected by, as it says.
    pub(super) injected: Arc<[SetName]>,
    pub(super) condition: Option<ObservedCondition>,
    pub(super) is_mirror: bool,
    /// The set whose write of it may have been carried out. Whatever becomes of that write, the pod has another version then: a
    /// write of the version that is known would change it, or is refused.
    pub(super) sent: Option<SetName>,
    /// The pod's memberships in its sets, as far as they are known and still so.
    pub(super) members: KnownMembers,
}

/// The condition that says whether a pod can be upgraded, as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ObservedCondition {
    pub(super) is_upgradable: bool,
    pub(super) message: Arc<str>,
}

/// The membership of a pod in a set that it was injected by, from both of them and the labels of the namespace.
#[derive(Debug)]
pub(super) struct SetMember {
    pub(super) set: Arc<SidecarSet>,
    pub(super) namespace: Option<Arc<StoredNamespace>>,
    /// The time at which it becomes something else, if nothing shows that before.
    pub(super) until: Option<Timestamp>,
    /// The pod's state; None if it does not belong to the set.
    pub(super) state: Option<PodState>,
    /// The pod's place in the roll-out, if it can be upgraded.
    pub(super) place: Option<Box<UpgradePlace>>,
    /// The labels by which the set scatters it.
    pub(super) labels: Box<[LabelPair]>,
    /// The revision that it has, as it says.
    pub(super) revision: Option<Arc<str>>,
    /// The revision that it was injected with, where an upgrade has replaced its images since.
    pub(super) injected: Option<Arc<str>>,
    /// The revision that was the newest when it was injected, if it says so.
    pub(super) newest: Option<Arc<str>>,
    /// Whether no upgrade has left a record.
    pub(super) is_as_injected: bool,
    /// Whether a variable that the set transfers was not there.
    pub(super) lacks_variable: bool,
}

/// The memberships of a pod in its sets. A copy of the pod knows nothing yet.
#[derive(Debug, Default)]
pub(super) struct KnownMembers(pub(super) Mutex<Vec<Arc<SetMember>>>);

impl Clone for KnownMembers {
    fn clone(&self) -> Self {
        Self::default()
    }
}

/// A namespace as it is stored.
#[derive(Debug)]
pub struct StoredNamespace {
    pub(super) name: Arc<str>,
    version: ResourceVersion,
    pub(super) labels: SortedMap<Arc<str>>,
}

/// The administrator's whitelist as it is stored.
pub struct Configuration {
    name: ObjectName,
    version: ResourceVersion,
    text: Option<String>,
    pub(super) whitelist: Arc<Whitelist>,
    pub(super) errors: Arc<[Invalid]>,
}

impl SetWorld {
    /// A set with what follows from it.
    pub(super) fn set(&self, name: &str) -> Option<(&StoredSet, &KnownSet)> {
        let stored = self.sets.observed(&set_object(name))?;
        Some((stored, self.known.get(name)?))
    }

    /// A set that is acted on.
    pub(super) fn active_set(&self, name: &str) -> Option<&Arc<SidecarSet>> {
        self.known.get(name)?.active_set()
    }

    pub(super) fn namespace(&self, name: &str) -> Option<&Arc<StoredNamespace>> {
        self.namespaces.observed(&set_object(name))
    }

    /// The `ConfigMap` with the whitelist, if there is one.
    pub(super) fn whitelist(&self) -> Option<&Configuration> {
        self.configuration
            .iter()
            .next()
            .map(|(_, stored)| &**stored)
    }

    /// The annotations that sets may patch.
    pub(super) fn rules(&self) -> &Whitelist {
        let stored = self.whitelist();
        stored.map_or(&self.no_rules, |stored| &stored.whitelist)
    }
}

/// The name of an object without a namespace.
pub(super) fn set_object(name: &str) -> ObjectName {
    ObjectName {
        namespace: String::new(),
        name: name.to_owned(),
    }
}

impl StoredSet {
    pub(super) fn new(wire: &Arc<SidecarSetWire>) -> Self {
        Self {
            version: ResourceVersion::parse(wire.metadata.resource_version.as_deref()),
            wire: wire.clone(),
        }
    }

    pub(super) fn status(&self) -> Option<&SidecarSetStatus> {
        self.wire.status.as_ref()
    }

    pub(super) fn generation(&self) -> i64 {
        self.wire.metadata.generation.unwrap_or_default()
    }

    pub(super) fn is_deleting(&self) -> bool {
        self.wire.metadata.deletion_timestamp.is_some()
    }

    /// Whether nothing but the status differs.
    pub(super) fn says_the_same(&self, before: &Self) -> bool {
        let (now, before_meta) = (&self.wire.metadata, &before.wire.metadata);
        now.uid == before_meta.uid
            && now.generation == before_meta.generation
            && now.labels == before_meta.labels
            && now.annotations == before_meta.annotations
            && now.deletion_timestamp == before_meta.deletion_timestamp
            && self.wire.spec == before.wire.spec
    }

    /// Whether etcd was restored: a generation comes a second time, with another spec.
    pub(super) fn is_restored(&self, before: &Self) -> bool {
        let is_same = self.generation() == before.generation();
        self.generation() < before.generation() || (is_same && !self.is_of_generation(before))
    }

    /// Whether the generation says what it said before.
    pub(super) fn is_of_generation(&self, before: &Self) -> bool {
        self.generation() == before.generation() && self.wire.spec == before.wire.spec
    }
}

impl Stored for StoredSet {
    fn name(&self) -> ObjectName {
        ObjectName::of(&self.wire.metadata)
    }

    fn uid(&self) -> &str {
        self.wire.metadata.uid.as_deref().unwrap_or_default()
    }

    fn version(&self) -> ResourceVersion {
        self.version
    }

    fn is_same(&self, other: &Self) -> bool {
        self.says_the_same(other) && self.wire.status == other.wire.status
    }
}

impl KnownSet {
    /// The set, if it is acted on: it is valid and not being deleted.
    pub(super) fn active_set(&self) -> Option<&Arc<SidecarSet>> {
        let set = self.parsed.as_ref().ok();
        set.filter(|_| !self.is_deleting)
    }
}

impl SetMember {
    pub(super) fn is_of(
        &self,
        set: &Arc<SidecarSet>,
        namespace: Option<&Arc<StoredNamespace>>,
    ) -> bool {
        let is_same_namespace = match (&self.namespace, namespace) {
            (Some(own), Some(now)) => Arc::ptr_eq(own, now),
            (None, None) => true,
            _ => false,
        };
        is_same_namespace && Arc::ptr_eq(&self.set, set)
    }
}

impl StoredPod {
    pub(super) fn new(wire: &Pod, interners: &mut Interners) -> Self {
        let annotation = |key: &str| {
            let mut annotations = wire.annotations.iter();
            annotations.find(|(own, _)| *own == key)
        };
        let is_mirror = annotation(MIRROR_POD).is_some();
        let listed = annotation(INJECTED_LIST).map(|(_, list)| list.as_str());
        // A mirror pod's file may be a copy of a pod that was injected. No write changes what its kubelet runs.
        let list = listed.filter(|_| !is_mirror);
        let injected: BTreeSet<SetName> = injected_sets(list.unwrap_or_default())
            // No set has a longer name, and whoever may edit a pod may write anything here.
            .filter(|set| set.len() <= limits::LABEL)
            .take(MOST_SETS)
            .map(|set| interners.strings.share(set))
            .collect();
        // Most pods of a cluster have no set: what selectors read is all that is kept of them.
        let pod = if injected.is_empty() {
            ObservedPod::share(&selected_by(wire), UNIQUE, interners)
        } else {
            ObservedPod::share(wire, UNIQUE, interners)
        };
        let mut conditions = wire.status.conditions.iter();
        let condition = conditions.find(|condition| condition.type_ == UPGRADABLE);
        Self {
            is_mirror,
            injected: injected.into_iter().collect(),
            condition: condition.map(|condition| ObservedCondition {
                is_upgradable: condition.status == "True",
                message: interners
                    .strings
                    .share(condition.message.as_deref().unwrap_or_default()),
            }),
            sent: None,
            members: KnownMembers::default(),
            pod: pod.into(),
        }
    }

    pub(super) fn name(&self) -> &PodName {
        &self.pod.name
    }

    pub(super) fn is_injected_by(&self, set: &str) -> bool {
        self.injected.iter().any(|own| **own == *set)
    }

    /// Whether a write of it may be due: it has a set, or the condition that says what it is to its sets.
    pub(super) fn has_writes(&self) -> bool {
        !self.injected.is_empty() || self.condition.is_some()
    }

    /// Whether the same sets select it, and it lacks the same of them, as before.
    pub(super) fn is_selected_as(&self, before: &Self) -> bool {
        self.pod.labels == before.pod.labels
            && self.injected == before.injected
            && self.pod.uid == before.pod.uid
            && self.pod.is_active() == before.pod.is_active()
    }
}

/// The parts that sets read of a pod that none of them was injected into.
fn selected_by(wire: &Pod) -> Pod {
    Pod {
        identity: wire.identity.clone(),
        labels: wire.labels.clone(),
        spec: wire.spec.clone(),
        status: PodStatus {
            phase: wire.status.phase.clone(),
            ..PodStatus::default()
        },
        ..Pod::default()
    }
}

impl Stored for StoredPod {
    fn name(&self) -> ObjectName {
        (*self.pod.name).clone()
    }

    fn shared_name(&self) -> Arc<ObjectName> {
        self.pod.name.clone()
    }

    fn uid(&self) -> &str {
        &self.pod.uid
    }

    fn version(&self) -> ResourceVersion {
        ResourceVersion::parse(self.pod.resource_version.as_deref())
    }

    fn words(&self, found: &mut dyn FnMut(&str)) {
        self.injected.iter().for_each(|set| found(set));
    }

    /// The version of a pod that has a set counts, since its upgrade is of a version.
    fn is_same(&self, other: &Self) -> bool {
        let is_same = self.condition == other.condition
            && self.injected == other.injected
            && self.is_mirror == other.is_mirror
            && self.sent == other.sent;
        is_same
            && if self.injected.is_empty() {
                self.is_selected_as(other)
            } else {
                self.pod == other.pod
            }
    }
}

impl StoredNamespace {
    pub(super) fn new(wire: &Namespace, interners: &mut Interners) -> Self {
        let strings = &mut interners.strings;
        let labels = wire.labels.iter();
        Self {
            name: strings.share(wire.identity.name.as_deref().unwrap_or_default()),
            version: ResourceVersion::parse(wire.identity.resource_version.as_deref()),
            labels: labels
                .map(|(key, value)| (strings.share(key.as_str()), strings.share(value.as_str())))
                .collect(),
        }
    }

    pub(super) fn label(&self, key: &str) -> Option<&str> {
        self.labels.get(key).map(|value| &**value)
    }
}

impl Stored for StoredNamespace {
    fn name(&self) -> ObjectName {
        set_object(&self.name)
    }

    // The labels are all that is read of a namespace.
    fn uid(&self) -> &'static str {
        ""
    }

    fn version(&self) -> ResourceVersion {
        self.version
    }

    fn is_same(&self, other: &Self) -> bool {
        self.labels == other.labels
    }
}

impl Configuration {
    pub(super) fn new(wire: &ConfigMap) -> Self {
        let text = wire.data.get(WHITELIST);
        let (whitelist, errors) = text.map(|text| Whitelist::read(text)).unwrap_or_default();
        Self {
            name: ObjectName::of(&wire.identity),
            version: ResourceVersion::parse(wire.identity.resource_version.as_deref()),
            text: text.cloned(),
            whitelist: whitelist.into(),
            errors: errors.into(),
        }
    }
}

impl Stored for Configuration {
    fn name(&self) -> ObjectName {
        self.name.clone()
    }

    fn uid(&self) -> &'static str {
        ""
    }

    fn version(&self) -> ResourceVersion {
        self.version
    }

    // The ConfigMap has other keys too. A replica may answer without having seen an edit of those.
    fn is_same(&self, other: &Self) -> bool {
        self.text == other.text
    }
}
