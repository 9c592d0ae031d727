//! The serverless protocol: how a pod on a virtual node passes its probes to the provider that runs it, and how the
//! provider reports their verdicts.
//!
//! A virtual node has no agent. Its provider reads the probes from an annotation of the pod, runs them, and reports
//! each verdict as the condition that the probe names; the pod is marked from these conditions. The keys and the form
//! of the JSON are `OpenKruise`'s (`apis/apps/v1alpha1/pod_probe_marker_types.go`,
//! `pkg/webhook/pod/mutating/pod_probe_marker.go`). The node of a pod is not known when the pod is created, so every
//! pod that a marker matches gets the annotations then.
//!
//! | module | holds |
//! |---|---|
//! | here | which probes of which markers a pod's provider is to run |
//! | `review` | the annotations of a pod that is being created |
//! | `provider` | what follows for a pod on a virtual node |
//! | `scope` | the pods for which the API server has to call the webhook |

mod provider;
mod review;
mod scope;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use leadsman_api::marker::PodContainerProbe;

pub use self::provider::Provided;
pub use self::review::{Changes, ProviderMarkers};
pub use self::scope::MarkerScope;
pub use super::injected::{FREE_BYTES, INJECTED_BYTES, MARKERS, PROBES};
use super::marker::{Marker, MarkerProbe};
use super::pod::{IndexedContainer, IndexedPod};
use super::probe::Probe;
use super::wire::to_wire;

/// The probes of one pod that its provider is to run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProviderProbes {
    /// Whether the provider is asked to run each probe of each marker; an error says why not.
    pub plans: Vec<Vec<Result<(), NotInjected>>>,
    /// The values of both annotations; None if no probe is to be run.
    pub annotations: Option<Annotations>,
}

/// The values of the two annotations.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Annotations {
    /// The value of [`PROBES`].
    pub probes: Arc<str>,
    /// The value of [`MARKERS`].
    pub markers: Arc<str>,
}

/// Why a provider is not asked to run a probe of a matching marker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotInjected {
    /// The probe names no condition by which the provider could report.
    NoConditionType,
    /// A probe with precedence has the condition.
    ConditionTaken,
    /// The pod has no such container, or it is an init container that ends.
    ContainerNotFound,
    /// The container has no port of this name.
    PortNotFound(Arc<str>),
    /// The probe reads a file, which our agents alone do.
    ReadsFile,
    /// The annotation is full, or the pod's other annotations leave it too little.
    TooManyProbes,
}

impl ProviderProbes {
    /// The probes that the provider of a pod is asked to run. `markers` are the matching ones in order of precedence.
    ///
    /// A condition belongs to the first probe that names it of those whose containers the pod has, as on other nodes.
    pub fn plan_probes(markers: &[&Marker], pod: &IndexedPod) -> Self {
        let mut draft = Draft {
            room: pod.injected_room,
            ..Draft::default()
        };
        let plans = markers
            .iter()
            .map(|marker| {
                let probes = marker.probes.iter();
                let plans = probes.map(|probe| draft.add_probe(marker, probe, pod));
                plans.collect()
            })
            .collect();
        Self {
            plans,
            annotations: draft.into_annotations(),
        }
    }
}

/// Annotations in the making.
#[derive(Default)]
struct Draft<'a> {
    conditions: BTreeSet<&'a str>,
    /// Names of probes by container.
    names: BTreeMap<&'a str, BTreeSet<&'a str>>,
    markers: BTreeSet<&'a str>,
    /// The bytes of the markers' names, commas included.
    markers_bytes: usize,
    probes: String,
    /// The bytes that the values of both annotations may have.
    room: usize,
}

impl<'a> Draft<'a> {
    fn add_probe(
        &mut self,
        marker: &'a Marker,
        probe: &'a MarkerProbe,
        pod: &IndexedPod,
    ) -> Result<(), NotInjected> {
        let condition = probe
            .condition_type
            .as_deref()
            .ok_or(NotInjected::NoConditionType)?;
        let container = pod
            .container(&probe.container)
            .ok_or(NotInjected::ContainerNotFound)?;
        if !self.conditions.insert(condition) {
            return Err(NotInjected::ConditionTaken);
        }
        let (wire, file) = to_wire(&resolve_ports(probe, container)?);
        if file.is_some() {
            return Err(NotInjected::ReadsFile);
        }
        // A provider may tell probes apart by container and name, as it could when `OpenKruise` wrote them.
        let names = self.names.entry(&probe.container).or_default();
        let is_taken = names.contains(&*probe.name);
        let injected = PodContainerProbe {
            name: if is_taken { &probe.entry } else { &probe.name }.to_string(),
            container_name: probe.container.to_string(),
            probe: wire,
            file,
            output: None,
            marker_policy: Vec::new(),
            pod_condition_type: Some(condition.to_owned()),
        };
        let text = serde_json::to_string(&injected).map_err(|_| NotInjected::TooManyProbes)?;
        // The text has a bracket or a comma before it, and the list a bracket at its end.
        let probes = self.probes.len() + text.len() + "[]".len();
        let own: &str = &marker.name.name;
        let markers = match self.markers.len() {
            _ if self.markers.contains(own) => self.markers_bytes,
            0 => own.len(),
            _ => self.markers_bytes + ",".len() + own.len(),
        };
        if probes + markers > self.room {
            return Err(NotInjected::TooManyProbes);
        }
        names.insert(&probe.name);
        self.markers.insert(own);
        self.markers_bytes = markers;
        self.probes
            .push(if self.probes.is_empty() { '[' } else { ',' });
        self.probes.push_str(&text);
        Ok(())
    }

    fn into_annotations(mut self) -> Option<Annotations> {
        if self.probes.is_empty() {
            return None;
        }
        self.probes.push(']');
        let markers: Vec<_> = self.markers.into_iter().collect();
        Some(Annotations {
            probes: self.probes.into(),
            markers: markers.join(",").into(),
        })
    }
}

/// The probe with the ports of its container.
fn resolve_ports(probe: &MarkerProbe, container: &IndexedContainer) -> Result<Probe, NotInjected> {
    let port = |name: &str| {
        let mut ports = container.ports.iter();
        let port = ports.find(|(known, _)| **known == *name);
        port.map(|(_, number)| *number)
    };
    let resolved = probe.template.resolve_ports(port);
    resolved.map_err(|unresolved| NotInjected::PortNotFound(unresolved.0))
}
