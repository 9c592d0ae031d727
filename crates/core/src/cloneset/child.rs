//! The pod that is made of a revision, and the reference of what a set owns.

use leadsman_api::clone_set::{INSTANCE_LABEL, LIFECYCLE_LABEL, SPECIFIED_DELETE_LABEL};
use leadsman_reconcile::ObjectName;
use serde_json::{Map, Value, json};

use super::claim::ClaimTemplate;
use super::pod::{GATE, hash_in};
use super::service::SERVICE_GATE;
use super::set::PodSet;
use super::state::TIMESTAMP;
use super::template::{RevisionData, read_template, revision_labels};
use crate::workload::object;

/// The pod of a set of this name and revision, with a volume for each of its claims in front of those of its template.
pub(super) fn new_pod(
    set: &PodSet,
    (name, revision): (&ObjectName, &str),
    (data, claims): (&RevisionData, &[ClaimTemplate]),
    at: jiff::Timestamp,
) -> Value {
    let template = data.template();
    let parts = read_template(&template);
    let part = |field: &str| parts.metadata.and_then(|metadata| metadata.get(field));
    let mut labels = parts.labels.cloned().unwrap_or_default();
    labels.remove(SPECIFIED_DELETE_LABEL);
    for (key, value) in revision_labels(revision) {
        labels.insert(key.to_owned(), json!(value));
    }
    labels.insert(INSTANCE_LABEL.to_owned(), json!(hash_in(&name.name)));
    let state = set.spec.hooks.first().word();
    labels.insert(LIFECYCLE_LABEL.to_owned(), json!(state));
    let mut annotations = match part("annotations") {
        Some(Value::Object(annotations)) => annotations.clone(),
        _ => Map::new(),
    };
    annotations.insert(TIMESTAMP.to_owned(), json!(at.to_string()));
    let mut spec = parts.spec.cloned().unwrap_or_default();
    if !claims.is_empty() {
        let volumes = claims.iter().map(|claim| claim.volume(name));
        object::list_mut(&mut spec, "volumes").splice(0..0, volumes);
    }
    let gates = object::list_mut(&mut spec, "readinessGates");
    for type_ in [GATE, SERVICE_GATE] {
        if !gates.iter().any(|gate| gate["conditionType"] == type_) {
            gates.push(json!({"conditionType": type_}));
        }
    }
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name.name,
            "generateName": format!("{}-", set.name.name),
            "namespace": name.namespace,
            "labels": labels,
            "annotations": annotations,
            "finalizers": part("finalizers"),
            "ownerReferences": [owner(set)],
        },
        "spec": spec,
    })
}

/// The reference of what a set owns.
pub(super) fn owner(set: &PodSet) -> Value {
    json!({
        "apiVersion": "apps.kruise.io/v1alpha1",
        "kind": "CloneSet",
        "name": set.name.name,
        "uid": set.uid,
        "controller": true,
        "blockOwnerDeletion": true,
    })
}
