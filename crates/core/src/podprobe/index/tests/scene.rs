//! A small cluster that the tables start from: node `n0`, pod `a/p0` on it with label `app=x`.

use jiff::SignedDuration;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use leadsman_api::PodProbeMarkerStatus;
use leadsman_api::node_pod_probe::{ContainerProbe, ContainerProbeState, PodProbe, PodProbeStatus};
use serde_json::{Value, json};

use super::cluster::name;
use super::driver::{PodMarks, Write, WriteTarget};
use super::pod::{Marks, SimPod};
use super::proof::marker;
use super::world::World;
use crate::cluster::ObjectName;
use crate::podprobe::index::Config;

/// Pods labelled `app=x`.
pub(super) fn app_x() -> Value {
    json!({ "matchLabels": { "app": "x" } })
}

/// A probe with a condition and both policies.
pub(super) fn idle() -> Value {
    json!({
        "name": "idle", "containerName": "main", "probe": { "exec": { "command": ["/idle"] } },
        "podConditionType": "game.io/idle",
        "markerPolicy": [
            { "state": "Succeeded", "labels": { "idle": "true", "role": "main" }, "annotations": { "cost": "-10" } },
            { "state": "Failed", "labels": { "idle": "false" }, "annotations": { "cost": "10" } },
        ],
    })
}

/// A probe of a container with a condition of its own.
pub(super) fn probe(own: &str, container: &str, handler: Value) -> Value {
    let mut probe = json!({
        "name": own, "containerName": container, "podConditionType": format!("game.io/{own}"),
    });
    probe["probe"] = handler;
    probe
}

pub(super) fn exec(word: &str) -> Value {
    json!({ "exec": { "command": [word] } })
}

pub(super) fn p0() -> ObjectName {
    name("a", "p0")
}

impl World {
    /// Nothing but the node.
    pub(super) fn bare() -> Self {
        Self::with(Config::default())
    }

    pub(super) fn with(config: Config) -> Self {
        let mut world = Self::new(config);
        world.cluster.put_node("n0", false);
        world.settle();
        world
    }

    /// The node, the pod and a marker `a/way` with these probes.
    pub(super) fn probing(probes: &[Value]) -> Self {
        let mut world = Self::bare();
        world.mark("way", probes);
        world
            .cluster
            .put_pod(&p0(), SimPod::new("u0", "n0", &[("app", "x")]));
        world.settle();
        world
    }

    /// Makes or edits a marker in namespace `a`.
    pub(super) fn mark(&mut self, own: &str, probes: &[Value]) {
        self.mark_in("a", own, probes);
    }

    pub(super) fn mark_in(&mut self, namespace: &str, own: &str, probes: &[Value]) {
        let marker = marker(&app_x(), probes);
        self.cluster.put_marker(&name(namespace, own), marker);
        self.settle();
    }

    /// Drains, lets a second pass, and forgets what was written.
    pub(super) fn settle(&mut self) {
        self.drain();
        self.pass(SignedDuration::from_secs(1));
        self.writes.clear();
    }

    /// The agent reports on an entry of `a/p0`, as the entry is.
    pub(super) fn verdict(&mut self, entry: &str, state: &str, message: &str) {
        self.verdict_with(entry, state, message, |_| {});
    }

    pub(super) fn verdict_with(
        &mut self,
        entry: &str,
        state: &str,
        message: &str,
        edit: impl FnOnce(&mut ContainerProbeState),
    ) {
        self.report(entry, state, message, edit);
        self.drain();
    }

    /// The agent reports, and nobody has seen it yet.
    pub(super) fn report(
        &mut self,
        entry: &str,
        state: &str,
        message: &str,
        edit: impl FnOnce(&mut ContainerProbeState),
    ) {
        let now = Time(self.cluster.now);
        let known = self.entry(entry);
        let mut new = ContainerProbeState {
            message: Some(message.to_owned()),
            last_probe_time: Some(now.clone()),
            last_transition_time: Some(now),
            revision: known.as_ref().and_then(|known| known.revision.clone()),
            container_id: known.and_then(|known| known.started_container_id),
            ..ContainerProbeState::new(entry, state)
        };
        edit(&mut new);
        let uid = self.cluster.pods[&p0()].node_uid().to_owned();
        self.cluster.edit_node_pod_probe("n0", |object| {
            let pods = &mut object.status.get_or_insert_default().pod_probe_statuses;
            let mut states = Vec::new();
            pods.retain_mut(|pod| {
                states.append(&mut pod.probe_states);
                false
            });
            states.retain(|state| state.name != new.name);
            states.push(new);
            pods.push(PodProbeStatus {
                name: "p0".to_owned(),
                namespace: "a".to_owned(),
                uid,
                probe_states: states,
                ..PodProbeStatus::default()
            });
        });
    }

    /// What the node has of `a/p0`.
    pub(super) fn pod_probe(&self) -> Option<&PodProbe> {
        let object = self.cluster.node_pod_probes.get("n0")?;
        let mut pods = object.spec.pod_probes.iter();
        pods.find(|pod| pod.name == "p0")
    }

    pub(super) fn entry(&self, own: &str) -> Option<ContainerProbe> {
        let mut entries = self.pod_probe()?.probes.iter();
        entries.find(|entry| entry.name == own).cloned()
    }

    pub(super) fn entries(&self) -> Vec<String> {
        let entries = self.pod_probe().into_iter().flat_map(|pod| &pod.probes);
        entries.map(|entry| entry.name.clone()).collect()
    }

    pub(super) fn pod(&self) -> &SimPod {
        &self.cluster.pods[&p0()]
    }

    pub(super) fn edit(&mut self, edit: impl FnOnce(&mut SimPod)) {
        self.cluster.edit_pod(&p0(), edit);
        self.drain();
    }

    /// Reason and message of a marker's condition.
    pub(super) fn ready(&self, own: &str) -> (String, String) {
        let ready = self.status(own).conditions.first().cloned().unwrap();
        (ready.reason, ready.message)
    }

    pub(super) fn status(&self, own: &str) -> PodProbeMarkerStatus {
        self.cluster.markers[&name("a", own)]
            .status
            .clone()
            .unwrap()
    }

    /// What has been written to pods since the last settling.
    pub(super) fn pod_writes(&self) -> Vec<&PodMarks> {
        let writes = self.writes.iter().filter_map(|(_, write)| match write {
            Write::PodMarks(marks) => Some(&**marks),
            _ => None,
        });
        writes.collect()
    }

    pub(super) fn node_writes(&self) -> usize {
        let writes = self.writes.iter();
        writes
            .filter(|(object, _)| matches!(object, WriteTarget::NodePodProbe(_)))
            .count()
    }
}

/// Keys and values.
pub(super) fn plain(marks: &Marks) -> Value {
    let pairs = marks
        .iter()
        .map(|(key, mark)| (key.clone(), mark.value.clone()));
    Value::Object(pairs.collect())
}
