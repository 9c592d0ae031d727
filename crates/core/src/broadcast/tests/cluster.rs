//! Jobs, pods and nodes on a [`TestServer`], with kubelets.

use std::collections::BTreeSet;
use std::time::Duration;

use leadsman_api::BroadcastJob;
use leadsman_api::slim::{Node, Pod};
use leadsman_reconcile::ObjectName;
use serde_json::{Value, json};

use super::super::job::node_hash;
use super::super::pod::JobPodPhase;
use super::super::writes::BroadcastJobs;
use super::super::{ACKNOWLEDGED, JobWorld, SUCCEEDED};
pub(super) use crate::test_server::Answer;
use crate::test_server::{TestServer, Tested, Watched};

pub(super) const JOB: &str = "ok";
const NAMESPACE: &str = "b";

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Job,
    Pod,
    Node,
}

pub(super) const KINDS: [Kind; 3] = [Kind::Job, Kind::Pod, Kind::Node];

pub(super) type Cluster = TestServer<BroadcastJobs>;

#[derive(Default)]
pub(crate) struct Notes {
    /// The pods for a node.
    by_node: BTreeSet<(String, String)>,
    /// The nodes whose success this process has taken in, or that stand in the job's annotation.
    seen: BTreeSet<String>,
    /// Those of them whose creation is under way, which was sent again before the success of what it had made was taken in.
    sent_again: BTreeSet<String>,
}

impl Tested for BroadcastJobs {
    type Kind = Kind;
    type Notes = Notes;
    const KINDS: &'static [(Kind, &'static str, Watched<Self>)] = &[
        (Kind::Job, "broadcastjobs", Watched::of::<BroadcastJob>()),
        (Kind::Pod, "pods", Watched::of::<Pod>()),
        (Kind::Node, "nodes", Watched::of::<Node>()),
    ];
    const POD: Kind = Kind::Pod;

    fn limit_pods(world: &JobWorld) -> usize {
        let job = world.jobs.observed(&job_name());
        job.and_then(|job| job.spec.parallelism)
            .map_or(0, |amount| amount.of(1_000_000))
    }

    fn check_creation(cluster: &Cluster, pod: &Value, limit: usize) {
        let node = pinned(pod);
        assert!(
            cluster.pod_of(&node).is_none(),
            "{node} has a pod of the job already"
        );
        // The reference excuses this one at the rule on pods that are deleted.
        let is_sent_again = cluster.notes.sent_again.contains(&node);
        assert!(
            is_sent_again || !cluster.is_known_as_done(&node),
            "{node} has succeeded already"
        );
        let by_node = &cluster.notes.by_node;
        if limit > by_node.len() {
            return;
        }
        let pods = by_node.iter();
        let pods = pods.filter_map(|(_, name)| cluster.get(Kind::Pod, name));
        let running = pods.filter(|pod| !has_ended(pod)).count();
        assert!(running < limit, "{running} pods run already, of {limit}");
    }

    fn delete(cluster: &mut Cluster, kind: Kind, name: &str) {
        match kind {
            Kind::Pod => cluster.delete_pod_named(name),
            _ => cluster.remove(kind, name),
        }
    }

    fn note_object(cluster: &mut Cluster, kind: Kind, name: &str, object: &Value, is_there: bool) {
        let by_node = &mut cluster.notes.by_node;
        let entry = (pinned(object), name.to_owned());
        match kind {
            Kind::Pod if is_there => by_node.insert(entry),
            _ => by_node.remove(&entry),
        };
    }

    fn note_run(cluster: &mut Cluster) {
        let world = cluster.reconciler.world();
        let job = world.jobs.observed(&job_name());
        if let Some(job) = job.filter(|job| job.end().is_none()) {
            let pods = world.pods.find_in(&job.name.namespace, &job.uid);
            let done = pods.filter(|pod| pod.phase == JobPodPhase::Succeeded);
            let done = done.filter_map(|pod| pod.node.clone());
            let done = done.filter(|node| world.nodes.observed(&node_name(node)).is_some());
            let there = done.filter(|node| cluster.get(Kind::Node, node).is_some());
            let there: Vec<_> = there.collect();
            let is_under_way = |node: &String| {
                let pod = job.pod_name(&node_hash(&job.uid, node));
                cluster.is_under_way("broadcastjob_create_pod", &pod)
            };
            let mut sent_again = cluster.notes.sent_again.clone();
            let new = there
                .iter()
                .filter(|node| !cluster.notes.seen.contains(*node));
            sent_again.extend(new.cloned());
            sent_again.retain(is_under_way);
            cluster.notes.sent_again = sent_again;
            cluster.notes.seen.extend(there);
        }
    }

    fn note_term(cluster: &mut Cluster) {
        let mut seen = std::mem::take(&mut cluster.notes.seen);
        seen.retain(|node| cluster.is_recorded(node));
        cluster.notes.seen = seen;
    }
}

impl Cluster {
    /// With three nodes, n1 to n3, and a job.
    pub(super) fn with_job(spec: Value) -> Self {
        let mut cluster = Self::new();
        for node in ["n1", "n2", "n3"] {
            cluster.add_node(node);
        }
        cluster.create_job(spec);
        cluster.settle();
        cluster
    }

    // What others do.

    /// A job with these fields beside a template.
    pub(super) fn create_job(&mut self, mut spec: Value) {
        if spec.get("template").is_none() {
            spec["template"] = json!({"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}});
        }
        let job = json!({"metadata": {"name": JOB, "namespace": NAMESPACE}, "spec": spec});
        self.create(Kind::Job, JOB, job);
    }

    pub(super) fn add_node(&mut self, name: &str) {
        if self.get(Kind::Node, name).is_none() {
            let node = json!({"metadata": {"name": name, "labels": {"zone": "a"}}, "spec": {},
                "status": {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "110"}}});
            self.create(Kind::Node, name, node);
        }
    }

    /// Its pods are collected later.
    pub(super) fn remove_node(&mut self, name: &str) {
        self.remove(Kind::Node, name);
        self.notes.seen.remove(name);
    }

    pub(super) fn edit_job(&mut self, spec: &Value) {
        self.patch(Kind::Job, JOB, &json!({"spec": spec}));
    }

    /// Taints a node; Kubernetes evicts what does not tolerate `NoExecute`.
    pub(super) fn taint(&mut self, node: &str, effect: Option<&str>) {
        let taints = effect.map(|effect| json!([{"key": "a", "effect": effect}]));
        self.patch(Kind::Node, node, &json!({"spec": {"taints": taints}}));
        if effect == Some("NoExecute") {
            self.delete_pod(node);
        }
    }

    /// The job's pod for a node.
    pub(super) fn pod_of(&self, node: &str) -> Option<(String, Value)> {
        let mut pods = self.notes.by_node.range((node.to_owned(), String::new())..);
        let (_, name) = pods.next().filter(|(known, _)| known == node)?;
        Some((name.clone(), self.get(Kind::Pod, name)?.clone()))
    }

    /// The kubelet of a node reports a phase of the job's pod, and so many restarts or as many as before. One that has ended
    /// stays so.
    pub(super) fn report(&mut self, node: &str, phase: &str, restarts: i64) {
        if self.get(Kind::Node, node).is_none() {
            return;
        }
        if let Some((name, pod)) = self.pod_of(node).filter(|(_, pod)| !has_ended(pod)) {
            let is_stopped = pod["spec"]["activeDeadlineSeconds"] == 1;
            let phase = if is_stopped { "Failed" } else { phase };
            let before = &pod["status"]["containerStatuses"][0]["restartCount"];
            let restarts = restarts.max(before.as_i64().unwrap_or_default());
            let status = json!({"phase": phase, "containerStatuses": [{"name": "c", "restartCount": restarts}]});
            self.patch(
                Kind::Pod,
                &name,
                &json!({"spec": {"nodeName": node}, "status": status}),
            );
        }
    }

    /// Deletes the job's pod for a node: one that has ended or is bound to no node goes at once, another one when its kubelet
    /// says so.
    pub(super) fn delete_pod(&mut self, node: &str) {
        if let Some((name, _)) = self.pod_of(node) {
            self.delete_pod_named(&name);
        }
    }

    fn delete_pod_named(&mut self, name: &str) {
        match self.get(Kind::Pod, name) {
            Some(pod) if has_ended(pod) || !is_bound(pod) => self.remove(Kind::Pod, name),
            _ => {
                let at = self.time().wall.to_string();
                let going = json!({"metadata": {"deletionTimestamp": at}});
                self.patch(Kind::Pod, name, &going);
            }
        }
    }

    /// The kubelet ends the pods of a node that are being deleted, and the garbage collector those of nodes that are gone.
    pub(super) fn collect(&mut self, node: &str) {
        if let Some((name, pod)) = self.pod_of(node) {
            let is_going = pod["metadata"].get("deletionTimestamp").is_some();
            if is_going {
                self.remove(Kind::Pod, &name);
            } else if is_bound(&pod) && self.get(Kind::Node, node).is_none() {
                // Its last sight is that it has failed (`gcOrphaned`, `pkg/controller/podgc/gc_controller.go`).
                if !has_ended(&pod) {
                    self.patch(Kind::Pod, &name, &json!({"status": {"phase": "Failed"}}));
                }
                self.remove(Kind::Pod, &name);
            }
        }
    }

    pub(super) fn job(&self) -> &Value {
        self.get(Kind::Job, JOB).unwrap()
    }

    /// Phase, and active, succeeded, failed and desired.
    pub(super) fn status(&self) -> (String, [i64; 4]) {
        let status = &self.job()["status"];
        let count = |field: &str| status[field].as_i64().unwrap_or(-1);
        let phase = status["phase"].as_str().unwrap_or_default().to_owned();
        let counts = ["active", "succeeded", "failed", "desired"].map(count);
        (phase, counts)
    }

    pub(super) fn condition(&self) -> Option<(String, String)> {
        let condition = self.job().pointer("/status/conditions/0")?;
        let text = |field: &str| condition[field].as_str().unwrap().to_owned();
        Some((text("type"), text("message")))
    }

    /// The nodes for which there is a pod.
    pub(super) fn nodes_with_pods(&self) -> Vec<String> {
        self.notes
            .by_node
            .iter()
            .map(|(node, _)| node.clone())
            .collect()
    }

    pub(super) fn nodes_with_pod_count(&self) -> usize {
        self.notes.by_node.len()
    }

    /// The nodes that are done as far as a leader can know: a pod has succeeded there, or the annotation says so, or it was seen.
    pub(super) fn is_known_as_done(&self, node: &str) -> bool {
        self.notes.seen.contains(node) || self.is_recorded(node)
    }

    fn is_recorded(&self, node: &str) -> bool {
        let Some(job) = self.get(Kind::Job, JOB) else {
            return false;
        };
        let hash = node_hash(job["metadata"]["uid"].as_str().unwrap(), node);
        let recorded = job["metadata"]["annotations"][SUCCEEDED].as_str();
        recorded.is_some_and(|recorded| recorded.split(',').any(|one| one == hash))
    }

    pub(super) fn acknowledged(&self) -> usize {
        let acknowledged = self.job()["metadata"]["annotations"][ACKNOWLEDGED].as_str();
        acknowledged.map_or(0, |text| text.split(',').count())
    }

    /// Whether the next answer is to a creation.
    pub(super) fn is_creation_first(&self) -> bool {
        self.first_under_way() == Some("broadcastjob_create_pod")
    }

    /// Carries everything out and shows everything, for a while.
    pub(super) fn settle(&mut self) {
        for _ in 0..10 {
            self.step();
            self.wait(Duration::from_secs(2));
        }
    }
}

pub(super) fn job_name() -> ObjectName {
    ObjectName {
        namespace: NAMESPACE.to_owned(),
        name: JOB.to_owned(),
    }
}

pub(super) fn node_name(node: &str) -> ObjectName {
    ObjectName {
        namespace: String::new(),
        name: node.to_owned(),
    }
}

fn is_bound(pod: &Value) -> bool {
    pod["spec"]["nodeName"].is_string()
}

fn has_ended(pod: &Value) -> bool {
    matches!(
        pod["status"]["phase"].as_str(),
        Some("Succeeded" | "Failed")
    )
}

/// The node that a pod is for.
fn pinned(object: &Value) -> String {
    const NAME: &str = "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms/0/matchFields/0/values/0";
    let bound = object
        .pointer("/spec/nodeName")
        .or_else(|| object.pointer(NAME));
    bound.and_then(Value::as_str).unwrap_or_default().to_owned()
}
