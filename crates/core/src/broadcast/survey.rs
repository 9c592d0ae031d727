//! The survey of a job: its pods and the nodes that it is for, each counted once.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use leadsman_api::slim::Node;
use leadsman_reconcile::{ObjectName, ResourceVersion, Store, Stored};

use super::job::{Job, node_hash};
use super::pod::{JobPod, JobPodPhase};
use crate::workload::node_fit::NodeFacts;

/// A node.
#[derive(Debug, PartialEq)]
pub struct KnownNode {
    name: ObjectName,
    uid: String,
    version: ResourceVersion,
    /// The facts that decide which pods it takes.
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

/// The standing of a job's pod on a node. If a node has several, the one whose standing comes first here counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Standing {
    Succeeded,
    Active,
    /// The pod has failed by its restarts, and is started again and again.
    OverLimit,
    Failed,
    /// The pod waits for a node that is gone.
    Orphaned,
    /// The pod is being deleted or about to be, and has not succeeded: it counts nowhere, and holds its node.
    Leaving,
}

/// Nodes, by [`node_hash`]. A run looks up thousands of them, so none is copied that a pod's name has.
type Hashes<'a> = HashSet<Cow<'a, str>>;

/// The first pod of each node that has one, with its standing, by the node's name.
type Standings<'a> = HashMap<&'a str, (Standing, &'a ObjectName)>;

/// The survey of a job.
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
    pub(super) failed: Hashes<'a>,
    /// The nodes that have a pod that has succeeded.
    pub(super) succeeded: Hashes<'a>,
    /// The nodes on which one has succeeded that is gone.
    pub(super) lost: Hashes<'a>,
}

impl<'a> Survey<'a> {
    /// Looks at a job. `done` are the nodes on which it is known to have succeeded.
    pub(super) fn take<'d>(
        job: &'a Job,
        pods: &'a Store<JobPod>,
        nodes: &'a Store<KnownNode>,
        done: impl IntoIterator<Item = &'d String>,
    ) -> Self {
        let mut survey = Self::default();
        let standings = survey.count_pods(job, pods, nodes);
        let done = done.into_iter().map(String::as_str);
        let lost: HashSet<_> = done
            .filter(|hash| !survey.succeeded.contains(*hash))
            .collect();
        survey.count_nodes(job, nodes, &standings, &lost);
        survey
    }

    fn count_pods(
        &mut self,
        job: &'a Job,
        pods: &'a Store<JobPod>,
        nodes: &'a Store<KnownNode>,
    ) -> Standings<'a> {
        let namespace = &job.name.namespace;
        // Undecodable pods may run, and cannot be looked at.
        let first = job.pod_name("");
        let unknown = pods.undecodable().range(&first..).take_while(|name| {
            name.namespace == first.namespace && name.name.starts_with(&first.name)
        });
        self.running += unknown.count();
        let mut counted = Vec::new();
        let mut standings = Standings::new();
        let mut look_at = |pod: &'a JobPod| {
            let node = pod.node.as_deref().unwrap_or_default();
            let is_gone = || !node.is_empty() && nodes.observed(&node_name(node)).is_none();
            let rank = (Standing::of(pod, job, is_gone), &pod.name);
            let first = standings.entry(node).or_insert(rank);
            *first = (*first).min(rank);
            counted.push((node, rank, pod));
        };
        for (pod, assumed) in pods.find_with_assumed_in(namespace, &job.uid) {
            match assumed {
                Some(pod) => look_at(pod),
                // One that succeeds while its deletion is under way has succeeded.
                None if pod.phase == JobPodPhase::Succeeded => look_at(pod),
                // A pod whose deletion was asked for runs until it is seen to be gone.
                None => self.running += usize::from(pod.phase == JobPodPhase::Active),
            }
        }
        let created = pods.find_created_in(namespace, &job.uid);
        created.for_each(|pod| look_at(pod));
        for (node, rank, pod) in counted {
            self.running += usize::from(pod.phase == JobPodPhase::Active);
            // A pod that is for no node yet stands for itself.
            let is_second = !node.is_empty() && standings.get(node) != Some(&rank);
            let hash = || pod.node_hash(&job.uid);
            match rank.0 {
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
        }
        standings
    }

    /// Counts the nodes. `lost` are those on which the job is known to have succeeded, and that have no such pod.
    fn count_nodes(
        &mut self,
        job: &'a Job,
        nodes: &'a Store<KnownNode>,
        standings: &Standings<'_>,
        lost: &HashSet<&str>,
    ) {
        let Ok(requirements) = &job.spec.requirements else {
            return;
        };
        for (name, node) in nodes.iter() {
            let name = &*name.name;
            let standing = standings.get(name).map(|(standing, _)| *standing);
            // A pod that has ended is never judged again, and one that runs is its kubelet's.
            if standing.is_some_and(|standing| standing != Standing::Leaving) {
                continue;
            }
            if !lost.is_empty() {
                let hash = node_hash(&job.uid, name);
                if lost.contains(&*hash) {
                    self.lost.insert(hash.into());
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
    fn of(pod: &JobPod, job: &Job, node_is_gone: impl Fn() -> bool) -> Self {
        let is_over = job.spec.restarts_containers && pod.restarts > job.spec.restart_limit;
        match pod.phase {
            JobPodPhase::Succeeded => Self::Succeeded,
            _ if pod.is_going => Self::Leaving,
            // The garbage collector has failed it, and is about to delete it.
            JobPodPhase::Failed if node_is_gone() => Self::Leaving,
            JobPodPhase::Failed => Self::Failed,
            // One that no event has shown cannot be deleted yet.
            JobPodPhase::Active if !pod.is_bound && !pod.uid.is_empty() && node_is_gone() => {
                Self::Orphaned
            }
            JobPodPhase::Active if is_over => Self::OverLimit,
            JobPodPhase::Active => Self::Active,
        }
    }
}
