//! Whether a pod can be changed in place, and how.
//!
//! The steps are: its gate is closed, and its kubelet says that it is not ready; after the grace period one patch gives it the
//! images and the metadata of the other revision, and records what its containers were; once other containers run, the gate is
//! opened again. Where no container is restarted, the second step is all there is.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use leadsman_reconcile::whole_seconds;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::pod::{ClonePod, IN_PLACE_STATE, PodChange, is_own};
use super::template::{RevisionData, read_template, revision_labels};
use crate::workload::JsonObject;
use crate::workload::defaults::{complete_pod_spec, pull_policy};
use crate::workload::image::names_one_image;
use crate::workload::object;
use crate::workload::pod::ObservedStatus;

/// How long a kubelet has to restart a container beyond the time that the container has to end.
const RESTART: SignedDuration = SignedDuration::from_secs(10);

/// The part of a pod that is changed in place for another revision.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct InPlaceChange {
    images: Vec<(String, String)>,
    labels: Vec<(String, Option<String>)>,
    annotations: Vec<(String, Option<String>)>,
    /// Whether other metadata differs, which pods keep as it is.
    is_partial: bool,
}

impl InPlaceChange {
    /// Finds the change that leads from one revision to another one.
    ///
    /// # Errors
    ///
    /// The first field that cannot be changed in place.
    pub(super) fn between(from: &RevisionData, to: &RevisionData) -> Result<Self, String> {
        let (from, to) = (from.template(), to.template());
        let (before, after) = (read_template(&from), read_template(&to));
        let empty = JsonObject::new();
        let (old, new) = (before.spec.unwrap_or(&empty), after.spec.unwrap_or(&empty));
        let images = compare_specs(old, new)?;
        let pairs = |field: &str| {
            let of = |metadata: Option<&'_ JsonObject>| {
                let map = metadata.and_then(|metadata| object::inner(metadata, field));
                map.cloned().unwrap_or_default()
            };
            changed_pairs(&of(before.metadata), &of(after.metadata))
        };
        Ok(Self {
            images,
            labels: pairs("labels"),
            annotations: pairs("annotations"),
            is_partial: other_metadata(before.metadata) != other_metadata(after.metadata),
        })
    }

    /// Whether both revisions mean the same: pods change in nothing but the name of theirs.
    pub(super) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Whether a container of the pod is restarted by it.
    pub(super) fn restarts(&self, pod: &ClonePod) -> bool {
        self.changed_images(pod).next().is_some()
    }

    fn changed_images<'a>(
        &'a self,
        pod: &'a ClonePod,
    ) -> impl Iterator<Item = &'a (String, String)> {
        self.images.iter().filter(|(name, image)| {
            let container = pod.observed.container(name);
            container.is_none_or(|container| *container.image != **image)
        })
    }

    /// The change that gives a pod the revision.
    pub(super) fn of_pod(&self, pod: &ClonePod, revision: &str, now: Timestamp) -> PodChange {
        let mut change = PodChange::new(now);
        change.labels.clone_from(&self.labels);
        for (key, value) in revision_labels(revision) {
            change.labels.push((key.to_owned(), Some(value)));
        }
        change.annotations.clone_from(&self.annotations);
        change.images = self.changed_images(pod).cloned().collect();
        if !change.images.is_empty() {
            let state = InPlaceState::of(pod, revision, &change.images, now);
            let text = serde_json::to_string(&state).unwrap_or_default();
            change
                .annotations
                .push((IN_PLACE_STATE.to_owned(), Some(text)));
        }
        change
    }
}

/// The images that differ, by container. A field that is left out is what the API server makes of it: `OpenKruise` filled it in.
fn compare_specs(old: &JsonObject, new: &JsonObject) -> Result<Vec<(String, String)>, String> {
    // The author of a policy shows only before both are completed.
    let policies: Vec<_> = policies(old).zip(policies(new)).collect();
    let (mut old, mut new) = (old.clone(), new.clone());
    for spec in [&mut old, &mut new] {
        complete_pod_spec(spec);
    }
    let fields = old.keys().chain(new.keys());
    for field in fields.filter(|field| *field != "containers") {
        if old.get(field) != new.get(field) {
            return Err(format!("spec.{field}"));
        }
    }
    let of = |pod| object::items(pod, "containers").collect::<Vec<_>>();
    let (old, new) = (of(&old), of(&new));
    if old.len() != new.len() {
        return Err("spec.containers".to_owned());
    }
    let mut images = Vec::new();
    for (index, (old, new)) in old.into_iter().zip(new).enumerate() {
        for field in old.keys().chain(new.keys()) {
            let is_same = match field.as_str() {
                "image" => true,
                "imagePullPolicy" => {
                    has_default_policy(old) && has_default_policy(new)
                        || matches!(
                            policies.get(index),
                            Some(
                                (PullPolicy::Absent, PullPolicy::FilledIn)
                                    | (PullPolicy::FilledIn, PullPolicy::Absent)
                            )
                        )
                }
                _ => false,
            };
            if !is_same && old.get(field) != new.get(field) {
                return Err(format!("spec.containers[{index}].{field}"));
            }
        }
        if let (Some(name), Some(image)) = (object::text(new, "name"), object::text(new, "image"))
            && old.get("image") != new.get("image")
        {
            images.push((name.to_owned(), image.to_owned()));
        }
    }
    Ok(images)
}

/// The author of a container's pull policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PullPolicy {
    Absent,
    /// `OpenKruise`, in a template that says nothing: Always, whatever the tag, beside all other defaults.
    FilledIn,
    Said,
}

fn policies(spec: &JsonObject) -> impl Iterator<Item = PullPolicy> {
    let policy = |container: &JsonObject| match object::text(container, "imagePullPolicy") {
        None => PullPolicy::Absent,
        Some("Always") if container.contains_key("terminationMessagePolicy") => {
            PullPolicy::FilledIn
        }
        Some(_) => PullPolicy::Said,
    };
    object::items(spec, "containers").map(policy)
}

/// Whether its image is pulled as if nobody had said when. Another image may mean another default.
fn has_default_policy(container: &JsonObject) -> bool {
    let image = object::text(container, "image").unwrap_or_default();
    object::text(container, "imagePullPolicy") == Some(pull_policy(image))
}

/// The metadata of a template that no pod gets afterwards.
fn other_metadata(metadata: Option<&JsonObject>) -> JsonObject {
    let mut other = metadata.cloned().unwrap_or_default();
    for field in ["labels", "annotations", "creationTimestamp"] {
        other.remove(field);
    }
    other
}

fn changed_pairs(old: &JsonObject, new: &JsonObject) -> Vec<(String, Option<String>)> {
    let is_gone = |key: &&String| !new.contains_key(*key);
    let gone = old.keys().filter(is_gone).map(|key| (key.clone(), None));
    let set = new
        .iter()
        .filter(|(key, value)| old.get(*key) != Some(value))
        .map(|(key, value)| (key.clone(), value.as_str().map(str::to_owned)));
    let changed = gone.chain(set);
    changed.filter(|(key, _)| !is_own(key)).collect()
}

/// The containers of a pod as they were before it was updated in place, as `OpenKruise` writes it, with their ids
/// beside it: an image of the same content is told by them alone.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct InPlaceState {
    revision: String,
    update_timestamp: Option<Timestamp>,
    #[serde(default)]
    last_container_statuses: Option<BTreeMap<String, FormerStatus>>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    update_images: bool,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    container_batches_record: Vec<Value>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct FormerStatus {
    #[serde(default, rename = "imageID", skip_serializing_if = "String::is_empty")]
    image_id: String,
    /// The id; absent if `OpenKruise` wrote it.
    #[serde(
        default,
        rename = "containerID",
        skip_serializing_if = "Option::is_none"
    )]
    container_id: Option<String>,
}

impl InPlaceState {
    fn of(pod: &ClonePod, revision: &str, images: &[(String, String)], now: Timestamp) -> Self {
        let now = whole_seconds(now);
        let former = |name: &str| {
            let status = pod
                .observed
                .container(name)
                .and_then(|one| one.status.as_ref());
            FormerStatus {
                image_id: status.map_or_else(String::new, |status| status.image_id.to_string()),
                container_id: Some(status.map_or_else(String::new, id_of)),
            }
        };
        let names: Vec<_> = images.iter().map(|(name, _)| name.clone()).collect();
        let formers = names.iter().map(|name| (name.clone(), former(name)));
        Self {
            revision: revision.to_owned(),
            update_timestamp: Some(now),
            last_container_statuses: Some(formers.collect()),
            update_images: true,
            container_batches_record: vec![json!({"timestamp": now, "containers": names})],
        }
    }
}

fn id_of(status: &ObservedStatus) -> String {
    status
        .container_id
        .as_deref()
        .unwrap_or_default()
        .to_owned()
}

/// Whether the containers that were changed in a pod run anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InPlaceProgress {
    Done,
    /// The update counts as done at this time, if other containers run then.
    Waits(Option<Timestamp>),
}

/// How far the update of a pod is. A state that cannot be read says nothing about what was, so only what is counts.
pub(super) fn progress(pod: &ClonePod, now: Timestamp) -> InPlaceProgress {
    let text = pod.observed.annotation(IN_PLACE_STATE);
    let state: InPlaceState = serde_json::from_str(text).unwrap_or_default();
    let grace = SignedDuration::try_from(pod.observed.grace_period).unwrap_or_default();
    let patience = grace.checked_add(RESTART).unwrap_or(SignedDuration::MAX);
    let late = state
        .update_timestamp
        .and_then(|at| at.checked_add(patience).ok());
    let is_late = late.is_none_or(|late| late <= now);
    let formers = state.last_container_statuses.unwrap_or_default();
    let mut waits = false;
    for (name, former) in &formers {
        // A container that the pod no longer names is none to wait for.
        let Some(container) = pod.observed.container(name) else {
            continue;
        };
        let Some(status) = &container.status else {
            return InPlaceProgress::Waits(None);
        };
        let shows_image = (*status.image_id != *former.image_id && !status.image_id.is_empty())
            || names_one_image(&status.image, &container.image);
        let is_done = match &former.container_id {
            Some(_) if status.running.is_none() => return InPlaceProgress::Waits(None),
            // The container that ran before: of the image that is asked for, if its kubelet never saw the update that this one
            // has taken back.
            Some(id) if id_of(status) == *id => {
                is_late && names_one_image(&status.image, &container.image)
            }
            Some(_) => shows_image || is_late,
            None => shows_image,
        };
        waits |= !is_done;
    }
    if waits {
        InPlaceProgress::Waits(late.filter(|late| *late > now))
    } else {
        InPlaceProgress::Done
    }
}
