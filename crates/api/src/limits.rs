//! Limits and reserved names of markers, sets of sidecars and cron jobs, which the CRDs (as schema and CEL) and the parser of `leadsman-core` enforce alike.

/// Probes of one marker, at most.
pub const PROBES: usize = 32;
/// Labels, and as many annotations, of one policy, at most.
pub const POLICY_KEYS: usize = 32;
/// `matchLabels` pairs, and as many `matchExpressions`, of a selector, at most.
pub const SELECTOR_EXPRESSIONS: usize = 16;
/// Values of one selector expression, at most.
pub const SELECTOR_VALUES: usize = 256;
/// Characters of a probe's name.
pub const PROBE_NAME: usize = 253;
/// Longest time that one run of a probe may take, in seconds.
pub const TIMEOUT_SECONDS: i32 = 3600;
/// Words of a command, at most.
pub const COMMAND_WORDS: usize = 256;
/// Characters of all words of a command together. Counting bytes in CEL would exceed the API server's cost limit for a CRD
/// (`k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation`, `StaticEstimatedCostLimit`).
pub const COMMAND_CHARS: usize = 16 * 1024;
/// Characters of an HTTP probe's path, the query included.
pub const PATH: usize = 2048;
/// Headers of one HTTP probe, at most.
pub const HEADERS: usize = 64;
/// Characters of the name of an HTTP header, at most.
pub const HEADER_NAME: usize = 256;
/// Characters of the value of an HTTP header, at most.
pub const HEADER_VALUE: usize = 4096;
/// Bytes of all headers of one HTTP probe together, names and values.
pub const HEADERS_BYTES: usize = 16 * 1024;
/// Characters of the service that a gRPC probe asks about.
pub const GRPC_SERVICE: usize = 253;
/// Characters of the path of a file that a probe reads.
pub const FILE_PATH: usize = 256;
/// Characters of the value of an annotation that a policy sets.
pub const ANNOTATION_VALUE: usize = 4096;
/// Characters of the regular expression for the output of a probe.
pub const OUTPUT_EXPRESSION: usize = 1024;
/// Values in an output, at most.
pub const OUTPUT_VALUES: usize = 8;
/// Bytes that all values of one output take as JSON: they stand in the status of the node's object, where each entry has
/// room for them from the start.
pub const OUTPUT_VALUES_BYTES: usize = 256;
/// Entries of a policy for certain values of the output, at most.
pub const OUTPUT_POLICIES: usize = 8;
/// Labels, and as many annotations, of one of these.
pub const OUTPUT_POLICY_KEYS: usize = 8;
/// Characters of the message that a policy gives the condition.
pub const POLICY_MESSAGE: usize = 512;
/// Longest time for which a verdict may have to hold, in seconds.
pub const HOLD_SECONDS: i32 = 24 * 3600;
/// Pods with an exclusive value in the summary of a probe, at most: those of the first groups by name.
pub const EXCLUSIVE_HOLDERS: usize = 32;
/// The annotation that says of exclusive values whether a pod has them, and the highest versions that were proved to it.
pub const EXCLUSIVE_ANNOTATION: &str = "podprobe.leadsman.io/exclusive";
/// Bytes of all annotations of one policy together, keys and values, and of those of a pod: as many as Kubernetes allows an
/// object (`TotalAnnotationSizeLimitB` in `k8s.io/apimachinery/pkg/api/validation/objectmeta.go`).
pub const ANNOTATIONS_BYTES: usize = 256 * 1024;
/// Bytes of a pod as JSON, with what sets add to it. etcd takes requests of 1.5 MiB (`--max-request-bytes`), and needs room for
/// what the API server and the kubelet add later: defaults, `managedFields`, the status.
pub const POD_BYTES: usize = 1280 * 1024;
/// The most that is kept of a pod's metadata and spec, in bytes. A pod of which more would be kept
/// counts as undecodable. Usual pods have one to four KiB.
pub const KEPT_POD_BYTES: usize = 64 * 1024;
/// Bytes of the template of a job as JSON. Those in use have one to ten KiB.
pub const TEMPLATE_BYTES: usize = 64 * 1024;
/// Revisions of a set that are kept beside those in use, at most.
pub const REVISIONS: usize = 100;
/// Requirements that a job has of its nodes, at most: labels, expressions and tolerations together. Each is looked at for each
/// node.
pub const NODE_REQUIREMENTS: usize = 128;
/// The cost of a text beyond its length where it is kept.
pub const KEPT_TEXT_BYTES: usize = 32;
/// Bytes of the note of an event (`NoteLengthLimit` in `pkg/apis/core/validation/events.go`), and of the message of a
/// condition of a `SidecarSet`.
pub const EVENT_NOTE_BYTES: usize = 1024;
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

/// Why the type of the upgrade of a container cannot be edited. CEL says it, and leadsman's webhook where a CRD has no CEL.
pub const UPGRADE_TYPE_IS_FIXED: &str =
    "cannot be changed: pods have the containers as they were; give the container another name";
/// Containers of a set, and as many init containers, at most.
pub const SIDECARS: usize = 32;
/// Characters of an image's name, at most: a registry and a repository (255, as the registries of Docker have it), a tag (128)
/// and a digest.
pub const IMAGE: usize = 1024;
/// Volumes of a set, at most.
pub const VOLUMES: usize = 128;
/// Mounts of one container of a set, at most, and as many devices.
pub const MOUNTS: usize = 128;
/// Entries of a sidecar's `transferEnv`, at most.
pub const TRANSFERS: usize = 64;
/// Characters of the regular expression that chooses the containers from which a sidecar's resources are computed.
pub const TARGETS_REGEX: usize = 1024;
/// Characters of an expression of a sidecar's resources.
pub const EXPRESSION: usize = 1024;
/// Characters of `metadata.annotations['KEY']`, at most.
pub const FIELD_PATH: usize = "metadata.annotations['']".len() + QUALIFIED_NAME;
/// Entries of a set's `patchPodMetadata`, at most.
pub const PATCHES: usize = 16;
/// Annotations of one entry of a set's `patchPodMetadata`, at most.
pub const PATCH_KEYS: usize = 32;
/// Characters of the name of a `CloneSet`: that of a pod has six more.
pub const CLONE_SET_NAME: usize = 247;
/// Names in `podsToDelete`, at most.
pub const PODS_TO_DELETE: usize = 1024;
/// Labels of a template, at most.
pub const TEMPLATE_LABELS: usize = 128;
/// Templates of claims of a set, at most.
pub const CLAIM_TEMPLATES: usize = 16;
/// Labels, and as many finalizers, of a hook of a lifecycle, at most.
pub const HOOK_MARKS: usize = 16;
/// Longest grace period of an update in place, in seconds.
pub const GRACE_SECONDS: i64 = 24 * 3600;
/// Maximum terms of a priority strategy, and of a scatter strategy.
pub const TERMS: usize = 32;

/// Enum-valued fields of containers, at any depth (`pkg/apis/core/types.go`). An empty one has its default.
pub const POD_WORDS: &[(&str, &[&str])] = &[
    ("imagePullPolicy", &["Always", "IfNotPresent", "Never"]),
    (
        "mountPropagation",
        &["None", "HostToContainer", "Bidirectional"],
    ),
    ("protocol", &["TCP", "UDP", "SCTP"]),
    ("scheme", &["HTTP", "HTTPS"]),
    (
        "terminationMessagePolicy",
        &["File", "FallbackToLogsOnError"],
    ),
];

/// Condition types of a pod that belong to Kubernetes' own components and to `OpenKruise`'s. A marker may not name them.
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
    "KruisePodReady",
    "InPlaceUpdateReady",
    "SidecarSetUpgradable",
];

/// Keys of labels and annotations that neither a marker nor a `SidecarSet` may set; the policies of `leadsman manifests`
/// forbid them too, and docs/markers.md lists them by hand. By the first ones controllers recognize their pods: where a
/// pod has lost its own, they create new pods without end. The others are records that `OpenKruise` or leadsman reads back.
pub const RESERVED_KEYS: &[&str] = &[
    "pod-template-hash",
    "controller-revision-hash",
    "pod-template-generation",
    "controller-uid",
    "job-name",
    "kubectl.kubernetes.io/last-applied-configuration",
    "kruise.io/podprobe",
    "kruise.io/podprobemarker-list",
    EXCLUSIVE_ANNOTATION,
    "kruise.io/related-pub",
    "kruise.io/injected-persistent-pod-state",
    "apps.kruise.io/cloneset-instance-id",
    "apps.kruise.io/container-probe-context",
    "apps.kruise.io/controller-revision-hash",
    "apps.kruise.io/inplace-update-grace",
    "apps.kruise.io/inplace-update-state",
    "apps.kruise.io/matched-workloadspread",
    "apps.kruise.io/runtime-containers-meta",
    "apps.kruise.io/subset-name",
];

/// Prefixes of labels and annotations that neither may set, for the same reasons.
pub const RESERVED_PREFIXES: &[&str] = &[
    "batch.kubernetes.io/",
    "statefulset.kubernetes.io/",
    "apps.kubernetes.io/",
    "kubernetes.io/config.",
    "kruise.io/sidecarset-",
    "version.sidecarset.kruise.io/",
    "versionalt.sidecarset.kruise.io/",
    "lifecycle.apps.kruise.io/",
];

/// Characters of the name of a cron job. Its runs have eleven more, and their pods have their names as a label
/// (`DNS1035LabelMaxLength`, `pkg/apis/batch/validation/validation.go`).
pub const CRON_JOB_NAME: usize = LABEL - 11;
/// Characters of a schedule.
pub const SCHEDULE: usize = 1024;
/// Runs in the status of a cron job, at most: the latest ones.
pub const ACTIVE_RUNS: usize = 128;

const _: () = assert!(COMMAND_WORDS <= COMMAND_CHARS);
const _: () = assert!(HEADER_NAME + HEADER_VALUE <= HEADERS_BYTES);
const _: () = assert!(QUALIFIED_NAME + ANNOTATION_VALUE <= ANNOTATIONS_BYTES);
