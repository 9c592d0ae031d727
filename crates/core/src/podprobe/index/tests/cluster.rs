//! An API server in one struct: who owns a mark, what an apply removes, when a version moves.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, ObjectMeta, Time};
use leadsman_api::{NodePodProbe, PodProbeMarker, slim};
use serde_json::{Value, json};

use crate::cluster::{ObjectName, ResourceVersion, Source};

use crate::podprobe::event::{Event, PodMarks, WatchedKind, Write};

/// Who writes marks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Owner {
    Ours,
    /// An apply of ours under the name [`FORMER`].
    Former,
    /// A user's Update, or a template.
    User,
    /// An Update of the status.
    Status,
    /// `OpenKruise`'s Update of the status; in a cluster its binary is called `manager`.
    Kruise,
    /// The Update of an operator, of which nearly all are called `manager` too.
    Operator,
}

/// The field manager that ours was once, where a test says so.
pub(super) const FORMER: &str = "leadsman-before";

pub(super) const OTHERS: [Owner; 4] = [Owner::User, Owner::Status, Owner::Kruise, Owner::Operator];

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Mark {
    pub(super) value: Value,
    pub(super) owners: BTreeSet<Owner>,
}

pub(super) type Marks = BTreeMap<String, Mark>;

#[derive(Clone, Debug, PartialEq)]
pub(super) struct SimContainer {
    pub(super) name: String,
    pub(super) startup_probe: bool,
    pub(super) id: String,
    pub(super) started: bool,
    pub(super) running_since: Timestamp,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct SimPod {
    pub(super) uid: String,
    pub(super) controller: Option<String>,
    pub(super) version: u64,
    pub(super) node: Option<String>,
    pub(super) ip: String,
    pub(super) phase: &'static str,
    pub(super) deleting: bool,
    pub(super) initialized: bool,
    pub(super) ready: bool,
    /// When that last changed.
    pub(super) ready_since: Timestamp,
    pub(super) labels: Marks,
    pub(super) annotations: Marks,
    pub(super) conditions: Marks,
    pub(super) containers: Vec<SimContainer>,
}

impl SimPod {
    pub(super) fn new(uid: &str, node: &str, labels: &[(&str, &str)]) -> Self {
        let containers = [("main", false), ("slow", true)];
        Self {
            uid: uid.to_owned(),
            controller: None,
            version: 0,
            node: Some(node.to_owned()),
            ip: "10.0.0.1".to_owned(),
            phase: "Running",
            deleting: false,
            initialized: true,
            ready: false,
            ready_since: Timestamp::UNIX_EPOCH,
            labels: labels
                .iter()
                .map(|(key, value)| ((*key).to_owned(), mark(value, Owner::User)))
                .collect(),
            annotations: Marks::new(),
            conditions: Marks::new(),
            containers: containers
                .map(|(name, startup_probe)| SimContainer {
                    name: name.to_owned(),
                    startup_probe,
                    id: format!("{uid}-{name}-1"),
                    started: !startup_probe,
                    running_since: Timestamp::UNIX_EPOCH,
                })
                .into(),
        }
    }

    /// The uid that the kubelet gives its containers.
    pub(super) fn node_uid(&self) -> &str {
        let mirrored = self.annotations.get("kubernetes.io/config.mirror");
        mirrored.map_or(&self.uid, |mark| mark.value.as_str().unwrap())
    }

    /// A label that our apply has set.
    pub(super) fn own_label(&mut self, key: &str, value: &str) {
        self.labels.insert(key.to_owned(), mark(value, Owner::Ours));
    }

    /// Makes it the mirror of a static pod with this uid.
    pub(super) fn mirror(&mut self, uid: &str) {
        let key = "kubernetes.io/config.mirror".to_owned();
        self.annotations.insert(key, mark(uid, Owner::User));
    }

    pub(super) fn is_active(&self) -> bool {
        !self.deleting && !matches!(self.phase, "Succeeded" | "Failed")
    }

    fn managed_fields(&self) -> Vec<Value> {
        let mut entries = Vec::new();
        for owner in [Owner::Ours, Owner::Former].iter().chain(&OTHERS) {
            let named = |marks: &Marks, name: fn(&str) -> String| {
                let keys = marks.iter().filter(|(_, mark)| mark.owners.contains(owner));
                let keys = keys.map(|(key, _)| (name(key), json!({})));
                Value::Object(keys.collect())
            };
            let metadata = |key: &str| format!("f:{key}");
            let condition = |key: &str| format!("k:{}", json!({ "type": key }));
            let (manager, operation, subresource) = match owner {
                Owner::Ours => ("leadsman-podprobe", "Apply", "status"),
                Owner::Former => (FORMER, "Apply", "status"),
                Owner::User => ("kubectl", "Update", ""),
                Owner::Status => ("kubelet", "Update", "status"),
                Owner::Kruise => ("manager", "Update", "status"),
                Owner::Operator => ("manager", "Update", ""),
            };
            entries.push(json!({
                "manager": manager, "operation": operation, "subresource": subresource,
                "apiVersion": "v1", "fieldsType": "FieldsV1",
                "fieldsV1": {
                    "f:metadata": {
                        "f:labels": named(&self.labels, metadata),
                        "f:annotations": named(&self.annotations, metadata),
                    },
                    "f:status": { "f:conditions": named(&self.conditions, condition) },
                },
            }));
        }
        entries
    }

    pub(super) fn wire(&self, name: &ObjectName) -> slim::Pod {
        let pairs = |marks: &Marks| {
            let pairs = marks
                .iter()
                .map(|(key, mark)| (key.clone(), mark.value.clone()));
            Value::Object(pairs.collect())
        };
        let mut conditions: Vec<_> = self
            .conditions
            .values()
            .map(|mark| mark.value.clone())
            .collect();
        let is = |holds: bool| if holds { "True" } else { "False" };
        conditions.push(json!({ "type": "Initialized", "status": is(self.initialized) }));
        conditions.push(json!({
            "type": "Ready", "status": is(self.ready), "lastTransitionTime": Time(self.ready_since),
        }));
        let containers = self.containers.iter().map(|container| {
            let probe = container.startup_probe.then(|| json!({ "exec": {} }));
            json!({
                "name": container.name,
                "ports": [{ "name": "http", "containerPort": 8080 }],
                "startupProbe": probe,
            })
        });
        let statuses = self.containers.iter().map(|container| {
            json!({
                "name": container.name,
                "containerID": format!("containerd://{}", container.id),
                "started": container.started,
                "state": { "running": { "startedAt": Time(container.running_since) } },
            })
        });
        let mut pod = json!({
            "metadata": {
                "namespace": name.namespace, "name": name.name, "uid": self.uid,
                "resourceVersion": self.version.to_string(),
                "labels": pairs(&self.labels), "annotations": pairs(&self.annotations),
                "managedFields": self.managed_fields(),
            },
            "spec": { "nodeName": self.node, "containers": containers.collect::<Vec<_>>() },
            "status": {
                "phase": self.phase, "podIP": self.ip, "conditions": conditions,
                "containerStatuses": statuses.collect::<Vec<_>>(),
            },
        });
        if let Some(uid) = &self.controller {
            let owner = json!({ "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": uid, "uid": uid, "controller": true });
            pod["metadata"]["ownerReferences"] = json!([owner]);
        }
        if self.deleting {
            pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        }
        serde_json::from_value(pod).unwrap()
    }

    fn marks(&mut self) -> [&mut Marks; 3] {
        [
            &mut self.labels,
            &mut self.annotations,
            &mut self.conditions,
        ]
    }

    fn apply(&mut self, body: &Value) {
        let pairs = |field: &str| -> BTreeMap<String, Value> {
            let pairs = body["metadata"][field].as_object();
            let pairs = pairs.into_iter().flatten();
            pairs
                .map(|(key, value)| (key.clone(), value.clone()))
                .collect()
        };
        let conditions = body["status"]["conditions"]
            .as_array()
            .into_iter()
            .flatten();
        let conditions: BTreeMap<_, _> = conditions
            .map(|one| (one["type"].as_str().unwrap().to_owned(), one.clone()))
            .collect();
        let applied = [pairs("labels"), pairs("annotations"), conditions];
        for (marks, applied) in self.marks().into_iter().zip(applied) {
            for (key, mark) in marks.iter_mut() {
                if !applied.contains_key(key) {
                    mark.owners.remove(&Owner::Ours);
                }
            }
            marks.retain(|_, mark| !mark.owners.is_empty());
            for (key, value) in applied {
                let known = marks.entry(key).or_insert_with(|| Mark {
                    value: value.clone(),
                    owners: BTreeSet::new(),
                });
                if known.value != value {
                    known.value = value;
                    known.owners.clear();
                }
                known.owners.insert(Owner::Ours);
            }
        }
    }

    fn remove(&mut self, body: &Value) {
        for (field, marks) in [
            ("labels", &mut self.labels),
            ("annotations", &mut self.annotations),
        ] {
            for key in body["metadata"][field].as_object().into_iter().flatten() {
                assert_eq!(*key.1, Value::Null);
                marks.remove(key.0);
            }
        }
        for one in body["status"]["conditions"]
            .as_array()
            .into_iter()
            .flatten()
        {
            assert_eq!(one["$patch"], "delete");
            self.conditions.remove(one["type"].as_str().unwrap());
        }
    }
}

pub(super) fn mark(value: &str, owner: Owner) -> Mark {
    Mark {
        value: json!(value),
        owners: [owner].into(),
    }
}

pub(super) fn name(namespace: &str, name: &str) -> ObjectName {
    ObjectName {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    }
}

/// The version of an object or a list.
pub(super) fn at(version: u64) -> ResourceVersion {
    ResourceVersion::parse(Some(&version.to_string()))
}

/// What an admission webhook or policy does to the manager's writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admission {
    /// Writes to this kind are accepted and change nothing.
    Ignore(WatchedKind),
    /// A label or annotation is taken out.
    Strip(&'static str),
    /// A `NodePodProbe` is stored without entries.
    EmptySpec,
}

/// What comes of a write.
#[derive(Clone, Debug)]
pub(super) enum Reply {
    /// It was carried out; the object as the reply shows it.
    Done(Option<Event>),
    /// Something else wrote the object.
    Conflict,
    /// There is no such object.
    Gone,
    /// There is one already.
    Exists,
}

/// The API server, and what its watchers have not seen yet.
#[derive(Debug)]
pub(super) struct Cluster {
    pub(super) now: Timestamp,
    pub(super) version: u64,
    pub(super) markers: BTreeMap<ObjectName, PodProbeMarker>,
    pub(super) pods: BTreeMap<ObjectName, SimPod>,
    /// Whether a node is virtual.
    pub(super) nodes: BTreeMap<String, bool>,
    pub(super) node_pod_probes: BTreeMap<String, NodePodProbe>,
    /// Whether optional fields of ours are dropped.
    pub(super) drops_extensions: bool,
    /// What admission does to writes.
    pub(super) admission: Option<Admission>,
    /// What the watch of each kind has not shown yet, with its place in the order of all.
    pub(super) pending: BTreeMap<WatchedKind, VecDeque<(u64, Event)>>,
    published: u64,
    pub(super) history: Vec<Event>,
    /// Objects that the manager cannot decode.
    pub(super) undecodable: BTreeSet<(WatchedKind, ObjectName)>,
}

impl Cluster {
    pub(super) fn new() -> Self {
        Self {
            now: "2026-01-01T00:00:00Z".parse().unwrap(),
            version: 100,
            markers: BTreeMap::new(),
            pods: BTreeMap::new(),
            nodes: BTreeMap::new(),
            node_pod_probes: BTreeMap::new(),
            drops_extensions: false,
            admission: None,
            pending: BTreeMap::new(),
            published: 0,
            history: Vec::new(),
            undecodable: BTreeSet::new(),
        }
    }

    pub(super) fn next_version(&mut self) -> u64 {
        self.version += 1;
        self.version
    }

    fn publish(&mut self, kind: WatchedKind, event: Event) {
        self.history.push(event.clone());
        self.queue(kind, event);
    }

    fn queue(&mut self, kind: WatchedKind, event: Event) {
        self.published += 1;
        self.pending
            .entry(kind)
            .or_default()
            .push_back((self.published, event));
    }

    /// The next watch event of a kind, or of the kind whose turn it is.
    pub(super) fn next_event(&mut self, kind: Option<WatchedKind>) -> Option<Event> {
        let first = |(kind, events): (&WatchedKind, &VecDeque<(u64, Event)>)| {
            Some((events.front()?.0, *kind))
        };
        let kind = match kind {
            Some(kind) => kind,
            None => self.pending.iter().filter_map(first).min()?.1,
        };
        Some(self.pending.get_mut(&kind)?.pop_front()?.1)
    }

    /// The watch of a kind broke and begins again: what it has not shown is not shown any more, a list is.
    pub(super) fn list_again(&mut self, kind: WatchedKind) {
        self.pending.remove(&kind);
        for event in self.list(kind) {
            self.queue(kind, event);
        }
    }

    /// Changes a pod; nothing happens if nothing changes.
    pub(super) fn edit_pod(&mut self, name: &ObjectName, edit: impl FnOnce(&mut SimPod)) {
        let Some(mut pod) = self.pods.get(name).cloned() else {
            return;
        };
        edit(&mut pod);
        if self.pods[name] != pod {
            self.put_pod(name, pod);
        }
    }

    pub(super) fn put_pod(&mut self, name: &ObjectName, mut pod: SimPod) {
        pod.version = self.next_version();
        if self.pods.get(name).map(|known| known.ready) != Some(pod.ready) {
            pod.ready_since = self.now;
        }
        let wire = pod.wire(name);
        self.pods.insert(name.clone(), pod);
        self.publish(WatchedKind::Pod, Event::Pod(Arc::new(wire), Source::Watch));
    }

    pub(super) fn put_marker(&mut self, name: &ObjectName, mut marker: PodProbeMarker) {
        let version = self.next_version();
        let known = self.markers.get(name);
        let new = || ObjectMeta {
            namespace: Some(name.namespace.clone()),
            name: Some(name.name.clone()),
            uid: Some(format!("{name}-{version}")),
            generation: Some(0),
            creation_timestamp: Some(Time(self.now)),
            ..ObjectMeta::default()
        };
        let mut meta = known.map_or_else(new, |known| known.metadata.clone());
        if known.is_none_or(|known| known.spec != marker.spec) {
            meta.generation = meta.generation.map(|generation| generation + 1);
        }
        marker.status = known.and_then(|known| known.status.clone());
        if known.is_none() {
            meta.finalizers = marker.metadata.finalizers.take();
        }
        meta.resource_version = Some(version.to_string());
        marker.metadata = meta;
        self.markers.insert(name.clone(), marker.clone());
        self.publish(
            WatchedKind::Marker,
            Event::Marker(Arc::new(marker), Source::Watch),
        );
    }

    /// Changes a marker's metadata or status.
    pub(super) fn edit_marker(
        &mut self,
        name: &ObjectName,
        edit: impl FnOnce(&mut PodProbeMarker),
    ) {
        let Some(mut marker) = self.markers.get(name).cloned() else {
            return;
        };
        edit(&mut marker);
        if self.markers[name] == marker {
            return;
        }
        marker.metadata.resource_version = Some(self.next_version().to_string());
        self.markers.insert(name.clone(), marker.clone());
        self.publish(
            WatchedKind::Marker,
            Event::Marker(Arc::new(marker), Source::Watch),
        );
    }

    pub(super) fn put_node(&mut self, name: &str, is_virtual: bool) {
        let version = self.next_version();
        self.nodes.insert(name.to_owned(), is_virtual);
        let node = node(name, is_virtual, version);
        self.publish(
            WatchedKind::Node,
            Event::Node(Arc::new(node), Source::Watch),
        );
    }

    pub(super) fn put_node_pod_probe(&mut self, mut object: NodePodProbe) {
        let version = self.next_version();
        if self.drops_extensions {
            drop_extensions(&mut object);
        }
        let name = object.metadata.name.clone().unwrap();
        object.metadata.resource_version = Some(version.to_string());
        let known = self.node_pod_probes.get(&name);
        if known.is_none_or(|known| known.spec != object.spec) {
            let generation = object.metadata.generation.unwrap_or_default();
            object.metadata.generation = Some(generation + 1);
        }
        if object.metadata.uid.is_none() {
            object.metadata.uid = Some(format!("{name}-{version}"));
            object.metadata.creation_timestamp = Some(Time(self.now));
        }
        let known = self.node_pod_probes.get(&name);
        let entries = object.metadata.managed_fields.get_or_insert_default();
        let now = self.now;
        let mut moved = |subresource: &str| {
            entries.retain(|entry| entry.subresource.as_deref() != Some(subresource));
            entries.push(ManagedFieldsEntry {
                subresource: Some(subresource.to_owned()),
                time: Some(Time(now)),
                ..ManagedFieldsEntry::default()
            });
        };
        // The manager's entry and the agent's, which move with each of their writes.
        if known.is_none_or(|known| known.spec != object.spec) {
            moved("");
        }
        if known.and_then(|known| known.status.as_ref()) != object.status.as_ref() {
            moved("status");
        }
        self.node_pod_probes.insert(name, object.clone());
        self.publish(
            WatchedKind::NodePodProbe,
            Event::NodePodProbe(Arc::new(object), Source::Watch),
        );
    }

    pub(super) fn edit_node_pod_probe(&mut self, name: &str, edit: impl FnOnce(&mut NodePodProbe)) {
        if let Some(known) = self.node_pod_probes.get(name) {
            let mut object = known.clone();
            edit(&mut object);
            if *known != object {
                self.put_node_pod_probe(object);
            }
        }
    }

    pub(super) fn delete(&mut self, kind: WatchedKind, name: &ObjectName) {
        let held = self.markers.get(name).is_some_and(|marker| {
            let finalizers = marker.metadata.finalizers.as_deref();
            !finalizers.unwrap_or_default().is_empty()
        });
        if kind == WatchedKind::Marker && held {
            self.edit_marker(name, |marker| {
                let now = Time("2026-01-01T00:00:00Z".parse().unwrap());
                marker.metadata.deletion_timestamp.get_or_insert(now);
            });
            return;
        }
        let known = match kind {
            WatchedKind::Marker => self.markers.remove(name).is_some(),
            WatchedKind::Pod => self.pods.remove(name).is_some(),
            WatchedKind::Node => self.nodes.remove(&name.name).is_some(),
            WatchedKind::NodePodProbe => self.node_pod_probes.remove(&name.name).is_some(),
        };
        if known {
            let version = self.next_version();
            self.queue(kind, Event::Deleted(kind, name.clone(), at(version)));
        }
    }

    /// All lists, in the order of `kinds`.
    pub(super) fn lists(&self, kinds: [WatchedKind; 4]) -> Vec<Event> {
        let mut events: Vec<_> = kinds.into_iter().flat_map(|kind| self.list(kind)).collect();
        events.extend(self.fields_kept());
        events.push(Event::Synced);
        events
    }

    pub(super) fn names(&self, kind: WatchedKind) -> BTreeSet<ObjectName> {
        let of = |name: &String| self::name("", name);
        match kind {
            WatchedKind::Marker => self.markers.keys().cloned().collect(),
            WatchedKind::Pod => self.pods.keys().cloned().collect(),
            WatchedKind::Node => self.nodes.keys().map(of).collect(),
            WatchedKind::NodePodProbe => self.node_pod_probes.keys().map(of).collect(),
        }
    }

    fn list(&self, kind: WatchedKind) -> Vec<Event> {
        let names = self.names(kind);
        let objects = names.iter();
        let source = Source::List(at(self.version));
        let objects = objects.filter_map(|name| self.snapshot(kind, name, source));
        let mut events: Vec<_> = objects.collect();
        events.push(Event::Listed(kind, names, at(self.version)));
        events
    }

    /// Which optional fields the CRDs' schemas keep.
    pub(super) fn fields_kept(&self) -> [Event; 2] {
        [WatchedKind::Marker, WatchedKind::NodePodProbe]
            .map(|kind| Event::FieldsKept(kind, !self.drops_extensions))
    }

    pub(super) fn snapshot(
        &self,
        kind: WatchedKind,
        name: &ObjectName,
        source: Source,
    ) -> Option<Event> {
        if self.undecodable.contains(&(kind, name.clone())) {
            let seen = source != Source::Reply;
            return seen.then(|| Event::Undecodable(kind, name.clone()));
        }
        Some(match kind {
            WatchedKind::Marker => Event::Marker(Arc::new(self.markers.get(name)?.clone()), source),
            WatchedKind::Pod => Event::Pod(Arc::new(self.pods.get(name)?.wire(name)), source),
            WatchedKind::Node => {
                let is_virtual = *self.nodes.get(&name.name)?;
                Event::Node(Arc::new(node(&name.name, is_virtual, self.version)), source)
            }
            WatchedKind::NodePodProbe => {
                let object = self.node_pod_probes.get(&name.name)?.clone();
                Event::NodePodProbe(Arc::new(object), source)
            }
        })
    }

    /// Carries a write out.
    pub(super) fn execute(&mut self, write: Write) -> Reply {
        let (name, kind) = match &write {
            Write::CreateNodePodProbe(new) => {
                let name = new.metadata.name.as_deref().unwrap();
                if self.node_pod_probes.contains_key(name) {
                    return Reply::Exists;
                }
                (self::name("", name), WatchedKind::NodePodProbe)
            }
            Write::ReplaceNodePodProbe(new) => {
                let name = new.metadata.name.as_deref().unwrap();
                (self::name("", name), WatchedKind::NodePodProbe)
            }
            Write::DeleteNodePodProbe { name, .. } => {
                (self::name("", name), WatchedKind::NodePodProbe)
            }
            Write::PodMarks(marks) => (marks.pod.clone(), WatchedKind::Pod),
            Write::MarkerStatus { marker, .. } | Write::MarkerFinalizers { marker, .. } => {
                (marker.clone(), WatchedKind::Marker)
            }
        };
        // The reply to what may end an object shows nothing.
        let is_delete = match &write {
            Write::DeleteNodePodProbe { .. } => true,
            Write::MarkerFinalizers { finalizers, .. } => finalizers.is_empty(),
            _ => false,
        };
        match self.admit(write) {
            Some(write) => match self.carry_out(write) {
                Some(event) => Reply::Done(Some(event)),
                None if is_delete => Reply::Done(None),
                None if self.names(kind).contains(&name) => Reply::Conflict,
                None => Reply::Gone,
            },
            None => match self.snapshot(kind, &name, Source::Reply) {
                Some(event) => Reply::Done(Some(event)),
                None => Reply::Gone,
            },
        }
    }

    /// What admission makes of a write; none if it is accepted and changes nothing.
    fn admit(&self, mut write: Write) -> Option<Write> {
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

    fn carry_out(&mut self, write: Write) -> Option<Event> {
        match write {
            Write::CreateNodePodProbe(new) => {
                let name = new.metadata.name.clone().unwrap();
                self.put_node_pod_probe(*new);
                self.snapshot(
                    WatchedKind::NodePodProbe,
                    &self::name("", &name),
                    Source::Reply,
                )
            }
            Write::ReplaceNodePodProbe(new) => {
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
                self.snapshot(WatchedKind::NodePodProbe, &id, Source::Reply)
            }
            Write::DeleteNodePodProbe { name, uid } => {
                let id = self::name("", &name);
                let known = self.node_pod_probes.get(&name);
                if known.is_some_and(|known| known.metadata.uid.as_ref() != Some(&uid)) {
                    return None;
                }
                self.delete(WatchedKind::NodePodProbe, &id);
                None
            }
            Write::PodMarks(marks) => self.execute_marks(&marks),
            Write::MarkerStatus {
                marker,
                uid,
                status,
            } => {
                let known = self.markers.get(&marker)?;
                if known.metadata.uid.as_ref() != Some(&uid) {
                    return None;
                }
                let mut new = known.clone();
                new.status = Some(*status);
                if self.drops_extensions {
                    let status = new.status.get_or_insert_default();
                    status.probes.clear();
                    status.conditions.clear();
                }
                let version = self.next_version();
                new.metadata.resource_version = Some(version.to_string());
                self.markers.insert(marker.clone(), new.clone());
                self.publish(
                    WatchedKind::Marker,
                    Event::Marker(Arc::new(new), Source::Watch),
                );
                self.snapshot(WatchedKind::Marker, &marker, Source::Reply)
            }
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
                self.snapshot(WatchedKind::Marker, &marker, Source::Reply)
            }
        }
    }

    fn execute_marks(&mut self, marks: &PodMarks) -> Option<Event> {
        let pod = self.pods.get(&marks.pod)?;
        let bodies = [&marks.remove, &marks.apply];
        for body in bodies.into_iter().flatten() {
            if body["metadata"]["uid"] != json!(pod.uid) {
                return None;
            }
        }
        self.edit_pod(&marks.pod, |pod| {
            if let Some(body) = &marks.remove {
                pod.remove(body);
            }
            if let Some(body) = &marks.apply {
                pod.apply(body);
            }
        });
        self.snapshot(WatchedKind::Pod, &marks.pod, Source::Reply)
    }
}

fn node(name: &str, is_virtual: bool, version: u64) -> slim::Node {
    let kind = if is_virtual {
        "virtual-kubelet"
    } else {
        "real"
    };
    serde_json::from_value(json!({
        "metadata": { "name": name, "resourceVersion": version.to_string(), "labels": { "type": kind } },
    }))
    .unwrap()
}

/// What a schema without our optional fields does.
fn drop_extensions(object: &mut NodePodProbe) {
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
