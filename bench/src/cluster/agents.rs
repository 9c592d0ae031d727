//! What the nodes' agents report, and what pods have when a manager has read it.

use std::collections::HashMap;

use anyhow::{Context as _, Result};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::ListParams;
use kube::{Api, Client};
use leadsman_api::NodePodProbe;
use leadsman_api::node_pod_probe::{ContainerProbeState, PodProbeStatus};
use leadsman_core::podprobe::pod::FIELD_MANAGER;
use serde_json::{Value, json};

use super::api::{APPLY, ApiRequest, MERGE};
use super::world::{NODE_POD_PROBES, PROBES, World, mark, namespace};

/// All agents, and what they have found last.
pub(super) struct Agents<'a> {
    pub(super) world: &'a World,
    /// Of each pod, with a state for each of [`PROBES`].
    found: Vec<PodProbeStatus>,
}

impl<'a> Agents<'a> {
    /// Agents that have read their nodes' `NodePodProbes` and found that every probe succeeds.
    pub(super) async fn of(client: &Client, world: &'a World, since: Timestamp) -> Result<Self> {
        let probes: Api<NodePodProbe> = Api::all(client.clone());
        let objects = probes.list(&ListParams::default()).await?.into_iter();
        let pods = objects.flat_map(|object| object.spec.pod_probes);
        let mut entries: HashMap<_, _> = pods.map(|pod| (pod.uid, pod.probes)).collect();
        let mut found = Vec::with_capacity(world.pods.len());
        for pod in &world.pods {
            let entries = entries.remove(&pod.uid);
            let entries = entries.with_context(|| format!("{} has no entries", pod.name))?;
            let states = entries.into_iter().map(|entry| {
                let mut state = ContainerProbeState::new(&entry.name, "");
                state.revision = entry.revision;
                state.container_id = Some(pod.container_id());
                set(&mut state, true, since);
                state
            });
            found.push(PodProbeStatus {
                name: pod.name.clone(),
                namespace: namespace(pod.app),
                uid: pod.uid.clone(),
                probe_states: states.collect(),
                ..PodProbeStatus::default()
            });
        }
        Ok(Self { world, found })
    }

    /// Turns verdicts round, each named by the place of its pod and its own.
    pub(super) fn turn(&mut self, which: &[(usize, usize)], now: Timestamp) {
        for (pod, probe) in which {
            let state = &mut self.found[*pod].probe_states[*probe];
            set(state, !succeeded(state), now);
        }
    }

    /// The status patches by which the agents report what they have found, one a node.
    pub(super) fn reports(&self) -> Vec<ApiRequest> {
        let mut statuses = vec![Vec::new(); self.world.nodes.len()];
        for (pod, found) in self.world.pods.iter().zip(&self.found) {
            statuses[pod.node].push(found);
        }
        let report = |(node, statuses): (&String, _)| {
            let path = format!("{NODE_POD_PROBES}/{node}/status");
            let body = json!({"status": {"podProbeStatuses": statuses}});
            ApiRequest::new(MERGE, &path, "agent", &body)
        };
        self.world.nodes.iter().zip(statuses).map(report).collect()
    }

    /// What was found of a pod.
    fn states(&self, place: usize) -> impl Iterator<Item = (&str, &ContainerProbeState)> {
        PROBES.into_iter().zip(&self.found[place].probe_states)
    }

    /// What the status of an application's marker then counts: each probe, its pods that succeeded and those that failed.
    pub(super) fn counts(&self, app: usize) -> [(&'static str, i64, i64); PROBES.len()] {
        let mut counts = PROBES.map(|probe| (probe, 0, 0));
        let pods = self.world.pods.iter().zip(&self.found);
        for (_, found) in pods.filter(|(pod, _)| pod.app == app) {
            for ((_, passed, failed), state) in counts.iter_mut().zip(&found.probe_states) {
                *(if succeeded(state) { passed } else { failed }) += 1;
            }
        }
        counts
    }

    /// All that a pod then has, as `leadsman_tests::scene::differs` takes it.
    pub(super) fn expected(&self, place: usize) -> Value {
        let mut expected = json!({"labels": {}, "annotations": {}, "conditions": {}});
        for (probe, state) in self.states(place) {
            let cost = if succeeded(state) { "-10" } else { "10" };
            expected["labels"][mark(probe)] = json!(succeeded(state).to_string());
            expected["annotations"][cost_annotation(probe)] = json!(cost);
            expected["conditions"][mark(probe)] = json!(condition_status(state));
        }
        expected
    }

    /// The apply by which a manager writes all marks of a pod.
    pub(super) fn marks(&self, place: usize) -> ApiRequest {
        let (pod, expected) = (&self.world.pods[place], self.expected(place));
        let conditions = self.states(place).map(|(probe, state)| {
            json!({"type": mark(probe), "status": condition_status(state), "message": state.message,
                "lastTransitionTime": state.last_transition_time, "lastProbeTime": state.last_probe_time})
        });
        let body = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": pod.name, "namespace": namespace(pod.app), "uid": pod.uid,
                "labels": expected["labels"], "annotations": expected["annotations"]
            },
            "status": {"conditions": conditions.collect::<Vec<_>>()}
        });
        let path = format!("{}/status", pod.path());
        ApiRequest::new(APPLY, &path, FIELD_MANAGER, &body)
    }
}

fn set(state: &mut ContainerProbeState, succeeded: bool, now: Timestamp) {
    let (verdict, message) = if succeeded {
        ("Succeeded", "yes")
    } else {
        ("Failed", "no")
    };
    verdict.clone_into(&mut state.state);
    state.message = Some(message.to_owned());
    state.last_probe_time = Some(Time(now));
    state.last_transition_time = Some(Time(now));
}

fn succeeded(state: &ContainerProbeState) -> bool {
    state.state == "Succeeded"
}

fn condition_status(state: &ContainerProbeState) -> &'static str {
    if succeeded(state) { "True" } else { "False" }
}

/// The annotation by which a probe's verdict shows on a pod.
fn cost_annotation(probe: &str) -> String {
    if probe == PROBES[0] {
        "controller.kubernetes.io/pod-deletion-cost".to_owned()
    } else {
        format!("{}-cost", mark(probe))
    }
}
