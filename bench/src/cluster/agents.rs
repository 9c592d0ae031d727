//! What the nodes' agents report, and what pods have when a manager has read it.

use std::collections::HashMap;

use anyhow::{Context as _, Result};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::ListParams;
use kube::{Api, Client};
use leadsman_api::NodePodProbe;
use leadsman_api::marker::ProbeSummary;
use leadsman_api::node_pod_probe::{ContainerProbeState, PodProbeStatus};
use leadsman_core::podprobe::pod::FIELD_MANAGER;
use serde_json::{Value, json};

use super::api::{APPLY, ApiRequest, MERGE, NODE_POD_PROBES};
use super::world::{PROBES, World, container_id, cost, mark, namespace, node};

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
                state.container_id = Some(container_id(&pod.name));
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

    /// Turns the verdicts of so many probes of these pods round.
    pub(super) fn turn(&mut self, places: &[usize], probes: usize, now: Timestamp) {
        for place in places {
            for state in &mut self.found[*place].probe_states[..probes] {
                set(state, !succeeded(state), now);
            }
        }
    }

    /// The status patches by which the agents report what they have found, one a node.
    pub(super) fn reports(&self) -> Vec<ApiRequest> {
        let mut statuses = vec![Vec::new(); self.world.nodes];
        for (pod, found) in self.world.pods.iter().zip(&self.found) {
            statuses[pod.node].push(found);
        }
        let report = |(number, statuses)| {
            let path = format!("{NODE_POD_PROBES}/{}/status", node(number));
            let body = json!({"status": {"podProbeStatuses": statuses}});
            ApiRequest::new(MERGE, &path, "agent", &body)
        };
        statuses.iter().enumerate().map(report).collect()
    }

    /// What was found of a pod.
    fn states(&self, place: usize) -> impl Iterator<Item = (&str, &ContainerProbeState)> {
        PROBES.into_iter().zip(&self.found[place].probe_states)
    }

    /// What the status of an application's marker then counts of its probes.
    pub(super) fn counts(&self, app: usize) -> Vec<ProbeSummary> {
        let mut counts = PROBES.map(|probe| ProbeSummary {
            name: probe.to_owned(),
            ..ProbeSummary::default()
        });
        let pods = self.world.pods.iter().zip(&self.found);
        for (_, found) in pods.filter(|(pod, _)| pod.app == app) {
            for (count, state) in counts.iter_mut().zip(&found.probe_states) {
                count.succeeded += i64::from(succeeded(state));
                count.failed += i64::from(!succeeded(state));
            }
        }
        counts.into()
    }

    /// All that a pod then has, as `leadsman_tests::scene::differs` takes it.
    pub(super) fn expected(&self, place: usize) -> Value {
        let mut expected = json!({"labels": {}, "annotations": {}, "conditions": {}});
        for (probe, state) in self.states(place) {
            let [price, status] = if succeeded(state) {
                ["-10", "True"]
            } else {
                ["10", "False"]
            };
            expected["labels"][mark(probe)] = json!(succeeded(state).to_string());
            expected["annotations"][cost(probe)] = json!(price);
            expected["conditions"][mark(probe)] = json!(status);
        }
        expected
    }

    /// The apply by which a manager writes all marks of a pod.
    pub(super) fn marks(&self, place: usize) -> ApiRequest {
        let (pod, expected) = (&self.world.pods[place], self.expected(place));
        let conditions = self.states(place).map(|(probe, state)| {
            let status = &expected["conditions"][mark(probe)];
            json!({"type": mark(probe), "status": status, "message": state.message,
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
