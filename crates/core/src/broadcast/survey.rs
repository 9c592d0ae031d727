//! What there is of a job: its pods and the nodes that it is for, each counted once.

use leadsman_api::slim::Node;
use leadsman_reconcile::{ObjectName, ResourceVersion, Store, Stored};

use super::job::{Job, NodeHashes, node_hash};
use super::pod::{JobPod, PodPhase};
use crate::workload::node_fit::NodeFacts;

/// A node.
#[derive(Debug, PartialEq)]
pub struct KnownNode {
    name: ObjectName,
    uid: String,
    version: ResourceVersion,
    /// What decides which pods it takes.
    pub facts: NodeFacts,
}

impl KnownNode {
    /// Reads a node.
    pub fn read(node: &Node) -> Self {
        let identity = &node.identity;
        Self {
            name: ObjectName::of(identity),
            uid: identity.uid.clone().unwrap_or_default(),
            version: ResourceVersion::parse(identity.resource_version.as_deref()),
            facts: NodeFacts::read(node),
        }
    }
}

impl Stored for KnownNode {
    fn name(&self) -> ObjectName {
        self.name.clone()
    }

    fn uid(&self) -> &str {
        &self.uid
    }

    fn version(&self) -> ResourceVersion {
        self.version
    }

    fn is_same(&self, other: &Self) -> bool {
        self.facts == other.facts
    }
}

/// What a job's pod on a node stands for. Of two pods on a node the first of these counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Standing {
    Succeeded,
    Active,
    /// It has failed by its restarts, and is started again and again.
    OverLimit,
    Failed,
    /// It waits for a node that is gone.
    Orphaned,
    /// It is being deleted or about to be, and has not succeeded: it counts nowhere, and holds its node.
    Leaving,
}

/// What there is of a job.
#[derive(Debug, Default)]
pub(super) struct Survey<'a> {
    /// The nodes that fit and have no pod of the job, by name.
    pub(super) missing: Vec<&'a str>,
    /// The nodes that fit and have one that is being deleted.
    pub(super) awaited: usize,
    /// The pods that run or wait to run.
    pub(super) active: Vec<&'a JobPod>,
    /// The pods that have failed by their restarts and still run.
    pub(super) over_limit: Vec<&'a JobPod>,
    /// The pods beside another one on their node that run or wait to run.
    pub(super) surplus: Vec<&'a JobPod>,
    /// The pods that wait for a node that is gone. The garbage collector leaves them alone, as they are bound to none
    /// (`gcOrphaned`, `pkg/controller/podgc/gc_controller.go`).
    pub(super) orphaned: Vec<&'a JobPod>,
    /// How many pods may run.
    pub(super) running: usize,
    /// The nodes on which a pod has failed, in whichever way.
    pub(super) failed: NodeHashes,
    /// The nodes that have a pod that has succeeded.
    pub(super) succeeded: NodeHashes,
    /// The nodes on which one has succeeded that is gone.
    pub(super) lost: NodeHashes,
}

impl<'a> Survey<'a> {
    /// Looks at a job. `done` are the nodes on which it is known to have succeeded.
    pub(super) fn take(
        job: &'a Job,
        pods: &'a Store<JobPod>,
        nodes: &'a Store<KnownNode>,
        done: &NodeHashes,
    ) -> Self {
        let mut survey = Self::default();
        let standing = survey.count_pods(job, pods, nodes);
        survey.count_nodes(job, nodes, &standing, done);
        survey
    }

    /// Counts the pods, and returns what stands on each node that has one, by its name.
    fn count_pods(
        &mut self,
        job: &'a Job,
        pods: &'a Store<JobPod>,
        nodes: &'a Store<KnownNode>,
    ) -> Vec<(&'a str, Standing)> {
        let namespace = &job.name.namespace;
        // They may run, and cannot be looked at.
        let first = job.pod_name("");
        let unknown = pods.undecodable().range(&first..).take_while(|name| {
            name.namespace == first.namespace && name.name.starts_with(&first.name)
        });
        // A pod whose deletion was asked for runs until it is seen to be gone.
        let leaving = pods
            .find_in(namespace, &job.uid)
            .filter(|pod| pod.phase == PodPhase::Active && pods.assumed(&pod.name).is_none());
        self.running += unknown.count() + leaving.count();
        // One that succeeds while its deletion is under way has succeeded.
        let succeeded = pods
            .find_in(namespace, &job.uid)
            .filter(|pod| pod.phase == PodPhase::Succeeded && pods.assumed(&pod.name).is_none());
        let pods = pods.find_assumed_in(namespace, &job.uid).chain(succeeded);
        let mut pods: Vec<_> = pods
            .map(|pod| &**pod)
            .map(|pod| {
                let node = pod.node.as_deref().unwrap_or_default();
                let is_gone = !node.is_empty() && nodes.observed(&node_name(node)).is_none();
                (node, Standing::of(pod, job, is_gone), pod)
            })
            .collect();
        pods.sort_unstable_by_key(|(node, standing, pod)| (*node, *standing, &pod.name));
        let mut counted: Vec<(&str, Standing)> = Vec::with_capacity(pods.len());
        for (node, standing, pod) in pods {
            self.running += usize::from(pod.phase == PodPhase::Active);
            // A pod that is for no node yet stands for itself.
            let is_second =
                !node.is_empty() && counted.last().is_some_and(|(last, _)| *last == node);
            let hash = || pod.node_hash(&job.uid).map(Into::into);
            match standing {
                Standing::Active | Standing::OverLimit if is_second => self.surplus.push(pod),
                _ if is_second => {}
                Standing::Succeeded => self.succeeded.extend(hash()),
                Standing::Active => self.active.push(pod),
                Standing::OverLimit => {
                    self.over_limit.push(pod);
                    self.failed.extend(hash());
                }
                Standing::Failed => self.failed.extend(hash()),
                Standing::Orphaned => self.orphaned.push(pod),
                Standing::Leaving => {}
            }
            if !is_second {
                counted.push((node, standing));
            }
        }
        counted
    }

    fn count_nodes(
        &mut self,
        job: &'a Job,
        nodes: &'a Store<KnownNode>,
        standing: &[(&str, Standing)],
        done: &NodeHashes,
    ) {
        let Ok(requirements) = &job.spec.requirements else {
            return;
        };
        let is_lost = done.iter().any(|hash| !self.succeeded.contains(hash));
        for (name, node) in nodes.iter() {
            let name = &*name.name;
            let place = standing.binary_search_by_key(&name, |(node, _)| *node);
            let standing = place.ok().map(|place| standing[place].1);
            // A pod that has ended is never judged again, and one that runs is its kubelet's.
            if standing.is_some_and(|standing| standing != Standing::Leaving) {
                continue;
            }
            if is_lost {
                let hash = node_hash(&job.uid, name);
                if done.contains(&hash) {
                    self.lost.insert(hash);
                    continue;
                }
            }
            if requirements.misfit(&node.facts).is_none() {
                match standing {
                    Some(_) => self.awaited += 1,
                    None => self.missing.push(name),
                }
            }
        }
    }

    /// The nodes on which a pod has succeeded.
    pub(super) fn count_succeeded(&self) -> usize {
        self.succeeded.len() + self.lost.len()
    }

    /// The nodes that have the pod or are to get it.
    pub(super) fn count_desired(&self) -> usize {
        self.count_unended() + self.failed.len() - self.over_limit.len() + self.count_succeeded()
    }

    /// The nodes on which the pod has not come to its end.
    pub(super) fn count_unended(&self) -> usize {
        self.missing.len() + self.awaited + self.active.len() + self.over_limit.len()
    }
}

pub(super) fn node_name(node: &str) -> ObjectName {
    ObjectName {
        namespace: String::new(),
        name: node.to_owned(),
    }
}

impl Standing {
    fn of(pod: &JobPod, job: &Job, node_is_gone: bool) -> Self {
        let is_over = job.spec.restarts_containers && pod.restarts > job.spec.restart_limit;
        match pod.phase {
            PodPhase::Succeeded => Self::Succeeded,
            _ if pod.is_going => Self::Leaving,
            // The garbage collector has failed it, and is about to delete it.
            PodPhase::Failed if node_is_gone => Self::Leaving,
            PodPhase::Failed => Self::Failed,
            // One that no event has shown cannot be deleted yet.
            PodPhase::Active if node_is_gone && !pod.is_bound && !pod.uid.is_empty() => {
                Self::Orphaned
            }
            PodPhase::Active if is_over => Self::OverLimit,
            PodPhase::Active => Self::Active,
        }
    }
}
