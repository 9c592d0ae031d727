//! The entries of a pod in its node's `NodePodProbe`: planned from the matching markers, written, and read back.
//!
//! Entries are compared in parsed form and sorted, so that neither their order nor an explicit default is a difference.
//! Which markers match a pod, and which pods are on a node, is up to the index.

use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use leadsman_api::limits::OUTPUT_VALUES_BYTES;
use leadsman_api::marker::ExpectedOutput;
use leadsman_api::node_pod_probe as wire;

use super::marker::MarkerProbe;
use super::pod::{IndexedContainer, IndexedPod};
use super::probe::{Handler, Probe};
use super::resolved::ResolvedProbe;
use super::verdict::Verdict;
use super::wire::{from_wire, to_wire};
use crate::cluster::go_json::stored_bytes;
use crate::cluster::{Interner, Interners, ObjectName, whole_seconds};

/// One probe of one container, as the agent receives it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Entry {
    /// `<marker>#<probe>`.
    pub name: Arc<str>,
    /// The container.
    pub container: Arc<str>,
    /// The probe; None for an observed entry if it cannot be parsed.
    pub probe: Option<Arc<Probe>>,
    /// The revision of handler and container; None if the API server does not keep the field.
    pub revision: Option<Arc<str>>,
    /// The id of the one container that may be probed, as it has started; None if it has no startup probe.
    pub started: Option<Arc<str>>,
    /// The expected output, which is part of the revision; None if there is none, or if the API server does not keep the field.
    pub output: Option<Arc<ExpectedOutput>>,
}

/// The entries of one pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodEntries {
    /// The pod's address.
    pub ip: Arc<str>,
    /// The pod's entries, interned: most pods of a marker have equal ones.
    pub entries: Arc<Entries>,
}

/// Entries sorted by name, then container.
#[derive(Debug, Default)]
pub struct Entries {
    list: Box<[Entry]>,
    /// Bytes that they are stored with, computed once for all pods that share them.
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
        // Another client that sorts the list differently has changed nothing.
        list.sort_by(|a, b| (&a.name, &a.container).cmp(&(&b.name, &b.container)));
        Self {
            list: list.into(),
            bytes: OnceLock::new(),
        }
    }

    /// The form on the wire; `extensions` as in [`Entry::is_equal`].
    fn to_wire(&self, extensions: bool) -> Vec<wire::ContainerProbe> {
        let entries = self.iter().map(|entry| {
            let extension = |value: &Option<Arc<str>>| {
                let value = value.as_ref().filter(|_| extensions);
                value.map(ToString::to_string)
            };
            let (probe, file) = entry.probe.as_deref().map(to_wire).unwrap_or_default();
            wire::ContainerProbe {
                name: entry.name.to_string(),
                container_name: entry.container.to_string(),
                probe,
                // The agent says of an entry without its file that it has no handler.
                file: file.filter(|_| extensions),
                revision: extension(&entry.revision),
                started_container_id: extension(&entry.started),
                output: (entry.output.as_deref().cloned()).filter(|_| extensions),
            }
        });
        entries.collect()
    }
}

/// Why a probe of a matching marker has no entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Gap {
    /// The pod has no container or native sidecar of this name.
    ContainerNotFound,
    /// The container has no port of this name.
    PortNotFound(Arc<str>),
    /// The container's startup probe has not passed yet.
    NotStarted,
    /// The pod has more matching markers than [`MARKERS_PER_POD`](super::marker::MARKERS_PER_POD), and this is not one of
    /// the oldest.
    TooManyMarkers,
}

impl Entry {
    /// Plans the entry of a marker's probe; `observed` are the pod's entries in the node's object now.
    pub fn plan_entry(
        pod: &IndexedPod,
        probe: &MarkerProbe,
        observed: Option<&PodEntries>,
    ) -> Result<Self, Gap> {
        let container = pod
            .container(&probe.container)
            .ok_or(Gap::ContainerNotFound)?;
        let resolved = match &probe.resolved {
            Some(resolved) => resolved.clone(),
            None => resolve_ports(probe, container)?,
        };
        // The kubelet reports a container without a startup probe as `started` once it runs (`UpdatePodStatus`,
        // `pkg/kubelet/prober/prober_manager.go`), so there is nothing to wait for.
        let started = if container.startup_probe {
            Some(started_container_id(container, observed).ok_or(Gap::NotStarted)?)
        } else {
            None
        };
        Ok(Self {
            name: probe.entry.clone(),
            container: probe.container.clone(),
            revision: Some(resolved.revision),
            probe: Some(resolved.probe),
            output: resolved.output,
            started,
        })
    }

    /// Whether no write is needed; `extensions` is false if the API server drops our optional fields, as with `OpenKruise`'s CRD.
    pub fn is_equal(&self, other: &Self, extensions: bool) -> bool {
        self.name == other.name
            && self.container == other.container
            && (self.probe == other.probe || (!extensions && self.lacks_file(other)))
            && (!extensions || (self.revision == other.revision && self.started == other.started))
    }

    /// Whether another entry has no handler because the API server has dropped the file that this one reads.
    fn lacks_file(&self, other: &Self) -> bool {
        let handler = self.probe.as_deref().map(|probe| &probe.handler);
        other.probe.is_none() && matches!(handler, Some(Handler::File(_)))
    }

    /// Whether a verdict under this name belongs to this version of the entry. Whether it is about the container that runs
    /// now, [`Verdict::is_about`] decides.
    pub fn matches_verdict(&self, name: &str, verdict: &Verdict) -> bool {
        let agree = |own: &Option<Arc<str>>, theirs: &Option<Arc<str>>| match (own, theirs) {
            (Some(own), Some(theirs)) => own == theirs,
            // A field that one side does not know cannot contradict the other: `OpenKruise`'s agent and CRD
            // have neither field.
            _ => true,
        };
        *self.name == *name
            && agree(&self.revision, &verdict.revision)
            && agree(&self.started, &verdict.container)
    }
}

/// Looks named ports up in the container.
fn resolve_ports(probe: &MarkerProbe, container: &IndexedContainer) -> Result<ResolvedProbe, Gap> {
    let port = |name: &str| {
        let port = container.ports.iter().find(|(known, _)| **known == *name);
        port.map(|(_, number)| *number)
    };
    let resolved = probe
        .template
        .resolve_ports(port)
        .map_err(|unresolved| Gap::PortNotFound(unresolved.0))?;
    Ok(ResolvedProbe::new(
        resolved,
        &probe.container,
        probe.output.as_deref(),
    ))
}

/// The container id that has passed its startup probe. A kubelet that restarts reports `started` true, false, true for one
/// container (`pkg/kubelet/prober/prober_manager.go`, `UpdatePodStatus`), so the first true counts for the life of the id.
/// The entry in the `NodePodProbe` remembers it across restarts of the manager. While a newer id has not started, the entry
/// keeps the id before it.
fn started_container_id(
    container: &IndexedContainer,
    observed: Option<&PodEntries>,
) -> Option<Arc<str>> {
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
    // The container that the pod shows comes first: entries of two markers may remember different ones.
    let shown = remembered
        .clone()
        .find(|id| container.id.as_ref() == Some(id));
    shown.or_else(|| remembered.next()).cloned()
}

impl PodEntries {
    /// Reads a pod's entries from a `NodePodProbe`.
    pub fn from_wire(
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
                probe: from_wire(&entry.probe, entry.file.as_ref())
                    .ok()
                    .map(Arc::new),
                revision: entry.revision.as_deref().map(|it| names.share(it)),
                started: started.map(|it| names.share(it)),
                output: entry.output.clone().map(Arc::new),
            }
        });
        let entries = entries.collect();
        let ip = names.share(pod.ip.as_str());
        Self::new(ip, entries, pool)
    }

    /// Sorts and interns entries.
    pub fn new(ip: Arc<str>, entries: Vec<Entry>, pool: &mut Interner<Entries>) -> Self {
        let entries = pool.share(Entries::new(entries));
        Self { ip, entries }
    }

    /// The form on the wire; `uid` is the one by which the kubelet knows the pod.
    pub fn to_wire(&self, pod: &ObjectName, uid: &str, extensions: bool) -> wire::PodProbe {
        wire::PodProbe {
            probes: self.entries.to_wire(extensions),
            ..self.wire_without_entries(pod, uid)
        }
    }

    /// The form on the wire without the entries.
    fn wire_without_entries(&self, pod: &ObjectName, uid: &str) -> wire::PodProbe {
        wire::PodProbe {
            name: pod.name.clone(),
            namespace: pod.namespace.clone(),
            uid: uid.to_owned(),
            ip: self.ip.to_string(),
            probes: Vec::new(),
        }
    }

    /// The bytes that it takes of an object as the API server stores it, with all our optional fields, and with the values in
    /// outputs that the status will have: these are never cut.
    pub fn stored_bytes(&self, pod: &ObjectName, uid: &str) -> usize {
        let entries = self
            .entries
            .bytes
            // Measured once for all pods of a marker, which share these entries.
            .get_or_init(|| {
                let outputs = self
                    .entries
                    .iter()
                    .filter_map(|entry| entry.output.as_ref());
                // The names are parts of the expressions.
                let values = outputs.map(|one| stored_bytes(&one.matches) + OUTPUT_VALUES_BYTES);
                stored_bytes(&self.entries.to_wire(true)) + values.sum::<usize>()
            });
        stored_bytes(&self.wire_without_entries(pod, uid)) + r#","probes":"#.len() + entries
    }

    /// Whether no write is needed; `extensions` is false if the API server drops our optional fields, as with `OpenKruise`'s CRD.
    pub fn is_equal(&self, other: &Self, extensions: bool) -> bool {
        // Mostly one allocation, which `Arc` compares by its address.
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
    pub fn entry_named(&self, name: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| *entry.name == *name)
    }
}

impl Verdict {
    /// Whether a verdict is about the container that the kubelet reports now.
    ///
    /// A verdict may name another container, or none if it comes from `OpenKruise`'s agent or through its CRD. Then the times
    /// decide: a container that started after the verdict's transition is newer than the verdict. Otherwise the kubelet's
    /// report lags behind, and the verdict is about a container that it has yet to report. Both times are of the node's clock,
    /// in whole seconds (`metav1.Time`).
    pub fn is_about(&self, container: &IndexedContainer) -> bool {
        if self.container.is_some() && self.container == container.id {
            return true;
        }
        match (container.running_since, self.since) {
            // Times on the wire are whole seconds: a start and a verdict within one second may be of the same
            // container.
            (Some(started), Some(found)) => whole_seconds(started.into()) <= whole_seconds(found),
            _ => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_size_is_that_of_what_is_stored() {
        let mut interners = Interners::default();
        let mut pool = Interner::default();
        let wire = json!({ "metadata": { "name": "p\"0", "namespace": "a", "uid": "u" } });
        let pod = IndexedPod::new(&serde_json::from_value(wire).unwrap(), None, &mut interners);
        let probe = |name: &str| {
            json!({ "name": name, "containerName": "main", "revision": "r", "startedContainerID": "1",
                    "probe": { "exec": { "command": ["/bin/sh", "-c", "echo \"\u{e9}\" && a <b"] } } })
        };
        for probes in [
            vec![probe("m#b")],
            vec![probe("m#b"), probe("m#a"), probe("n#a")],
        ] {
            let wire = json!({ "name": "", "namespace": "", "uid": "", "IP": "10.0.0.1", "probes": probes });
            let wire = serde_json::from_value(wire).unwrap();
            let entries = PodEntries::from_wire(&wire, &mut interners, &mut pool);
            let written = entries.to_wire(&pod.name, &pod.node_uid, true);
            let written = serde_json::to_string(&written).unwrap();
            let stored = written.replace('&', "\\u0026").replace('<', "\\u003c");
            assert_eq!(entries.stored_bytes(&pod.name, &pod.node_uid), stored.len());
        }
    }
}
