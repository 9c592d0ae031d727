//! The pods of a set by revision, and by what a re-creation would change in them.

use jiff::Timestamp;
use serde::Serialize;

use super::{FieldDifference, KnownSet, KnownSets, PodObject};
use crate::sidecarset::pod::{PodState, PodVersion};

/// The pods of a set, and in what they differ from it.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DriftReport {
    /// The set.
    pub set: String,
    /// The name of its present revision.
    pub revision: String,
    /// The set's pods, by namespace and name.
    pub pods: Vec<PodDrift>,
}

/// A pod with its differences from the set.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodDrift {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub name: String,
    /// The name of its revision; None if its annotation has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
    /// The step that makes it what it would be if it were created now.
    pub takes: DriftRemedy,
    /// The fields that differ.
    pub differs: Vec<FieldDifference>,
}

/// The step that makes a pod what it would be if it were created now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum DriftRemedy {
    /// Nothing: the pod is that already.
    Nothing,
    /// An upgrade in place: only images differ.
    Upgrade,
    /// An upgrade for the images, and its re-creation for the rest.
    UpgradeAndRecreation,
    /// The pod's re-creation.
    Recreation,
}

impl DriftRemedy {
    fn of(state: Option<PodState>, differs: &[FieldDifference]) -> Self {
        let images = differs.iter().filter(|one| one.is_image()).count();
        let is_upgradable = state.is_some_and(|state| state.version == PodVersion::Upgradable);
        match (differs.len(), images) {
            (0, _) => Self::Nothing,
            (_, 0) => Self::Recreation,
            // Images are replaced only in a pod that differs in nothing else that is hashed.
            _ if !is_upgradable => Self::Recreation,
            (all, images) if all == images => Self::Upgrade,
            _ => Self::UpgradeAndRecreation,
        }
    }
}

impl PodDrift {
    /// Compares a pod with a set. None if the pod terminates or has ended, was not injected by the set, or is not selected by
    /// it any more.
    pub fn of(known: &KnownSet, pod: &PodObject, sets: &KnownSets, now: Timestamp) -> Option<Self> {
        let namespace = &pod.observed.name.namespace;
        let labels = sets.namespaces.get(namespace);
        let label = labels.map(|labels| |key: &str| labels.get(key).map(String::as_str));
        let set = &known.set;
        let is_own = pod.observed.is_active()
            && pod.is_injected_by(set)
            && set.selects(namespace, label, |key| pod.observed.label(key));
        is_own.then(|| {
            let differs = known.differences(pod, sets, now);
            Self {
                namespace: namespace.clone(),
                name: pod.observed.name.name.clone(),
                revision: pod.revision(&set.name),
                takes: DriftRemedy::of(known.state(pod, labels, now), &differs),
                differs,
            }
        })
    }
}

impl DriftReport {
    /// The report on a set with its pods, in any order.
    pub fn new(known: &KnownSet, mut pods: Vec<PodDrift>) -> Self {
        pods.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
        Self {
            set: known.set.name.to_string(),
            revision: known.history.newest.to_string(),
            pods,
        }
    }
}
