//! The fields of a sidecar beside those of a container, in the order in which Go writes them (`SidecarContainer` in
//! `apis/apps/v1beta1` of `OpenKruise`).

use crate::workload::core_types::{CONTAINER, OBJECT_FIELD_SELECTOR};
use crate::workload::go_json::{Field, Form, always, optional, pointer};

/// All fields of a sidecar: those of a container come first.
pub(super) const SIDECAR_CONTAINER: &[&[Field]] = &[CONTAINER, SIDECAR];

/// The names of the fields that a container in a pod does not have.
pub(super) fn sidecar_fields() -> impl Iterator<Item = &'static str> {
    SIDECAR.iter().map(|field| field.name)
}

/// An entry of `patchPodMetadata`.
pub(super) const PATCH_POD_METADATA: &[Field] = &[optional("annotations"), optional("patchPolicy")];

const SIDECAR: &[Field] = &[
    optional("podInjectPolicy"),
    always("upgradeStrategy", "{}").of(Form::Struct(SIDECAR_CONTAINER_UPGRADE_STRATEGY)),
    always("shareVolumePolicy", "{}").of(Form::Struct(SHARE_VOLUME_POLICY)),
    pointer("shareVolumeDevicePolicy").of(Form::Struct(SHARE_VOLUME_POLICY)),
    optional("transferEnv").of(Form::List(&Form::Struct(TRANSFER_ENV_VAR))),
    pointer("resourcesPolicy").of(Form::Struct(RESOURCES_POLICY)),
];

const SIDECAR_CONTAINER_UPGRADE_STRATEGY: &[Field] =
    &[optional("upgradeType"), optional("hotUpgradeEmptyImage")];

const SHARE_VOLUME_POLICY: &[Field] = &[optional("type")];

const TRANSFER_ENV_VAR: &[Field] = &[
    optional("sourceContainerName"),
    pointer("sourceContainerNameFrom").of(Form::Struct(SOURCE_CONTAINER_NAME_SOURCE)),
    optional("envName"),
    optional("envNames"),
];

const SOURCE_CONTAINER_NAME_SOURCE: &[Field] =
    &[pointer("fieldRef").of(Form::Struct(OBJECT_FIELD_SELECTOR))];

const RESOURCES_POLICY: &[Field] = &[
    always("targetContainersMode", "\"\""),
    optional("targetContainersNameRegex"),
    always("resourcesExpr", "{}").of(Form::Struct(RESOURCES_EXPR)),
];

const RESOURCES_EXPR: &[Field] = &[
    pointer("limits").of(Form::Struct(RESOURCE_EXPR_LIMITS)),
    pointer("requests").of(Form::Struct(RESOURCE_EXPR_REQUESTS)),
];

const RESOURCE_EXPR_LIMITS: &[Field] = &[optional("cpu"), optional("memory")];

const RESOURCE_EXPR_REQUESTS: &[Field] = &[optional("cpu"), optional("memory")];
