//! What the simulated API server makes of each write of the manager, and of what admission lets through.

use std::sync::Arc;

use leadsman_api::{NodePodProbe, PodProbeMarkerStatus};
use serde_json::{Value, json};

use super::{Admission, Cluster, name};
use crate::cluster::{ObjectName, Source};
use crate::podprobe::index::tests::driver::{Event, PodMarks, WatchedKind, Write};

/// What a schema without our optional fields does.
pub(super) fn drop_extensions(object: &mut NodePodProbe) {
    let pods = object.spec.pod_probes.iter_mut();
    for probe in pods.flat_map(|pod| &mut pod.probes) {
        probe.revision = None;
        probe.started_container_id = None;
    }
    let status = object.status.iter_mut();
    let pods = status.flat_map(|status| &mut status.pod_probe_statuses);
    for state in pods.flat_map(|pod| &mut pod.probe_states) {
        state.revision = None;
        state.container_id = None;
    }
}

impl Cluster {
    /// What admission makes of a write; none if it is accepted and changes nothing.
    pub(super) fn admit(&self, mut write: Write) -> Option<Write> {
        match (self.admission, &mut write) {
            (Some(Admission::Ignore(kind)), write) => {
                let own = match write {
                    Write::PodMarks(_) => WatchedKind::Pod,
                    Write::MarkerStatus { .. } | Write::MarkerFinalizers { .. } => {
                        WatchedKind::Marker
                    }
                    Write::ReplaceNodePodProbe(_) => WatchedKind::NodePodProbe,
                    // What is to be created or deleted cannot be ignored, only refused.
                    Write::CreateNodePodProbe(_) | Write::DeleteNodePodProbe { .. } => {
                        return Some(write.clone());
                    }
                };
                if own == kind {
                    return None;
                }
            }
            (Some(Admission::Strip(key)), Write::PodMarks(marks)) => {
                for field in ["labels", "annotations"] {
                    let body = marks
                        .apply
                        .as_mut()
                        .and_then(|body| body["metadata"].get_mut(field));
                    if let Some(Value::Object(pairs)) = body {
                        pairs.remove(key);
                    }
                }
            }
            (
                Some(Admission::EmptySpec),
                Write::CreateNodePodProbe(object) | Write::ReplaceNodePodProbe(object),
            ) => object.spec.pod_probes.clear(),
            _ => {}
        }
        Some(write)
    }

    /// The event that the reply shows; none if the write is refused, or ended its object.
    pub(super) fn carry_out(&mut self, write: Write) -> Option<Event> {
        match write {
            Write::CreateNodePodProbe(new) => {
                let name = new.metadata.name.clone().unwrap();
                self.put_node_pod_probe(*new);
                self.reply_with(WatchedKind::NodePodProbe, &self::name("", &name))
            }
            Write::ReplaceNodePodProbe(new) => self.replace_node_pod_probe(*new),
            Write::DeleteNodePodProbe { name, uid } => {
                let known = self.node_pod_probes.get(&name);
                if known.is_none_or(|known| known.metadata.uid.as_ref() == Some(&uid)) {
                    self.delete(WatchedKind::NodePodProbe, &self::name("", &name));
                }
                None
            }
            Write::PodMarks(marks) => self.execute_marks(&marks),
            Write::MarkerStatus {
                marker,
                uid,
                resource_version,
                status,
            } => self.replace_marker_status(&marker, (&uid, resource_version.as_ref()), *status),
            Write::MarkerFinalizers {
                marker,
                uid,
                resource_version,
                finalizers,
            } => {
                let meta = &self.markers.get(&marker)?.metadata;
                if meta.uid.as_ref() != Some(&uid) || meta.resource_version != resource_version {
                    return None;
                }
                let gone = meta.deletion_timestamp.is_some() && finalizers.is_empty();
                self.edit_marker(&marker, |marker| {
                    marker.metadata.finalizers = Some(finalizers);
                });
                if gone {
                    self.delete(WatchedKind::Marker, &marker);
                    return None;
                }
                self.reply_with(WatchedKind::Marker, &marker)
            }
        }
    }

    fn reply_with(&self, kind: WatchedKind, name: &ObjectName) -> Option<Event> {
        self.snapshot(kind, name, Source::Reply)
    }

    fn replace_node_pod_probe(&mut self, new: NodePodProbe) -> Option<Event> {
        let id = self::name("", new.metadata.name.as_deref().unwrap());
        let known = self.node_pod_probes.get(&id.name)?;
        if known.metadata.resource_version != new.metadata.resource_version {
            return None;
        }
        let (spec, drops) = (new.spec, self.drops_extensions);
        self.edit_node_pod_probe(&id.name, |known| {
            known.spec = spec;
            if drops {
                drop_extensions(known);
            }
        });
        self.reply_with(WatchedKind::NodePodProbe, &id)
    }

    fn replace_marker_status(
        &mut self,
        marker: &ObjectName,
        (uid, resource_version): (&String, Option<&String>),
        mut status: PodProbeMarkerStatus,
    ) -> Option<Event> {
        let known = self.markers.get(marker)?;
        let meta = &known.metadata;
        if meta.uid.as_ref() != Some(uid) || meta.resource_version.as_ref() != resource_version {
            return None;
        }
        if self.drops_extensions {
            status.probes.clear();
            status.conditions.clear();
        }
        let mut new = known.clone();
        new.status = Some(status);
        new.metadata.resource_version = Some(self.next_version().to_string());
        self.markers.insert(marker.clone(), new.clone());
        self.publish(
            WatchedKind::Marker,
            Event::Marker(Arc::new(new), Source::Watch),
        );
        self.reply_with(WatchedKind::Marker, marker)
    }

    fn execute_marks(&mut self, marks: &PodMarks) -> Option<Event> {
        let pod = self.pods.get(&marks.pod)?;
        let bodies = [&marks.remove, &marks.apply];
        for body in bodies.into_iter().flatten() {
            let version = &body["metadata"]["resourceVersion"];
            // What is of another version conflicts (`metadata.resourceVersion` of an apply is a precondition).
            let is_other = !version.is_null() && *version != json!(pod.version.to_string());
            if body["metadata"]["uid"] != json!(pod.uid) || is_other {
                return None;
            }
        }
        let was_primary = pod.is_marked_primary();
        self.edit_pod(&marks.pod, |pod| {
            if let Some(body) = &marks.remove {
                pod.remove(body);
            }
            if let Some(body) = &marks.apply {
                pod.apply(body);
            }
        });
        if !was_primary {
            self.assert_one_holder(&marks.pod);
        }
        self.reply_with(WatchedKind::Pod, &marks.pod)
    }
}
