//! The objects and patches of the flows.

use serde_json::{Value, json};

/// The kinds of the flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    ConfigMap,
    Pod,
    Marker,
    Lease,
    /// With data that are stored as they are sent.
    Revision,
}

/// A patch: its type, its subresource and its text.
#[derive(Debug)]
pub(super) struct PatchRow {
    pub(super) form: &'static str,
    pub(super) status: bool,
    pub(super) text: &'static str,
}

/// A configuration of a server-side apply: whether it is of the status, and its text.
pub(super) type ApplyRow = (bool, &'static str);

const fn merge(text: &'static str) -> PatchRow {
    row("merge-patch+json", false, text)
}

const fn strategic(text: &'static str) -> PatchRow {
    row("strategic-merge-patch+json", false, text)
}

const fn operations(text: &'static str) -> PatchRow {
    row("json-patch+json", false, text)
}

const fn of_status(patch: &PatchRow) -> PatchRow {
    row(patch.form, true, patch.text)
}

const fn row(form: &'static str, status: bool, text: &'static str) -> PatchRow {
    PatchRow { form, status, text }
}

static CONFIG_MAPS: &[PatchRow] = &[
    merge("{}"),
    merge(r#"{"data": {"x": "2"}}"#),
    merge(r#"{"data": {"x": null, "z": "3"}}"#),
    merge(r#"{"data": null}"#),
    merge(r#"{"metadata": {"labels": {"role": "main"}}}"#),
    merge(r#"{"metadata": {"labels": null, "annotations": {"a": "b"}}}"#),
    merge(r#"{"metadata": {"finalizers": null}}"#),
    merge(r#"{"metadata": {"finalizers": ["example.com/hold"]}}"#),
    merge(
        r#"{"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u"}]}}"#,
    ),
    merge(r#"{"metadata": {"managedFields": []}}"#),
    operations(r#"[{"op": "add", "path": "/data", "value": {"j": "1"}}]"#),
    operations(
        r#"[{"op": "test", "path": "/data/x", "value": "1"}, {"op": "replace", "path": "/data/x", "value": "7"}]"#,
    ),
    operations(r#"[{"op": "remove", "path": "/metadata/labels"}]"#),
    strategic(r#"{"data": {"x": null, "s": "1"}}"#),
    strategic(r#"{"data": {"$patch": "replace", "q": "1"}}"#),
    strategic(r#"{"metadata": {"finalizers": ["example.com/other"]}}"#),
    strategic(r#"{"metadata": {"$deleteFromPrimitiveList/finalizers": ["example.com/hold"]}}"#),
];

static PODS: &[PatchRow] = &[
    merge("{}"),
    merge(r#"{"metadata": {"labels": {"role": "main"}}}"#),
    merge(r#"{"metadata": {"labels": {"role": null}}}"#),
    merge(r#"{"metadata": {"finalizers": ["example.com/hold"]}}"#),
    merge(r#"{"metadata": {"finalizers": null}}"#),
    merge(r#"{"spec": {"hostname": "h"}}"#),
    strategic(r#"{"spec": {"containers": [{"name": "main", "image": "b:1"}]}}"#),
    strategic(
        r#"{"spec": {"containers": [{"name": "main", "image": "b:1"}, {"name": "side", "image": "s:1"}]}}"#,
    ),
    strategic(r#"{"metadata": {"annotations": {"a": "b", "c": null}}}"#),
    strategic(
        r#"{"spec": {"containers": [{"name": "main", "env": [{"name": "E", "value": "1"}]}]}}"#,
    ),
    of_status(&merge(r#"{"status": {"phase": "Running"}}"#)),
    of_status(&merge(r#"{"status": {"phase": "Succeeded"}}"#)),
    of_status(&merge(
        r#"{"status": {"phase": "Pending"}, "spec": {"nodeName": "x"}}"#,
    )),
    of_status(&merge(
        r#"{"metadata": {"labels": {"role": "other"}, "annotations": null}}"#,
    )),
    of_status(&strategic(
        r#"{"status": {"conditions": [{"type": "t", "status": "True"}]}}"#,
    )),
    of_status(&strategic(
        r#"{"status": {"conditions": [{"type": "t", "status": "False", "message": "m"}, {"type": "u", "status": "True"}]}}"#,
    )),
    of_status(&strategic(
        r#"{"status": {"conditions": [{"type": "t", "$patch": "delete"}]}}"#,
    )),
    of_status(&strategic(
        r#"{"metadata": {"labels": {"role": null}}, "status": {"conditions": [{"type": "u", "$patch": "delete"}]}}"#,
    )),
    of_status(&merge(r#"{"status": {"conditions": []}}"#)),
    of_status(&merge(r#"{"status": {"conditions": null}}"#)),
];

static MARKERS: &[PatchRow] = &[
    merge("{}"),
    merge(r#"{"metadata": {"labels": {"role": "main"}, "annotations": {"a": "b"}}}"#),
    merge(r#"{"metadata": {"finalizers": ["example.com/hold"]}}"#),
    merge(r#"{"metadata": {"finalizers": []}}"#),
    merge(r#"{"spec": {"unknown": 1}}"#),
    merge(r#"{"status": {"observedGeneration": 7}}"#),
    merge(
        r#"{"spec": {"probes": [{"name": "p", "containerName": "c", "probe": {"exec": {"command": ["x"]}, "periodSeconds": 3}, "podConditionType": "example.com/p"}]}}"#,
    ),
    operations(r#"[{"op": "add", "path": "/metadata/labels", "value": {"role": "other"}}]"#),
    operations(r#"[{"op": "remove", "path": "/spec/probes/0/probe/periodSeconds"}]"#),
    strategic(r#"{"metadata": {"labels": {"role": "main"}}}"#),
    of_status(&merge(
        r#"{"status": {"observedGeneration": 1, "matchedPods": 2}}"#,
    )),
    of_status(&merge(
        r#"{"status": {"observedGeneration": 4, "matchedPods": null, "unknown": 1}}"#,
    )),
    of_status(&merge(
        r#"{"metadata": {"labels": {"role": "ignored"}}, "spec": null, "status": {"observedGeneration": 3}}"#,
    )),
    of_status(&merge(
        r#"{"status": {"observedGeneration": 1, "conditions": [{"type": "Ready", "status": "True", "reason": "R",
        "message": "", "lastTransitionTime": "2027-01-01T00:00:00Z"}]}}"#,
    )),
    of_status(&merge(
        r#"{"status": {"observedGeneration": 1, "conditions": []}}"#,
    )),
    of_status(&merge(r#"{"status": null}"#)),
];

static LEASES: &[PatchRow] = &[
    merge(r#"{"spec": {"holderIdentity": "m", "leaseDurationSeconds": 5}}"#),
    merge(r#"{"spec": {"holderIdentity": null}}"#),
    strategic(r#"{"spec": {"leaseTransitions": 3}}"#),
    merge(r#"{"metadata": {"labels": {"role": "main"}}}"#),
    merge(r#"{"spec": null}"#),
];

static CONFIG_MAP_APPLIES: &[ApplyRow] = &[
    (false, r#"{"data": {"x": "1"}}"#),
    (false, r#"{"data": {"x": "2", "y": "9"}}"#),
    (false, r#"{"metadata": {"labels": {"role": "main"}}}"#),
    (
        false,
        r#"{"metadata": {"labels": {"role": "other"}, "annotations": {"a": "c"}}, "data": {}}"#,
    ),
    (
        false,
        r#"{"metadata": {"finalizers": ["example.com/hold"]}}"#,
    ),
    (
        false,
        r#"{"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u"}]}}"#,
    ),
    (false, "{}"),
];

static POD_APPLIES: &[ApplyRow] = &[
    (
        true,
        r#"{"metadata": {"labels": {"role": "main"}}, "status": {"conditions": [{"type": "t", "status": "True"}]}}"#,
    ),
    (
        true,
        r#"{"metadata": {"labels": {"role": "other"}, "annotations": {"a": "1"}}, "status": {"conditions": [{"type": "t", "status": "False", "message": "m"}]}}"#,
    ),
    (
        true,
        r#"{"status": {"conditions": [{"type": "u", "status": "True", "lastTransitionTime": "2027-01-01T00:00:00Z"}, {"type": "t", "status": "True", "message": ""}]}}"#,
    ),
    (true, r#"{"metadata": {"annotations": {"a": "2"}}}"#),
    (true, "{}"),
    (true, r#"{"status": {"phase": "Running"}}"#),
    (false, r#"{"metadata": {"labels": {"role": "main"}}}"#),
    (
        false,
        r#"{"metadata": {"annotations": {"a": "3"}, "finalizers": ["example.com/hold"]}}"#,
    ),
    (
        false,
        r#"{"spec": {"containers": [{"name": "main", "image": "c:1"}]}}"#,
    ),
    (
        false,
        r#"{"spec": {"containers": [{"name": "main", "image": "a:1", "ports": [{"containerPort": 80}]}]}}"#,
    ),
    (false, "{}"),
];

static MARKER_APPLIES: &[ApplyRow] = &[
    (
        false,
        r#"{"metadata": {"labels": {"role": "main"}}, "spec": {"selector": {"matchLabels": {"app": "a"}}, "probes": [{"name": "p", "containerName": "c",
        "probe": {"exec": {"command": ["x"]}}, "markerPolicy": [{"state": "Succeeded", "labels": {"role": "main"}}]}]}}"#,
    ),
    (
        false,
        r#"{"spec": {"selector": {"matchLabels": {"app": "a"}}, "probes": [{"name": "p", "containerName": "c",
        "probe": {"exec": {"command": ["y"]}, "periodSeconds": 2}, "markerPolicy": [{"state": "Failed", "labels": {"role": "main"}}]},
        {"name": "q", "containerName": "c", "probe": {"tcpSocket": {"port": 80}}, "podConditionType": "example.com/q"}]}}"#,
    ),
    (false, r#"{"spec": {"unknown": 1}}"#),
    (
        true,
        r#"{"status": {"observedGeneration": 1, "matchedPods": 1}}"#,
    ),
    (
        true,
        r#"{"status": {"observedGeneration": 2, "probes": [{"name": "p", "failed": 1, "pending": 0, "silent": 0, "succeeded": 0, "unknown": 0}]}}"#,
    ),
    (
        true,
        r#"{"metadata": {"labels": {"role": "ignored"}}, "status": {"observedGeneration": 1}}"#,
    ),
];

static LEASE_APPLIES: &[ApplyRow] = &[
    (false, r#"{"spec": {"holderIdentity": "apply"}}"#),
    (
        false,
        r#"{"spec": {"leaseDurationSeconds": 9}, "metadata": {"labels": {"role": "other"}}}"#,
    ),
];

static REVISIONS: &[PatchRow] = &[
    merge(r#"{"revision": 3}"#),
    merge(r#"{"metadata": {"labels": {"role": "other"}}}"#),
    strategic(r#"{"metadata": {"annotations": {"n": null, "m": "1"}}, "revision": 4}"#),
    operations(r#"[{"op": "replace", "path": "/revision", "value": 5}]"#),
];

static REVISION_APPLIES: &[ApplyRow] = &[
    (
        false,
        r#"{"revision": 6, "data": {"spec": {"a": null, "b": [], "c": "", "d": {"data": {}}}}}"#,
    ),
    (
        false,
        r#"{"metadata": {"labels": {"role": "main"}}, "revision": 7, "data": {"spec": {"a": null, "b": [], "c": "", "d": {"data": {}}}}}"#,
    ),
];

impl Kind {
    pub(super) const ALL: [Self; 5] = [
        Self::ConfigMap,
        Self::Pod,
        Self::Marker,
        Self::Lease,
        Self::Revision,
    ];

    pub(super) fn has_status(self) -> bool {
        matches!(self, Self::Pod | Self::Marker)
    }

    /// The path of its objects in a namespace.
    pub(super) fn path(self, namespace: &str) -> String {
        let (api, plural) = match self {
            Self::ConfigMap => ("api/v1", "configmaps"),
            Self::Pod => ("api/v1", "pods"),
            Self::Marker => ("apis/apps.kruise.io/v1alpha1", "podprobemarkers"),
            Self::Lease => ("apis/coordination.k8s.io/v1", "leases"),
            Self::Revision => ("apis/apps/v1", "controllerrevisions"),
        };
        format!("/{api}/namespaces/{namespace}/{plural}")
    }

    fn kind(self) -> Value {
        match self {
            Self::ConfigMap => json!({"apiVersion": "v1", "kind": "ConfigMap"}),
            Self::Pod => json!({"apiVersion": "v1", "kind": "Pod"}),
            Self::Marker => {
                json!({"apiVersion": "apps.kruise.io/v1alpha1", "kind": "PodProbeMarker"})
            }
            Self::Lease => json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}),
            Self::Revision => json!({"apiVersion": "apps/v1", "kind": "ControllerRevision"}),
        }
    }

    pub(super) fn patches(self) -> &'static [PatchRow] {
        match self {
            Self::ConfigMap => CONFIG_MAPS,
            Self::Pod => PODS,
            Self::Marker => MARKERS,
            Self::Lease => LEASES,
            Self::Revision => REVISIONS,
        }
    }

    pub(super) fn applies(self) -> &'static [ApplyRow] {
        match self {
            Self::ConfigMap => CONFIG_MAP_APPLIES,
            Self::Pod => POD_APPLIES,
            Self::Marker => MARKER_APPLIES,
            Self::Lease => LEASE_APPLIES,
            Self::Revision => REVISION_APPLIES,
        }
    }

    /// A configuration that is applied, with its type.
    pub(super) fn apply_body(self, row: usize, name: &str) -> (bool, Value) {
        let (status, text) = self.applies()[row];
        (status, self.typed(text, name))
    }

    fn typed(self, text: &str, name: &str) -> Value {
        let mut body: Value = serde_json::from_str(text).expect("the tables are JSON");
        for (key, value) in self.kind().as_object().into_iter().flatten() {
            body[key] = value.clone();
        }
        body["metadata"]["name"] = json!(name);
        body
    }

    /// What is created and put.
    pub(super) fn objects(self) -> &'static [&'static str] {
        match self {
            Self::ConfigMap => &[
                r#"{"data": {"x": "1"}}"#,
                r#"{"metadata": {"labels": {"role": "main"}}, "data": {"x": "1", "y": "2"}}"#,
                r#"{"metadata": {"labels": {"role": "other"}, "annotations": {"n": "1"}, "finalizers": ["example.com/hold"]}}"#,
                "{}",
            ],
            Self::Pod => &[
                r#"{"spec": {"containers": [{"name": "main", "image": "a:1"}]}}"#,
                r#"{"metadata": {"labels": {"role": "main"}}, "spec": {"nodeName": "none", "containers": [{"name": "main", "image": "a:1"}]},
                    "status": {"phase": "Running", "conditions": [{"type": "t", "status": "True"}]}}"#,
                r#"{"metadata": {"labels": {"role": "other"}}, "spec": {"nodeName": "none", "terminationGracePeriodSeconds": 0,
                    "containers": [{"name": "main", "image": "a", "env": [{"name": "E", "value": "1"}], "ports": [{"containerPort": 80}]}]}}"#,
            ],
            Self::Marker => &[
                r#"{"spec": {"selector": {"matchLabels": {"app": "a"}}, "probes": [{"name": "p", "containerName": "c", "probe": {"exec": {"command": ["x"]}},
                    "markerPolicy": [{"state": "Succeeded", "labels": {"role": "main"}}]}]}, "status": {"observedGeneration": 1}}"#,
                r#"{"metadata": {"labels": {"role": "main"}, "finalizers": ["example.com/hold"]}, "spec": {"unknown": 1, "selector": {"matchLabels": {"app": "a"}},
                    "probes": [{"name": "p", "containerName": "c", "probe": {"exec": {"command": ["z"]}, "periodSeconds": 5}, "podConditionType": "example.com/p"}]}}"#,
            ],
            Self::Lease => &[
                r#"{"spec": {"holderIdentity": "a", "leaseDurationSeconds": 15}}"#,
                r#"{"metadata": {"labels": {"role": "main"}}, "spec": {"holderIdentity": "b", "leaseDurationSeconds": 15, "leaseTransitions": 1}}"#,
            ],
            // One content: it cannot be changed.
            Self::Revision => &[
                r#"{"revision": 1, "data": {"spec": {"a": null, "b": [], "c": "", "d": {"data": {}}}}}"#,
                r#"{"metadata": {"labels": {"role": "main"}}, "revision": 2, "data": {"spec": {"a": null, "b": [], "c": "", "d": {"data": {}}}}}"#,
            ],
        }
    }

    pub(super) fn object(self, row: usize, name: &str) -> Value {
        self.typed(self.objects()[row], name)
    }
}
