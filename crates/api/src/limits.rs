//! Bounds and reserved names of a marker: data that both the CRDs (as schema and CEL) and the parser keep to.

/// Probes of one marker, at most.
pub const PROBES: usize = 32;
/// Labels, and as many annotations, of one policy, at most.
pub const POLICY_KEYS: usize = 32;
/// `matchLabels` pairs, and as many `matchExpressions`, of a selector, at most.
pub const SELECTOR_EXPRESSIONS: usize = 16;
/// Values of one selector expression, at most.
pub const SELECTOR_VALUES: usize = 256;
/// Headers of one HTTP probe, at most.
pub const HEADERS: usize = 64;
/// Characters of the name of an HTTP header, at most.
pub const HEADER_NAME: usize = 256;
/// Characters of a DNS label, of a label's value, and of a qualified name after its `/`.
pub const LABEL: usize = 63;
/// Characters of a DNS domain, and so of a qualified name before its `/`.
pub const SUBDOMAIN: usize = 253;
/// Characters of a qualified name.
pub const QUALIFIED_NAME: usize = SUBDOMAIN + 1 + LABEL;
/// Characters of a port's name, as IANA service names have it.
pub const PORT_NAME: usize = 15;

/// Probes of one pod that a node's status says cannot be run, at most; the others are left out.
pub const CANNOT_PROBE: usize = 256;
/// Bytes of why a probe cannot be run, at most; the schema bounds characters by the same number.
pub const CANNOT_PROBE_MESSAGE: usize = 256;
/// Characters of `<marker>#<probe>` where it is said why a probe cannot be run, at most.
pub const CANNOT_PROBE_NAME: usize = 512;

/// Condition types of a pod that Kubernetes' own components write: the kubelet's, the scheduler's and the
/// controllers'. A marker may not name them.
pub const RESERVED_CONDITION_TYPES: &[&str] = &[
    "PodScheduled",
    "PodReadyToStartContainers",
    "Initialized",
    "ContainersReady",
    "Ready",
    "DisruptionTarget",
    "PodResizePending",
    "PodResizeInProgress",
    "AllContainersRestarting",
];

/// Labels that workload controllers tell their pods by, outside of the reserved domains.
pub const RESERVED_KEYS: &[&str] = &["pod-template-hash", "controller-revision-hash"];

/// Domains of labels and annotations, with everything below them, that belong to Kubernetes.
pub const RESERVED_DOMAINS: &[&str] = &["kubernetes.io", "k8s.io"];

/// What a marker may set within the reserved domains all the same: it is made for being set from outside.
pub const OPEN_KEYS: &[&str] = &[
    "controller.kubernetes.io/pod-deletion-cost",
    "cluster-autoscaler.kubernetes.io/safe-to-evict",
];

/// Domains within the reserved ones that are the users' own: Kubernetes recommends the names and reads none of them.
pub const OPEN_DOMAINS: &[&str] = &["app.kubernetes.io"];
