//! The plan of a node: the spec of its `NodePodProbe`, parsed entry by entry. A malformed entry does not affect the
//! others.

use std::collections::{BTreeSet, HashSet};
use std::fmt;
use std::sync::Arc;

use leadsman_api::NodePodProbeSpec;
use leadsman_api::marker::ExpectedOutput;
use leadsman_api::node_pod_probe::{ContainerProbe, PodProbe};

use super::key::{PodIdentity, ProbeKey};
use crate::podprobe::probe::{HandlerKind, MalformedProbeId, Probe, ProbeId};
use crate::podprobe::wire::from_wire;

/// The kinds of handlers that an agent may run.
pub type AllowedHandlers = BTreeSet<HandlerKind>;

/// One probe that the node is to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PlannedProbe {
    pub(super) container: Arc<str>,
    pub(super) probe: Arc<Probe>,
    /// The manager's token for handler and container: it changes with them.
    pub(super) revision: Option<Arc<str>>,
    /// The expected output of a successful run.
    pub(super) output: Option<Arc<ExpectedOutput>>,
    /// Whether the agent may not run it.
    pub(super) is_forbidden: bool,
    /// The only container that may be probed, by the runtime's id: its startup probe has passed. None if any may be.
    pub(super) started_container: Option<Arc<str>>,
}

/// An entry that is ignored.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("pod {namespace}/{pod}, probe {probe:?}: {reason}")]
pub struct MalformedEntry {
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod.
    pub pod: String,
    /// The pod's uid; may be empty.
    pub uid: String,
    /// The entry's name, which need not be `<marker>#<probe>`.
    pub probe: String,
    /// Why it cannot be followed.
    pub reason: String,
}

#[derive(Debug, thiserror::Error)]
enum InvalidEntry {
    #[error(transparent)]
    Id(#[from] MalformedProbeId),
    #[error("it has no {0}")]
    Missing(&'static str),
    #[error("the pod has another entry of this name")]
    Duplicate,
    #[error("{0}")]
    Probe(String),
}

/// The entries in the order of the spec, each key once, and those that are malformed.
pub(super) fn parse_spec(
    spec: &NodePodProbeSpec,
    allowed: &AllowedHandlers,
) -> (Vec<(Arc<ProbeKey>, PlannedProbe)>, Vec<MalformedEntry>) {
    let mut entries = Vec::new();
    let mut malformed = Vec::new();
    let mut names = HashSet::new();
    for pod in &spec.pod_probes {
        let name = PodIdentity {
            namespace: pod.namespace.as_str().into(),
            name: pod.name.as_str().into(),
            uid: pod.uid.as_str().into(),
        };
        for probe in &pod.probes {
            // Not by the uid alone: the author of a mirror pod chooses its uid.
            let is_first = names.insert((&pod.namespace, &pod.name, &pod.uid, &probe.name));
            match parse_entry(&name, probe, is_first, allowed) {
                Ok(entry) => entries.push(entry),
                Err(error) => malformed.push(malformed_entry(pod, probe, &error)),
            }
        }
    }
    (entries, malformed)
}

fn parse_entry(
    pod: &PodIdentity,
    wire: &ContainerProbe,
    is_first: bool,
    allowed: &AllowedHandlers,
) -> Result<(Arc<ProbeKey>, PlannedProbe), InvalidEntry> {
    let id: ProbeId = wire.name.parse()?;
    // A container is taken for a pod's by namespace, name and uid. Without a uid none would fit,
    // and the probe would wait for its container without a word.
    if pod.uid.is_empty() {
        return Err(InvalidEntry::Missing("pod uid"));
    }
    if wire.container_name.is_empty() {
        return Err(InvalidEntry::Missing("container name"));
    }
    // The status names a verdict by its pod and this name, so of two entries only one could have
    // one.
    if !is_first {
        return Err(InvalidEntry::Duplicate);
    }
    let probe = from_wire(&wire.probe, wire.file.as_ref())
        .map_err(|errors| InvalidEntry::Probe(join_errors(&errors)))?;
    let key = ProbeKey {
        pod: pod.clone(),
        container: wire.container_name.as_str().into(),
        id,
    };
    let entry = PlannedProbe {
        container: key.container.clone(),
        is_forbidden: !allowed.contains(&probe.handler.kind()),
        probe: Arc::new(probe),
        revision: wire.revision.as_deref().map(Arc::from),
        output: wire.output.clone().map(Arc::new),
        started_container: wire.started_container_id.as_deref().map(strip_id_scheme),
    };
    Ok((Arc::new(key), entry))
}

/// The runtime's id of a container: a pod's status has it with a scheme, `containerd://<id>` (`ContainerID.String` in
/// `pkg/kubelet/container/runtime.go`).
pub(super) fn strip_id_scheme(id: &str) -> Arc<str> {
    id.split_once("://").map_or(id, |(_, id)| id).into()
}

fn malformed_entry(pod: &PodProbe, probe: &ContainerProbe, error: &InvalidEntry) -> MalformedEntry {
    MalformedEntry {
        namespace: pod.namespace.clone(),
        pod: pod.name.clone(),
        uid: pod.uid.clone(),
        probe: probe.name.clone(),
        reason: error.to_string(),
    }
}

fn join_errors(errors: &[impl fmt::Display]) -> String {
    let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
    errors.join("; ")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    // PRB-3, DEF-21
    #[test]
    fn malformed_entries_stand_aside() {
        let tcp = json!({"tcpSocket": {"port": 80}});
        let entry = |name: &str, container: &str, probe: &serde_json::Value| json!({"name": name, "containerName": container, "probe": probe});
        let probes = json!([
            entry("m#good", "main", &tcp),
            entry("nohash", "main", &tcp),
            entry("m#nowhere", "", &tcp),
            entry("m#named", "main", &json!({"tcpSocket": {"port": "web"}})),
            entry("m#nothing", "main", &json!({})),
            entry("m#good", "other", &tcp),
            entry(
                "m#elsewhere",
                "main",
                &json!({"tcpSocket": {"port": 80, "host": "10.0.0.1"}})
            ),
            entry("m#also", "main", &tcp),
        ]);
        let spec = json!({"podProbes": [
            {"name": "pod", "namespace": "ns", "uid": "u", "IP": "", "probes": probes},
            {"name": "other", "namespace": "ns", "uid": "", "IP": "", "probes": [entry("m#p", "main", &tcp)]},
        ]});
        let (entries, malformed) = parse_spec(
            &serde_json::from_value(spec).unwrap(),
            &HandlerKind::ALL.into(),
        );
        let names: Vec<String> = entries.iter().map(|(key, _)| key.to_string()).collect();
        assert_eq!(names, ["ns/pod/main/m#good", "ns/pod/main/m#also"]);
        let refused: Vec<&str> = malformed.iter().map(|m| m.probe.as_str()).collect();
        assert_eq!(
            refused,
            [
                "nohash",
                "m#nowhere",
                "m#named",
                "m#nothing",
                "m#good",
                "m#elsewhere",
                "m#p"
            ]
        );
    }

    // PPM-15, PRB-14
    #[test]
    fn an_entry_beyond_the_bounds_of_admission_stands_aside() {
        let exec = |command: Value, timeout: u64| json!({"exec": {"command": command}, "timeoutSeconds": timeout});
        let headers = json!([{"name": "a", "value": "v".repeat(5_000)}]);
        let probes = [
            ("m#fine", exec(json!(["true"]), 3_600)),
            ("m#years", exec(json!(["true"]), i32::MAX as u64)),
            ("m#long", exec(json!(["x".repeat(20_000)]), 1)),
            ("m#words", exec(json!(vec!["x"; 1_000]), 1)),
            (
                "m#path",
                json!({"httpGet": {"port": 80, "path": "/x".repeat(10_000)}}),
            ),
            (
                "m#headers",
                json!({"httpGet": {"port": 80, "httpHeaders": headers}}),
            ),
        ];
        let probes = probes
            .map(|(name, probe)| json!({"name": name, "containerName": "main", "probe": probe}));
        let spec = json!({"podProbes": [{"name": "pod", "namespace": "ns", "uid": "u", "IP": "", "probes": probes}]});
        let (entries, malformed) = parse_spec(
            &serde_json::from_value(spec).unwrap(),
            &HandlerKind::ALL.into(),
        );
        assert_eq!(entries.len(), 1);
        let refused: Vec<&str> = malformed.iter().map(|m| m.probe.as_str()).collect();
        assert_eq!(
            refused,
            ["m#years", "m#long", "m#words", "m#path", "m#headers"]
        );
    }
}
