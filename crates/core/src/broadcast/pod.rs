//! The pods of jobs: what is read of one, and what a new one is.

use std::borrow::Cow;
use std::sync::Arc;

use leadsman_api::broadcast_job::{JOB_NAME_LABEL, JOB_UID_LABEL};
use leadsman_api::slim::Pod;
use leadsman_reconcile::{ObjectName, ResourceVersion, Stored};
use serde_json::{Value, json};

use super::job::{HASH, Job, node_hash};
use crate::workload::{JsonObject, object};

/// A pod. Of one that belongs to no job only its name is kept, which it may have before a job's pod.
#[derive(Clone, Debug, PartialEq)]
pub struct JobPod {
    /// The pod's name.
    pub name: ObjectName,
    pub(super) uid: String,
    version: ResourceVersion,
    pub(super) owner: Option<Arc<PodOwner>>,
    /// The node that it is bound to or for.
    pub(super) node: Option<String>,
    pub(super) is_bound: bool,
    pub(super) phase: JobPodPhase,
    pub(super) is_going: bool,
    /// Restarts of all its containers.
    pub(super) restarts: i64,
    /// Whether the kubelet is to end it at once.
    pub(super) is_stopped: bool,
    /// Why the scheduler finds no place for it, in its own words.
    pub(super) unschedulable: Option<String>,
}

/// The job of a pod.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct PodOwner {
    pub(super) job: String,
    pub(super) uid: String,
}

/// How far a pod is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum JobPodPhase {
    /// The pod runs, or waits to run.
    Active,
    Succeeded,
    Failed,
}

impl JobPod {
    /// Reads a pod. It belongs to a job by both labels and its controller.
    pub fn read(pod: &Pod) -> Self {
        let label = |key: &str| {
            let label = pod.labels.iter().find(|(known, _)| known == key);
            label.map(|(_, value)| value)
        };
        let (name, identity) = (ObjectName::of(&pod.identity), &pod.identity);
        let version = ResourceVersion::parse(identity.resource_version.as_deref());
        let owner = label(JOB_UID_LABEL).filter(|uid| pod.controller.as_ref() == Some(uid));
        let (Some(uid), Some(job)) = (owner, label(JOB_NAME_LABEL)) else {
            return Self::named(name, version);
        };
        let status = &pod.status;
        let containers = status
            .container_statuses
            .iter()
            .chain(&status.init_container_statuses);
        let mut conditions = status.conditions.iter();
        let unscheduled =
            conditions.find(|one| one.type_ == "PodScheduled" && one.status == "False");
        let node = pod
            .spec
            .node_name
            .as_ref()
            .or(pod.spec.pinned_node.as_ref());
        Self {
            name,
            uid: identity.uid.clone().unwrap_or_default(),
            version,
            owner: Some(Arc::new(PodOwner {
                job: job.clone(),
                uid: uid.clone(),
            })),
            node: node.cloned(),
            is_bound: pod.spec.node_name.is_some(),
            phase: match status.phase.as_deref() {
                Some("Succeeded") => JobPodPhase::Succeeded,
                Some("Failed") => JobPodPhase::Failed,
                _ => JobPodPhase::Active,
            },
            is_going: identity.deletion_timestamp.is_some(),
            restarts: containers.map(|one| i64::from(one.restart_count)).sum(),
            is_stopped: pod.spec.active_deadline_seconds == Some(1),
            unschedulable: unscheduled.and_then(|one| one.message.clone()),
        }
    }

    /// A pod of which only the name is known.
    fn named(name: ObjectName, version: ResourceVersion) -> Self {
        Self {
            name,
            uid: String::new(),
            version,
            owner: None,
            node: None,
            is_bound: false,
            phase: JobPodPhase::Active,
            is_going: false,
            restarts: 0,
            is_stopped: false,
            unschedulable: None,
        }
    }

    /// A pod of a job as it is once it is created.
    pub(super) fn new(job: &Job, name: ObjectName, node: &str) -> Self {
        Self {
            owner: Some(Arc::new(PodOwner {
                job: job.name.name.clone(),
                uid: job.uid.clone(),
            })),
            node: Some(node.to_owned()),
            ..Self::named(name, ResourceVersion::UNKNOWN)
        }
    }

    /// The [`node_hash`] of the pod's node. A pod that `OpenKruise` has created has another name.
    pub(super) fn node_hash(&self, job_uid: &str) -> Option<Cow<'_, str>> {
        let named = self
            .name
            .name
            .rsplit_once('-')
            .filter(|(_, hash)| hash.len() == HASH)
            .map(|(_, hash)| Cow::Borrowed(hash));
        named.or_else(|| Some(Cow::Owned(node_hash(job_uid, self.node.as_deref()?))))
    }
}

impl Stored for JobPod {
    fn name(&self) -> ObjectName {
        self.name.clone()
    }

    fn uid(&self) -> &str {
        &self.uid
    }

    fn version(&self) -> ResourceVersion {
        self.version
    }

    fn words(&self, found: &mut dyn FnMut(&str)) {
        if let Some(owner) = &self.owner {
            found(&owner.uid);
        }
    }

    fn is_same(&self, other: &Self) -> bool {
        let Self {
            owner,
            node,
            is_bound,
            phase,
            is_going,
            restarts,
            is_stopped,
            unschedulable,
            ..
        } = self;
        (owner, node, phase) == (&other.owner, &other.node, &other.phase)
            && *is_bound == other.is_bound
            && (is_going, restarts, is_stopped)
                == (&other.is_going, &other.restarts, &other.is_stopped)
            && *unschedulable == other.unschedulable
    }
}

/// The pod of a job for a node. The required affinity of the template chose the nodes, and names this one instead; the
/// scheduler binds the pod.
pub(super) fn new_pod(job: &Job, name: &ObjectName, node: &str) -> Value {
    let template = job.spec.template.read().unwrap_or_default();
    let metadata = object::inner(&template, "metadata");
    let part = |field: &str| metadata.and_then(|metadata| metadata.get(field));
    let mut labels = part("labels")
        .and_then(Value::as_object)
        .cloned()
        .unwrap_or_default();
    labels.insert(JOB_NAME_LABEL.to_owned(), json!(job.name.name));
    labels.insert(JOB_UID_LABEL.to_owned(), json!(job.uid));
    let mut spec = object::inner(&template, "spec")
        .cloned()
        .unwrap_or_default();
    let affinity = object_mut(&mut spec, "affinity");
    let term =
        json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]});
    object_mut(affinity, "nodeAffinity").insert(
        "requiredDuringSchedulingIgnoredDuringExecution".to_owned(),
        json!({"nodeSelectorTerms": [term]}),
    );
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name.name,
            "namespace": name.namespace,
            "labels": labels,
            "annotations": part("annotations"),
            "finalizers": part("finalizers"),
            "ownerReferences": [{
                "apiVersion": "apps.kruise.io/v1beta1",
                "kind": "BroadcastJob",
                "name": job.name.name,
                "uid": job.uid,
                "controller": true,
                "blockOwnerDeletion": true,
            }],
        },
        "spec": spec,
    })
}

/// The object in a field, made if there is none.
fn object_mut<'a>(object: &'a mut JsonObject, field: &str) -> &'a mut JsonObject {
    let inner = object.entry(field).or_insert_with(|| json!({}));
    if !inner.is_object() {
        *inner = json!({});
    }
    inner.as_object_mut().expect("it is an object now")
}
