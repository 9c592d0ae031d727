//! The pods, and what each of them is to the sets that it was injected by.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use leadsman_api::limits;
use leadsman_api::slim::{Pod, PodStatus};

use super::context::{PodName, SetName};
use crate::cluster::{Interners, ObjectName, ResourceVersion};
use crate::sidecarset::annotations::{IN_PLACE_STATE, INJECTED_LIST, injected_sets};
use crate::sidecarset::condition::UPGRADABLE;
use crate::sidecarset::pod::{PodState, PodVersion, Progress};
use crate::sidecarset::rollout::queue::RollingCandidate;
use crate::sidecarset::rollout::recorded_by_upgrade;
use crate::workload::pod::ObservedPod;
use crate::workload::scatter::LabelPair;

/// Annotation of a pod by which the API server shows one that a kubelet runs from a file (`MirrorPodAnnotationKey` in
/// `k8s.io/kubernetes/pkg/kubelet/types`): no set is injected into it, and none upgrades it.
const MIRROR_POD: &str = "kubernetes.io/config.mirror";
/// Annotations that no two pods have in common: this one has the ids of containers.
const UNIQUE: &[&str] = &[IN_PLACE_STATE];

/// What the record of one set in a pod's annotations takes at least.
const RECORD_BYTES: usize = 256;
/// The most sets that a pod is taken to be injected by: the annotations of a pod have no room for the records of more. Mere
/// names would take a few bytes, and each costs an entry here.
pub(super) const MOST_SETS: usize = limits::ANNOTATIONS_BYTES / RECORD_BYTES;

/// A pod.
#[derive(Debug)]
pub(super) struct PodEntry {
    pub(super) pod: ObservedPod,
    pub(super) version: ResourceVersion,
    /// The sets that it was injected by, as it says.
    pub(super) injected: Box<[SetName]>,
    pub(super) condition: Option<ObservedCondition>,
    pub(super) is_mirror: bool,
    /// What it is to these sets. Empty while this process does not write.
    pub(super) memberships: Vec<Membership>,
    /// The sets that select it, and that it lacks.
    pub(super) lacks: Vec<(SetName, Lack)>,
    /// The set that it is being upgraded by. Whatever becomes of that write, the pod has another version then: a write of
    /// the version that is known would change it, or is refused.
    pub(super) sent: Option<SetName>,
}

/// The condition that says whether a pod can be upgraded, as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ObservedCondition {
    pub(super) is_upgradable: bool,
    pub(super) message: Arc<str>,
}

/// What a pod is to a set that it was injected by.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Membership {
    pub(super) set: SetName,
    /// As it is observed; the status counts this.
    pub(super) state: PodState,
    /// As it is if the write that is under way has been carried out; budgets count this.
    pub(super) assumed: PodState,
    /// Why it is not upgraded, apart from what the roll-out of the set says.
    pub(super) hold: Option<Hold>,
    /// Its place in the roll-out, if it can be upgraded.
    pub(super) candidate: Option<Arc<RollingCandidate>>,
    /// The labels by which the set scatters it.
    pub(super) labels: Box<[LabelPair]>,
    /// The revision that it has, as it says.
    pub(super) revision: Option<Arc<str>>,
    /// The revision that it was injected with, where an upgrade has replaced its images since.
    pub(super) injected: Option<Arc<str>>,
    /// Whether a variable that the set transfers was not there.
    pub(super) lacks_variable: bool,
}

/// Why a pod is not upgraded by a set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hold {
    /// Its last write was refused, for this reason.
    Refused(Arc<str>),
    /// An older set claims the same, and wins.
    Conflict(Arc<str>),
    /// It was injected by an earlier set of the same name.
    Former,
    /// It was injected with the revision that new pods are pinned to, in place of the newest.
    Pinned,
}

/// Why a pod lacks a set that selects it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lack {
    /// No webhook answered when it was created.
    Missed,
    /// It has a container of this name.
    OwnContainer(Arc<str>),
}

impl PodEntry {
    pub(super) fn new(wire: &Pod, interners: &mut Interners) -> Self {
        let annotation = |key: &str| {
            let mut annotations = wire.annotations.iter();
            annotations.find(|(own, _)| *own == key)
        };
        let is_mirror = annotation(MIRROR_POD).is_some();
        let list = annotation(INJECTED_LIST).map(|(_, list)| list.as_str());
        // Its file may be a copy of a pod that was injected. No write changes what its kubelet runs.
        let list = list.filter(|_| !is_mirror);
        let injected: BTreeSet<_> = injected_sets(list.unwrap_or_default())
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
        let version = ResourceVersion::parse(wire.identity.resource_version.as_deref());
        let mut conditions = wire.status.conditions.iter();
        let condition = conditions.find(|condition| condition.type_ == UPGRADABLE);
        Self {
            version,
            is_mirror,
            injected: injected.into_iter().collect(),
            condition: condition.map(|condition| ObservedCondition {
                is_upgradable: condition.status == "True",
                message: interners
                    .strings
                    .share(condition.message.as_deref().unwrap_or_default()),
            }),
            memberships: Vec::new(),
            lacks: Vec::new(),
            sent: None,
            pod,
        }
    }

    pub(super) fn is_injected_by(&self, set: &str) -> bool {
        self.injected.iter().any(|own| **own == *set)
    }

    pub(super) fn membership_in(&self, set: &str) -> Option<&Membership> {
        self.memberships.iter().find(|member| *member.set == *set)
    }
}

/// What sets read of a pod that none of them was injected into.
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

/// What a pod is once its upgrade has been written, or the end of a hot upgrade, which comes first.
pub(super) fn state_after_upgrade(state: PodState) -> PodState {
    // The end of a hot upgrade replaces an idle image and changes no version.
    let (version, last_upgrade) = if state.awaits_reset() {
        (state.version, state.last_upgrade)
    } else {
        (PodVersion::Updated, recorded_by_upgrade(state))
    };
    PodState {
        version,
        progress: Progress::Starting,
        last_upgrade,
        ..state
    }
}

/// The pods by name, and by the sets that they were injected by.
#[derive(Debug, Default)]
pub(super) struct Pods {
    by_name: HashMap<PodName, Box<PodEntry>>,
    by_set: HashMap<SetName, BTreeSet<PodName>>,
}

impl Pods {
    pub(super) fn get(&self, name: &ObjectName) -> Option<&PodEntry> {
        self.by_name.get(name).map(|entry| &**entry)
    }

    pub(super) fn get_mut(&mut self, name: &ObjectName) -> Option<&mut PodEntry> {
        self.by_name.get_mut(name).map(|entry| &mut **entry)
    }

    /// The pods that were injected by a set of this name.
    pub(super) fn injected_by(&self, set: &str) -> impl Iterator<Item = &PodName> {
        self.by_set.get(set).into_iter().flatten()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &PodEntry> {
        self.by_name.values().map(|entry| &**entry)
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut PodEntry> {
        self.by_name.values_mut().map(|entry| &mut **entry)
    }

    /// Replaces a pod. What it is to its sets stays until it is compared with them again.
    pub(super) fn replace_pod(&mut self, mut entry: PodEntry) {
        let name = entry.pod.name.clone();
        let before = self.by_name.remove(&name);
        let unchanged = before
            .as_ref()
            .is_some_and(|before| before.injected == entry.injected);
        if let Some(before) = before {
            if !unchanged {
                self.unlink_pod(&before);
            }
            // Compared later, together with all that the event affects: the counts must be taken back as they were
            // added.
            entry.memberships = before.memberships;
            entry.lacks = before.lacks;
            // A list may show the pod as it was: then the write that is under way can still be carried out. Any other version
            // refuses it, for it names the one before.
            if entry.version == before.version {
                entry.sent = before.sent;
            }
        }
        if !unchanged {
            for set in &entry.injected {
                let pods = self.by_set.entry(set.clone()).or_default();
                pods.insert(name.clone());
            }
        }
        self.by_name.insert(name, Box::new(entry));
    }

    pub(super) fn remove_pod(&mut self, name: &ObjectName) -> Option<PodEntry> {
        let entry = self.by_name.remove(name)?;
        self.unlink_pod(&entry);
        Some(*entry)
    }

    fn unlink_pod(&mut self, entry: &PodEntry) {
        for set in &entry.injected {
            if let Some(pods) = self.by_set.get_mut(set) {
                pods.remove(&entry.pod.name);
                if pods.is_empty() {
                    self.by_set.remove(set);
                }
            }
        }
    }
}
