//! Wire types of `apps.kruise.io`, as loose as on the wire, and slim views of Kubernetes' own objects.
//!
//! The CRDs are made from these types. Their meaning is parsed and decided in `leadsman-core`.
#![doc(html_no_source)]

pub mod advanced_cron_job;
pub mod broadcast_job;
pub mod clone_set;
pub mod crd;
pub mod guarded;
pub mod limits;
mod managed;
pub mod marker;
pub mod node_pod_probe;
mod rules;
pub mod sidecar_container;
pub mod sidecar_set;
pub mod slim;
pub mod verbatim;
mod wire;

pub use advanced_cron_job::{AdvancedCronJob, AdvancedCronJobSpec, AdvancedCronJobStatus};
pub use broadcast_job::{BroadcastJob, BroadcastJobSpec, BroadcastJobStatus};
pub use clone_set::{CloneSet, CloneSetSpec, CloneSetStatus};
pub use guarded::Guarded;
pub use marker::{PodProbeMarker, PodProbeMarkerSpec, PodProbeMarkerStatus};
pub use node_pod_probe::{NodePodProbe, NodePodProbeSpec, NodePodProbeStatus};
pub use sidecar_set::{SidecarSet, SidecarSetSpec, SidecarSetStatus};
pub use verbatim::Verbatim;

/// The namespace of managers and agents where no flag names one.
pub const DEFAULT_NAMESPACE: &str = "leadsman-system";
/// The labels of the agents' pods.
pub const AGENT_LABELS: [(&str, &str); 2] = [
    ("app.kubernetes.io/name", "leadsman"),
    ("app.kubernetes.io/component", "agent"),
];
/// The advice where an API server does not know the kinds.
pub const INSTALL_CRDS: &str = "install leadsman's CRDs, by its Helm chart or `leadsman manifests`";
/// The API group of all kinds.
pub const GROUP: &str = "apps.kruise.io";
/// The CRDs of probes as YAML, as they are committed, so that a program prints them without generating them. They
/// stand in the chart, which can read no file outside of it.
pub const PODPROBE_CRDS: [&str; 2] = [
    include_str!("../../../charts/leadsman/files/crds/apps.kruise.io_podprobemarkers.yaml"),
    include_str!("../../../charts/leadsman/files/crds/apps.kruise.io_nodepodprobes.yaml"),
];
/// The CRD of sets of sidecars, likewise.
pub const SIDECAR_SET_CRD: &str = include_str!(
    "../../../charts/leadsman/files/crds/SidecarSetGate/apps.kruise.io_sidecarsets.yaml"
);
/// The CRD of jobs on each node, likewise.
pub const BROADCAST_JOB_CRD: &str = include_str!(
    "../../../charts/leadsman/files/crds/BroadcastJobGate/apps.kruise.io_broadcastjobs.yaml"
);
/// The CRD of sets of pods, likewise.
pub const CLONE_SET_CRD: &str =
    include_str!("../../../charts/leadsman/files/crds/CloneSetGate/apps.kruise.io_clonesets.yaml");
/// The CRD of cron jobs, likewise.
pub const ADVANCED_CRON_JOB_CRD: &str = include_str!(
    "../../../charts/leadsman/files/crds/AdvancedCronJobGate/apps.kruise.io_advancedcronjobs.yaml"
);
/// The version of markers and `NodePodProbe`s, and that in which sets of sidecars are stored.
pub const VERSION: &str = "v1alpha1";
