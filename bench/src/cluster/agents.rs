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
use serde_json::{Map, Value, json};

use super::exchange::Exchange;
use super::objects::{self, CONTAINER, PROBES};
use super::world::{NODE_POD_PROBES, World};

/// All agents, and what they have found last.
pub(super) struct Agents<'a> {
    pub(super) world: &'a World,
    /// Of each pod, what is known of each of [`PROBES`].
    found: Vec<[Found; 2]>,
}

#[derive(Clone)]
struct Found {
    /// Of the entry.
    revision: Option<String>,
    succeeded: bool,
    since: Timestamp,
}

impl Found {
    /// Of a condition.
    fn status(&self) -> &'static str {
        if self.succeeded { "True" } else { "False" }
    }

    fn state(&self) -> &'static str {
        if self.succeeded {
            "Succeeded"
        } else {
            "Failed"
        }
    }

    fn message(&self) -> &'static str {
        if self.succeeded { "yes" } else { "no" }
    }
}

impl<'a> Agents<'a> {
    /// Agents that have read their nodes' `NodePodProbes` and found that every probe succeeds.
    pub(super) async fn of(client: &Client, world: &'a World, since: Timestamp) -> Result<Self> {
        let probes: Api<NodePodProbe> = Api::all(client.clone());
        let mut revisions = HashMap::new();
        for object in probes.list(&ListParams::default()).await? {
            for pod in object.spec.pod_probes {
                for probe in pod.probes {
                    revisions.insert((pod.uid.clone(), probe.name), probe.revision);
                }
            }
        }
        let mut found = Vec::with_capacity(world.pods.len());
        for pod in &world.pods {
            let mut of = |probe: &str| {
                let name = objects::entry(pod.app, probe);
                let revision = revisions.remove(&(pod.uid.clone(), name));
                let revision = revision.with_context(|| format!("{} has no {probe}", pod.name))?;
                anyhow::Ok(Found {
                    revision,
                    succeeded: true,
                    since,
                })
            };
            found.push([of(PROBES[0])?, of(PROBES[1])?]);
        }
        Ok(Self { world, found })
    }

    /// Turns verdicts round, each named by the place of its pod and its own.
    pub(super) fn turn(&mut self, which: &[(usize, usize)], now: Timestamp) {
        for (pod, probe) in which {
            let found = &mut self.found[*pod][*probe];
            found.succeeded = !found.succeeded;
            found.since = now;
        }
    }

    /// The status patches by which the agents report what they have found, one a node.
    pub(super) fn reports(&self) -> Vec<Exchange> {
        let mut statuses = vec![Vec::new(); self.world.nodes.len()];
        for (place, pod) in self.world.pods.iter().enumerate() {
            statuses[pod.node].push(self.report(place));
        }
        let report = |(name, statuses): (&String, _)| {
            let path = format!("{NODE_POD_PROBES}/{name}/status");
            Exchange::merge(
                &path,
                "agent",
                &json!({"status": {"podProbeStatuses": statuses}}),
            )
        };
        self.world.nodes.iter().zip(statuses).map(report).collect()
    }

    fn report(&self, place: usize) -> PodProbeStatus {
        let pod = &self.world.pods[place];
        let state = |(probe, found): (&&str, &Found)| ContainerProbeState {
            last_probe_time: Some(Time(found.since)),
            last_transition_time: Some(Time(found.since)),
            message: Some(found.message().to_owned()),
            revision: found.revision.clone(),
            container_id: Some(objects::container_id(&pod.name, CONTAINER)),
            ..ContainerProbeState::new(&objects::entry(pod.app, probe), found.state())
        };
        PodProbeStatus {
            name: pod.name.clone(),
            namespace: objects::namespace(pod.app),
            uid: pod.uid.clone(),
            probe_states: PROBES.iter().zip(&self.found[place]).map(state).collect(),
            ..PodProbeStatus::default()
        }
    }

    /// The labels that a pod then has.
    pub(super) fn labels(&self, place: usize) -> [(String, String); 2] {
        [0, 1].map(|probe| {
            (
                objects::mark(PROBES[probe]),
                self.found[place][probe].succeeded.to_string(),
            )
        })
    }

    /// All that a pod then has, as `leadsman_tests::scene::differs` takes it.
    pub(super) fn expected(&self, place: usize) -> Value {
        let mut expected = json!({"labels": {}, "annotations": {}, "conditions": {}});
        for (probe, found) in PROBES.iter().zip(&self.found[place]) {
            let (key, value) = objects::annotation(probe, found.succeeded);
            expected["labels"][objects::mark(probe)] = json!(found.succeeded.to_string());
            expected["annotations"][key] = json!(value);
            expected["conditions"][objects::mark(probe)] = json!(found.status());
        }
        expected
    }

    /// How many pods have a success of this probe, of those of an application.
    pub(super) fn succeeded(&self, app: usize, probe: usize) -> i64 {
        let pods = self.world.pods.iter().zip(&self.found);
        let succeeded = pods.filter(|(pod, found)| pod.app == app && found[probe].succeeded);
        i64::try_from(succeeded.count()).unwrap_or(i64::MAX)
    }

    /// The apply by which a manager writes all marks of a pod.
    pub(super) fn marks(&self, place: usize) -> Exchange {
        let pod = &self.world.pods[place];
        let (mut annotations, mut conditions) = (Map::new(), Vec::new());
        for (probe, found) in PROBES.iter().zip(&self.found[place]) {
            let (key, value) = objects::annotation(probe, found.succeeded);
            annotations.insert(key, json!(value));
            conditions.push(json!({
                "type": objects::mark(probe), "status": found.status(), "message": found.message(),
                "lastTransitionTime": Time(found.since), "lastProbeTime": Time(found.since),
            }));
        }
        let body = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": pod.name, "namespace": objects::namespace(pod.app), "uid": pod.uid,
                "labels": HashMap::from(self.labels(place)), "annotations": annotations
            },
            "status": {"conditions": conditions}
        });
        Exchange::apply(&format!("{}/status", pod.path()), FIELD_MANAGER, &body)
    }
}
