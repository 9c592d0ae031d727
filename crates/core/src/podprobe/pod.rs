//! A pod as the index keeps it: what matching, planning and marking read, and nothing else.
//!
//! Of managedFields one thing is kept: which labels, annotations and conditions are in our own apply entry, and who
//! else is named beside us. What is present and not in our entry belongs to others, whoever they are.

use std::collections::{BTreeMap, HashSet};
use std::num::NonZeroU16;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use leadsman_api::slim;

use super::event::ObjectName;

/// The field manager of our applies on `pods/status`.
pub const FIELD_MANAGER: &str = "leadsman-podprobe";

/// Field managers of `OpenKruise`'s controller manager.
const OPENKRUISE_MANAGERS: [&str; 2] = ["manager", "kruise-manager"];

/// Labels or annotations.
pub type Pairs = BTreeMap<Arc<str>, Arc<str>>;

/// A resourceVersion as far as it can be ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version(Option<u64>);

impl Version {
    /// A version that does not parse counts as newer than any.
    pub fn parse(version: Option<&str>) -> Self {
        Self(version.and_then(|version| version.parse().ok()))
    }

    /// Whether an object of this version is worth looking at when `known` has been seen.
    pub fn is_newer_than(self, known: Self) -> bool {
        match (self.0, known.0) {
            (Some(own), Some(known)) => own > known,
            _ => true,
        }
    }
}

/// Equal strings, kept once. Labels repeat over the pods of a workload.
#[derive(Clone, Debug, Default)]
pub struct Names {
    known: HashSet<Arc<str>>,
    sweep_at: usize,
}

impl Names {
    /// The shared form of a string.
    pub fn share(&mut self, name: &str) -> Arc<str> {
        if let Some(known) = self.known.get(name) {
            return known.clone();
        }
        if self.known.len() >= self.sweep_at {
            self.known.retain(|name| Arc::strong_count(name) > 1);
            self.sweep_at = (2 * self.known.len()).max(1024);
        }
        let name: Arc<str> = name.into();
        self.known.insert(name.clone());
        name
    }

    fn pairs(&mut self, map: Option<&BTreeMap<String, String>>) -> Pairs {
        map.into_iter()
            .flatten()
            .map(|(key, value)| (self.share(key), self.share(value)))
            .collect()
    }
}

/// A pod.
#[derive(Clone, Debug)]
pub struct Pod {
    /// Namespace and name.
    pub name: Arc<ObjectName>,
    /// Its uid.
    pub uid: Arc<str>,
    /// Its resourceVersion.
    pub version: Version,
    /// Its labels.
    pub labels: Pairs,
    /// Its annotations.
    pub annotations: Pairs,
    /// Neither ended nor being deleted.
    pub active: bool,
    /// Condition `Initialized` is True.
    pub initialized: bool,
    /// Condition `Ready` is True.
    pub ready: bool,
    /// The node it is bound to.
    pub node: Option<Arc<str>>,
    /// Its first address; empty until it has one.
    pub ip: Arc<str>,
    /// What can be probed: containers and native sidecars.
    pub containers: Vec<Container>,
    /// All conditions by type.
    pub conditions: BTreeMap<Arc<str>, Condition>,
    /// What our last apply says.
    pub ours: Ours,
}

/// A container that can be probed.
#[derive(Clone, Debug)]
pub struct Container {
    /// Its name.
    pub name: Arc<str>,
    /// Its named ports.
    pub ports: Vec<(Arc<str>, NonZeroU16)>,
    /// Whether it has a startup probe.
    pub startup_probe: bool,
    /// The id that the kubelet reports, without the runtime's name.
    pub id: Option<Arc<str>>,
    /// Whether the kubelet reports it started.
    pub started: bool,
}

/// A condition of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// `True`, `False` or `Unknown`.
    pub status: Arc<str>,
    /// Empty when there is none.
    pub message: Arc<str>,
    /// When the status last changed.
    pub last_transition_time: Option<Timestamp>,
    /// When it was last probed, as far as the pod says.
    pub last_probe_time: Option<Timestamp>,
}

/// Who else is named as an owner of a mark of ours; later ones outweigh earlier ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CoOwner {
    /// We are alone: an apply that leaves the mark out removes it.
    Nobody,
    /// A user, a template, another controller.
    Other,
    /// `OpenKruise`, or somebody who updates the status.
    Status,
}

/// The marks in our apply entry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ours {
    /// Label keys.
    pub labels: BTreeMap<Arc<str>, CoOwner>,
    /// Annotation keys.
    pub annotations: BTreeMap<Arc<str>, CoOwner>,
    /// Condition types.
    pub conditions: BTreeMap<Arc<str>, CoOwner>,
}

impl Pod {
    /// Keeps of a pod what is read of it.
    pub fn new(pod: &slim::Pod, names: &mut Names) -> Self {
        let meta = &pod.metadata;
        let phase = pod.status.phase.as_deref();
        let holds = |kind: &str| {
            let mut conditions = pod.status.conditions.iter();
            conditions.any(|condition| condition.type_ == kind && condition.status == "True")
        };
        let node = pod.spec.node_name.as_deref();
        Self {
            name: Arc::new(ObjectName {
                namespace: meta.namespace.clone().unwrap_or_default(),
                name: meta.name.clone().unwrap_or_default(),
            }),
            uid: meta.uid.as_deref().unwrap_or_default().into(),
            version: Version::parse(meta.resource_version.as_deref()),
            labels: names.pairs(meta.labels.as_ref()),
            annotations: names.pairs(meta.annotations.as_ref()),
            active: meta.deletion_timestamp.is_none()
                && !matches!(phase, Some("Succeeded" | "Failed")),
            initialized: holds("Initialized"),
            ready: holds("Ready"),
            node: node
                .filter(|node| !node.is_empty())
                .map(|node| names.share(node)),
            ip: pod.status.pod_ip.as_deref().unwrap_or_default().into(),
            containers: containers(pod, names),
            conditions: conditions(pod, names),
            ours: Ours::read(meta.managed_fields.as_deref().unwrap_or_default(), names),
        }
    }

    /// Active, initialized and bound to a node: it can be probed.
    pub fn is_target(&self) -> bool {
        self.active && self.initialized && self.node.is_some()
    }
}

/// Containers and native sidecars; other init containers have ended by the time a pod is probed.
fn containers(pod: &slim::Pod, names: &mut Names) -> Vec<Container> {
    let sidecars = pod.spec.init_containers.iter();
    let sidecars =
        sidecars.filter(|container| container.restart_policy.as_deref() == Some("Always"));
    let pairs = [
        (
            pod.spec.containers.iter().collect::<Vec<_>>(),
            &pod.status.container_statuses,
        ),
        (sidecars.collect(), &pod.status.init_container_statuses),
    ];
    let mut all = Vec::new();
    for (containers, statuses) in pairs {
        for container in containers {
            let status = statuses.iter().find(|status| status.name == container.name);
            let id = status.and_then(|status| status.container_id.as_deref());
            let ports = container.ports.iter().filter_map(|port| {
                let number = u16::try_from(port.container_port).ok()?;
                Some((names.share(port.name.as_deref()?), NonZeroU16::new(number)?))
            });
            let ports = ports.collect();
            all.push(Container {
                name: names.share(&container.name),
                ports,
                startup_probe: container.startup_probe.is_some(),
                id: id.map(bare_id).filter(|id| !id.is_empty()).map(Into::into),
                started: status.is_some_and(|status| status.started == Some(true)),
            });
        }
    }
    all
}

/// `containerd://id` as the runtime itself has it.
fn bare_id(id: &str) -> &str {
    id.split_once("://").map_or(id, |(_, id)| id)
}

fn conditions(pod: &slim::Pod, names: &mut Names) -> BTreeMap<Arc<str>, Condition> {
    let conditions = pod.status.conditions.iter().map(|condition| {
        let message = condition.message.as_deref().unwrap_or_default();
        let seen = Condition {
            status: names.share(&condition.status),
            message: names.share(message),
            last_transition_time: condition.last_transition_time.as_ref().map(|time| time.0),
            last_probe_time: condition.last_probe_time.as_ref().map(|time| time.0),
        };
        (names.share(&condition.type_), seen)
    });
    conditions.collect()
}

impl Ours {
    /// Whether our entry holds nothing.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.annotations.is_empty() && self.conditions.is_empty()
    }

    fn read(entries: &[ManagedFieldsEntry], names: &mut Names) -> Self {
        let mut ours = Self::default();
        for entry in entries.iter().filter(|entry| is_ours(entry)) {
            for_each_mark(entry, |kind, key| {
                let key = names.share(key);
                ours.of(kind).insert(key, CoOwner::Nobody);
            });
        }
        if ours.is_empty() {
            return ours;
        }
        for entry in entries.iter().filter(|entry| !is_ours(entry)) {
            let other = co_owner(entry);
            for_each_mark(entry, |kind, key| {
                if let Some(owner) = ours.of(kind).get_mut(key) {
                    *owner = (*owner).max(other);
                }
            });
        }
        ours
    }

    fn of(&mut self, kind: MarkKind) -> &mut BTreeMap<Arc<str>, CoOwner> {
        match kind {
            MarkKind::Label => &mut self.labels,
            MarkKind::Annotation => &mut self.annotations,
            MarkKind::Condition => &mut self.conditions,
        }
    }
}

#[derive(Clone, Copy)]
enum MarkKind {
    Label,
    Annotation,
    Condition,
}

fn is_ours(entry: &ManagedFieldsEntry) -> bool {
    entry.manager.as_deref() == Some(FIELD_MANAGER)
        && entry.operation.as_deref() == Some("Apply")
        && entry.subresource.as_deref() == Some("status")
}

fn co_owner(entry: &ManagedFieldsEntry) -> CoOwner {
    let updates = entry.operation.as_deref() == Some("Update");
    let status = updates && entry.subresource.as_deref() == Some("status");
    let manager = entry.manager.as_deref().unwrap_or_default();
    if status || (updates && OPENKRUISE_MANAGERS.contains(&manager)) {
        CoOwner::Status
    } else {
        CoOwner::Other
    }
}

/// Calls `mark` for each label, annotation and condition that an entry names.
fn for_each_mark(entry: &ManagedFieldsEntry, mut mark: impl FnMut(MarkKind, &str)) {
    let Some(fields) = entry.fields_v1.as_ref().map(|fields| &fields.0) else {
        return;
    };
    for (kind, path) in [
        (MarkKind::Label, "f:labels"),
        (MarkKind::Annotation, "f:annotations"),
    ] {
        let keys = fields.get("f:metadata").and_then(|meta| meta.get(path));
        let keys = keys.and_then(|keys| keys.as_object());
        for key in keys.into_iter().flat_map(serde_json::Map::keys) {
            if let Some(key) = key.strip_prefix("f:") {
                mark(kind, key);
            }
        }
    }
    let conditions = fields
        .get("f:status")
        .and_then(|status| status.get("f:conditions"));
    let conditions = conditions.and_then(|conditions| conditions.as_object());
    for key in conditions.into_iter().flat_map(serde_json::Map::keys) {
        let key = key.strip_prefix("k:");
        let key = key
            .and_then(|key| serde_json::from_str::<BTreeMap<String, serde_json::Value>>(key).ok());
        if let Some(kind) = key
            .as_ref()
            .and_then(|key| key.get("type"))
            .and_then(|kind| kind.as_str())
        {
            mark(MarkKind::Condition, kind);
        }
    }
}
