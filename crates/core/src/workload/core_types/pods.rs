//! The fields of a pod template, as far as Go writes them otherwise than they came (`k8s.io/api/core/v1`, 0.32). All others are
//! written behind these, by name: the data of a revision has sorted keys, so that their order does not matter.

use super::{CONTAINER, LOCAL_OBJECT_REFERENCE, VOLUME};
use crate::workload::go_json::{Field, Form, always, optional, pointer};

/// `PodTemplateSpec`.
pub const POD_TEMPLATE: &[Field] = &[
    always("metadata", "{}").of(Form::Struct(OBJECT_META)),
    always("spec", "{}").of(Form::Struct(POD_SPEC)),
];

const OBJECT_META: &[Field] = &[
    optional("name"),
    optional("generateName"),
    optional("namespace"),
    optional("selfLink"),
    optional("uid"),
    optional("resourceVersion"),
    optional("generation"),
    always("creationTimestamp", "null"),
    pointer("deletionTimestamp"),
    pointer("deletionGracePeriodSeconds"),
    optional("labels"),
    optional("annotations"),
    optional("ownerReferences"),
    optional("finalizers"),
    optional("managedFields"),
];

const POD_SPEC: &[Field] = &[
    optional("volumes").of(Form::List(&Form::Struct(VOLUME))),
    optional("initContainers").of(Form::List(&Form::Struct(CONTAINER))),
    always("containers", "null").of(Form::List(&Form::Struct(CONTAINER))),
    optional("ephemeralContainers"),
    optional("restartPolicy"),
    pointer("terminationGracePeriodSeconds"),
    pointer("activeDeadlineSeconds"),
    optional("dnsPolicy"),
    optional("nodeSelector"),
    optional("serviceAccountName"),
    optional("serviceAccount"),
    pointer("automountServiceAccountToken"),
    optional("nodeName"),
    optional("hostNetwork"),
    optional("hostPID"),
    optional("hostIPC"),
    pointer("shareProcessNamespace"),
    pointer("securityContext"),
    optional("imagePullSecrets").of(Form::List(&Form::Struct(LOCAL_OBJECT_REFERENCE))),
    optional("hostname"),
    optional("subdomain"),
    pointer("affinity"),
    optional("schedulerName"),
    optional("tolerations"),
    optional("hostAliases"),
    optional("priorityClassName"),
    pointer("priority"),
    pointer("dnsConfig"),
    optional("readinessGates"),
    pointer("runtimeClassName"),
    pointer("enableServiceLinks"),
    pointer("preemptionPolicy"),
    optional("overhead").of(Form::Map(&Form::Quantity)),
    optional("topologySpreadConstraints"),
    pointer("setHostnameAsFQDN"),
    pointer("os"),
    pointer("hostUsers"),
    optional("schedulingGates"),
    optional("resourceClaims"),
];
