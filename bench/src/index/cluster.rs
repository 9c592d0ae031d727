//! A cluster of any size, made up object by object, and an index that has seen all of it and has nothing to do.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use leadsman_api::node_pod_probe::{ContainerProbe, ContainerProbeState, PodProbe, PodProbeStatus};
use leadsman_api::slim::{Node, Pod};
use leadsman_api::{NodePodProbe, PodProbeMarker};
use leadsman_core::cluster::{Now, ObjectName, Source};
use leadsman_core::podprobe::event::{Event, Write, WriteTarget};
use leadsman_core::podprobe::{Config, Index};

use crate::cluster::objects::filled;

/// Pods of a node.
pub(super) const NODE: u64 = 25;
/// Pods of a workload, which one marker selects.
pub(super) const WORKLOAD: u64 = 250;
/// Pods of a namespace.
const NAMESPACE: u64 = 1_000;

const TIME: &str = "2026-01-02T03:04:05Z";

/// The objects.
pub(super) struct Cluster {
    pub(super) pods: u64,
    pub(super) markers: u64,
    version: u64,
    pod: Pod,
    /// The entries of a pod, as the index wants them.
    entries: Vec<ContainerProbe>,
}

impl Cluster {
    pub(super) fn new(pods: u64, markers: u64) -> Self {
        Self {
            pods,
            markers,
            version: 1,
            pod: template(),
            entries: Vec::new(),
        }
    }

    pub(super) fn workloads(&self) -> u64 {
        self.pods.div_ceil(WORKLOAD)
    }

    pub(super) fn nodes(&self) -> u64 {
        self.pods.div_ceil(NODE)
    }

    /// Pods that a marker selects: those of the first workloads.
    pub(super) fn matched(&self) -> u64 {
        self.pods.min(self.markers * WORKLOAD)
    }

    fn next_version(&mut self) -> String {
        self.version += 1;
        self.version.to_string()
    }

    /// A pod that bears what its verdicts say, under a new version; of its workload or of none.
    pub(super) fn pod(&mut self, number: u64, of_workload: bool) -> Pod {
        let mut pod = self.pod.clone();
        pod.identity.namespace = Some(namespace(number));
        pod.identity.name = Some(pod_name(number));
        pod.identity.uid = Some(uid(number));
        pod.identity.resource_version = Some(self.next_version());
        let workload = if of_workload {
            workload(number)
        } else {
            "none".to_owned()
        };
        for (key, value) in &mut pod.labels {
            if key == "app.kubernetes.io/instance" {
                value.clone_from(&workload);
            }
        }
        if number >= self.matched() {
            pod.labels.retain(|(key, _)| key != "game.io/idle");
            pod.status
                .conditions
                .retain(|one| !one.type_.starts_with("game.io/"));
            pod.owners
                .retain(|owner| owner.manager != "leadsman-podprobe");
        }
        pod.spec.node_name = Some(node_name(number / NODE));
        pod.status.pod_ip = Some(ip(number));
        pod.status.container_statuses[0].container_id =
            Some(format!("containerd://{}", container(number)));
        pod
    }

    pub(super) fn node(&mut self, number: u64) -> Node {
        let mut node = Node::default();
        node.identity.name = Some(node_name(number));
        node.identity.uid = Some(uid(number));
        node.identity.resource_version = Some(self.next_version());
        node.labels = vec![("kubernetes.io/hostname".to_owned(), node_name(number))];
        node
    }

    /// A marker of the workload of its number, if there is one, with this command in its first probe.
    pub(super) fn marker(&mut self, number: u64, command: &str) -> PodProbeMarker {
        let namespace = namespace((number % self.workloads()) * WORKLOAD);
        let (name, uid, version) = (marker_name(number), uid(number), self.next_version());
        let values = [
            ("$namespace", namespace.as_str()),
            ("$marker", &name),
            ("$uid", &uid),
            ("$version", &version),
            ("$workload", &format!("shard-{number}")),
            ("$command", command),
        ];
        let marker = filled(include_str!("objects/marker.json"), &values);
        serde_json::from_value(marker).expect("a marker is well formed")
    }

    /// A node's object as it is to be, with a verdict about each entry; that of one entry of this pod may be Failed.
    pub(super) fn node_pod_probe(&mut self, node: u64, failed: Option<u64>) -> NodePodProbe {
        let mut object =
            NodePodProbe::new(&node_name(node), leadsman_api::NodePodProbeSpec::default());
        object.metadata.uid = Some(uid(node));
        object.metadata.generation = Some(1);
        object.metadata.resource_version = Some(self.next_version());
        let mut statuses = Vec::new();
        for number in (node * NODE..(node + 1) * NODE).take_while(|number| *number < self.matched())
        {
            let (namespace, name, uid) = (namespace(number), pod_name(number), uid(number));
            let marker = marker_name(number / WORKLOAD);
            let entries = self.entries.iter().map(|entry| ContainerProbe {
                name: format!("{marker}#{}", entry.name),
                ..entry.clone()
            });
            let probes: Vec<_> = entries.collect();
            let states = probes.iter().enumerate();
            let states =
                states.map(|(place, entry)| state(entry, place == 0 && failed == Some(number)));
            statuses.push(PodProbeStatus {
                name: name.clone(),
                namespace: namespace.clone(),
                uid: uid.clone(),
                probe_states: states.collect(),
                ..PodProbeStatus::default()
            });
            object.spec.pod_probes.push(PodProbe {
                name,
                namespace,
                uid,
                ip: ip(number),
                probes,
            });
        }
        object.status.get_or_insert_default().pod_probe_statuses = statuses;
        object
    }

    /// Bytes of the strings that no other pod has.
    pub(super) fn unique_bytes(&self) -> u64 {
        let strings = (0..self.pods).map(|number| {
            pod_name(number).len() + uid(number).len() + container(number).len() + ip(number).len()
        });
        strings.sum::<usize>() as u64
    }
}

fn state(entry: &ContainerProbe, failed: bool) -> ContainerProbeState {
    let state = if failed { "Failed" } else { "Succeeded" };
    let time = TIME.parse().map(Time).ok();
    ContainerProbeState {
        last_probe_time: time.clone(),
        last_transition_time: time,
        message: Some("as it should be".to_owned()),
        revision: entry.revision.clone(),
        ..ContainerProbeState::new(&entry.name, state)
    }
}

fn namespace(pod: u64) -> String {
    format!("games-{}", pod / NAMESPACE)
}

fn workload(pod: u64) -> String {
    format!("shard-{}", pod / WORKLOAD)
}

fn pod_name(pod: u64) -> String {
    format!(
        "game-server-{}-6b9f7d5c84-{:05x}",
        pod / WORKLOAD,
        pod * 7919 % 0xf_ffff
    )
}

fn node_name(node: u64) -> String {
    format!("pool-a-{node:05}.example.net")
}

pub(super) fn marker_name(number: u64) -> String {
    format!("game-server-probe-{number}")
}

fn uid(number: u64) -> String {
    format!("0b5ab2f4-7a1e-4c8e-9d2f-{number:012x}")
}

fn ip(pod: u64) -> String {
    format!("10.{}.{}.{}", pod >> 16 & 255, pod >> 8 & 255, pod & 255)
}

fn container(pod: u64) -> String {
    format!("{pod:064x}")
}

/// A pod as it commonly is.
fn template() -> Pod {
    serde_json::from_str(include_str!("objects/pod.json")).expect("a pod is well formed")
}

/// The index that has seen the cluster.
pub(super) struct World {
    pub(super) cluster: Cluster,
    index: Index,
    now: Now,
}

impl World {
    /// Tells all objects, answers all writes.
    pub(super) fn new(cluster: Cluster) -> Result<Self> {
        let mut world = Self {
            cluster,
            index: Index::new(Config::default()),
            now: Now {
                monotonic: Duration::ZERO,
                wall: TIME.parse()?,
            },
        };
        for number in 0..world.cluster.markers {
            let marker = world.cluster.marker(number, "/home/game/idle.sh");
            world.tell(Event::Marker(Arc::new(marker), Source::List));
        }
        for number in 0..world.cluster.nodes() {
            let node = world.cluster.node(number);
            world.tell(Event::Node(Arc::new(node), Source::List));
        }
        for number in 0..world.cluster.pods {
            let pod = world.cluster.pod(number, true);
            world.tell(Event::Pod(Arc::new(pod), Source::List));
        }
        let due = world.tell(Event::Synced);
        world.learn_entries(&due)?;
        for number in 0..world.cluster.nodes() {
            let object = world.cluster.node_pod_probe(number, None);
            world.tell(Event::NodePodProbe(Arc::new(object), Source::Watch));
        }
        for number in 0..world.cluster.markers {
            world.answer_status(number);
        }
        let left = due
            .iter()
            .filter(|object| world.index.due(object, world.now).is_some());
        ensure!(
            left.count() == 0,
            "something is left to do in a cluster that is as it should be"
        );
        Ok(world)
    }

    fn tell(&mut self, event: Event) -> Vec<WriteTarget> {
        self.index.observe(event, self.now).dirty
    }

    /// Takes an event in. Returns the writes that are due after it.
    pub(super) fn take_in(&mut self, event: Event) -> Vec<Write> {
        let due = self.tell(event);
        due.iter()
            .filter_map(|target| self.index.due(target, self.now))
            .collect()
    }

    /// The first object that is to be written shows what an entry looks like.
    fn learn_entries(&mut self, due: &[WriteTarget]) -> Result<()> {
        let mut writes = due
            .iter()
            .filter_map(|object| self.index.due(object, self.now));
        let first = writes.find_map(|write| match write {
            Write::CreateNodePodProbe(object) => object.spec.pod_probes.into_iter().next(),
            _ => None,
        });
        let first = first.context("no node's object is to be written")?;
        self.cluster.entries = first.probes;
        for entry in &mut self.cluster.entries {
            let (_, probe) = entry
                .name
                .split_once('#')
                .context("an entry without a probe")?;
            entry.name = probe.to_owned();
        }
        Ok(())
    }

    fn answer_status(&mut self, number: u64) {
        let mut marker = self.cluster.marker(number, "/home/game/idle.sh");
        let name = ObjectName {
            namespace: marker.metadata.namespace.clone().unwrap_or_default(),
            name: marker_name(number),
        };
        let object = WriteTarget::MarkerStatus(name);
        if let Some(Write::MarkerStatus { status, .. }) = self.index.due(&object, self.now) {
            marker.status = Some(*status);
            self.tell(Event::Marker(Arc::new(marker), Source::Watch));
        }
    }
}
