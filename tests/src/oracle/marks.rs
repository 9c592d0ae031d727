//! The marks of a pod, and where it is in its node's object. The rules are those of `docs/reference.md`.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use leadsman_api::NodePodProbe;
use leadsman_api::limits::EXCLUSIVE_ANNOTATION;
use leadsman_api::marker::PodContainerProbe;
use leadsman_api::node_pod_probe::PodProbe;
use serde_json::Value;

/// The field manager of marks.
const OURS: &str = "leadsman-podprobe";

/// A kind of mark and its key.
pub type Mark = (&'static str, String);

/// Whether a pod is neither ended nor being deleted, and initialized.
pub fn is_active(pod: &Pod) -> bool {
    let phase = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    let conditions = pod.status.iter().flat_map(|status| &status.conditions);
    let mut conditions = conditions.flatten();
    pod.metadata.deletion_timestamp.is_none()
        && !matches!(phase, Some("Succeeded" | "Failed"))
        && conditions.any(|one| one.type_ == "Initialized" && one.status == "True")
}

/// The name of the pod's node; empty without one.
pub fn node_of(pod: &Pod) -> &str {
    let spec = pod.spec.as_ref();
    spec.and_then(|spec| spec.node_name.as_deref())
        .unwrap_or_default()
}

/// The pod's part of a node's object.
pub fn pod_in<'a>(object: &'a NodePodProbe, pod: &Pod) -> Option<&'a PodProbe> {
    let mut pods = object.spec.pod_probes.iter();
    pods.find(|one| Some(&one.uid) == pod.metadata.uid.as_ref() && one.name == pod.name_any())
}

/// What is wrong with the marks of a pod. `rows` are the probes of the markers that match it, in order of precedence, each with
/// whether the pod has its container, and the state of its verdict.
pub fn mark_faults<'a>(
    pod: &Pod,
    rows: impl IntoIterator<Item = (&'a PodContainerProbe, bool, Option<&'a str>)>,
) -> Vec<String> {
    let (name, ours) = (pod.name_any(), marks_of_ours(pod));
    let (mut claimed, mut faults) = (BTreeSet::new(), Vec::new());
    let mut rows: Vec<_> = rows.into_iter().collect();
    rows.sort_by_key(|(_, has_container, _)| !has_container);
    for (probe, _, state) in rows {
        let labels = exclusive_labels(probe);
        for (mark, value) in marks_after(probe, state) {
            let is_first = claimed.insert(mark.clone());
            // Who has an exclusive value follows from all pods.
            if !is_first || state.is_none() || labels.contains(&mark) {
                continue;
            }
            let found = mark_on(pod, &mark);
            let is_ours = value.is_none() || ours.contains(&mark);
            if found != value || !is_ours {
                faults.push(format!(
                    "{name}: {mark:?} is {found:?}, should be {value:?}, ours: {is_ours}"
                ));
            }
        }
        if !labels.is_empty() {
            claimed.insert(("annotation", EXCLUSIVE_ANNOTATION.to_owned()));
        }
    }
    for mark in ours.difference(&claimed) {
        faults.push(format!("{name}: {mark:?} is ours, and no marker names it"));
    }
    faults
}

/// The labels of a probe that have a value which only one pod has.
fn exclusive_labels(probe: &PodContainerProbe) -> BTreeSet<Mark> {
    let policies = probe.marker_policy.iter();
    let exclusive = policies.filter_map(|policy| policy.exclusive.as_ref());
    exclusive.map(|one| ("label", one.label.clone())).collect()
}

/// The marks that are in the entry of leadsman's field manager.
fn marks_of_ours(pod: &Pod) -> BTreeSet<Mark> {
    let mut marks = BTreeSet::new();
    let entries = pod.metadata.managed_fields.iter().flatten();
    for entry in entries.filter(|entry| entry.manager.as_deref() == Some(OURS)) {
        let fields = entry
            .fields_v1
            .as_ref()
            .map_or(&Value::Null, |fields| &fields.0);
        for (kind, place) in [
            ("label", "/f:metadata/f:labels"),
            ("annotation", "/f:metadata/f:annotations"),
            ("condition", "/f:status/f:conditions"),
        ] {
            let keys = fields.pointer(place).and_then(Value::as_object);
            let keys = keys.into_iter().flatten().map(|(key, _)| key);
            marks.extend(keys.filter_map(|key| Some((kind, key_of(key)?))));
        }
    }
    marks
}

/// `role` of `f:role`, `t.io/a` of `k:{"type":"t.io/a"}`.
fn key_of(field: &str) -> Option<String> {
    if let Some(key) = field.strip_prefix("k:") {
        let key: Value = serde_json::from_str(key).ok()?;
        return Some(key["type"].as_str()?.to_owned());
    }
    field.strip_prefix("f:").map(str::to_owned)
}

/// What a probe's marks are after this verdict; None: absent.
pub fn marks_after(
    probe: &PodContainerProbe,
    state: Option<&str>,
) -> BTreeMap<Mark, Option<String>> {
    let mut marks = BTreeMap::new();
    if let Some(kind) = &probe.pod_condition_type {
        let status = match state {
            Some("Succeeded") => "True",
            Some("Failed") => "False",
            _ => "Unknown",
        };
        marks.insert(("condition", kind.clone()), Some(status.to_owned()));
    }
    for policy in &probe.marker_policy {
        for (kind, pairs) in [
            ("label", &policy.labels),
            ("annotation", &policy.annotations),
        ] {
            for (key, value) in pairs {
                let mark: &mut Option<String> = marks.entry((kind, key.clone())).or_default();
                if state == Some(&policy.state) {
                    *mark = Some(value.clone());
                }
            }
        }
    }
    marks
}

/// The value of a mark of a pod; of a condition its status.
pub fn mark_on(pod: &Pod, (kind, key): &Mark) -> Option<String> {
    match *kind {
        "label" => pod.labels().get(key).cloned(),
        "annotation" => pod.annotations().get(key).cloned(),
        _ => {
            let mut conditions = pod.status.as_ref()?.conditions.as_ref()?.iter();
            Some(conditions.find(|one| one.type_ == *key)?.status.clone())
        }
    }
}
