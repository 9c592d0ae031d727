//! The pods of sets: what is read of one, and how one is changed.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use leadsman_api::clone_set::{INSTANCE_LABEL, LIFECYCLE_LABEL, SPECIFIED_DELETE_LABEL};
use leadsman_api::slim::Pod;
use leadsman_reconcile::{ObjectName, ResourceVersion, Stored, whole_seconds};
use serde_json::{Value, json};

use super::service::Service;
use super::state::{LifecycleState, TIMESTAMP};
use crate::cluster::{Interners, SortedMap};
use crate::workload::pod::{ObservedPod, PodPhase};

/// The label of a pod with its revision.
pub(super) const REVISION_LABEL: &str = "controller-revision-hash";
/// The readiness gate of each pod, by which it is taken out of service while it is updated in place.
pub(super) const GATE: &str = "InPlaceUpdateReady";
/// The annotation of a pod with what its containers were before it was updated in place.
pub(super) const IN_PLACE_STATE: &str = "apps.kruise.io/inplace-update-state";
/// The annotation of a held pod that is to be deleted because it is not of this revision. Once another one is wanted, it is void.
pub(super) const REPLACED_FOR: &str = "cloneset.leadsman.io/replaced-for";
/// The annotation of a held pod that was normal before.
pub(super) const WAS_NORMAL: &str = "cloneset.leadsman.io/was-normal";
const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";

/// A pod. Of one that belongs to no set only its name is kept, which a set's pod cannot have.
#[derive(Clone, Debug, PartialEq)]
pub struct ClonePod {
    /// The pod's name.
    pub name: ObjectName,
    version: ResourceVersion,
    /// The uid of its controller.
    pub(super) owner: Option<String>,
    /// Facts that are read of any pod that is updated in place.
    pub(super) observed: Arc<ObservedPod>,
    /// Labels of its own, which each run asks for of each pod of a set.
    labels: OwnLabels,
    pub(super) node: Option<String>,
    pub(super) finalizers: Vec<String>,
    /// Whether the gate is open, and since when it is as it is. None if nobody has said so.
    pub(super) gate: Option<(bool, Option<Timestamp>)>,
    /// The gate by which hooks keep it out of service, if it has that.
    pub(super) service: Option<Service>,
    /// Whether it was normal before it was held.
    pub(super) was_normal: bool,
}

/// The labels of a pod that are the set's own.
#[derive(Clone, Debug, PartialEq)]
struct OwnLabels {
    state: LifecycleState,
    revision: Option<Arc<str>>,
    is_specified: bool,
}

impl OwnLabels {
    fn read(pod: &ObservedPod) -> Self {
        Self {
            state: LifecycleState::read(pod.label(LIFECYCLE_LABEL)),
            revision: pod.labels.get(REVISION_LABEL).cloned(),
            is_specified: pod.label(SPECIFIED_DELETE_LABEL).is_some(),
        }
    }
}

impl ClonePod {
    /// Reads a pod. It belongs to a set by its controller and the label that each pod of a set has.
    pub fn read(pod: &Pod, interners: &mut Interners) -> Self {
        let identity = &pod.identity;
        let (name, version) = (
            ObjectName::of(identity),
            ResourceVersion::parse(identity.resource_version.as_deref()),
        );
        let is_of_set = pod.labels.iter().any(|(key, _)| key == INSTANCE_LABEL);
        let owner = pod.controller.clone().filter(|_| is_of_set);
        let Some(owner) = owner else {
            let named = json!({"metadata": {"name": name.name, "namespace": name.namespace}});
            let named: Pod = serde_json::from_value(named).unwrap_or_default();
            return Self {
                version,
                ..Self::of(None, &named, interners)
            };
        };
        Self::of(Some(owner), pod, interners)
    }

    fn of(owner: Option<String>, pod: &Pod, interners: &mut Interners) -> Self {
        let identity = &pod.identity;
        let observed = ObservedPod::share(pod, &[IN_PLACE_STATE, TIMESTAMP], interners);
        let gate = pod.status.conditions.iter().find(|one| one.type_ == GATE);
        Self {
            name: ObjectName::of(identity),
            version: ResourceVersion::parse(identity.resource_version.as_deref()),
            owner,
            node: pod.spec.node_name.clone(),
            finalizers: identity.finalizers.clone().unwrap_or_default(),
            gate: gate.map(|one| {
                let since = one.last_transition_time.as_ref();
                (one.status == "True", since.map(|time| time.0))
            }),
            service: Service::read(pod),
            was_normal: !observed.annotation(WAS_NORMAL).is_empty(),
            labels: OwnLabels::read(&observed),
            observed: Arc::new(observed),
        }
    }

    /// A pod as it is once it is created.
    pub(super) fn created(owner: &str, body: &Value) -> Self {
        let pod: Pod = serde_json::from_value(body.clone()).unwrap_or_default();
        Self::of(Some(owner.to_owned()), &pod, &mut Interners::default())
    }

    pub(super) fn state(&self) -> LifecycleState {
        self.labels.state
    }

    /// The hash in its revision's name.
    pub(super) fn revision_hash(&self) -> &str {
        hash_in(self.labels.revision.as_deref().unwrap_or_default())
    }

    /// Whether somebody wants it deleted, by its label.
    pub(super) fn is_specified(&self) -> bool {
        self.labels.is_specified
    }

    /// Whether its gate is closed.
    pub(super) fn is_drained(&self) -> bool {
        self.gate.is_some_and(|(is_open, _)| !is_open)
    }

    pub(super) fn is_ready(&self) -> bool {
        let is_held = self.service.as_ref().is_some_and(Service::is_closed);
        self.observed.is_ready() && !self.is_drained() && !is_held
    }

    /// Time at which it is available, if it stays as it is.
    pub(super) fn available_at(&self, min_ready: SignedDuration) -> Option<Timestamp> {
        let is_counted = self.is_ready() && self.state().is_normal();
        let since = self
            .observed
            .ready
            .filter(|_| is_counted)?
            .unwrap_or(Timestamp::MIN);
        Some(since.checked_add(min_ready).unwrap_or(Timestamp::MAX))
    }

    pub(super) fn is_available(&self, min_ready: SignedDuration, now: Timestamp) -> bool {
        self.available_at(min_ready).is_some_and(|at| at <= now)
    }

    /// How much is lost with it, in the words of its author. The API server refuses what is no number.
    pub(super) fn deletion_cost(&self) -> i32 {
        self.observed.annotation(DELETION_COST).parse().unwrap_or(0)
    }
}

/// Whether a label or an annotation of a pod is the set's own, so that no template gives or takes it.
pub(super) fn is_own(key: &str) -> bool {
    const OWN: [&str; 8] = [
        INSTANCE_LABEL,
        LIFECYCLE_LABEL,
        SPECIFIED_DELETE_LABEL,
        REVISION_LABEL,
        IN_PLACE_STATE,
        REPLACED_FOR,
        WAS_NORMAL,
        TIMESTAMP,
    ];
    OWN.contains(&key)
}

/// The hash at the end of a revision's name; the whole text if that is all there is.
pub(super) fn hash_in(revision: &str) -> &str {
    revision.rsplit('-').next().unwrap_or_default()
}

impl Stored for ClonePod {
    fn name(&self) -> ObjectName {
        self.name.clone()
    }

    fn shared_name(&self) -> Arc<ObjectName> {
        self.observed.name.clone()
    }

    fn uid(&self) -> &str {
        &self.observed.uid
    }

    fn version(&self) -> ResourceVersion {
        self.version
    }

    fn words(&self, found: &mut dyn FnMut(&str)) {
        if let Some(owner) = &self.owner {
            found(owner);
        }
    }

    fn is_same(&self, other: &Self) -> bool {
        self.owner == other.owner
            && self.node == other.node
            && self.finalizers == other.finalizers
            && self.gate == other.gate
            && self.service == other.service
            && self.observed.is_same(&other.observed)
    }
}

/// A change of a pod: what a patch says, and what the pod is then.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct PodChange {
    /// Labels; None takes one away.
    pub(super) labels: Vec<(String, Option<String>)>,
    /// Annotations, likewise.
    pub(super) annotations: Vec<(String, Option<String>)>,
    /// Finalizers that are added.
    pub(super) finalizers: Vec<String>,
    /// Images by their containers.
    pub(super) images: Vec<(String, String)>,
    /// Whether the gate is open.
    pub(super) gate: Option<bool>,
    /// The gate by which hooks keep it out of service.
    pub(super) service: Option<Service>,
    /// Whether the pod loses its owner, of this uid.
    pub(super) released_by: Option<String>,
    /// The time of the change.
    pub(super) at: Timestamp,
}

impl PodChange {
    pub(super) fn new(at: Timestamp) -> Self {
        Self {
            at: whole_seconds(at),
            ..Self::default()
        }
    }

    /// Moves the lifecycle on.
    pub(super) fn in_state(mut self, state: LifecycleState) -> Self {
        self.labels
            .push((LIFECYCLE_LABEL.to_owned(), Some(state.word().to_owned())));
        self.annotations
            .push((TIMESTAMP.to_owned(), Some(self.at.to_string())));
        self
    }

    /// Says what it achieves, without its time.
    pub(super) fn purpose(&self) -> String {
        let annotations: Vec<_> = self.annotations.iter().map(|(key, _)| key).collect();
        format!(
            "{:?} {annotations:?} {:?} {:?} {:?} {:?} {:?}",
            self.labels, self.finalizers, self.images, self.gate, self.service, self.released_by
        )
    }

    /// A strategic merge patch of the pod of this uid.
    pub(super) fn patch(&self, uid: &str) -> Value {
        let pairs = |pairs: &[(String, Option<String>)]| -> Value {
            let pairs = pairs.iter();
            let pairs = pairs.map(|(key, value)| (key.clone(), json!(value)));
            Value::Object(pairs.collect())
        };
        let mut patch = json!({"metadata": {"uid": uid}});
        if !self.labels.is_empty() {
            patch["metadata"]["labels"] = pairs(&self.labels);
        }
        if !self.annotations.is_empty() {
            patch["metadata"]["annotations"] = pairs(&self.annotations);
        }
        if !self.finalizers.is_empty() {
            patch["metadata"]["finalizers"] = json!(self.finalizers);
        }
        if let Some(owner) = &self.released_by {
            patch["metadata"]["ownerReferences"] = json!([{"$patch": "delete", "uid": owner}]);
        }
        if !self.images.is_empty() {
            let images = self
                .images
                .iter()
                .map(|(name, image)| json!({"name": name, "image": image}));
            patch["spec"] = json!({"containers": images.collect::<Vec<_>>()});
        }
        let mut conditions = Vec::new();
        if let Some(is_open) = self.gate {
            let status = if is_open { "True" } else { "False" };
            conditions.push(
                json!({"type": GATE, "status": status, "lastTransitionTime": self.at.to_string(),
                "reason": if is_open { Value::Null } else { json!("StartInPlaceUpdate") }}),
            );
        }
        if let Some(service) = &self.service {
            conditions.push(service.to_condition(self.at));
        }
        if !conditions.is_empty() {
            patch["status"] = json!({"conditions": conditions});
        }
        patch
    }

    /// The pod as it is then.
    pub(super) fn apply(&self, pod: &ClonePod) -> ClonePod {
        let mut pod = pod.clone();
        let mut observed = (*pod.observed).clone();
        observed.labels = Arc::new(merged(&observed.labels, &self.labels));
        observed.annotations = merged(&observed.annotations, &self.annotations);
        for (name, image) in &self.images {
            let mut containers = observed.containers.iter_mut();
            if let Some(one) = containers.find(|one| !one.is_init && *one.name == **name) {
                one.image = image.as_str().into();
            }
        }
        pod.labels = OwnLabels::read(&observed);
        pod.observed = Arc::new(observed);
        let missing: Vec<_> = self
            .finalizers
            .iter()
            .filter(|one| !pod.finalizers.contains(one))
            .cloned()
            .collect();
        pod.finalizers.extend(missing);
        if let Some(is_open) = self.gate
            && pod.gate.is_none_or(|(was_open, _)| was_open != is_open)
        {
            pod.gate = Some((is_open, Some(self.at)));
        }
        if self.service.is_some() {
            pod.service.clone_from(&self.service);
        }
        if self.released_by.is_some() {
            pod.owner = None;
        }
        pod
    }
}

fn merged(map: &SortedMap<Arc<str>>, changes: &[(String, Option<String>)]) -> SortedMap<Arc<str>> {
    let is_changed = |key: &str| changes.iter().any(|(changed, _)| changed == key);
    let kept = map
        .iter()
        .filter(|(key, _)| !is_changed(key))
        .map(|(key, value)| (key.clone(), value.clone()));
    let set = changes.iter().filter_map(|(key, value)| {
        let value = value.as_deref()?;
        Some((Arc::from(key.as_str()), Arc::from(value)))
    });
    kept.chain(set).collect()
}

/// Whether it neither terminates nor has ended.
pub(super) fn is_active(pod: &ClonePod) -> bool {
    pod.observed.phase != PodPhase::Ended && !pod.observed.is_terminating
}
