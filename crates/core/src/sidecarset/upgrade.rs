//! The upgrade of one pod in place: one patch of its images and of the annotations that record it.
//!
//! The patch contains the pod's uid and resourceVersion, so that it changes the pod that it was computed from, or none.
//! Nothing else of the pod is sent, so no field can get lost.

mod hot;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use jiff::Timestamp;
use leadsman_api::limits;
use serde_json::{Value, json};

pub use self::hot::reset;
use super::annotations::{
    FormerContainer, HASH, HASH_WITHOUT_IMAGE, HashEntries, HashEntry, IN_PLACE_STATE,
    InPlaceStates, is_old_form, is_ours,
};
use super::container::{ContainerKind, Upgrade};
use super::metadata::AllowedKeys;
use super::pod::LastUpgrade;
use super::set::SidecarSet;
use crate::workload::pod::{ObservedContainer, ObservedPod};

/// The upgrade of a pod.
#[derive(Clone, Debug, PartialEq)]
pub struct PodUpgrade {
    /// The names of the containers that are restarted. Where there are none, annotations alone are written.
    pub restarts: Vec<String>,
    /// A strategic merge patch of the pod.
    pub patch: Value,
}

/// The record of an upgrade beside the former state of the containers.
pub(super) struct UpgradeRecord<'a> {
    pub(super) set: &'a str,
    /// The pod's readiness as the upgrade found it; None leaves what an earlier record says.
    pub(super) found: Option<LastUpgrade>,
    /// The hash that the pod has then.
    pub(super) hash: &'a str,
    pub(super) now: Timestamp,
}

/// A container, and the image that it gets.
pub(super) type ChangedContainer<'a> = (&'a ObservedContainer, &'a str);

/// The upgrade of a pod to a set as it is now, `revision` by name. `found` is what it
/// [records](super::rollout::recorded_by_upgrade).
pub fn plan_upgrade(
    set: &SidecarSet,
    revision: &str,
    (pod, found): (&ObservedPod, LastUpgrade),
    allowed: &AllowedKeys<'_>,
    now: Timestamp,
) -> PodUpgrade {
    let mut annotations = annotations_of(pod);
    let mut changed: Vec<ChangedContainer<'_>> = Vec::new();
    for sidecar in set.template.all() {
        // An init container has ended: another image would run nothing.
        if sidecar.kind == ContainerKind::Init {
            continue;
        }
        if sidecar.upgrade != Upgrade::Cold {
            changed.extend(hot::upgrade(set, pod, sidecar, &mut annotations));
            continue;
        }
        let container = pod.container(&sidecar.name);
        let differs = container.filter(|container| container.image != sidecar.image);
        changed.extend(differs.map(|container| (container, &*sidecar.image)));
    }
    record_hashes(set, revision, &mut annotations, now);
    let record = UpgradeRecord {
        set: &set.name,
        found: Some(found),
        hash: &set.hashes.hash,
        now,
    };
    record_former_containers(pod, &changed, &mut annotations, &record);
    // Annotations are patched with images only: an edit of the annotations alone changes no pod, as with `OpenKruise`. They
    // come last, in the room that the records leave: the API server refuses a pod with more, and the images with it.
    if !changed.is_empty() {
        patch_metadata(set, allowed, &mut annotations);
    }
    build_patch(pod, &changed, annotations)
}

fn annotations_of(pod: &ObservedPod) -> BTreeMap<String, String> {
    let present = pod
        .annotations
        .iter()
        .map(|(key, value)| (key.to_string(), value.to_string()));
    present.collect()
}

/// The patch that gives images and annotations to a pod; those that it has are left out.
pub(super) fn build_patch(
    pod: &ObservedPod,
    changed: &[ChangedContainer<'_>],
    mut annotations: BTreeMap<String, String>,
) -> PodUpgrade {
    let is_present =
        |key: &str, value: &str| pod.annotations.get(key).is_some_and(|own| **own == *value);
    annotations.retain(|key, value| !is_present(key, value));
    let mut patch = json!({"metadata": {
        "uid": &*pod.uid,
        // The upgrade was decided by this state: a pod that has changed meanwhile is answered with 409 and looked at again.
        "resourceVersion": pod.resource_version.as_deref(),
        "annotations": annotations,
    }});
    for (field, is_init) in [("containers", false), ("initContainers", true)] {
        let of_list = changed
            .iter()
            .filter(|(container, _)| container.is_init == is_init);
        let images: Vec<_> = of_list
            .map(|(container, image)| json!({"name": &*container.name, "image": image}))
            .collect();
        if !images.is_empty() {
            patch["spec"][field] = images.into();
        }
    }
    PodUpgrade {
        restarts: changed
            .iter()
            .map(|(container, _)| container.name.to_string())
            .collect(),
        patch,
    }
}

fn patch_metadata(
    set: &SidecarSet,
    allowed: &AllowedKeys<'_>,
    annotations: &mut BTreeMap<String, String>,
) {
    for patch in &set.template.patches {
        let mut patch = patch.clone();
        patch
            .annotations
            .retain(|key, _| !is_ours(key) && allowed.contains(key));
        // An annotation that cannot be merged stays, as at the injection, which has reported it.
        patch.apply(annotations, limits::ANNOTATIONS_BYTES);
    }
}

fn record_hashes(
    set: &SidecarSet,
    revision: &str,
    annotations: &mut BTreeMap<String, String>,
    now: Timestamp,
) {
    let text = |annotations: &BTreeMap<String, String>, key: &str| {
        annotations.get(key).cloned().unwrap_or_default()
    };
    let mut hashes = HashEntries::from_annotation(&text(annotations, HASH), now);
    let sidecars = set.template.sidecar_names();
    hashes.set(&set.name, &set.hashes.hash, &sidecars, Some(revision), now);
    annotations.insert(HASH.to_owned(), hashes.write());
    let without_image = text(annotations, HASH_WITHOUT_IMAGE);
    // Both annotations changed their form at once, and both are converted at once
    // (`updatePodSidecarSetHash`, `pkg/control/sidecarcontrol/util.go` of `OpenKruise`).
    if is_old_form(&without_image) {
        let entries = HashEntries::from_annotation(&without_image, now);
        annotations.insert(HASH_WITHOUT_IMAGE.to_owned(), entries.write());
    }
}

/// Records what the containers are that change.
pub(super) fn record_former_containers(
    pod: &ObservedPod,
    changed: &[ChangedContainer<'_>],
    annotations: &mut BTreeMap<String, String>,
    record: &UpgradeRecord<'_>,
) {
    if changed.is_empty() {
        return;
    }
    let former = changed
        .iter()
        .map(|(container, _)| (&*container.name, former_container(container)));
    let present = pod.annotations.get(IN_PLACE_STATE);
    let mut states = present
        .and_then(|state| InPlaceStates::read(state))
        .unwrap_or_default();
    let text = pod.annotations.get(HASH).map(|text| &**text);
    let hash = HashEntry::of_set(text.unwrap_or_default(), record.set);
    if let Some(revision) = hash.and_then(|hash| hash.revision) {
        states.set_injected(record.set, &revision);
    }
    states.set(record.set, record.hash, former, record.now);
    if let Some(found) = record.found {
        states.set_was_unready(record.set, found == LastUpgrade::OfUnready);
    }
    annotations.insert(IN_PLACE_STATE.to_owned(), states.write());
}

/// The state of a container before its image is replaced.
fn former_container(container: &ObservedContainer) -> FormerContainer {
    let status = container.status.as_ref();
    FormerContainer {
        image_id: status
            .map(|status| status.image_id.to_string())
            .unwrap_or_default(),
        // Empty where there was none yet: whatever runs later is new.
        container_id: match status.map(|status| (&status.container_id, &*status.image_id)) {
            None | Some((None, "")) => Some(String::new()),
            Some((id, _)) => id.as_deref().map(str::to_owned),
        },
    }
}
