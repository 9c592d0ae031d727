//! The resources that are read, and the names by which kubectl knows them.

/// A resource of the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Resource {
    /// Empty for the core's.
    pub(crate) group: &'static str,
    pub(crate) version: &'static str,
    pub(crate) plural: &'static str,
}

const fn core(plural: &'static str) -> Resource {
    v1("", plural)
}

const fn apps(plural: &'static str) -> Resource {
    v1("apps", plural)
}

const fn v1(group: &'static str, plural: &'static str) -> Resource {
    Resource {
        group,
        version: "v1",
        plural,
    }
}

const fn ours(plural: &'static str) -> Resource {
    Resource {
        group: leadsman_api::GROUP,
        version: leadsman_api::VERSION,
        plural,
    }
}

pub(crate) const PODS: Resource = core("pods");
pub(crate) const NODES: Resource = core("nodes");
pub(crate) const NAMESPACES: Resource = core("namespaces");
pub(crate) const EVENTS: Resource = core("events");
pub(crate) const MARKERS: Resource = ours("podprobemarkers");
pub(crate) const SIDECAR_SETS: Resource = ours("sidecarsets");
pub(crate) const CONFIG_MAPS: Resource = core("configmaps");
pub(crate) const CONTROLLER_REVISIONS: Resource = apps("controllerrevisions");
pub(crate) const NODE_POD_PROBES: Resource = ours("nodepodprobes");
pub(crate) const SERVICES: Resource = core("services");
pub(crate) const DAEMON_SETS: Resource = apps("daemonsets");
pub(crate) const CLONE_SETS: Resource = ours("clonesets");
pub(crate) const JOBS: Resource = v1("batch", "jobs");
pub(crate) const CRON_JOBS: Resource = v1("batch", "cronjobs");
pub(crate) const LEASES: Resource = v1("coordination.k8s.io", "leases");
pub(crate) const ENDPOINT_SLICES: Resource = v1("discovery.k8s.io", "endpointslices");
pub(crate) const WEBHOOKS: Resource = v1(
    "admissionregistration.k8s.io",
    "mutatingwebhookconfigurations",
);
pub(crate) const VALIDATING_WEBHOOKS: Resource = v1(
    "admissionregistration.k8s.io",
    "validatingwebhookconfigurations",
);

/// What can be explained: the names that kubectl has for it, the first one for messages.
pub(crate) const KINDS: &[(Resource, &[&str])] = &[
    (PODS, &["pod", "pods", "po"]),
    (
        apps("deployments"),
        &["deployment", "deployments", "deploy"],
    ),
    (
        apps("statefulsets"),
        &["statefulset", "statefulsets", "sts"],
    ),
    (DAEMON_SETS, &["daemonset", "daemonsets", "ds"]),
    (apps("replicasets"), &["replicaset", "replicasets", "rs"]),
    (JOBS, &["job", "jobs"]),
    (CRON_JOBS, &["cronjob", "cronjobs", "cj"]),
    // Of OpenKruise, whose group it shares with ours.
    (CLONE_SETS, &["cloneset", "clonesets", "clone"]),
];

impl Resource {
    /// The path of its objects in a namespace, or of all.
    pub(crate) fn path(&self, namespace: Option<&str>) -> String {
        let Self {
            group,
            version,
            plural,
        } = self;
        let root = if group.is_empty() {
            format!("/api/{version}")
        } else {
            format!("/apis/{group}/{version}")
        };
        match namespace {
            Some(namespace) => format!("{root}/namespaces/{namespace}/{plural}"),
            None => format!("{root}/{plural}"),
        }
    }

    /// Whether its objects are in namespaces.
    pub(crate) fn is_namespaced(&self) -> bool {
        let of_the_cluster = [
            NAMESPACES,
            NODES,
            SIDECAR_SETS,
            NODE_POD_PROBES,
            WEBHOOKS,
            VALIDATING_WEBHOOKS,
        ];
        !of_the_cluster.contains(self)
    }

    /// Its name as rights have it.
    pub(crate) fn full_name(&self) -> String {
        let dot = if self.group.is_empty() { "" } else { "." };
        format!("{}{dot}{}", self.plural, self.group)
    }
}
