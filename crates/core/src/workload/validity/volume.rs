//! The API server's requirements on a volume across its fields (`validateVolumeSource` and what it calls,
//! `pkg/apis/core/validation/validation.go`), as far as they hold in every version of Kubernetes that is supported.

use serde_json::Value;

use super::container::check_resource_field;
use super::{add, has_backsteps, is_given};
use crate::cluster::FieldErrors;
use crate::workload::JsonObject;
use crate::workload::core_types::VOLUME;
use crate::workload::object::{inner, items, text};
use crate::workload::quantity::Quantity;

/// Kinds of what a path of the host is (`validateHostPathType`).
const HOST_PATH_TYPES: [&str; 7] = [
    "BlockDevice",
    "CharDevice",
    "Directory",
    "DirectoryOrCreate",
    "File",
    "FileOrCreate",
    "Socket",
];
/// Fields of a pod that a file may have, labels and annotations by key apart (`validVolumeDownwardAPIFieldPathExpressions`).
const FIELD_PATHS: [&str; 5] = [
    "metadata.annotations",
    "metadata.labels",
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
];
/// The longest life of a token: 2^32 seconds.
const LONGEST_TOKEN: i64 = 1 << 32;

/// Checks a volume.
pub fn check_volume(volume: &JsonObject, report: &mut FieldErrors<'_>) {
    // A volume without a source is right: the API server makes it an emptyDir
    // (`SetDefaults_Volume`, `pkg/apis/core/v1/defaults.go`).
    let sources = VOLUME.iter().filter(|field| field.name != "name");
    if sources.filter(|field| is_given(volume, field.name)).count() > 1 {
        add(report, "has more than one source");
    }
    if let Some(path) = inner(volume, "hostPath") {
        let mut at = report.field("hostPath");
        // `validatePathNoBacksteps`; unlike a path in a volume it is absolute.
        if text(path, "path").is_some_and(has_backsteps) {
            add(&mut at.field("path"), "must not contain '..'");
        }
        let kind = text(path, "type").filter(|kind| !HOST_PATH_TYPES.contains(kind));
        if let Some(kind) = kind {
            let message = format!("{kind:?} is not one of {}", HOST_PATH_TYPES.join(", "));
            add(&mut at.field("type"), &message);
        }
    }
    for (source, name) in [("configMap", "name"), ("secret", "secretName")] {
        if let Some(files) = inner(volume, source) {
            check_files(files, name, &mut report.field(source));
        }
    }
    if let Some(files) = inner(volume, "downwardAPI") {
        check_downward(files, &mut report.field("downwardAPI"));
    }
    if let Some(projected) = inner(volume, "projected") {
        check_projected(projected, &mut report.field("projected"));
    }
    let limit = inner(volume, "emptyDir").and_then(|dir| Quantity::of(dir.get("sizeLimit")?));
    if limit.is_some_and(|limit| limit.nanos() < 0) {
        let mut at = report.field("emptyDir");
        add(&mut at.field("sizeLimit"), "must not be negative");
    }
    let path = inner(volume, "nfs").and_then(|nfs| text(nfs, "path"));
    if path.is_some_and(|path| !path.starts_with('/')) {
        add(
            &mut report.field("nfs").field("path"),
            "must be an absolute path",
        );
    }
    if let Some(ephemeral) = inner(volume, "ephemeral") {
        check_ephemeral(ephemeral, &mut report.field("ephemeral"));
    }
}

fn check_mode(object: &JsonObject, field: &str, report: &mut FieldErrors<'_>) {
    let mode = object.get(field).and_then(Value::as_i64);
    if mode.is_some_and(|mode| !(0..=0o777).contains(&mode)) {
        add(&mut report.field(field), "is not a number from 0 to 0777");
    }
}

/// Checks the path of a file and its mode.
fn check_file(file: &JsonObject, report: &mut FieldErrors<'_>) {
    check_mode(file, "mode", report);
    let path = text(file, "path").unwrap_or_default();
    if path.starts_with('/') || has_backsteps(path) {
        let message = format!("{path:?} does not stay within the volume");
        add(&mut report.field("path"), &message);
    }
}

/// Checks the files of an object, whose name stands in a field.
fn check_files(source: &JsonObject, name: &str, report: &mut FieldErrors<'_>) {
    if text(source, name).is_none() {
        add(&mut report.field(name), "must not be empty");
    }
    check_mode(source, "defaultMode", report);
    for (index, file) in items(source, "items").enumerate() {
        check_file(file, &mut report.field("items").index(index));
    }
}

fn check_downward(source: &JsonObject, report: &mut FieldErrors<'_>) {
    check_mode(source, "defaultMode", report);
    for (index, file) in items(source, "items").enumerate() {
        let mut list = report.field("items");
        let mut at = list.index(index);
        check_file(file, &mut at);
        let (field, resource) = (inner(file, "fieldRef"), inner(file, "resourceFieldRef"));
        if field.is_some() == resource.is_some() {
            add(&mut at, "needs exactly one of fieldRef, resourceFieldRef");
        }
        let path = field.and_then(|field| text(field, "fieldPath"));
        let is_known = |path: &str| {
            let by_key = ["metadata.annotations['", "metadata.labels['"];
            FIELD_PATHS.contains(&path) || by_key.iter().any(|prefix| path.starts_with(prefix))
        };
        if let Some(path) = path.filter(|path| !is_known(path)) {
            let message = format!("{path:?} is not one of {}", FIELD_PATHS.join(", "));
            add(&mut at.field("fieldRef").field("fieldPath"), &message);
        }
        if let Some(resource) = resource {
            let mut at = at.field("resourceFieldRef");
            // A variable is of its own container; a volume is of none
            // (`validateContainerResourceFieldSelector`).
            if text(resource, "containerName").is_none() {
                add(&mut at.field("containerName"), "must not be empty");
            }
            check_resource_field(resource, &mut at);
        }
    }
}

fn check_projected(projected: &JsonObject, report: &mut FieldErrors<'_>) {
    check_mode(projected, "defaultMode", report);
    for (index, source) in items(projected, "sources").enumerate() {
        let mut list = report.field("sources");
        let mut at = list.index(index);
        if source.values().filter(|value| !value.is_null()).count() > 1 {
            add(&mut at, "has more than one source");
        }
        for name in ["secret", "configMap"] {
            if let Some(files) = inner(source, name) {
                check_files(files, "name", &mut at.field(name));
            }
        }
        if let Some(files) = inner(source, "downwardAPI") {
            check_downward(files, &mut at.field("downwardAPI"));
        }
        let token = inner(source, "serviceAccountToken");
        let life = token.and_then(|token| token.get("expirationSeconds")?.as_i64());
        // Ten minutes at least (`validateProjectionSources`): the kubelet has to renew the token in
        // time.
        if life.is_some_and(|life| !(600..=LONGEST_TOKEN).contains(&life)) {
            let mut at = at.field("serviceAccountToken");
            let message = format!("is not a number from 600 to {LONGEST_TOKEN}");
            add(&mut at.field("expirationSeconds"), &message);
        }
    }
}

fn check_ephemeral(ephemeral: &JsonObject, report: &mut FieldErrors<'_>) {
    let mut at = report.field("volumeClaimTemplate");
    let Some(template) = inner(ephemeral, "volumeClaimTemplate") else {
        add(&mut at, "must be set");
        return;
    };
    let mut at = at.field("spec");
    let spec = inner(template, "spec");
    let modes = spec.and_then(|spec| spec.get("accessModes")?.as_array());
    if modes.is_none_or(Vec::is_empty) {
        add(&mut at.field("accessModes"), "must not be empty");
    }
    let resources = spec.and_then(|spec| inner(spec, "resources"));
    let requests = resources.and_then(|resources| inner(resources, "requests"));
    if requests.is_none_or(|requests| !is_given(requests, "storage")) {
        let mut at = at.field("resources");
        add(&mut at.field("requests"), "must have an amount of storage");
    }
}
