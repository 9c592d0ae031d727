//! A `BroadcastJob` as the rules read it.

use std::collections::HashSet;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use leadsman_api::Verbatim;
use leadsman_api::broadcast_job::{BroadcastJob, BroadcastJobStatus};
use leadsman_reconcile::{ObjectName, ResourceVersion, Stored};

use crate::workload::amount::Amount;
use crate::workload::hash::sha256_of;
use crate::workload::node_fit::NodeRequirements;
use crate::workload::object;

/// The annotation of a job with the nodes on which it has succeeded, by [`node_hash`]. A pod that has succeeded may be deleted
/// at once, and no field of the status in `OpenKruise`'s CRD has room for its node.
pub const SUCCEEDED: &str = "broadcastjob.leadsman.io/succeeded";
/// The annotation of a job with the failures that were acknowledged, likewise.
pub const ACKNOWLEDGED: &str = "broadcastjob.leadsman.io/acknowledged";
/// The word of [`Stored::words`] under which jobs are found that have not ended.
pub(super) const UNFINISHED: &str = "unfinished";

/// Characters of [`node_hash`]. Two of 5,000 nodes share a hash in one of ten million jobs.
pub(super) const HASH: usize = 12;

/// Nodes, by [`node_hash`].
pub(super) type NodeHashes = HashSet<String>;

/// A node in the names of a job's pods and in its annotations.
pub fn node_hash(job_uid: &str, node: &str) -> String {
    let mut hash = sha256_of(&format!("{job_uid}/{node}"));
    hash.truncate(HASH);
    hash
}

/// The word under which the jobs are found that have not ended and whose pods' names begin so.
pub(super) fn word_of_pods(prefix: &str) -> String {
    format!("{prefix}-")
}

/// A job. A change of its state costs no copy of its template.
#[derive(Clone, Debug)]
pub struct Job {
    /// The job's name.
    pub name: ObjectName,
    /// The job's uid.
    pub uid: String,
    pub(super) version: ResourceVersion,
    pub(super) generation: i64,
    pub(super) is_going: bool,
    /// The job's spec.
    pub spec: Arc<JobSpec>,
    /// The status that was written last.
    pub status: BroadcastJobStatus,
    pub(super) succeeded: Arc<NodeHashes>,
    pub(super) acknowledged: Arc<NodeHashes>,
}

/// The spec of a job.
#[derive(Debug)]
pub struct JobSpec {
    pub(super) template: Verbatim,
    /// The pod's requirements on its node, or why nothing can be made of the template.
    pub requirements: Result<NodeRequirements, String>,
    /// The limit on pods that run at a time; None for one that no schema of ours lets pass, with which nothing runs.
    pub(super) parallelism: Option<Amount>,
    pub(super) is_paused: bool,
    /// Whether it ends at all.
    pub(super) ends: bool,
    pub(super) deadline: Option<SignedDuration>,
    pub(super) ttl: Option<SignedDuration>,
    pub(super) on_failure: OnFailure,
    pub(super) restart_limit: i64,
    /// Whether the kubelet restarts the containers of its pods.
    pub(super) restarts_containers: bool,
}

/// The consequence of a failed pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OnFailure {
    Fail,
    Continue,
    Pause,
}

impl Job {
    /// Reads a job.
    pub fn read(job: &BroadcastJob) -> Self {
        let metadata = &job.metadata;
        Self {
            name: ObjectName::of(metadata),
            uid: metadata.uid.clone().unwrap_or_default(),
            version: ResourceVersion::parse(metadata.resource_version.as_deref()),
            generation: metadata.generation.unwrap_or_default(),
            is_going: metadata.deletion_timestamp.is_some(),
            spec: Arc::new(JobSpec::read(job)),
            status: job.status.clone().unwrap_or_default(),
            succeeded: Arc::new(read_hashes(metadata, SUCCEEDED)),
            acknowledged: Arc::new(read_hashes(metadata, ACKNOWLEDGED)),
        }
    }

    /// How it has ended, as the type of its condition.
    pub fn end(&self) -> Option<End> {
        let mut conditions = self.status.conditions.iter();
        conditions.find_map(|condition| match &*condition.type_ {
            "Complete" if condition.status == "True" => Some(End::Complete),
            "Failed" if condition.status == "True" => Some(End::Failed),
            _ => None,
        })
    }

    /// The time at which the job fails if it has not ended.
    pub(super) fn deadline(&self, now: Timestamp) -> Option<Timestamp> {
        let start = self.status.start_time.as_ref().map_or(now, |time| time.0);
        self.spec
            .deadline
            .and_then(|deadline| start.checked_add(deadline).ok())
    }

    /// The name of its pod on a node. It is the same whoever creates it, so that no node gets two.
    pub(super) fn pod_name(&self, hash: &str) -> ObjectName {
        self.name.beside(format!("{}-{hash}", self.pod_prefix()))
    }

    /// The part of its pods' names before the node. The whole name is a DNS label, since it becomes the pod's host name.
    pub(super) fn pod_prefix(&self) -> &str {
        let most = leadsman_api::limits::LABEL - HASH - 1;
        &self.name.name[..self.name.name.len().min(most)]
    }
}

/// How a job has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Every node has had its pod.
    Complete,
    /// A pod has failed, or the time is over.
    Failed,
}

impl JobSpec {
    fn read(job: &BroadcastJob) -> Self {
        let (spec, completion) = (&job.spec, &job.spec.completion_policy);
        let template = spec.template.read();
        let pod = template
            .as_ref()
            .ok()
            .and_then(|template| object::inner(template, "spec"));
        let requirements = match (&template, pod) {
            (Err(error), _) => Err(error.to_string()),
            (_, None) => Err("spec.template.spec is missing".to_owned()),
            (_, Some(pod))
                if object::text(pod, "nodeName").is_some_and(|name| !name.is_empty()) =>
            {
                let why =
                    "spec.template.spec.nodeName binds each pod to the same node: leave it out";
                Err(why.to_owned())
            }
            (_, Some(pod)) => NodeRequirements::read(pod).map_err(|error| error.to_string()),
        };
        let restart_policy = pod.and_then(|pod| object::text(pod, "restartPolicy"));
        // Any other word is read as OpenKruise reads it.
        let ends = completion.type_.as_deref() != Some("Never");
        let seconds =
            |seconds: Option<i64>| seconds.filter(|_| ends).map(SignedDuration::from_secs);
        Self {
            template: spec.template.clone(),
            requirements,
            parallelism: match &spec.parallelism {
                Some(wire) => Amount::read(wire).ok().filter(|amount| !amount.is_zero()),
                None => Some(Amount::Percent(100)),
            },
            is_paused: spec.paused,
            ends,
            deadline: seconds(completion.active_deadline_seconds),
            ttl: seconds(completion.ttl_seconds_after_finished.map(i64::from)),
            on_failure: match spec.failure_policy.type_.as_deref() {
                // A job that never ends does not fail either.
                None | Some("" | "FailFast") if ends => OnFailure::Fail,
                Some("Pause") => OnFailure::Pause,
                _ => OnFailure::Continue,
            },
            restart_limit: spec.failure_policy.restart_limit.unwrap_or_default().into(),
            restarts_containers: restart_policy == Some("OnFailure"),
        }
    }
}

fn read_hashes(metadata: &ObjectMeta, key: &str) -> NodeHashes {
    let text = metadata.annotations.as_ref().and_then(|all| all.get(key));
    let hashes = text.into_iter().flat_map(|text| text.split(','));
    hashes
        .filter(|hash| !hash.is_empty())
        .map(str::to_owned)
        .collect()
}

impl Stored for Job {
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
        if self.end().is_none() && !self.is_going {
            found(UNFINISHED);
            found(&word_of_pods(self.pod_prefix()));
        }
    }

    fn is_same(&self, other: &Self) -> bool {
        // Each edit of the spec has a generation of its own.
        self.generation == other.generation
            && self.is_going == other.is_going
            && self.status == other.status
            && self.succeeded == other.succeeded
            && self.acknowledged == other.acknowledged
    }
}
