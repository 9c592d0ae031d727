//! The machines: the observed state of the cluster, and the writes that follow from it.
//!
//! They are the memory of a feature of the kernel ([`PodProbes`]). What is observed is taken in at once, at a cost
//! proportional to the change, and names the keys that have to be planned: a pod, a marker, a node. What a key wants
//! written depends on what is observed, and on what the kernel remembers of its writes: marks that rest, an object that was too large.
//!
//! Four machines with private fields do the work, and this file only wires them:
//!
//! | machine | owns | takes in | gives out |
//! |---|---|---|---|
//! | `markers` | markers, their selectors and tallies | what each pod adds to the tallies | which match a pod; statuses and finalizers |
//! | `nodes` | nodes, `NodePodProbe`s, agents | which entries each pod should have | what a node and its agent report of a pod; the objects |
//! | `pods` | pods | the plan of each pod | their marks |
//! | `groups` | who claims and who has exclusive values | what each pod has to do with them | who is to have them |
//!
//! None of them knows another. Beside them:
//!
//! | module | holds |
//! |---|---|
//! | `feature` | the machines as a feature of the kernel |
//! | `pod_plan` | the plan of one pod from what the machines say; the only place that reads verdicts |
//! | `situation` | why a probe has no verdict |
//! | `observe` | what is observed on its way into the machines |
//! | `inspect` | what the machines know of a pod, for those who explain it |
//! | `context` | what the machines share: the time, and the list of what has to be planned |
//! | `undecodable` | objects that do not decode |
//! | `unseen` | entries of pods that the watch of pods has yet to show |
//!
//! A pod is planned when an input of its plan has changed. What it affects, other pods, markers, nodes, is planned after it:
//! markers after all pods of their namespace, and nodes after all pods, but for a second at most, and no longer than until their write
//! has its turn.

mod context;
mod feature;
mod groups;
mod inspect;
mod markers;
mod nodes;
mod observe;
mod pod_plan;
mod pods;
mod situation;
#[cfg(test)]
mod tests;
mod undecodable;
mod unseen;

use std::collections::BTreeSet;
use std::sync::Arc;

use leadsman_api::DEFAULT_NAMESPACE;
use leadsman_reconcile::Plan;

use self::context::{Affected, Contributions, IndexContext, PodName, pod_key};
use self::feature::{DroppedFields, WatchedKind};
pub use self::feature::{Handed, PlanKey, PodProbes, ProbeWorld};
use self::groups::{GroupName, Groups};
pub use self::inspect::{InspectedFit, InspectedMark, InspectedMarker, InspectedPod};
pub use self::markers::FINALIZER;
use self::markers::{MarkerChange, MarkerReflection, Markers};
pub use self::nodes::AgentState;
use self::nodes::Nodes;
pub use self::pod_plan::InspectedProbe;
use self::pod_plan::{Observations, PlannedEntries, PlannedMarks};
use self::pods::{Planned, PodPlan, Pods};
use self::undecodable::Undecodable;
use self::unseen::UnseenPods;
use super::compatibility::Compatibility;
use super::marker::{MARKERS_PER_NAMESPACE, MARKERS_PER_POD, Marker};
use super::marks;
use super::pod::IndexedPod;
use super::totals::StatusTotals;
use crate::cluster::{Now, ObjectName};

/// The most markers restarted at once whose matching pods are looked for one marker at a time.
const RESTARTED_ONE_BY_ONE: usize = 8;

/// The settings of the index.
#[derive(Clone, Debug)]
pub struct Config {
    /// The project whose defaults fill a probe's timing.
    pub compatibility: Compatibility,
    /// Namespace of the agents' pods.
    pub agent_namespace: String,
    /// Maximum size of the spec of a `NodePodProbe`, in bytes as the API server stores it.
    pub node_bytes: usize,
    /// Markers of a namespace that are acted on, at most: the oldest.
    pub markers_per_namespace: usize,
    /// Whether providers run the probes of pods on virtual nodes.
    pub serverless: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            compatibility: Compatibility::default(),
            agent_namespace: DEFAULT_NAMESPACE.to_owned(),
            node_bytes: 512 * 1024,
            markers_per_namespace: MARKERS_PER_NAMESPACE,
            serverless: false,
        }
    }
}

/// The observed state of the cluster, and the writes that follow from it.
#[derive(Debug)]
pub struct Machines {
    config: Config,
    markers: Markers,
    nodes: Nodes,
    pods: Pods,
    groups: Groups,
    undecodable: Undecodable,
    unseen: UnseenPods,
    /// Whether all markers have been listed, so that loops among them can be found.
    markers_listed: bool,
    cx: IndexContext,
}

impl Default for Machines {
    fn default() -> Self {
        Self::new(Config::default())
    }
}

impl Machines {
    /// Machines that have observed nothing yet.
    pub fn new(config: Config) -> Self {
        Self {
            markers: Markers::new(
                config.compatibility,
                config.markers_per_namespace,
                config.serverless,
            ),
            nodes: Nodes::new(config.node_bytes),
            pods: Pods::default(),
            groups: Groups::default(),
            undecodable: Undecodable::default(),
            unseen: UnseenPods::default(),
            markers_listed: false,
            cx: IndexContext::default(),
            config,
        }
    }

    /// The statuses of all markers, added up.
    pub fn status_totals(&self) -> StatusTotals {
        self.markers.totals()
    }

    /// The markers that have changed since the last call: each as it is acted on now, None if it is not acted on. They
    /// are recorded only with [`Config::serverless`].
    pub fn take_changed_markers(&mut self) -> Vec<(Arc<ObjectName>, Option<Arc<Marker>>)> {
        self.markers.take_changed()
    }

    /// All kinds have been listed, and this process writes from now on. All keys are planned next.
    fn begin_term(&mut self, dropped: DroppedFields, now: Now) {
        self.cx.now = now;
        self.cx.synced = true;
        self.note_dropped_fields(dropped);
        self.markers.recheck_loops();
        self.markers.restart_deletion_limits(&mut self.cx);
        self.nodes.compare_all(&mut self.cx);
        self.judge_markers();
        self.cx.affected = Affected::default();
    }

    fn note_dropped_fields(&mut self, dropped: DroppedFields) {
        let cx = &mut self.cx;
        self.markers.set_keeps_summaries(!dropped.of_markers, cx);
        self.nodes.set_keeps_fields(!dropped.of_objects, cx);
    }

    /// Plans the writes of a key.
    fn plan_key(&mut self, key: &PlanKey, dropped: DroppedFields, plan: &mut Plan<'_, PodProbes>) {
        self.cx.now = plan.now();
        self.note_dropped_fields(dropped);
        match key {
            PlanKey::Pod(name) => self.plan_pod(name, plan),
            PlanKey::Node(name) => {
                self.release_unseen_in_time(name, plan);
                self.nodes.plan_object(name, plan, &mut self.cx);
            }
            PlanKey::Marker(name) => {
                let holders = self.groups.holders_of(name);
                self.markers.set_holders(name, holders);
                let reflection = self.reflection_of(name);
                self.markers.plan_marker(name, reflection, plan);
            }
        }
        self.pass_on(&mut |key| plan.mark(key));
    }

    /// Passes on the keys that have to be planned.
    fn pass_on(&mut self, pass_on: &mut dyn FnMut(PlanKey)) {
        // A standby answers the webhook too: it must know which markers are stopped.
        if self.cx.synced || self.markers_listed {
            // Markers are judged before any pod is planned, since a stopped marker matches none.
            self.judge_markers();
        }
        let Affected {
            pods,
            nodes,
            markers,
        } = std::mem::take(&mut self.cx.affected);
        if !self.cx.synced {
            // All keys are planned when this process begins to write.
            return;
        }
        let pods = pods.into_iter().map(PlanKey::Pod);
        let markers = markers.into_iter().map(PlanKey::Marker);
        let nodes = nodes.into_iter().map(PlanKey::Node);
        pods.chain(markers).chain(nodes).for_each(pass_on);
    }

    /// Stops the markers that are too many or close a loop, and restarts others.
    fn judge_markers(&mut self) {
        // First, since a marker that is one too many is part of no loop.
        let mut changes = self.markers.judge_ages(&mut self.cx);
        changes.extend(self.markers.break_loops(&mut self.cx));
        let restarted: Vec<_> = changes
            .iter_mut()
            .filter(|change| change.selects_others)
            .collect();
        // An edit may restart many markers, each of which would look at all pods of its namespace.
        if restarted.len() > RESTARTED_ONE_BY_ONE {
            let mut namespaces = BTreeSet::new();
            for change in restarted {
                change.selects_others = false;
                namespaces.insert(change.name.namespace.clone());
            }
            for namespace in namespaces {
                self.affect_namespace(&namespace);
                self.update_recorded_memberships(&namespace);
            }
        }
        for change in &changes {
            self.plan_pods_of(change);
            if change.selects_others {
                self.update_memberships_of_marker(change);
            }
        }
    }

    /// How far the cluster reflects a marker.
    fn reflection_of(&self, marker: &ObjectName) -> MarkerReflection {
        MarkerReflection {
            is_acknowledged: self.nodes.is_acknowledged(marker),
            leaves_marks: self.pods.has_unclaimed_in(&marker.namespace),
        }
    }

    /// Marks the pods for planning that a change of a marker affects.
    fn plan_pods_of(&mut self, change: &MarkerChange) {
        for pod in &change.uncounted {
            self.pods.forget_contribution(pod, &change.name);
            self.cx.affected.pods.insert(pod.clone());
        }
        if change.selects_others
            && self.cx.synced
            && let Some(selector) = self.markers.selector_of(&change.name)
        {
            let selected = self.pods.selected_by(&change.name.namespace, selector);
            self.cx.affected.pods.extend(selected.cloned());
        }
    }

    /// Plans a pod from what is observed, and gives each machine its part of the plan.
    fn plan_pod(&mut self, name: &PodName, writes: &mut Plan<'_, PodProbes>) {
        let cx = &mut self.cx;
        let Some(pod) = self.pods.get(name) else {
            if self.undecodable.contains(WatchedKind::Pod, name) {
                self.nodes.set_wanted_as_observed(name, true, cx);
            }
            return;
        };
        let mut matching = self.markers.markers_matching(pod);
        let surplus = matching
            .split_off(matching.len().min(MARKERS_PER_POD))
            .into_iter()
            .map(|(name, _)| name.clone())
            .collect();
        // The object's present entries are an input: an entry remembers for which container the startup probe has passed.
        let observed = self.nodes.view_of_pod(pod).observed_entries();
        let entries = PlannedEntries::new(pod, &matching, observed);
        let cx = &mut self.cx;
        let undecodable = self.undecodable.entries_of_markers(pod, observed);
        let wanted = entries.to_pod_entries(pod, undecodable, cx);
        let on_node = wanted.as_ref().and_then(|_| pod_key(pod));
        let was_on_node = self.pods.on_node(name);
        // Another pod of this name may run elsewhere by now, as one of a StatefulSet does: the node of the earlier one
        // loses its entries.
        if let Some((node, key)) = was_on_node.filter(|before| Some(*before) != on_node.as_ref()) {
            self.nodes.set_wanted(node, key, None, cx);
        }
        if let Some((node, key)) = &on_node {
            self.nodes.set_wanted(node, key, wanted, cx);
        }
        // Verdicts may now count on entries that were not wanted before: the group must know of the claim that the
        // marks follow from.
        let members = self.observations_of(pod, self.cx.now).plan_memberships(
            &matching,
            &entries,
            &self.groups,
        );
        let cx = &mut self.cx;
        self.groups
            .set_memberships(name, pod.version.number(), members, cx);
        let PlannedMarks {
            wants,
            contributions: of_pod,
            last_transition,
            counts_from,
            exclusive,
        } = self
            .observations_of(pod, self.cx.now)
            .plan_marks(&matching, &entries, &self.groups);
        // A pod that has ended is not written any more, so the deletion of a marker must not wait for its marks.
        let leaves_marks = pod.active && marks::has_unclaimed(pod, &wants);
        let cx = &mut self.cx;
        if self.pods.set_unclaimed(name, leaves_marks) {
            self.markers.mark_held_as_affected(&name.namespace, cx);
        }
        // Others may have been planned since this one was elected.
        let may_give = |group: &GroupName| self.groups.may_give(group, name);
        let may_write = exclusive.gives.iter().all(may_give);
        let plan = PodPlan {
            may_write,
            on_node,
            wants,
            contributions: Contributions { of_pod, surplus },
            last_transition,
            counts_from,
            exclusive,
        };
        let Some(planned) = self.pods.set_plan(name, plan, cx, writes) else {
            return;
        };
        let Planned {
            contributions_before,
            contributions,
            is_outdated,
        } = planned;
        self.markers
            .count_contributions(name, &contributions_before, contributions, cx);
        if is_outdated {
            // The plan was made from what was known before of its writes.
            self.cx.affected.pods.insert(name.clone());
        }
    }

    /// The observations that a pod's marks follow from, besides its markers and entries.
    fn observations_of<'a>(&'a self, pod: &'a IndexedPod, now: Now) -> Observations<'a> {
        let node = self.nodes.view_of_pod(pod);
        Observations {
            pod,
            node,
            has_provider: if self.config.serverless && pod.is_target() {
                node.is_virtual()
            } else {
                Some(false)
            },
            refused_object: node.refusal(),
            refused_marks: self.pods.refusal(&pod.name),
            contested: self.pods.contested_marks(&pod.name).collect(),
            keeps_unclaimed: self.undecodable.has_marker_in(&pod.name.namespace),
            now: now.wall,
            markers: &self.markers,
        }
    }
}
