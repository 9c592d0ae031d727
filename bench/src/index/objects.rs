//! A cluster of any size, made up object by object, and an index that has seen all of it and has nothing to do.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use leadsman_api::node_pod_probe::{ContainerProbe, ContainerProbeState, PodProbe, PodProbeStatus};
use leadsman_api::slim::{Node, Pod};
use leadsman_api::{NodePodProbe, NodePodProbeSpec, PodProbeMarker};
use leadsman_core::cluster::{Now, ObjectName, ResourceVersion, Source};
use leadsman_core::podprobe::PodProbes;
use leadsman_reconcile::{Feature, Reconciler, Watch, WriteId};

use crate::cluster::filled;

/// Pods of a node.
pub(super) const NODE: usize = 25;
/// Pods of a workload, which one marker selects.
pub(super) const WORKLOAD: usize = 250;
/// Pods of a namespace.
const NAMESPACE: usize = 1_000;

const TIME: &str = "2026-01-02T03:04:05Z";
/// The command of a marker's first probe.
pub(super) const COMMAND: &str = "/home/game/idle.sh";

/// An object that the index is shown.
pub(super) type Event = Box<dyn FnOnce(&mut Reconciler<PodProbes>)>;

/// The objects.
pub(super) struct Objects {
    pub(super) pods: usize,
    markers: usize,
    version: u64,
    /// By which events are known.
    source: Source,
    /// A pod as it commonly is.
    pod: Pod,
    /// The entries of a pod, as the index wants them.
    entries: Vec<ContainerProbe>,
}

impl Objects {
    pub(super) fn new(pods: usize, markers: usize) -> Self {
        let pod = include_str!("objects/pod.json");
        Self {
            pods,
            markers,
            version: 1,
            source: Source::List(ResourceVersion::UNKNOWN),
            pod: serde_json::from_str(pod).expect("a pod is well formed"),
            entries: Vec::new(),
        }
    }

    pub(super) fn nodes(&self) -> usize {
        self.pods.div_ceil(NODE)
    }

    /// Pods that a marker selects: those of the first workloads.
    pub(super) fn matched(&self) -> usize {
        self.pods.min(self.markers * WORKLOAD)
    }

    fn next_version(&mut self) -> String {
        self.version += 1;
        self.version.to_string()
    }

    pub(super) fn shown<K: 'static>(&self, object: K) -> Event
    where
        PodProbes: Watch<K>,
    {
        let (object, source) = (Arc::new(object), self.source);
        Box::new(move |reconciler| reconciler.observe_object(object, source))
    }

    /// A pod that bears what its verdicts say, under a new version; of its workload or of none.
    pub(super) fn pod(&mut self, number: usize, of_workload: bool) -> Event {
        let mut pod = self.pod.clone();
        pod.identity.namespace = Some(namespace(number));
        pod.identity.name = Some(pod_name(number));
        pod.identity.uid = Some(uid(number));
        pod.identity.resource_version = Some(self.next_version());
        let mut labels = pod.labels.iter_mut();
        let workload_label = labels.find(|(key, _)| key == "app.kubernetes.io/instance");
        if let Some((_, value)) = workload_label.filter(|_| of_workload) {
            *value = workload(number / WORKLOAD);
        }
        if number >= self.matched() {
            let conditions = &mut pod.status.conditions;
            conditions.retain(|one| !one.type_.starts_with("game.io/"));
            pod.labels.retain(|(key, _)| key != "game.io/idle");
            pod.owners
                .retain(|owner| owner.manager != "leadsman-podprobe");
        }
        pod.spec.node_name = Some(node_name(number / NODE));
        pod.status.pod_ip = Some(ip(number));
        let id = format!("containerd://{}", container(number));
        pod.status.container_statuses[0].container_id = Some(id);
        self.shown(pod)
    }

    pub(super) fn node(&mut self, number: usize) -> Event {
        let mut node = Node::default();
        node.identity.name = Some(node_name(number));
        node.identity.uid = Some(uid(number));
        node.identity.resource_version = Some(self.next_version());
        node.labels = vec![("kubernetes.io/hostname".to_owned(), node_name(number))];
        self.shown(node)
    }

    /// A marker of the workload of its number, if there is one, with this command in its first probe.
    pub(super) fn marker(&mut self, number: usize, command: &str) -> PodProbeMarker {
        let workloads = self.pods.div_ceil(WORKLOAD);
        let values = [
            ("$namespace", &*namespace(number % workloads * WORKLOAD)),
            ("$marker", &marker_name(number)),
            ("$uid", &uid(number)),
            ("$version", &self.next_version()),
            ("$workload", &workload(number)),
            ("$command", command),
        ];
        let marker = filled(include_str!("objects/marker.json"), &values);
        serde_json::from_value(marker).expect("a marker is well formed")
    }

    /// A node's object as it is to be, with a verdict about each entry; that of one entry of this pod may be Failed.
    pub(super) fn node_pod_probe(&mut self, node: usize, failed: Option<usize>) -> Event {
        let mut object = NodePodProbe::new(&node_name(node), NodePodProbeSpec::default());
        object.metadata.uid = Some(uid(node));
        object.metadata.generation = Some(1);
        object.metadata.resource_version = Some(self.next_version());
        let mut statuses = Vec::new();
        let pods = node * NODE..(node + 1) * NODE;
        for number in pods.take_while(|number| *number < self.matched()) {
            let marker = marker_name(number / WORKLOAD);
            let entries = self.entries.iter().map(|entry| ContainerProbe {
                name: format!("{marker}#{}", entry.name),
                ..entry.clone()
            });
            let pod = PodProbe {
                name: pod_name(number),
                namespace: namespace(number),
                uid: uid(number),
                ip: ip(number),
                probes: entries.collect(),
            };
            let states = pod.probes.iter().enumerate();
            let fails = |place| place == 0 && failed == Some(number);
            let states = states.map(|(place, entry)| state(entry, fails(place)));
            statuses.push(PodProbeStatus {
                name: pod.name.clone(),
                namespace: pod.namespace.clone(),
                uid: pod.uid.clone(),
                probe_states: states.collect(),
                ..PodProbeStatus::default()
            });
            object.spec.pod_probes.push(pod);
        }
        object.status.get_or_insert_default().pod_probe_statuses = statuses;
        self.shown(object)
    }

    /// Bytes of the strings that no other pod has.
    pub(super) fn unique_bytes(&self) -> usize {
        let strings = |pod| [pod_name(pod), uid(pod), container(pod), ip(pod)];
        (0..self.pods).flat_map(strings).map(|one| one.len()).sum()
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

names! {
    namespace(pod: usize) = "games-{}", pod / NAMESPACE;
    workload(number: usize) = "shard-{number}";
    pod_name(pod: usize) = "game-server-{}-6b9f7d5c84-{:05x}", pod / WORKLOAD, pod * 7919 % 0xf_ffff;
    node_name(node: usize) = "pool-a-{node:05}.example.net";
    marker_name(number: usize) = "game-server-probe-{number}";
    uid(number: usize) = "0b5ab2f4-7a1e-4c8e-9d2f-{number:012x}";
    ip(pod: usize) = "10.{}.{}.{}", pod >> 16 & 255, pod >> 8 & 255, pod & 255;
    container(pod: usize) = "{pod:064x}";
}

/// The index that has seen all objects.
pub(super) struct FilledIndex {
    pub(super) objects: Objects,
    reconciler: Reconciler<PodProbes>,
    now: Now,
}

impl FilledIndex {
    /// Tells all objects, answers all writes.
    pub(super) fn new(objects: Objects) -> Result<Self> {
        let (markers, nodes, pods) = (objects.markers, objects.nodes(), objects.pods);
        let now = Now {
            monotonic: Duration::ZERO,
            wall: TIME.parse()?,
        };
        // Runs cost nothing, so that all keys run in one turn.
        let mut reconciler = Reconciler::new(PodProbes::new(|_, _| {}), || Duration::ZERO);
        reconciler.set_now(now);
        let mut filled = Self {
            objects,
            reconciler,
            now,
        };
        // Planned as they arrive: all plans together would take more memory than what is kept.
        filled.reconciler.begin_term();
        let mut due = BTreeSet::new();
        for number in 0..markers {
            let marker = filled.objects.marker(number, COMMAND);
            due.extend(filled.tell(filled.objects.shown(marker)));
        }
        for number in 0..nodes {
            let node = filled.objects.node(number);
            due.extend(filled.tell(node));
        }
        for number in 0..pods {
            let pod = filled.objects.pod(number, true);
            due.extend(filled.tell(pod));
        }
        filled.learn_entries(&due)?;
        filled.objects.source = Source::Watch;
        for number in 0..nodes {
            let object = filled.objects.node_pod_probe(number, None);
            filled.tell(object);
        }
        for number in 0..markers {
            filled.answer_status(number)?;
        }
        let left = filled.write(&due).len();
        ensure!(
            left == 0,
            "{left} writes in a cluster that is as it should be"
        );
        Ok(filled)
    }

    fn tell(&mut self, event: Event) -> BTreeSet<WriteId> {
        event(&mut self.reconciler);
        self.reconciler.publish();
        self.plan()
    }

    fn plan(&mut self) -> BTreeSet<WriteId> {
        let mut due = BTreeSet::new();
        loop {
            self.reconciler.run_keys(self.now);
            let effects = self.reconciler.take_effects(self.now);
            due.extend(effects.dirty);
            if effects.deadline.is_none_or(|at| at > self.now.monotonic) {
                return due;
            }
        }
    }

    /// The bodies of the writes that are due of these. None is carried out.
    fn write(&mut self, due: &BTreeSet<WriteId>) -> Vec<String> {
        let mut bodies = Vec::new();
        for id in due {
            if let Some(write) = self.reconciler.take_due(id, self.now) {
                bodies.push(write.text().into_owned());
                self.reconciler.note_failed(id, true);
                self.plan();
            }
        }
        bodies
    }

    /// Takes an event in. Returns the writes that are due after it.
    pub(super) fn take_in(&mut self, event: Event) -> Vec<String> {
        let due = self.tell(event);
        self.write(&due)
    }

    /// The first object that is to be written shows what an entry looks like.
    fn learn_entries(&mut self, due: &BTreeSet<WriteId>) -> Result<()> {
        let mut objects = due.iter().filter_map(|id| {
            let body = self.write(&BTreeSet::from([id.clone()])).pop()?;
            serde_json::from_str(&body).ok()
        });
        let first =
            objects.find_map(|object: NodePodProbe| object.spec.pod_probes.into_iter().next());
        let mut entries = first.context("no node's object is to be written")?.probes;
        for entry in &mut entries {
            let probe = entry.name.split_once('#');
            entry.name = probe.context("an entry without a probe")?.1.to_owned();
        }
        self.objects.entries = entries;
        Ok(())
    }

    fn answer_status(&mut self, number: usize) -> Result<()> {
        let mut marker = self.objects.marker(number, COMMAND);
        let mut kinds = PodProbes::WRITES.iter();
        let kind = kinds.position(|kind| kind.label == "marker_status");
        let id = WriteId {
            kind: kind.context("no kind of write of a marker's status")?,
            name: Arc::new(ObjectName::of(&marker.metadata)),
        };
        if let Some(write) = self.reconciler.take_due(&id, self.now) {
            let status = write.body()["status"].clone();
            marker.status = Some(serde_json::from_value(status)?);
            self.tell(self.objects.shown(marker));
        }
        Ok(())
    }
}
