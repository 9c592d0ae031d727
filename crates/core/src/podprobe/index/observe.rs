//! The entry of what is observed into the machines, and effects that concern more than one machine.

use std::sync::Arc;

use leadsman_api::slim;
use leadsman_api::{AGENT_LABELS, NodePodProbe, PodProbeMarker};
use leadsman_reconcile::{Change, WatchAdvance};

use super::Machines;
use super::context::{Contributions, PodName};
use super::feature::{Handed, ObservedKind, ProbeWorld, WatchedKind};
use super::markers::MarkerChange;
use super::pod_plan::PlannedEntries;
use crate::cluster::{Now, ObjectName};
use crate::podprobe::exclusive;
use crate::podprobe::marker::MARKERS_PER_POD;
use crate::podprobe::pod::IndexedPod;

impl Machines {
    /// Takes in the change of an object, also that it is gone.
    pub(super) fn take_in<K: ObservedKind>(
        &mut self,
        change: &Change<Handed<K>>,
        world: &ProbeWorld,
        now: Now,
    ) {
        self.cx.now = now;
        let (kind, name) = (K::KIND, &*change.name);
        if let Some(object) = &change.now {
            self.forget_undecodable(kind, name);
            if change.before.is_none() {
                // The machines share the name of the store, which is in memory once then.
                self.cx.interners.objects.share(change.name.clone());
            }
            if let Some(object) = object.take() {
                object.observe(change.is_listed, self);
            }
        } else if K::store(world).undecodable().contains(name) {
            self.preserve_undecodable(kind, name);
        } else {
            self.forget_undecodable(kind, name);
            self.remove(kind, name);
        }
    }

    fn remove(&mut self, kind: WatchedKind, name: &ObjectName) {
        match kind {
            WatchedKind::Marker => self.remove_marker(name),
            WatchedKind::Pod => self.remove_pod(name),
            WatchedKind::Node => self.remove_node(&name.name),
            WatchedKind::NodePodProbe => self.nodes.remove_object(&name.name, &mut self.cx),
        }
    }

    /// All markers have been listed.
    pub(super) fn note_markers_listed(&mut self, now: Now) {
        self.cx.now = now;
        self.markers_listed = true;
    }

    /// The watch of pods has come so far.
    pub(super) fn note_pods_shown(&mut self, progress: WatchAdvance, now: Now) {
        self.cx.now = now;
        match progress {
            WatchAdvance::Shown(version) => self.groups.note_watched(version, &mut self.cx),
            WatchAdvance::Listed(version) => self.groups.note_listed(version, &mut self.cx),
            WatchAdvance::Relisted(_) => {}
        }
        self.release_watched();
    }

    /// The state of a marker.
    pub(super) fn observe_marker(&mut self, wire: &PodProbeMarker) {
        if let Some(change) = self.markers.observe_marker(wire, &mut self.cx) {
            self.plan_pods_of(&change);
            self.update_memberships_of_marker(&change);
        }
    }

    /// The state of a pod.
    pub(super) fn observe_pod(&mut self, wire: &slim::Pod) {
        let name = ObjectName::of(&wire.identity);
        let known = self.pods.get(&name);
        let mut pod = IndexedPod::new(wire, known, &mut self.cx.interners);
        if !self.config.serverless {
            // Nothing is injected: how long others' annotations are is no change of the pod.
            pod.injected_room = 0;
        }
        // Another pod under the same name, as a StatefulSet creates it: a list shows it without the
        // deletion of the one before.
        if known.is_some_and(|known| known.uid != pod.uid) {
            self.remove_pod(&pod.name);
        }
        // The fields that are read of an agent's pod are not kept with the pod.
        let may_be_agent = pod.name.namespace == self.config.agent_namespace;
        if self.pods.is_unchanged(&pod) && !may_be_agent {
            return;
        }
        self.count_release(&pod);
        self.observe_agent(&pod, wire);
        let name = pod.name.clone();
        self.cx.affected.pods.insert(name.clone());
        let known = self.pods.get(&name);
        let is_recorded = known.into_iter().chain([&pod]).any(exclusive::has_records);
        self.pods.insert_pod(pod, self.cx.now);
        if self.cx.synced && is_recorded {
            self.update_memberships(&name);
        }
    }

    /// Counts a pod that has lost its controller for its markers.
    fn count_release(&mut self, pod: &IndexedPod) {
        // Read from the state before this event, in which the pod still had its controller.
        let controller = self
            .pods
            .get(&pod.name)
            .and_then(|known| known.controller.clone());
        if let Some(controller) = controller
            && pod.controller.is_none()
            && pod.active
            && let Some((since, markers)) = self.pods.first_seen_and_counting_markers(&pod.name)
        {
            let cx = &mut self.cx;
            let changes = self
                .markers
                .count_release(&markers, (pod, since), &controller, cx);
            for change in changes {
                self.plan_pods_of(&change);
            }
        }
    }

    /// Records what a pod has to do with exclusive values, before it is planned: others must know by then, however long it waits
    /// for its turn.
    pub(super) fn update_memberships(&mut self, name: &PodName) {
        let Some(pod) = self.pods.get(name) else {
            return;
        };
        let mut matching = self.markers.markers_matching(pod);
        matching.truncate(MARKERS_PER_POD);
        let observed = self.nodes.view_of_pod(pod).observed_entries();
        let entries = PlannedEntries::new(pod, &matching, observed);
        let members = self.observations_of(pod, self.cx.now).plan_memberships(
            &matching,
            &entries,
            &self.groups,
        );
        let cx = &mut self.cx;
        self.groups
            .set_memberships(name, pod.version.number(), members, cx);
    }

    /// Records what pods have to do with the exclusive values of a marker that has changed, before the first of them is planned:
    /// none may be given a value that another one has.
    pub(super) fn update_memberships_of_marker(&mut self, change: &MarkerChange) {
        let active = self.markers.active_entry(&change.name);
        let marker = active.filter(|(_, marker)| self.cx.synced && marker.has_exclusive());
        let Some((name, marker)) = marker else {
            return;
        };
        let mut members = change.uncounted.clone();
        if change.selects_others {
            let selected = self.pods.selected_by(&name.namespace, &marker.selector);
            members.extend(selected.cloned());
        }
        for pod in members {
            self.update_memberships(&pod);
        }
        self.update_recorded_memberships(&change.name.namespace);
    }

    /// Does so for the pods that have records, also those that no marker selects.
    pub(super) fn update_recorded_memberships(&mut self, namespace: &str) {
        let pods = self.pods.in_namespace(namespace);
        let recorded: Vec<_> = pods
            .filter(|name| {
                let pod = self.pods.get(name);
                pod.is_some_and(exclusive::has_records)
            })
            .cloned()
            .collect();
        for pod in recorded {
            self.update_memberships(&pod);
        }
    }

    /// Records a pod that may be an agent's.
    fn observe_agent(&mut self, pod: &IndexedPod, wire: &slim::Pod) {
        // A pod is bound once, but a list may show another pod under its name.
        if let Some(known) = self.pods.get(&pod.name)
            && known.node != pod.node
        {
            self.nodes.remove_agent(known, &mut self.cx);
        }
        let is_agent = pod.active
            && pod.name.namespace == self.config.agent_namespace
            && AGENT_LABELS.iter().all(|(key, value)| {
                let known = pod.labels.get(key);
                known.is_some_and(|known| **known == **value)
            });
        if is_agent {
            self.nodes.observe_agent(pod, wire, &mut self.cx);
        } else {
            self.nodes.remove_agent(pod, &mut self.cx);
        }
    }

    /// The state of a node.
    pub(super) fn observe_node(&mut self, wire: &slim::Node) {
        let name = ObjectName::of(&wire.identity);
        let was_virtual = self.nodes.is_virtual(&name.name);
        self.nodes.observe_node(wire, &mut self.cx);
        self.affect_pods_of_provider(&name.name, was_virtual);
    }

    fn remove_node(&mut self, name: &str) {
        let was_virtual = self.nodes.is_virtual(name);
        self.nodes.remove_node(name, &mut self.cx);
        self.affect_pods_of_provider(name, was_virtual);
    }

    /// Marks the pods of a node for planning when the node appears, disappears, becomes virtual or ceases to be: the
    /// injected annotations of a pod stay while its node is missing. Pods without entries are not recorded with their
    /// node, so all pods are searched. Before all kinds are listed that is skipped: the first round of a term plans all pods anyway.
    fn affect_pods_of_provider(&mut self, node: &str, was_virtual: Option<bool>) {
        if self.config.serverless && self.cx.synced && self.nodes.is_virtual(node) != was_virtual {
            let pods = self.pods.bound_to(node);
            self.cx.affected.pods.extend(pods.cloned());
        }
    }

    /// The state of a `NodePodProbe`.
    pub(super) fn observe_object(&mut self, wire: NodePodProbe, is_listed: bool) {
        self.nodes.observe_object(wire, is_listed, &mut self.cx);
    }

    /// Preserves what may belong to an object that cannot be decoded and of which no earlier state is known.
    fn preserve_undecodable(&mut self, kind: WatchedKind, name: &ObjectName) {
        match kind {
            WatchedKind::Marker => {
                if self.undecodable.insert(kind, name.clone()) {
                    self.affect_namespace(&name.namespace);
                }
            }
            WatchedKind::Pod => {
                self.undecodable.insert(kind, name.clone());
                self.cx.affected.pods.insert(Arc::new(name.clone()));
            }
            // Nodes have hardly any field that is read, and a NodePodProbe is replaced.
            WatchedKind::Node | WatchedKind::NodePodProbe => {}
        }
    }

    /// Stops preserving what may belong to an object, which can be decoded now or was deleted.
    fn forget_undecodable(&mut self, kind: WatchedKind, name: &ObjectName) {
        if !self.undecodable.remove(kind, name) {
            return;
        }
        match kind {
            WatchedKind::Marker => self.affect_namespace(&name.namespace),
            WatchedKind::Pod => {
                let (name, cx) = (Arc::new(name.clone()), &mut self.cx);
                self.nodes.set_wanted_as_observed(&name, false, cx);
            }
            WatchedKind::Node | WatchedKind::NodePodProbe => {}
        }
    }

    /// Marks the pods of a namespace for planning.
    pub(super) fn affect_namespace(&mut self, namespace: &str) {
        // The first round of a term plans all pods.
        if self.cx.synced {
            let pods = self.pods.in_namespace(namespace);
            self.cx.affected.pods.extend(pods.cloned());
        }
    }

    fn remove_marker(&mut self, name: &ObjectName) {
        if let Some(change) = self.markers.remove_marker(name, &mut self.cx) {
            self.plan_pods_of(&change);
        }
    }

    fn remove_pod(&mut self, name: &ObjectName) {
        let cx = &mut self.cx;
        let Some(removed) = self.pods.remove_pod(name) else {
            return;
        };
        let pod = &removed.pod;
        // Planned once more, so that nothing is written of it any more.
        cx.affected.pods.insert(pod.name.clone());
        self.groups.remove_pod(&pod.name, cx);
        self.nodes.remove_agent(pod, cx);
        // Markers that wait for the removal of unclaimed marks may go with the last pod that had some.
        if self.pods.set_unclaimed(&pod.name, false) {
            self.markers.mark_held_as_affected(&name.namespace, cx);
        }
        if let Some((node, key)) = &removed.on_node {
            self.nodes.set_wanted(node, key, None, cx);
        }
        let none = Contributions::default();
        self.markers
            .count_contributions(&pod.name, &removed.contributions, &none, cx);
    }
}
