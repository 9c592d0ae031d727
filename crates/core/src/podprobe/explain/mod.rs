//! Why a pod is marked as it is, and what is in the way of the marks that it lacks, for people.
//!
//! The objects are given to the feature like those of the manager, whose machines are then asked what they know. So the answer
//! follows from the very rules that write: which markers match, which entries a pod has, which verdicts count, which
//! mark differs from what is wanted. What is added here is words, and an order: the first cause is the one to look at
//! first.
//!
//! What only a running manager remembers (a contest with another writer, a refused write, pods that left their
//! workload) is read from the marker's status.
//!
//! | module | holds |
//! |---|---|
//! | here | the objects, as far as they could be read, in the machines |
//! | `explanation` | the answer |
//! | `causes` | what is in the way, and the causes in one word each |
//! | `unmatched` | why no marker matches |
//! | `trial` | what would become of pods if a marker were applied |
//! | `failures` | what the message of a failed probe means |
//! | `waiting` | how long a probe without a verdict may take |
//! | `probes` | what is known of each probe and of recent runs, and whether the agent of a node runs |
//! | `marks` | what is on the pod, what should be, and who wrote it |
//! | `words` | selectors, probes and durations as text |
//! | `summary` | markers at a glance, pods by what is in the way, and whether what agents report is on the pods |

mod causes;
mod explanation;
mod failures;
mod marks;
mod probes;
mod summary;
#[cfg(test)]
mod tests;
mod trial;
mod unmatched;
mod waiting;
mod words;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use leadsman_api::slim::{Node, Pod};
use leadsman_api::{Guarded, NodePodProbe, PodProbeMarker};
use leadsman_reconcile::{Reconciler, Watch};

use super::index::{Config, InspectedFit, InspectedMarker, Machines, PodProbes};
use crate::cluster::{Now, ObjectName, ResourceVersion};

pub use self::explanation::CauseReason;
pub use self::explanation::{
    Cause, Explanation, MarkExplanation, MarkerExplanation, MarkerFit, Owner, ProbeExplanation,
    ShownVerdict, VerdictSource,
};
pub use self::summary::{
    FleetSummary, MarkerSummary, PodGroup, ProbeCounts, group_by_causes, summarize_marker,
    summarize_markers,
};
pub use self::trial::{
    MarkChange, NearestPod, TrialPod, TrialPods, TrialReport, TrialRun, TrialTarget,
};
pub use self::words::{format_age, format_selector};

/// Why something could not be read, as it is to be shown: the right that is missing, or the API server's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unread(pub String);

/// The objects that an explanation follows from.
#[derive(Clone, Debug)]
pub struct ObservedObjects {
    /// The settings of the manager.
    pub config: Config,
    /// Whether the manager acts on markers at all (`PodProbeMarkerGate`).
    pub gate: bool,
    /// The markers of the pods' namespaces, or of all.
    pub markers: Vec<Guarded<PodProbeMarker>>,
    /// The pods that are to be explained.
    pub pods: Vec<Pod>,
    /// Other pods of markers with exclusive values, which may have these.
    pub neighbours: Vec<Pod>,
    /// The pods' nodes.
    pub nodes: Result<Vec<Node>, Unread>,
    /// The objects of their nodes.
    pub node_pod_probes: Result<Vec<NodePodProbe>, Unread>,
    /// The pods of the agents of their nodes; of other nodes, if there is none on these.
    pub agents: Result<Vec<Pod>, Unread>,
    /// Whether a manager leads.
    pub manager: Result<ManagerState, Unread>,
}

/// Whether a manager leads, by its Lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ManagerState {
    /// The manager that leads: it has renewed the Lease in time.
    Leads(String),
    /// The manager that led last, and its last renewal of the Lease, which is too long ago.
    Expired(String, Timestamp),
    /// No manager leads: there is no Lease, or its holder released it.
    Absent,
}

/// The cluster as it was observed.
pub struct ObservedCluster {
    reconciler: Reconciler<PodProbes>,
    now: Now,
    gate: bool,
    pods: BTreeMap<ObjectName, Pod>,
    /// Markers that do not decode, and why.
    undecodable: BTreeMap<ObjectName, String>,
    manager: Result<ManagerState, Unread>,
    /// Whether the objects of the nodes could be read: without them no verdict is known but what the pods show.
    knows_nodes: bool,
    knows_agents: bool,
    /// The agents' pods; empty if they cannot be read, or if the agents run as something else.
    agents: Vec<Pod>,
    unread: Vec<String>,
}

impl ObservedCluster {
    /// Takes in the objects, as they were read at `now`.
    pub fn new(observed: ObservedObjects, now: Timestamp) -> Self {
        let now = Now {
            // All is observed at one moment, so no wait of the index ever ends.
            monotonic: Duration::ZERO,
            wall: now,
        };
        let unread: BTreeSet<_> = [
            observed.nodes.as_ref().err(),
            observed.node_pod_probes.as_ref().err(),
            observed.agents.as_ref().err(),
            observed.manager.as_ref().err(),
        ]
        .into_iter()
        .flatten()
        .map(|why| why.0.clone())
        .collect();
        let mut cluster = Self {
            reconciler: Reconciler::with_memory(
                PodProbes::new(|_, _| {}),
                Machines::new(observed.config),
                // Runs cost nothing, so that all keys run in one turn, and none rests.
                || Duration::ZERO,
            ),
            now,
            gate: observed.gate,
            pods: BTreeMap::new(),
            undecodable: BTreeMap::new(),
            manager: observed.manager,
            knows_nodes: observed.node_pod_probes.is_ok(),
            knows_agents: observed.agents.is_ok(),
            agents: observed.agents.unwrap_or_default(),
            unread: unread.into_iter().collect(),
        };
        cluster.reconciler.set_now(now);
        cluster.observe_markers(observed.markers);
        cluster.observe_pods(observed.pods, &observed.neighbours);
        cluster.observe_nodes(observed.nodes, observed.node_pod_probes.unwrap_or_default());
        cluster.reconciler.begin_term();
        cluster.plan();
        cluster
    }

    /// The pods that can be explained.
    pub fn pod_names(&self) -> impl Iterator<Item = &ObjectName> {
        self.pods.keys()
    }

    /// Everything that could not be read: the rights that are missing, or the API server's answers.
    pub fn unread_kinds(&self) -> &[String] {
        &self.unread
    }

    fn machines(&self) -> &Machines {
        self.reconciler.memory()
    }

    /// Plans all that follows from what was observed. Nothing is written, so nothing that is due is taken.
    fn plan(&mut self) {
        let now = self.now;
        let is_past = |deadline: Duration| deadline <= now.monotonic;
        self.reconciler.run_keys(now);
        while self
            .reconciler
            .take_effects(now)
            .deadline
            .is_some_and(is_past)
        {
            self.reconciler.run_keys(now);
        }
    }

    fn observe_listed<K>(&mut self, names: &BTreeSet<ObjectName>)
    where
        PodProbes: Watch<K>,
    {
        let (version, now) = (ResourceVersion::UNKNOWN, self.now);
        self.reconciler
            .observe_list::<K>(names, version, false, now);
    }

    fn observe_markers(&mut self, markers: Vec<Guarded<PodProbeMarker>>) {
        let mut names = BTreeSet::new();
        for marker in markers {
            match marker {
                Guarded::Decoded(marker) => names.extend(self.reconciler.observe_all([*marker])),
                Guarded::Undecodable { metadata, error } => {
                    let name = ObjectName::of(&metadata);
                    self.reconciler.observe_undecodable::<PodProbeMarker>(&name);
                    names.insert(name.clone());
                    self.undecodable.insert(name, error);
                }
            }
        }
        self.observe_listed::<PodProbeMarker>(&names);
    }

    /// Whether a pod is selected by no marker that is known: then one in another namespace may have been meant for it.
    pub fn lacks_marker(&self) -> bool {
        let pods = self.pods.keys();
        let mut known = pods.filter_map(|name| self.machines().inspect_pod(name, self.now));
        known.any(|pod| {
            let labels = &pod.pod.labels;
            let label = |key: &str| labels.get(key).map(|value| &**value);
            !pod.markers.iter().any(|marker| match &marker.fit {
                // The pods that an invalid or deleted marker would select are not known; it may
                // have been meant for this one.
                InspectedFit::Matches(..) | InspectedFit::Invalid(_) | InspectedFit::Deleting => {
                    true
                }
                InspectedFit::DoesNotMatch(parsed) | InspectedFit::Stopped(parsed, ..) => {
                    parsed.selector.matches(label)
                }
            })
        })
    }

    /// Takes in the markers of all namespaces after those of one.
    pub fn observe_all_markers(&mut self, markers: Vec<Guarded<PodProbeMarker>>) {
        self.undecodable.clear();
        self.observe_markers(markers);
        self.plan();
    }

    fn observe_pods(&mut self, pods: Vec<Pod>, neighbours: &[Pod]) {
        // The agents' pods are among them: by these the machines judge whether an agent works.
        let all = neighbours.iter().chain(&self.agents).chain(&pods).cloned();
        let names = self.reconciler.observe_all(all);
        self.observe_listed::<Pod>(&names);
        let pods = pods.into_iter();
        self.pods = pods
            .map(|pod| (ObjectName::of(&pod.identity), pod))
            .collect();
    }

    /// A node that cannot be read exists if its object does: the manager deletes that with the node.
    fn observe_nodes(&mut self, nodes: Result<Vec<Node>, Unread>, objects: Vec<NodePodProbe>) {
        let nodes = nodes.unwrap_or_else(|_unread| {
            let names = objects.iter().map(|object| object.metadata.name.clone());
            let nodes = names.map(|name| Node {
                identity: ObjectMeta {
                    name,
                    ..ObjectMeta::default()
                },
                ..Node::default()
            });
            nodes.collect()
        });
        let names = self.reconciler.observe_all(nodes);
        self.observe_listed::<Node>(&names);
        self.reconciler
            .note_fields_kept::<NodePodProbe>(keeps_fields(&objects));
        let names = self.reconciler.observe_all(objects);
        self.observe_listed::<NodePodProbe>(&names);
    }

    /// Explains a pod. None if it is not among those that were observed.
    pub fn explain_pod(&self, name: &ObjectName) -> Option<Explanation> {
        let wire = self.pods.get(name)?;
        let inspected = self.machines().inspect_pod(name, self.now)?;
        let context = PodContext {
            cluster: self,
            wire,
            inspected: &inspected,
        };
        let mut markers: Vec<_> = inspected
            .markers
            .iter()
            .map(|marker| context.explain_marker(marker))
            .collect();
        let broken = self
            .undecodable
            .iter()
            .filter(|(marker, _)| marker.namespace == name.namespace);
        markers.extend(broken.map(|(marker, error)| MarkerExplanation {
            name: marker.name.clone(),
            fit: MarkerFit::Undecodable {
                message: error.clone(),
            },
            reported: None,
        }));
        Some(Explanation {
            namespace: name.namespace.clone(),
            name: name.name.clone(),
            uid: inspected.pod.node_uid.to_string(),
            complete: self.knows_nodes,
            node: inspected.pod.node.as_deref().map(str::to_owned),
            phase: wire.status.phase.clone(),
            causes: context.all_causes(),
            markers,
            marks: context.explain_marks(),
            unread: self.unread.clone(),
        })
    }
}

/// Whether the API server keeps our optional fields of entries: each entry that the manager writes has a revision.
fn keeps_fields(objects: &[NodePodProbe]) -> bool {
    let pods = objects.iter().flat_map(|object| &object.spec.pod_probes);
    let mut entries = pods.flat_map(|pod| &pod.probes).peekable();
    entries.peek().is_none() || entries.any(|entry| entry.revision.is_some())
}

/// A pod that is being explained.
struct PodContext<'a> {
    cluster: &'a ObservedCluster,
    wire: &'a Pod,
    inspected: &'a super::index::InspectedPod<'a>,
}

impl PodContext<'_> {
    fn explain_marker(&self, marker: &InspectedMarker<'_>) -> MarkerExplanation {
        let fit = match &marker.fit {
            InspectedFit::Matches(parsed, probes) => {
                let pairs = parsed.probes.iter().zip(probes);
                let probes =
                    pairs.map(|(probe, inspected)| self.explain_probe(parsed, probe, inspected));
                MarkerFit::Matches {
                    probes: probes.collect(),
                }
            }
            InspectedFit::DoesNotMatch(parsed) => MarkerFit::DoesNotMatch {
                terms: self.selector_terms(&parsed.selector),
            },
            InspectedFit::Stopped(.., message) => MarkerFit::Stopped {
                message: (*message).to_owned(),
            },
            InspectedFit::Invalid(message) => MarkerFit::Invalid {
                message: (*message).to_owned(),
            },
            InspectedFit::Deleting => MarkerFit::Deleting,
        };
        let reported =
            reported_problem(marker).map(|(reason, message)| format!("{reason}: {message}"));
        MarkerExplanation {
            name: marker.name.name.clone(),
            fit,
            reported,
        }
    }
}

/// Reason and message of a marker's status, if it says that something is wrong. That is about the present generation or
/// the one before: a status says which it reflects only when every node's object does.
fn reported_problem<'a>(marker: &InspectedMarker<'a>) -> Option<(&'a str, &'a str)> {
    let mut conditions = marker.status.conditions.iter();
    let ready = conditions.find(|one| one.type_ == super::status::READY)?;
    (ready.status == "False").then_some((ready.reason.as_str(), ready.message.as_str()))
}
