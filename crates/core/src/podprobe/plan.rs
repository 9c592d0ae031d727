//! Which entries a pod has in its node's `NodePodProbe`, and how such an object is read back.
//!
//! Entries are compared parsed, as sets: neither their order nor a field that is written out or left out makes a
//! difference. Which pods a marker matches, and what is on a node, is the index's business.

use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use leadsman_api::node_pod_probe as wire;

use super::marker::MarkerProbe;
use super::pod::{IndexedContainer, IndexedPod};
use super::probe::Probe;
use super::resolved::ResolvedProbe;
use super::verdict::Verdict;
use super::wire::{from_wire, to_wire};
use crate::cluster::{Interner, Interners, ObjectName, whole_seconds};

/// One entry of a pod.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Entry {
    /// `<marker>#<probe>`.
    pub name: Arc<str>,
    /// The container.
    pub container: Arc<str>,
    /// None where the one observed cannot be read.
    pub probe: Option<Arc<Probe>>,
    /// Stands for handler and container.
    pub revision: Option<Arc<str>>,
    /// The one container id, reported started, that may be probed.
    pub started: Option<Arc<str>>,
}

/// The entries of one pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodEntries {
    /// The pod's address.
    pub ip: Arc<str>,
    /// Its entries, the same for most pods of a marker, and shared.
    pub entries: Arc<Entries>,
}

/// Entries, ordered by name, then container.
#[derive(Debug, Default)]
pub struct Entries {
    list: Box<[Entry]>,
    /// Worked out once, for all pods that have them.
    bytes: OnceLock<usize>,
}

impl Deref for Entries {
    type Target = [Entry];

    fn deref(&self) -> &[Entry] {
        &self.list
    }
}

impl PartialEq for Entries {
    fn eq(&self, other: &Self) -> bool {
        self.list == other.list
    }
}

impl Eq for Entries {}

impl Hash for Entries {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.list.hash(state);
    }
}

impl Entries {
    fn new(mut list: Vec<Entry>) -> Self {
        list.sort_by(|a, b| (&a.name, &a.container).cmp(&(&b.name, &b.container)));
        Self {
            list: list.into(),
            bytes: OnceLock::new(),
        }
    }

    /// The form on the wire.
    fn write(&self, extensions: bool) -> Vec<wire::ContainerProbe> {
        let entries = self.iter().map(|entry| {
            let extension = |value: &Option<Arc<str>>| {
                let value = value.as_ref().filter(|_| extensions);
                value.map(ToString::to_string)
            };
            wire::ContainerProbe {
                name: entry.name.to_string(),
                container_name: entry.container.to_string(),
                probe: entry.probe.as_deref().map(to_wire).unwrap_or_default(),
                revision: extension(&entry.revision),
                started_container_id: extension(&entry.started),
            }
        });
        entries.collect()
    }
}

/// Why a probe of a matching marker has no entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Gap {
    /// The pod has no such container, or it is an init container that ends.
    ContainerNotFound,
    /// The container has no port of this name.
    PortNotFound(Arc<str>),
    /// The container's startup probe has not passed yet.
    NotStarted,
}

impl Entry {
    /// The entry of a marker's probe on a pod; `observed` is what the node's object says of the pod now.
    pub fn plan(
        pod: &IndexedPod,
        probe: &MarkerProbe,
        observed: Option<&PodEntries>,
    ) -> Result<Self, Gap> {
        let mut containers = pod.containers.iter();
        let container = containers
            .find(|container| container.name == probe.container)
            .ok_or(Gap::ContainerNotFound)?;
        let resolved = match &probe.resolved {
            Some(resolved) => resolved.clone(),
            None => resolve(probe, container)?,
        };
        let started = if container.startup_probe {
            Some(started(container, observed).ok_or(Gap::NotStarted)?)
        } else {
            None
        };
        Ok(Self {
            name: probe.entry.clone(),
            container: probe.container.clone(),
            revision: Some(resolved.revision),
            probe: Some(resolved.probe),
            started,
        })
    }

    /// Whether nothing needs to be written; `extensions` is false where the API server drops our optional fields.
    pub fn is_equal(&self, other: &Self, extensions: bool) -> bool {
        self.name == other.name
            && self.container == other.container
            && self.probe == other.probe
            && (!extensions || (self.revision == other.revision && self.started == other.started))
    }

    /// Whether a verdict of this name is about this very entry. What its container is, [`Verdict::is_about`] tells.
    pub fn fits(&self, name: &str, verdict: &Verdict) -> bool {
        let agree = |own: &Option<Arc<str>>, theirs: &Option<Arc<str>>| match (own, theirs) {
            (Some(own), Some(theirs)) => own == theirs,
            _ => true,
        };
        *self.name == *name
            && agree(&self.revision, &verdict.revision)
            && agree(&self.started, &verdict.container)
    }
}

/// A probe whose ports have the names that the container gives them.
fn resolve(probe: &MarkerProbe, container: &IndexedContainer) -> Result<ResolvedProbe, Gap> {
    let port = |name: &str| {
        let port = container.ports.iter().find(|(known, _)| **known == *name);
        port.map(|(_, number)| *number)
    };
    let resolved = probe.template.resolve(port);
    let resolved = resolved.map_err(|unresolved| Gap::PortNotFound(unresolved.0))?;
    Ok(ResolvedProbe::new(resolved, &probe.container))
}

/// The startup gate. It opens with the first `started` of a container id and stays open for that id: a kubelet that
/// restarts reports true, false, true for one and the same container. What it opened for is remembered in the
/// object itself. While an id is shown that has not started, the one before it stays.
fn started(container: &IndexedContainer, observed: Option<&PodEntries>) -> Option<Arc<str>> {
    if container.started
        && let Some(id) = &container.id
    {
        return Some(id.clone());
    }
    let entries = observed.map_or(&[][..], |observed| &**observed.entries);
    let mut remembered = entries
        .iter()
        .filter(|entry| entry.container == container.name)
        .filter_map(|entry| entry.started.as_ref());
    let shown = remembered
        .clone()
        .find(|id| container.id.as_ref() == Some(id));
    shown.or_else(|| remembered.next()).cloned()
}

impl PodEntries {
    /// Reads what a `NodePodProbe` says of a pod.
    pub fn read(
        pod: &wire::PodProbe,
        interners: &mut Interners,
        pool: &mut Interner<Entries>,
    ) -> Self {
        let names = &mut interners.strings;
        let entries = pod.probes.iter().map(|entry| {
            let started = entry.started_container_id.as_deref();
            Entry {
                name: names.share(entry.name.as_str()),
                container: names.share(entry.container_name.as_str()),
                probe: from_wire(&entry.probe).ok().map(Arc::new),
                revision: entry.revision.as_deref().map(|it| names.share(it)),
                started: started.map(|it| names.share(it)),
            }
        });
        let entries = entries.collect();
        let ip = names.share(pod.ip.as_str());
        Self::new(ip, entries, pool)
    }

    /// Puts entries in order.
    pub fn new(ip: Arc<str>, entries: Vec<Entry>, pool: &mut Interner<Entries>) -> Self {
        let entries = pool.share(Entries::new(entries));
        Self { ip, entries }
    }

    /// The form on the wire, for a pod with the uid that its node knows.
    pub fn write(&self, pod: &ObjectName, uid: &str, extensions: bool) -> wire::PodProbe {
        wire::PodProbe {
            probes: self.entries.write(extensions),
            ..self.frame(pod, uid)
        }
    }

    /// All but the entries.
    fn frame(&self, pod: &ObjectName, uid: &str) -> wire::PodProbe {
        wire::PodProbe {
            name: pod.name.clone(),
            namespace: pod.namespace.clone(),
            uid: uid.to_owned(),
            ip: self.ip.to_string(),
            probes: Vec::new(),
        }
    }

    /// The bytes that it has on the wire, all fields of ours included.
    pub fn bytes(&self, pod: &ObjectName, uid: &str) -> usize {
        let length = |text: serde_json::Result<String>| text.map_or(0, |text| text.len());
        let entries = self
            .entries
            .bytes
            .get_or_init(|| length(serde_json::to_string(&self.entries.write(true))));
        length(serde_json::to_string(&self.frame(pod, uid))) + r#","probes":"#.len() + entries
    }

    /// Whether nothing needs to be written; `extensions` is false where the API server drops our optional fields.
    pub fn is_equal(&self, other: &Self, extensions: bool) -> bool {
        if self == other {
            return true;
        }
        self.ip == other.ip
            && self.entries.len() == other.entries.len()
            && self
                .entries
                .iter()
                .zip(other.entries.iter())
                .all(|(own, other)| own.is_equal(other, extensions))
    }

    /// The entry of this name.
    pub fn get(&self, name: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| *entry.name == *name)
    }
}

impl Verdict {
    /// Whether a verdict is about the container that the kubelet reports now.
    ///
    /// If it names another one, or none, as `OpenKruise`'s agent and an API server with its CRD have it, the times
    /// tell: a container that started after the verdict was found is a newer one. Otherwise the kubelet's report is the
    /// older of the two, and the verdict is about a container that is still to be reported. Both are the node's clock,
    /// in whole seconds (`metav1.Time`).
    pub fn is_about(&self, container: &IndexedContainer) -> bool {
        if self.container.is_some() && self.container == container.id {
            return true;
        }
        match (container.running_since, self.since) {
            (Some(started), Some(found)) => whole_seconds(started) <= whole_seconds(found),
            _ => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_size_is_that_of_what_is_written() {
        let mut interners = Interners::default();
        let mut pool = Interner::default();
        let wire = json!({ "metadata": { "name": "p\"0", "namespace": "a", "uid": "u" } });
        let pod = IndexedPod::new(
            &serde_json::from_value(wire).unwrap(),
            None,
            &[],
            &mut interners,
        );
        let probe = |name: &str| {
            json!({ "name": name, "containerName": "main", "revision": "r", "startedContainerID": "1",
                    "probe": { "exec": { "command": ["/bin/sh", "-c", "echo \"\u{e9}\""] } } })
        };
        for probes in [
            vec![probe("m#b")],
            vec![probe("m#b"), probe("m#a"), probe("n#a")],
        ] {
            let wire = json!({ "name": "", "namespace": "", "uid": "", "IP": "10.0.0.1", "probes": probes });
            let wire = serde_json::from_value(wire).unwrap();
            let entries = PodEntries::read(&wire, &mut interners, &mut pool);
            let written =
                serde_json::to_string(&entries.write(&pod.name, &pod.node_uid, true)).unwrap();
            assert_eq!(entries.bytes(&pod.name, &pod.node_uid), written.len());
        }
    }
}
