//! The requirements of Kubernetes on the containers and volumes of a pod, as far as they can be told without a pod
//! (`ValidatePodSpec`, `pkg/apis/core/validation/validation.go`): here types, fields that must not be empty, words, and ports;
//! in `container` and `volume` what follows from several fields.
//!
//! An object that fails here makes every pod invalid that it is put into, and the API server then refuses the pod, whatever
//! the failure policy of the webhook that put it there. What is not checked here, only the API server knows.

mod container;
mod volume;

use leadsman_api::limits;
use serde::de::DeserializeOwned;
use serde_json::Value;

pub use self::container::check_container;
pub use self::volume::check_volume;
use super::JsonObject;
use super::go_json::{Field, Form, Presence};
use super::object::text;
use crate::cluster::{FieldErrors, names};

/// Checks an object of type `T`, which has these fields. Its name is not checked.
pub fn check_pod_part<T: DeserializeOwned>(
    object: &JsonObject,
    fields: &'static [Field],
    report: &mut FieldErrors<'_>,
) {
    // The types of its fields alone are checked: one that `T` does not know is no error.
    let read = T::deserialize(object).map(drop);
    report.check(read.map_err(|error| format!("has a field of another type: {error}")));
    for field in fields.iter().filter(|field| field.name != "name") {
        check_field(object, field, report);
    }
}

fn check_object(object: &JsonObject, fields: &'static [Field], report: &mut FieldErrors<'_>) {
    for field in fields {
        check_field(object, field, report);
    }
}

fn check_field(object: &JsonObject, field: &Field, report: &mut FieldErrors<'_>) {
    let value = object.get(field.name);
    let mut at = report.field(field.name);
    match (field.presence, field.name) {
        (_, "port" | "containerPort") => check_port(value, &mut at),
        // The value of an HTTP header may be empty.
        (Presence::Always("\"\""), name) if name != "value" && text(object, name).is_none() => {
            at.add("must not be empty");
        }
        _ => check_word(field.name, text(object, field.name), &mut at),
    }
    match (field.form, value) {
        (Form::Struct(fields), Some(Value::Object(object))) => {
            check_object(object, fields, &mut at);
        }
        (Form::List(Form::Struct(fields)), Some(Value::Array(items))) => {
            for (index, item) in items.iter().enumerate() {
                if let Some(object) = item.as_object() {
                    check_object(object, fields, &mut at.index(index));
                }
            }
        }
        _ => {}
    }
}

fn check_word(field: &str, word: Option<&str>, report: &mut FieldErrors<'_>) {
    let words = limits::POD_WORDS.iter().find(|(name, _)| *name == field);
    if let (Some((_, words)), Some(word)) = (words, word)
        && !words.contains(&word)
    {
        report.add(format!("{word:?} is not one of {}", words.join(", ")));
    }
}

fn check_port(port: Option<&Value>, report: &mut FieldErrors<'_>) {
    if let Some(Value::String(name)) = port {
        report.check(names::port_name(name));
    } else if !port
        .and_then(Value::as_u64)
        .is_some_and(|port| (1..=65535).contains(&port))
    {
        report.add("is not a number from 1 to 65535");
    }
}

/// Adds that something makes every pod invalid, in a field. The rules of the CRD do not say it: one for each field of each
/// container would take more than the cost that all rules of a CRD may have.
fn add(report: &mut FieldErrors<'_>, message: &str) {
    report.add(format!("{message}: {REFUSED}"));
}

/// The fate of pods with such a container or volume.
pub const REFUSED: &str = "the API server refuses every pod that gets it";

fn is_given(object: &JsonObject, field: &str) -> bool {
    object.get(field).is_some_and(|value| !value.is_null())
}

fn has_backsteps(path: &str) -> bool {
    path.split('/').any(|part| part == "..")
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{Container, Volume};
    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use crate::workload::core_types::{CONTAINER, VOLUME};

    fn paths(check: impl FnOnce(&mut FieldErrors<'_>)) -> Vec<String> {
        let mut errors = Vec::new();
        check(&mut FieldErrors::new(&mut errors, "c"));
        errors.into_iter().map(|error| error.path).collect()
    }

    // SCS-70
    #[rstest]
    #[case(json!({"command": "sh"}), &["c"])]
    #[case(json!({"tty": "yes"}), &["c"])]
    #[case(json!({"command": null, "fieldOfALaterVersion": {"a": [1]}}), &[])]
    #[case(json!({"resources": {"limits": {"cpu": 0.5, "memory": "1Gi"}}}), &[])]
    #[case(json!({"env": [{"name": "A"}, {"value": "x"}]}), &["c.env[1].name"])]
    #[case(json!({"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": ""}}}]}), &["c.env[0].valueFrom.secretKeyRef.key", "c.env[0].valueFrom.secretKeyRef.name"])]
    #[case(json!({"ports": [{"containerPort": 0}, {"containerPort": 80, "protocol": "QUIC"}]}), &["c.ports[0].containerPort", "c.ports[1].protocol"])]
    #[case(json!({"livenessProbe": {"httpGet": {"port": "http", "httpHeaders": [{"name": "A", "value": ""}]}}}), &[])]
    #[case(json!({"livenessProbe": {"tcpSocket": {}, "grpc": {"port": 1}}}), &["c.livenessProbe.tcpSocket.port", "c.livenessProbe"])]
    #[case(json!({"startupProbe": {"httpGet": {"port": "a--b", "scheme": "FTP"}}}), &["c.startupProbe.httpGet.port", "c.startupProbe.httpGet.scheme"])]
    #[case(json!({"imagePullPolicy": "Sometimes"}), &["c.imagePullPolicy"])]
    #[case(json!({"imagePullPolicy": ""}), &[])]
    #[case(json!({"securityContext": {"seccompProfile": {}}}), &["c.securityContext.seccompProfile.type"])]
    fn a_container_that_makes_no_valid_pod_is_found(
        #[case] container: Value,
        #[case] expected: &[&str],
    ) {
        let container = container.as_object().unwrap();
        let found = paths(|report| {
            check_pod_part::<Container>(container, CONTAINER, report);
            check_container(container, false, report);
        });
        assert_eq!(found, expected);
    }

    // SCS-70
    #[rstest]
    #[case(json!({"name": "v", "emptyDir": {"sizeLimit": 1}}), &[])]
    #[case(json!({"name": "v", "emptyDir": "memory"}), &["c"])]
    #[case(json!({"name": "v", "hostPath": {}}), &["c.hostPath.path"])]
    #[case(json!({"name": "v", "secret": {"items": [{"key": "a"}]}}), &["c.secret.items[0].path"])]
    #[case(json!({"name": "v", "sourceOfALaterVersion": {"a": 1}}), &[])]
    fn a_volume_that_makes_no_valid_pod_is_found(#[case] volume: Value, #[case] expected: &[&str]) {
        let volume = volume.as_object().unwrap();
        let found = paths(|report| check_pod_part::<Volume>(volume, VOLUME, report));
        assert_eq!(found, expected);
    }
}
