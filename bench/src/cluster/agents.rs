//! What the nodes' agents say, and what pods bear when a manager has heard it.

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
use super::world::{NODE_POD_PROBES, Pod, World};

/// All agents, and what they have found last.
pub(super) struct Agents<'a> {
    world: &'a World,
    /// Of each pod, each probe's revision.
    revisions: Vec<[Option<String>; 2]>,
    /// Of each pod, each probe's verdict and since when.
    verdicts: Vec<[Verdict; 2]>,
}

#[derive(Clone, Copy)]
struct Verdict {
    succeeded: bool,
    since: Timestamp,
}

impl<'a> Agents<'a> {
    /// Agents that have read their nodes' `NodePodProbes` and found that every probe succeeds.
    pub(super) async fn of(client: &Client, world: &'a World, now: Timestamp) -> Result<Self> {
        let probes: Api<NodePodProbe> = Api::all(client.clone());
        let mut revisions = HashMap::new();
        for object in probes.list(&ListParams::default()).await? {
            for pod in object.spec.pod_probes {
                for probe in pod.probes {
                    revisions.insert((pod.uid.clone(), probe.name), probe.revision);
                }
            }
        }
        let mut of = |pod: &Pod, probe: &str| {
            let name = entry(pod, probe);
            let revision = revisions.remove(&(pod.uid.clone(), name.clone()));
            revision.with_context(|| format!("{} has no entry {name}", pod.name))
        };
        let of_pods = world.pods.iter().map(|pod| -> Result<_> {
            let [first, second] = PROBES;
            Ok([of(pod, first)?, of(pod, second)?])
        });
        let verdict = Verdict {
            succeeded: true,
            since: now,
        };
        Ok(Self {
            world,
            revisions: of_pods.collect::<Result<_>>()?,
            verdicts: vec![[verdict; 2]; world.pods.len()],
        })
    }

    /// Turns verdicts round, each named by the place of its pod and its own.
    pub(super) fn turn(&mut self, which: &[(usize, usize)], now: Timestamp) {
        for (pod, probe) in which {
            let verdict = &mut self.verdicts[*pod][*probe];
            verdict.succeeded = !verdict.succeeded;
            verdict.since = now;
        }
    }

    /// The status patches by which the agents say what they have found, one a node.
    pub(super) fn reports(&self) -> Vec<Exchange> {
        let nodes = self.world.nodes.iter().enumerate();
        nodes
            .map(|(node, name)| {
                let pods = self.world.pods.iter().enumerate();
                let pods = pods.filter(|(_, pod)| pod.node == node);
                let statuses: Vec<_> = pods.map(|(place, _)| self.report(place)).collect();
                let path = format!("{NODE_POD_PROBES}/{name}/status");
                let body = json!({"status": {"podProbeStatuses": statuses}});
                Exchange::merge(&path, "agent", &body)
            })
            .collect()
    }

    fn report(&self, place: usize) -> PodProbeStatus {
        let pod = &self.world.pods[place];
        let found = self.revisions[place].iter().zip(&self.verdicts[place]);
        let states = PROBES
            .iter()
            .zip(found)
            .map(|(probe, (revision, verdict))| {
                let since = Some(Time(verdict.since));
                ContainerProbeState {
                    name: entry(pod, probe),
                    state: if verdict.succeeded {
                        "Succeeded"
                    } else {
                        "Failed"
                    }
                    .to_owned(),
                    last_probe_time: since.clone(),
                    last_transition_time: since,
                    message: Some(message(verdict.succeeded).to_owned()),
                    revision: revision.clone(),
                    container_id: Some(objects::container_id(&pod.name, CONTAINER)),
                }
            });
        PodProbeStatus {
            name: pod.name.clone(),
            namespace: objects::namespace(pod.app),
            uid: pod.uid.clone(),
            probe_states: states.collect(),
            ..PodProbeStatus::default()
        }
    }

    /// The labels that a pod then has.
    pub(super) fn labels(&self, place: usize) -> [(String, String); 2] {
        let [first, second] = self.verdicts[place];
        [(PROBES[0], first), (PROBES[1], second)]
            .map(|(probe, verdict)| (objects::label(probe), verdict.succeeded.to_string()))
    }

    /// All that a pod then bears, as `leadsman_tests::scene::differs` takes it.
    pub(super) fn expected(&self, place: usize) -> Value {
        let mut expected = json!({"labels": {}, "annotations": {}, "conditions": {}});
        for (probe, verdict) in PROBES.iter().zip(self.verdicts[place]) {
            let (key, value) = objects::annotation(probe, verdict.succeeded);
            expected["labels"][objects::label(probe)] = json!(verdict.succeeded.to_string());
            expected["annotations"][key] = json!(value);
            expected["conditions"][objects::condition(probe)] = json!(status(verdict.succeeded));
        }
        expected
    }

    /// How many pods have a success of this probe, of those of an application.
    pub(super) fn succeeded(&self, app: usize, probe: usize) -> i64 {
        let pods = self.world.pods.iter().zip(&self.verdicts);
        let succeeded = pods.filter(|(pod, verdicts)| pod.app == app && verdicts[probe].succeeded);
        i64::try_from(succeeded.count()).unwrap_or(i64::MAX)
    }

    /// The apply by which a manager writes all marks of a pod.
    pub(super) fn marks(&self, place: usize) -> Exchange {
        let pod = &self.world.pods[place];
        let mut labels = Map::new();
        let mut annotations = Map::new();
        let mut conditions = Vec::new();
        for (probe, verdict) in PROBES.iter().zip(self.verdicts[place]) {
            let value = verdict.succeeded.to_string();
            labels.insert(objects::label(probe), json!(value));
            let (key, value) = objects::annotation(probe, verdict.succeeded);
            annotations.insert(key, json!(value));
            conditions.push(condition(probe, verdict));
        }
        let body = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": pod.name, "namespace": objects::namespace(pod.app), "uid": pod.uid,
                "labels": labels, "annotations": annotations
            },
            "status": {"conditions": conditions}
        });
        Exchange::apply(&format!("{}/status", pod.path()), FIELD_MANAGER, &body)
    }
}

fn condition(probe: &str, verdict: Verdict) -> Value {
    json!({
        "type": objects::condition(probe),
        "status": status(verdict.succeeded),
        "message": message(verdict.succeeded),
        "lastTransitionTime": Time(verdict.since),
        "lastProbeTime": Time(verdict.since),
    })
}

fn entry(pod: &Pod, probe: &str) -> String {
    format!("{}#{probe}", objects::app(pod.app))
}

fn message(succeeded: bool) -> &'static str {
    if succeeded { "yes" } else { "no" }
}

/// A condition's.
fn status(succeeded: bool) -> &'static str {
    if succeeded { "True" } else { "False" }
}
