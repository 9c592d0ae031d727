//! The entry of events into the machines: whether a snapshot shows anything new, and effects that concern more than one
//! machine.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use leadsman_api::slim;
use leadsman_api::{AGENT_LABELS, NodePodProbe, PodProbeMarker};

use super::Index;
use super::context::{Contributions, PodName};
use super::markers::MarkerChange;
use super::pod_plan::PlannedEntries;
use crate::cluster::{CompleteList, ObjectName, Refusal, ResourceVersion, Source};
use crate::podprobe::event::{Event, WatchedKind, Write, WriteTarget};
use crate::podprobe::exclusive;
use crate::podprobe::marker::MARKERS_PER_POD;
use crate::podprobe::pod::IndexedPod;

impl Index {
    /// Passes an event to the machines. What it affects is recomputed later.
    pub(super) fn dispatch_event(&mut self, event: Event) {
        let cx = &mut self.cx;
        match event {
            Event::Marker(marker, source) => self.observe_marker(&marker, source),
            Event::Pod(pod, source) => {
                self.observe_pod(&pod, source);
                self.release_watched();
            }
            Event::Node(node, source) => self.observe_node(&node, source),
            Event::NodePodProbe(object, source) => {
                self.observe_object(Arc::unwrap_or_clone(object), source);
            }
            Event::Undecodable(kind, name) => self.observe_undecodable(kind, name),
            Event::Deleted(kind, name, version) => {
                if kind == WatchedKind::Pod {
                    self.groups.note_watched(version, cx);
                }
                // The watch may lag behind the reply to a write that created a new object of this name.
                let known = self.known_version(kind, &name);
                if !known.is_some_and(|known| known.is_later_than(version)) {
                    self.remove_object_at_version(kind, &name, version);
                }
                self.release_watched();
            }
            Event::Listed(kind, names, version) => {
                self.markers_listed |= kind == WatchedKind::Marker;
                if kind == WatchedKind::Pod {
                    self.groups.note_listed(version, cx);
                }
                let list = self.watches.complete_list(kind, version);
                self.remove_unlisted(kind, &names, list);
                self.release_watched();
            }
            Event::Relisted(kind, names, version) => {
                let list = self.watches.complete_list_beside_watch(kind, version);
                self.remove_unlisted(kind, &names, list);
                if kind == WatchedKind::NodePodProbe {
                    self.preserve_unseen();
                }
            }
            Event::Synced => {
                cx.synced = true;
                self.pods.forget_contests();
                self.nodes.forget_contests();
                self.markers.forget_contests();
                self.affect_all();
                let all = std::mem::take(&mut self.cx.affected.pods);
                self.turns.begin_first_round(all);
            }
            Event::FieldsKept(WatchedKind::Marker, kept) => {
                self.markers.set_keeps_summaries(kept, cx);
            }
            Event::FieldsKept(WatchedKind::NodePodProbe, kept) => {
                self.nodes.set_keeps_fields(kept, cx);
            }
            Event::FieldsKept(WatchedKind::Pod | WatchedKind::Node, _) | Event::Deadline => {}
            Event::Written(target) => self.observe_written(&target),
            Event::Refused(target, write, refusal) => {
                self.observe_refused(&target, *write, refusal);
            }
        }
    }

    /// Whether a snapshot shows nothing new.
    fn is_stale(
        &mut self,
        kind: WatchedKind,
        name: &ObjectName,
        meta: &ObjectMeta,
        source: Source,
    ) -> bool {
        let version = ResourceVersion::parse(meta.resource_version.as_deref());
        self.watches.observe(kind, source, version);
        let known = self.known_version(kind, name);
        self.watches.is_stale(source, kind, name, version, known)
    }

    fn observe_marker(&mut self, wire: &PodProbeMarker, source: Source) {
        let name = ObjectName::of(&wire.metadata);
        if self.is_stale(WatchedKind::Marker, &name, &wire.metadata, source) {
            return;
        }
        self.forget_undecodable(WatchedKind::Marker, &name);
        self.forget_marker_refusals(&name);
        if let Some(change) = self.markers.observe_marker(wire, &mut self.cx) {
            self.plan_pods_of(&change);
            self.update_memberships_of_marker(&change);
        }
    }

    fn observe_pod(&mut self, wire: &slim::Pod, source: Source) {
        let name = ObjectName::of(&wire.identity);
        if source == Source::Watch {
            let version = wire.identity.resource_version.as_deref();
            self.groups
                .note_watched(ResourceVersion::parse(version), &mut self.cx);
        }
        if self.is_stale(WatchedKind::Pod, &name, &wire.identity, source) {
            return;
        }
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
        self.forget_undecodable(WatchedKind::Pod, &pod.name);
        // What is read of an agent's pod is not kept with the pod.
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
        let (mut matching, _) = self.markers.match_markers(pod);
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
        let marker = self.markers.active_entry(&change.name);
        let marker = marker.filter(|(_, marker)| self.cx.synced && marker.has_exclusive());
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
        let recorded = pods.filter(|name| {
            let pod = self.pods.get(name);
            pod.is_some_and(exclusive::has_records)
        });
        let recorded: Vec<_> = recorded.cloned().collect();
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

    fn observe_node(&mut self, wire: &slim::Node, source: Source) {
        let name = ObjectName::of(&wire.identity);
        if self.is_stale(WatchedKind::Node, &name, &wire.identity, source) {
            return;
        }
        let was_virtual = self.nodes.is_virtual(&name.name);
        self.nodes.observe_node(wire, &mut self.cx);
        self.affect_pods_of_provider(&name.name, was_virtual);
    }

    fn remove_node(&mut self, name: &str) -> Option<ResourceVersion> {
        let was_virtual = self.nodes.is_virtual(name);
        let version = self.nodes.remove_node(name, &mut self.cx);
        self.affect_pods_of_provider(name, was_virtual);
        version
    }

    /// Marks the pods of a node for planning when the node appears, disappears, becomes virtual or ceases to be: the
    /// injected annotations of a pod stay while its node is missing. Pods without entries are not recorded with their
    /// node, so all pods are searched. Before all kinds are listed that is skipped: `Synced` plans all pods anyway.
    fn affect_pods_of_provider(&mut self, node: &str, was_virtual: Option<bool>) {
        if self.config.serverless && self.cx.synced && self.nodes.is_virtual(node) != was_virtual {
            let pods = self.pods.bound_to(node);
            self.cx.affected.pods.extend(pods.cloned());
        }
    }

    fn observe_object(&mut self, wire: NodePodProbe, source: Source) {
        let name = ObjectName::of(&wire.metadata);
        if self.is_stale(WatchedKind::NodePodProbe, &name, &wire.metadata, source) {
            return;
        }
        // Reports of the agent do not change whether the spec is refused.
        if self.nodes.observe_object(wire, source, &mut self.cx) {
            self.forget_object_refusal(name.name);
        }
    }

    /// Preserves what may belong to an undecodable object, unless an earlier state of it is known.
    fn observe_undecodable(&mut self, kind: WatchedKind, name: ObjectName) {
        if self.known_version(kind, &name).is_some() {
            return;
        }
        match kind {
            WatchedKind::Marker => {
                if self.undecodable.insert_marker(&name) {
                    self.affect_namespace(&name.namespace);
                }
            }
            WatchedKind::Pod => {
                let name = Arc::new(name);
                self.undecodable.insert_pod(name.clone());
                self.cx.affected.pods.insert(name);
            }
            // Nodes have hardly any field that is read, and a NodePodProbe is replaced.
            WatchedKind::Node | WatchedKind::NodePodProbe => {}
        }
    }

    /// Stops preserving what may belong to an object, which can be decoded now or was deleted.
    fn forget_undecodable(&mut self, kind: WatchedKind, name: &ObjectName) {
        match kind {
            WatchedKind::Marker => {
                if self.undecodable.remove_marker(name) {
                    self.affect_namespace(&name.namespace);
                }
            }
            WatchedKind::Pod => {
                if let Some(name) = self.undecodable.remove_pod(name) {
                    let cx = &mut self.cx;
                    self.nodes.set_wanted_as_observed(&name, false, cx);
                }
            }
            WatchedKind::Node | WatchedKind::NodePodProbe => {}
        }
    }

    /// Marks the pods of a namespace for planning.
    pub(super) fn affect_namespace(&mut self, namespace: &str) {
        // `Synced` plans all pods.
        if self.cx.synced {
            let pods = self.pods.in_namespace(namespace);
            self.cx.affected.pods.extend(pods.cloned());
        }
    }

    /// Marks a target for comparison with what its write led to.
    fn observe_written(&mut self, target: &WriteTarget) {
        self.compare_waiting_target(target);
        let now = self.cx.now.monotonic;
        let is_undone = match target {
            WriteTarget::PodMarks(name) => self.pods.note_written(name, now),
            WriteTarget::NodePodProbe(name) => self.nodes.note_written(name, now),
            WriteTarget::MarkerStatus(name) => self.markers.note_status_written(name, now),
            WriteTarget::MarkerFinalizer(name) => self.markers.note_finalizers_written(name, now),
        };
        if is_undone {
            self.mark_for_recomputing(target);
        }
    }

    /// Compares the target of a write that waits for its turn with what the write led to, before the write counts as
    /// carried out.
    fn compare_waiting_target(&mut self, target: &WriteTarget) {
        match target {
            WriteTarget::PodMarks(name) => self.plan_waiting_pod(name),
            WriteTarget::MarkerStatus(name) | WriteTarget::MarkerFinalizer(name) => {
                if self.turns.is_waiting(&name.namespace) {
                    self.compare_marker(&Arc::new(name.clone()));
                }
            }
            WriteTarget::NodePodProbe(_) => {}
        }
    }

    /// Remembers the refusal of a write, unless another write of the target is due by now, which is tried. Of an object that
    /// is too large, a smaller one becomes due.
    fn observe_refused(&mut self, target: &WriteTarget, write: Write, refusal: Refusal) {
        self.hold_waiting_marker(target);
        // The refusal answers a request of some time ago; what is due now may be another one.
        let due = self.due_write(target, self.cx.now).map(|due| due.write);
        let is_too_large = matches!(refusal, Refusal::TooLarge(_));
        let (now, timers) = (self.cx.now.monotonic, &mut self.cx.timers);
        let is_kept = self.refusals.remember_if_due(
            target,
            (write, due),
            &refusal.into_reason(),
            now,
            timers,
        );
        if !is_kept {
            return;
        }
        if let (true, WriteTarget::NodePodProbe(name)) = (is_too_large, target) {
            self.nodes.shrink_room(name, &mut self.cx);
        }
        self.mark_for_recomputing(target);
    }

    fn forget_marker_refusals(&mut self, name: &ObjectName) {
        let status = WriteTarget::MarkerStatus(name.clone());
        let finalizers = WriteTarget::MarkerFinalizer(name.clone());
        self.refusals.forget_refusal(&status);
        self.refusals.forget_refusal(&finalizers);
    }

    fn forget_object_refusal(&mut self, name: String) {
        let target = WriteTarget::NodePodProbe(name);
        if self.refusals.forget_refusal(&target) {
            self.mark_for_recomputing(&target);
        }
    }

    /// Removes the objects that a complete list of a kind does not contain, unless they are newer than the list.
    fn remove_unlisted(
        &mut self,
        kind: WatchedKind,
        listed: &BTreeSet<ObjectName>,
        list: CompleteList,
    ) {
        let mut names = self.known_names(kind);
        // Collected before the first removal, which changes the maps that the names come from.
        names.retain(|name| !listed.contains(name));
        // The maps are hashed: unsorted, two runs would remember the deletions in another order.
        names.sort();
        for name in names {
            if list.proves_deletion(self.known_version(kind, &name)) {
                self.remove_object_at_version(kind, &name, list.version());
            }
        }
    }

    /// Removes an object that does not exist at `version`.
    fn remove_object_at_version(
        &mut self,
        kind: WatchedKind,
        name: &ObjectName,
        version: ResourceVersion,
    ) {
        self.forget_undecodable(kind, name);
        // Machines first: they say at which version the object was known.
        let known = match kind {
            WatchedKind::Marker => self.remove_marker(name),
            WatchedKind::Pod => self.remove_pod(name),
            WatchedKind::Node => self.remove_node(&name.name),
            WatchedKind::NodePodProbe => self.remove_object(&name.name),
        };
        // A tombstone without a version would let any older event bring the object back.
        let version = if version == ResourceVersion::UNKNOWN {
            known.unwrap_or(version)
        } else {
            version
        };
        let now = self.cx.now.monotonic;
        self.watches.note_deletion(kind, name, version, now);
    }

    fn remove_marker(&mut self, name: &ObjectName) -> Option<ResourceVersion> {
        let (version, change) = self.markers.remove_marker(name, &mut self.cx)?;
        self.plan_pods_of(&change);
        self.forget_marker_refusals(name);
        Some(version)
    }

    fn remove_pod(&mut self, name: &ObjectName) -> Option<ResourceVersion> {
        let cx = &mut self.cx;
        let removed = self.pods.remove_pod(name, cx)?;
        let pod = &removed.pod;
        self.groups.remove_pod(&pod.name, cx);
        self.nodes.remove_agent(pod, cx);
        // With the last pod that had unclaimed marks, markers that wait for their removal may go.
        if self.pods.set_unclaimed(&pod.name, false) {
            self.markers.mark_held_as_affected(&name.namespace, cx);
        }
        self.refusals
            .forget_refusal(&WriteTarget::PodMarks(name.clone()));
        if let Some((node, key)) = &removed.on_node {
            self.nodes.set_wanted(node, key, None, cx);
        }
        let none = Contributions::default();
        self.markers
            .count_contributions(&pod.name, &removed.contributions, &none, cx);
        Some(pod.version)
    }

    fn remove_object(&mut self, name: &str) -> Option<ResourceVersion> {
        let version = self.nodes.remove_object(name, &mut self.cx)?;
        self.forget_object_refusal(name.to_owned());
        Some(version)
    }

    /// The version in which an object is known.
    pub(super) fn known_version(
        &self,
        kind: WatchedKind,
        name: &ObjectName,
    ) -> Option<ResourceVersion> {
        match kind {
            WatchedKind::Marker => self.markers.known_version(name),
            WatchedKind::Pod => self.pods.known_version(name),
            WatchedKind::Node => self.nodes.node_version(&name.name),
            WatchedKind::NodePodProbe => self.nodes.object_version(&name.name),
        }
    }

    /// All objects known of a kind.
    pub(super) fn known_names(&self, kind: WatchedKind) -> Vec<ObjectName> {
        let of_node = |name: &Arc<str>| ObjectName {
            namespace: String::new(),
            name: name.to_string(),
        };
        let mut names: Vec<_> = match kind {
            WatchedKind::Marker => self
                .markers
                .marker_names()
                .map(|name| (**name).clone())
                .collect(),
            WatchedKind::Pod => self.pods.names().map(|name| (**name).clone()).collect(),
            WatchedKind::Node => self.nodes.node_names().map(of_node).collect(),
            WatchedKind::NodePodProbe => self.nodes.object_names().map(of_node).collect(),
        };
        names.extend(self.undecodable.names_of_kind(kind));
        names
    }
}
