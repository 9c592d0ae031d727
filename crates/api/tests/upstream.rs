//! The CRDs against OpenKruise's, of which `upstream/*.txt` has each field's path and type, and whether it is required.
#![allow(clippy::unwrap_used, reason = "a failure is what a test reports")]

use std::collections::BTreeSet;

use leadsman_api::crd::{podprobe_crds, sidecar_set_crd};
use serde_json::Value;

/// The fields that leadsman adds. New objects must have a spec; no other new field is required of other clients.
const ADDED_TO_MARKERS: &[&str] = &[
    "spec object required",
    "spec.probes[].file object",
    "spec.probes[].file.notOlderThanSeconds integer",
    "spec.probes[].file.path string required",
    "spec.probes[].file.volume string required",
    "spec.probes[].markerPolicy[].exclusive object",
    "spec.probes[].markerPolicy[].exclusive.groupBy string",
    "spec.probes[].markerPolicy[].exclusive.label string required",
    "spec.probes[].markerPolicy[].exclusive.value string required",
    "spec.probes[].markerPolicy[].exclusive.version string",
    "spec.probes[].markerPolicy[].holdSeconds integer",
    "spec.probes[].markerPolicy[].message string",
    "spec.probes[].markerPolicy[].outputs array",
    "spec.probes[].markerPolicy[].outputs[] object",
    "spec.probes[].markerPolicy[].outputs[].annotations object",
    "spec.probes[].markerPolicy[].outputs[].annotations{} string",
    "spec.probes[].markerPolicy[].outputs[].holdSeconds integer",
    "spec.probes[].markerPolicy[].outputs[].labels object",
    "spec.probes[].markerPolicy[].outputs[].labels{} string",
    "spec.probes[].markerPolicy[].outputs[].when object required",
    "spec.probes[].markerPolicy[].outputs[].when{} string",
    "spec.probes[].probe.grpc.mode string",
    "spec.probes[].probe.httpGet.protocol string",
    "spec.probes[].output object",
    "spec.probes[].output.matches string required",
    "spec.probes[].output.mismatch string",
    "status.conditions array",
    "status.conditions[] object",
    "status.conditions[].lastTransitionTime string required",
    "status.conditions[].message string required",
    "status.conditions[].observedGeneration integer",
    "status.conditions[].reason string required",
    "status.conditions[].status string required",
    "status.conditions[].type string required",
    "status.probes array",
    "status.probes[] object",
    "status.probes[].failed integer",
    "status.probes[].holders array",
    "status.probes[].holders[] object",
    "status.probes[].holders[].group string",
    "status.probes[].holders[].pod string required",
    "status.probes[].holders[].since string",
    "status.probes[].holders[].version string",
    "status.probes[].name string required",
    "status.probes[].pending integer",
    "status.probes[].silent integer",
    "status.probes[].succeeded integer",
    "status.probes[].unknown integer",
];
const ADDED_TO_NODE_POD_PROBES: &[&str] = &[
    "spec object required",
    "spec.podProbes[].probes[].probe.grpc.mode string",
    "spec.podProbes[].probes[].probe.httpGet.protocol string",
    "spec.podProbes[].probes[].file object",
    "spec.podProbes[].probes[].file.notOlderThanSeconds integer",
    "spec.podProbes[].probes[].file.path string required",
    "spec.podProbes[].probes[].file.volume string required",
    "spec.podProbes[].probes[].output object",
    "spec.podProbes[].probes[].output.matches string required",
    "spec.podProbes[].probes[].output.mismatch string",
    "spec.podProbes[].probes[].revision string",
    "spec.podProbes[].probes[].startedContainerID string",
    "status.podProbeStatuses[].probeStates[].containerID string",
    "status.podProbeStatuses[].probeStates[].revision string",
    "status.podProbeStatuses[].probeStates[].values object",
    "status.podProbeStatuses[].probeStates[].values{} string",
    "status.podProbeStatuses[].cannotProbe array",
    "status.podProbeStatuses[].cannotProbe[] object",
    "status.podProbeStatuses[].cannotProbe[].message string required",
    "status.podProbeStatuses[].cannotProbe[].name string required",
];

#[test]
fn markers_have_the_fields_of_upstream_and_ours() {
    compare(
        "podprobemarkers",
        include_str!("upstream/podprobemarkers.txt"),
        ADDED_TO_MARKERS,
    );
}

#[test]
fn node_pod_probes_have_the_fields_of_upstream_and_ours() {
    compare(
        "nodepodprobes",
        include_str!("upstream/nodepodprobes.txt"),
        ADDED_TO_NODE_POD_PROBES,
    );
}

/// Containers and volumes have those of a pod beside, which upstream's schema does not list.
#[test]
fn both_versions_of_sets_have_the_fields_of_both_versions_of_upstream() {
    let crd = serde_json::to_value(sidecar_set_crd()).unwrap();
    let [older, newer] = &crd["spec"]["versions"].as_array().unwrap()[..] else {
        panic!("two versions")
    };
    assert_eq!(
        (&older["name"], &older["storage"]),
        (&"v1alpha1".into(), &true.into())
    );
    assert_eq!(
        (&newer["name"], &newer["storage"]),
        (&"v1beta1".into(), &false.into())
    );
    for field in [
        "schema",
        "subresources",
        "additionalPrinterColumns",
        "served",
    ] {
        assert_eq!(older[field], newer[field]);
    }
    let mut ours = BTreeSet::new();
    list(
        &older["schema"]["openAPIV3Schema"],
        "",
        false,
        &mut |line: &str, _: &Value| {
            ours.insert(line.trim_end_matches(" required").to_owned());
        },
    );
    let upstream = include_str!("upstream/sidecarsets.txt").lines();
    let lost: Vec<_> = upstream
        .filter(|line| !ours.contains(*line) && *line != "spec.volumes")
        .collect();
    assert!(lost.is_empty(), "{lost:#?}");
}

fn compare(plural: &str, upstream: &str, added: &[&str]) {
    let crd = podprobe_crds()
        .into_iter()
        .find(|crd| crd.spec.names.plural == plural);
    let crd = serde_json::to_value(crd.unwrap()).unwrap();
    assert_eq!(crd["metadata"]["name"], format!("{plural}.apps.kruise.io"));
    let version = &crd["spec"]["versions"][0];
    assert_eq!(version["name"], "v1alpha1");
    assert_eq!(version["subresources"]["status"], serde_json::json!({}));
    let mut ours = BTreeSet::new();
    list(
        &version["schema"]["openAPIV3Schema"],
        "",
        false,
        &mut |line: &str, schema: &Value| {
            let path = line.split(' ').next().unwrap();
            let is_service = path.ends_with(".grpc.service");
            assert_eq!(
                schema.get("default").is_some(),
                is_service,
                "default of {path}"
            );
            ours.insert(line.to_owned());
        },
    );

    let lines = upstream.lines().map(str::to_owned);
    let mut expected: BTreeSet<_> = lines.filter(|line| line != "spec object").collect();
    expected.extend(added.iter().map(|&line| line.to_owned()));
    assert_eq!(ours, expected);
}

/// One line for each field below a schema: path, type, and whether it is required.
fn list(schema: &Value, path: &str, required: bool, see: &mut dyn FnMut(&str, &Value)) {
    if !path.is_empty() {
        let int_or_string = schema["x-kubernetes-int-or-string"] == true;
        let kind = schema["type"].as_str().filter(|_| !int_or_string);
        let mark = if required { " required" } else { "" };
        assert!(schema.get("nullable").is_none(), "{path} takes null");
        let line = format!("{path} {}{mark}", kind.unwrap_or("int-or-string"));
        see(&line, schema);
    }
    let names: Vec<_> = schema["required"]
        .as_array()
        .into_iter()
        .flatten()
        .collect();
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let place = if path.is_empty() {
            name.clone()
        } else {
            format!("{path}.{name}")
        };
        list(
            field,
            &place,
            names.iter().any(|&one| one == name.as_str()),
            see,
        );
    }
    for (keyword, suffix) in [("items", "[]"), ("additionalProperties", "{}")] {
        if let Some(inner) = schema.get(keyword).filter(|inner| inner.is_object()) {
            list(inner, &format!("{path}{suffix}"), false, see);
        }
    }
}
