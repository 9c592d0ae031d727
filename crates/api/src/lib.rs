//! Wire types of `apps.kruise.io/v1alpha1`, loose as on the wire, and slim views of Kubernetes' own objects.
//!
//! What lives here: the shapes that cross the API server, and the CRDs made from them. What does not: any rule
//! about what they mean; that is `leadsman-core`.
#![doc(html_no_source)]

pub mod crd;
pub mod guarded;
pub mod limits;
mod managed;
pub mod marker;
pub mod node_pod_probe;
mod rules;
pub mod slim;
mod wire;

pub use guarded::Guarded;
pub use marker::{PodProbeMarker, PodProbeMarkerSpec, PodProbeMarkerStatus};
pub use node_pod_probe::{NodePodProbe, NodePodProbeSpec, NodePodProbeStatus};

/// The API group of both kinds.
pub const GROUP: &str = "apps.kruise.io";
/// Both CRDs as YAML, as they are committed: a program that prints them need not know how they are made.
pub const CRDS: [&str; 2] = [
    include_str!("../crds/apps.kruise.io_podprobemarkers.yaml"),
    include_str!("../crds/apps.kruise.io_nodepodprobes.yaml"),
];
/// The one version served.
pub const VERSION: &str = "v1alpha1";
