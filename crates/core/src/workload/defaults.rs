//! Fields that the API server fills in where a container or a volume leaves them out (`SetDefaults_Container`,
//! `SetDefaults_Volume` and others, `pkg/apis/core/v1/defaults.go`), as far as `OpenKruise` does too.
//!
//! It does not fill in anything of a startup probe, the service of a gRPC probe, and requests from limits; the API server
//! does it in the pod. Filling them in here would change hashes (`setDefaultContainer`, `apis/apps/defaults/v1alpha1.go` of
//! `OpenKruise`).

use serde_json::Value;

use super::JsonObject;
use super::quantity::Quantity;

/// Sets a field unless it is there. Go does not tell an empty text or a zero from an absent one.
pub fn set_default(object: &mut JsonObject, name: &str, value: impl Into<Value>) {
    let is_empty = match object.get(name) {
        None | Some(Value::Null) => true,
        Some(Value::String(text)) => text.is_empty(),
        Some(Value::Number(number)) => number.as_i64() == Some(0),
        Some(_) => false,
    };
    if is_empty {
        object.insert(name.to_owned(), value.into());
    }
}

/// Sets a field unless it is there; an empty value is one.
fn set_if_absent(object: &mut JsonObject, name: &str, value: impl Into<Value>) {
    if object.get(name).is_none_or(Value::is_null) {
        object.insert(name.to_owned(), value.into());
    }
}

/// The objects of a list in a field.
fn items<'a>(
    object: &'a mut JsonObject,
    name: &str,
) -> impl Iterator<Item = &'a mut JsonObject> + use<'a> {
    let items = object.get_mut(name).and_then(Value::as_array_mut);
    items.into_iter().flatten().filter_map(Value::as_object_mut)
}

/// The object in a field.
fn inner<'a>(object: &'a mut JsonObject, name: &str) -> Option<&'a mut JsonObject> {
    object.get_mut(name).and_then(Value::as_object_mut)
}

/// Completes the spec of a pod (`SetDefaults_PodSpec`).
pub fn complete_pod_spec(spec: &mut JsonObject) {
    set_default(spec, "restartPolicy", "Always");
    set_default(spec, "dnsPolicy", "ClusterFirst");
    set_default(spec, "schedulerName", "default-scheduler");
    set_if_absent(spec, "terminationGracePeriodSeconds", 30);
    set_if_absent(spec, "securityContext", JsonObject::new());
    for list in ["initContainers", "containers"] {
        items(spec, list).for_each(complete_container);
    }
    items(spec, "volumes").for_each(complete_volume);
}

/// Completes a container.
pub fn complete_container(container: &mut JsonObject) {
    let image = container.get("image").and_then(Value::as_str);
    let policy = pull_policy(image.unwrap_or_default());
    set_default(container, "imagePullPolicy", policy);
    set_default(container, "terminationMessagePath", "/dev/termination-log");
    set_default(container, "terminationMessagePolicy", "File");
    for port in items(container, "ports") {
        set_default(port, "protocol", "TCP");
    }
    for variable in items(container, "env") {
        if let Some(source) = inner(variable, "valueFrom") {
            complete_field_ref(source);
        }
    }
    if let Some(resources) = inner(container, "resources") {
        round_up_resources(resources);
    }
    for name in ["livenessProbe", "readinessProbe"] {
        if let Some(probe) = inner(container, name) {
            set_default(probe, "timeoutSeconds", 1);
            set_default(probe, "periodSeconds", 10);
            set_default(probe, "successThreshold", 1);
            set_default(probe, "failureThreshold", 3);
            complete_http_get(probe);
        }
    }
    if let Some(lifecycle) = inner(container, "lifecycle") {
        for name in ["postStart", "preStop"] {
            if let Some(handler) = inner(lifecycle, name) {
                complete_http_get(handler);
            }
        }
    }
}

/// The policy of a container that has none: images are pulled once, unless the tag is `latest`.
pub fn pull_policy(image: &str) -> &'static str {
    let (name, has_digest) = match image.split_once('@') {
        Some((name, _)) => (name, true),
        None => (image, false),
    };
    // A colon before the last slash stands before a port.
    let last = name.rsplit('/').next().unwrap_or_default();
    match last.split_once(':') {
        Some((_, "latest")) => "Always",
        // Neither tag nor digest means `latest` (`ParseImageName`, `pkg/util/parsers/parsers.go`).
        None if !has_digest && !image.is_empty() => "Always",
        _ => "IfNotPresent",
    }
}

/// Completes a source that may be a field of the pod.
pub fn complete_field_ref(source: &mut JsonObject) {
    if let Some(field) = inner(source, "fieldRef") {
        set_default(field, "apiVersion", "v1");
    }
}

fn complete_http_get(handler: &mut JsonObject) {
    if let Some(get) = inner(handler, "httpGet") {
        set_default(get, "path", "/");
        set_default(get, "scheme", "HTTP");
    }
}

fn round_up_resources(resources: &mut JsonObject) {
    for name in ["limits", "requests"] {
        for (_, amount) in inner(resources, name).into_iter().flatten() {
            if let Some(quantity) = Quantity::of(amount) {
                *amount = quantity.rounded_up_to_milli().to_string().into();
            }
        }
    }
}

/// Completes a volume.
pub fn complete_volume(volume: &mut JsonObject) {
    // Anything beside the volume's name is a source, also one that is not known here.
    let has_source = volume
        .iter()
        .any(|(key, value)| key != "name" && !value.is_null());
    if !has_source {
        volume.insert("emptyDir".to_owned(), JsonObject::new().into());
    }
    let sources: Vec<_> = volume.keys().cloned().collect();
    for name in sources {
        if let Some(source) = inner(volume, &name) {
            complete_volume_source(&name, source);
        }
    }
}

/// The default mode of files: `rw-r--r--`.
const MODE: i32 = 0o644;

fn complete_volume_source(name: &str, source: &mut JsonObject) {
    match name {
        "hostPath" => set_if_absent(source, "type", ""),
        "secret" | "configMap" => set_if_absent(source, "defaultMode", MODE),
        "downwardAPI" => {
            set_if_absent(source, "defaultMode", MODE);
            items(source, "items").for_each(complete_field_ref);
        }
        "projected" => {
            set_if_absent(source, "defaultMode", MODE);
            items(source, "sources").for_each(complete_projection);
        }
        "iscsi" => set_default(source, "iscsiInterface", "default"),
        "rbd" => {
            set_default(source, "pool", "rbd");
            set_default(source, "user", "admin");
            set_default(source, "keyring", "/etc/ceph/keyring");
        }
        "azureDisk" => {
            set_if_absent(source, "cachingMode", "ReadWrite");
            set_if_absent(source, "fsType", "ext4");
            set_if_absent(source, "readOnly", false);
            set_if_absent(source, "kind", "Shared");
        }
        "scaleIO" => {
            set_default(source, "storageMode", "ThinProvisioned");
            set_default(source, "fsType", "xfs");
        }
        "ephemeral" => {
            let template = inner(source, "volumeClaimTemplate");
            if let Some(spec) = template.and_then(|template| inner(template, "spec")) {
                set_if_absent(spec, "volumeMode", "Filesystem");
                if let Some(resources) = inner(spec, "resources") {
                    round_up_resources(resources);
                }
            }
        }
        "image" => {
            let reference = source.get("reference").and_then(Value::as_str);
            let policy = pull_policy(reference.unwrap_or_default());
            set_default(source, "pullPolicy", policy);
        }
        _ => {}
    }
}

fn complete_projection(projection: &mut JsonObject) {
    if let Some(downward) = inner(projection, "downwardAPI") {
        items(downward, "items").for_each(complete_field_ref);
    }
    if let Some(token) = inner(projection, "serviceAccountToken") {
        set_if_absent(token, "expirationSeconds", 3600);
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    // SCS-4
    #[rstest]
    #[case("nginx", "Always")]
    #[case("nginx:latest", "Always")]
    #[case("nginx:1.2", "IfNotPresent")]
    #[case("reg:5000/nginx", "Always")]
    #[case("reg:5000/nginx:1", "IfNotPresent")]
    #[case("reg:5000/nginx@sha256:a", "IfNotPresent")]
    #[case("reg:5000/nginx:latest@sha256:a", "Always")]
    #[case("", "IfNotPresent")]
    fn the_pull_policy_follows_from_the_tag(#[case] image: &str, #[case] policy: &str) {
        assert_eq!(pull_policy(image), policy);
    }

    // SCS-4, SDF-22
    #[test]
    fn a_startup_probe_is_hashed_as_it_was_written() {
        let probe = json!({"httpGet": {"port": 80}});
        let wire = json!({"image": "i:1", "startupProbe": probe, "readinessProbe": probe});
        let mut container = wire.as_object().unwrap().clone();
        complete_container(&mut container);
        assert_eq!(container["startupProbe"], probe);
        assert_eq!(container["readinessProbe"]["httpGet"]["path"], "/");
    }

    // SCS-3
    #[test]
    fn a_volume_without_a_source_is_an_empty_directory() {
        let volume = |value: Value| {
            let mut volume = value.as_object().unwrap().clone();
            complete_volume(&mut volume);
            Value::Object(volume)
        };
        assert_eq!(
            volume(json!({"name": "a"})),
            json!({"name": "a", "emptyDir": {}})
        );
        let newer = json!({"name": "a", "newerSource": {"x": 1}});
        assert_eq!(volume(newer.clone()), newer);
    }
}
