//! The plan, and what an earlier agent has left in the status.

use serde_json::{Value, json};

use super::reference::{AskedProbe, ModelVerdict, ReferenceProbe};
use super::{CONTAINERS, NAMESPACES, NodeModel, PROBES};

impl NodeModel {
    /// The plan as it is asked for, and the node sees it.
    pub(super) fn show_plan(&mut self) {
        self.sim.object.spec =
            serde_json::from_value(json!({"podProbes": self.asked_pods()})).unwrap();
        let wanted: Vec<usize> = (0..PROBES.len())
            .filter(|probe| !self.sim.gone && self.mask >> probe & 1 == 1)
            .collect();
        let live = !self.sim.gone;
        let last_known = &mut self.last_known;
        self.references.retain(|probe, _| {
            let stays = wanted.contains(probe);
            if !stays && live {
                last_known.remove(probe);
            }
            stays
        });
        let (time, now) = (self.sim.world_time(), self.sim.current_moment().wall);
        let first = live && !self.planned;
        self.planned |= live;
        for probe in wanted {
            let asked = self.asked[probe];
            if let Some(reference) = self.references.get_mut(&probe) {
                reference.follow_entry(asked, now);
                continue;
            }
            let left = first.then(|| self.verdict_left_in_status(probe)).flatten();
            if let Some(state) = left.as_ref().and_then(|(verdict, _)| verdict.known_state()) {
                self.last_known.insert(probe, state);
            }
            let mut reference = ReferenceProbe::new(asked, time);
            if let Some((verdict, fits)) = left {
                reference.take_over(verdict, fits, now);
            }
            self.references.insert(probe, reference);
        }
        self.sim.show_object();
    }

    fn asked_pods(&self) -> Vec<Value> {
        let mut pods = Vec::new();
        for (uid, namespace) in NAMESPACES {
            let of_pod = PROBES
                .iter()
                .enumerate()
                .filter(|(probe, (container, ..))| {
                    CONTAINERS[*container].0 == uid && self.mask >> probe & 1 == 1
                });
            let probes: Vec<Value> = of_pod.map(|(probe, _)| self.asked_entry(probe)).collect();
            if !probes.is_empty() {
                pods.push(json!({"name": uid, "namespace": namespace, "uid": uid, "IP": "", "probes": probes}));
            }
        }
        pods
    }

    fn asked_entry(&self, probe: usize) -> Value {
        let (container, name, exec) = PROBES[probe];
        let AskedProbe {
            version,
            timing: (period, success, failure),
            gate,
        } = self.asked[probe];
        let mut wire = json!({"periodSeconds": period, "successThreshold": success, "failureThreshold": failure});
        if exec {
            wire["exec"] = json!({"command": [version.to_string()]});
        } else {
            wire["tcpSocket"] = json!({"port": 80 + version});
        }
        json!({"name": name, "containerName": CONTAINERS[container].1, "probe": wire,
            "revision": (!self.sim.prunes).then(|| version.to_string()),
            "startedContainerID": gate.map(|id| format!("containerd://{id}"))})
    }

    /// The verdict that the status has of a probe, and whether it may be about the probe as it is asked for.
    fn verdict_left_in_status(&self, probe: usize) -> Option<(ModelVerdict, bool)> {
        let (container, name, _) = PROBES[probe];
        let status = self.sim.object.status.as_ref()?;
        let mut pods = status.pod_probe_statuses.iter();
        let pod = pods.find(|pod| pod.uid == CONTAINERS[container].0)?;
        let state = pod.probe_states.iter().find(|state| state.name == name)?;
        let asked = (!self.sim.prunes).then(|| self.asked[probe].version.to_string());
        let fits = match (&state.revision, asked) {
            (Some(left), Some(asked)) => *left == asked,
            _ => true,
        };
        let verdict = ModelVerdict {
            state: ["Succeeded", "Failed", "Unknown"]
                .into_iter()
                .find(|known| *known == state.state)?,
            about: state.container_id.as_ref().map(|id| id.parse().unwrap()),
            since: state.last_transition_time.clone()?.0,
        };
        Some((verdict, fits))
    }

    /// Makes the status one that OpenKruise's agent writes: no revision, no container, nothing that cannot be probed.
    pub(super) fn write_status_of_openkruise(&mut self) {
        let pods = self.sim.object.status.iter_mut();
        for pod in pods.flat_map(|status| &mut status.pod_probe_statuses) {
            pod.cannot_probe.clear();
            for state in &mut pod.probe_states {
                state.revision = None;
                state.container_id = None;
            }
        }
    }
}
