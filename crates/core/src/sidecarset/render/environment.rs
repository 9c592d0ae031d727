//! Variables that a sidecar gets from the pod's own containers.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::Remark;
use super::pod::{IS_INJECTED, PodView};
use crate::sidecarset::container::{SetContainer, TransferSource};
use crate::workload::JsonObject;
use crate::workload::object::{items, list_mut, text};

/// A variable of a container.
pub(super) fn variable<'a>(container: &'a JsonObject, name: &str) -> Option<&'a JsonObject> {
    // The later of two with one name counts, as in the container.
    let named = items(container, "env").filter(|variable| text(variable, "name") == Some(name));
    named.last()
}

/// The variables that a set transfers. Those that are not there are left out.
pub(super) fn transferred(
    sidecar: &SetContainer,
    pod: &PodView<'_>,
    remarks: &mut Vec<Remark>,
) -> Vec<JsonObject> {
    let mut variables = Vec::new();
    for transfer in &sidecar.transfers {
        let source = match &transfer.source {
            TransferSource::Named(name) => name.as_str(),
            TransferSource::Label(key) => pod.label(key).unwrap_or_default(),
            TransferSource::Annotation(key) => pod
                .annotations
                .get(key)
                .map(String::as_str)
                .unwrap_or_default(),
        };
        let mut containers = pod.own_containers();
        let container = containers.find(|container| text(container, "name") == Some(source));
        for name in &transfer.names {
            match container.and_then(|container| variable(container, name)) {
                Some(variable) => variables.push(variable.clone()),
                None => remarks.push(Remark::NoVariable {
                    container: source.to_owned(),
                    variable: name.clone(),
                }),
            }
        }
    }
    variables
}

/// Adds the variable by which the container is recognised, and those that it lacks.
pub(super) fn complete(container: &mut JsonObject, variables: Vec<JsonObject>) {
    let environment = list_mut(container, "env");
    // The set may have it with another value, by which nobody would recognise the container.
    environment.retain(|own| own["name"] != IS_INJECTED);
    environment.push(json!({"name": IS_INJECTED, "value": "true"}));
    let name = |variable: &Value| variable["name"].as_str().unwrap_or_default().to_owned();
    let mut names: BTreeSet<_> = environment.iter().map(name).collect();
    for variable in variables.into_iter().map(Value::Object) {
        // A variable of the container's own stays, as with `MergeEnvVar` of `OpenKruise`.
        if names.insert(name(&variable)) {
            environment.push(variable);
        }
    }
}
