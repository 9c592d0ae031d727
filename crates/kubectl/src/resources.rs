//! The resources that are read, and the names by which kubectl knows them.

/// A resource of the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ApiResource {
    /// Empty for the core's.
    pub(crate) group: &'static str,
    pub(crate) version: &'static str,
    pub(crate) plural: &'static str,
}

const fn core_resource(plural: &'static str) -> ApiResource {
    v1_resource("", plural)
}

const fn apps_resource(plural: &'static str) -> ApiResource {
    v1_resource("apps", plural)
}

const fn v1_resource(group: &'static str, plural: &'static str) -> ApiResource {
    ApiResource {
        group,
        version: "v1",
        plural,
    }
}

const fn kruise_resource(plural: &'static str) -> ApiResource {
    ApiResource {
        group: leadsman_api::GROUP,
        version: leadsman_api::VERSION,
        plural,
    }
}

pub(crate) const PODS: ApiResource = core_resource("pods");
pub(crate) const NODES: ApiResource = core_resource("nodes");
pub(crate) const NAMESPACES: ApiResource = core_resource("namespaces");
pub(crate) const EVENTS: ApiResource = core_resource("events");
pub(crate) const MARKERS: ApiResource = kruise_resource("podprobemarkers");
pub(crate) const SIDECAR_SETS: ApiResource = kruise_resource("sidecarsets");
pub(crate) const BROADCAST_JOBS: ApiResource = kruise_resource("broadcastjobs");
pub(crate) const ADVANCED_CRON_JOBS: ApiResource = ApiResource {
    version: "v1beta1",
    ..kruise_resource("advancedcronjobs")
};
pub(crate) const CLAIMS: ApiResource = core_resource("persistentvolumeclaims");
pub(crate) const CONFIG_MAPS: ApiResource = core_resource("configmaps");
pub(crate) const CONTROLLER_REVISIONS: ApiResource = apps_resource("controllerrevisions");
pub(crate) const NODE_POD_PROBES: ApiResource = kruise_resource("nodepodprobes");
pub(crate) const SERVICES: ApiResource = core_resource("services");
pub(crate) const DAEMON_SETS: ApiResource = apps_resource("daemonsets");
pub(crate) const CLONE_SETS: ApiResource = kruise_resource("clonesets");
pub(crate) const JOBS: ApiResource = v1_resource("batch", "jobs");
pub(crate) const CRON_JOBS: ApiResource = v1_resource("batch", "cronjobs");
pub(crate) const LEASES: ApiResource = v1_resource("coordination.k8s.io", "leases");
pub(crate) const ENDPOINT_SLICES: ApiResource = v1_resource("discovery.k8s.io", "endpointslices");
pub(crate) const WEBHOOKS: ApiResource = v1_resource(
    "admissionregistration.k8s.io",
    "mutatingwebhookconfigurations",
);
pub(crate) const VALIDATING_WEBHOOKS: ApiResource = v1_resource(
    "admissionregistration.k8s.io",
    "validatingwebhookconfigurations",
);

/// The kinds that can be explained: the names that kubectl has for each, the first one for messages.
pub(crate) const KINDS: &[(ApiResource, &[&str])] = &[
    (PODS, &["pod", "pods", "po"]),
    (
        apps_resource("deployments"),
        &["deployment", "deployments", "deploy"],
    ),
    (
        apps_resource("statefulsets"),
        &["statefulset", "statefulsets", "sts"],
    ),
    (DAEMON_SETS, &["daemonset", "daemonsets", "ds"]),
    (
        apps_resource("replicasets"),
        &["replicaset", "replicasets", "rs"],
    ),
    (JOBS, &["job", "jobs"]),
    (CRON_JOBS, &["cronjob", "cronjobs", "cj"]),
    (CLONE_SETS, &["cloneset", "clonesets", "clone"]),
    (MARKERS, &["podprobemarker", "podprobemarkers"]),
    (SIDECAR_SETS, &["sidecarset", "sidecarsets"]),
    (BROADCAST_JOBS, &["broadcastjob", "broadcastjobs", "bcj"]),
];

/// The names that kubectl has for an `AdvancedCronJob`, which has no pods of its own: `next` is about it.
pub(crate) const SCHEDULED: [&str; 3] = ["advancedcronjob", "advancedcronjobs", "acj"];

impl ApiResource {
    /// The path of its objects in a namespace, or of all.
    pub(crate) fn objects_path(&self, namespace: Option<&str>) -> String {
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

    /// The name of the resource as rights have it.
    pub(crate) fn full_name(&self) -> String {
        let dot = if self.group.is_empty() { "" } else { "." };
        format!("{}{dot}{}", self.plural, self.group)
    }
}
