//! Containers that take turns: the upgrade gives the new image to the one that waits, which takes over from the one that
//! works by itself; then the other gets the image that does nothing.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;

use super::{ChangedContainer, PodUpgrade, patch};
use crate::sidecarset::annotations::{
    WORKING_CONTAINER, other_version_key, version_key, working_containers, write_working_containers,
};
use crate::sidecarset::container::{Upgrade, hot_names};
use crate::sidecarset::pod::{PodVersion, hot_containers, is_consistent};
use crate::sidecarset::set::SidecarSet;
use crate::workload::pod::{ObservedContainer, ObservedPod};

/// The version of a container that waits.
const NO_VERSION: &str = "0";

/// The container of a pair that is upgraded, and the one that works until then.
struct Turn {
    upgraded: Arc<str>,
    other: Arc<str>,
}

impl Turn {
    /// The one that waits with the empty image; else one that is not what it is to be, since an upgrade of it has failed;
    /// else the one that does not work, by the annotation.
    fn of(
        set: &SidecarSet,
        pod: &ObservedPod,
        (name, empty_image): (&str, &str),
        now: Timestamp,
    ) -> Self {
        let [first, second] = hot_names(name);
        let [_, idle] = hot_containers(pod, name);
        let both = [&first, &second];
        let container = |name: &str| pod.container(name);
        let is_empty = |name: &&&Arc<str>| {
            container(name).is_some_and(|container| *container.image == *empty_image)
        };
        let has_failed = |name: &&&Arc<str>| {
            let container = container(name);
            container.is_some_and(|container| {
                !container.is_ready() || !is_consistent(set, pod, container, now)
            })
        };
        let upgraded = both.iter().find(is_empty).or(both.iter().find(has_failed));
        let upgraded = upgraded.map_or(idle, |name| (**name).clone());
        let other = if upgraded == first { second } else { first };
        Self { upgraded, other }
    }
}

/// The container of a pair that an upgrade changes, with its annotations. None if the one that works has the image already.
pub(super) fn upgrade<'a>(
    set: &SidecarSet,
    pod: &'a ObservedPod,
    (name, image, empty_image): (&str, &'a str, &str),
    annotations: &mut BTreeMap<String, String>,
    now: Timestamp,
) -> Option<ChangedContainer<'a>> {
    let [working, _] = hot_containers(pod, name);
    if pod
        .container(&working)
        .is_some_and(|working| *working.image == *image)
    {
        return None;
    }
    let turn = Turn::of(set, pod, (name, empty_image), now);
    let container = pod.container(&turn.upgraded)?;
    let version = annotations.get(&version_key(&turn.other)).cloned();
    annotations.insert(version_key(&turn.upgraded), set.version.to_string());
    annotations.insert(
        other_version_key(&turn.upgraded),
        version.unwrap_or_else(|| NO_VERSION.to_owned()),
    );
    annotations.insert(other_version_key(&turn.other), set.version.to_string());
    let text = annotations.get(WORKING_CONTAINER).map(String::as_str);
    let mut working = working_containers(text.unwrap_or_default());
    working.insert(name.to_owned(), turn.upgraded.to_string());
    annotations.insert(
        WORKING_CONTAINER.to_owned(),
        write_working_containers(&working),
    );
    Some((container, image))
}

/// The reset of the containers that no longer work, once those that do serve. None if there is nothing to reset yet. It
/// is due whatever the update strategy says: a pod that was begun is finished.
pub fn reset(
    set: &SidecarSet,
    version: PodVersion,
    pod: &ObservedPod,
    now: Timestamp,
) -> Option<PodUpgrade> {
    if version != PodVersion::Updated {
        return None;
    }
    let mut changed: Vec<ChangedContainer<'_>> = Vec::new();
    let mut annotations = BTreeMap::new();
    for sidecar in &set.template.containers {
        let Upgrade::Hot { empty_image } = &sidecar.upgrade else {
            continue;
        };
        let [working, idle] = hot_containers(pod, &sidecar.name);
        let container = pod.container(&idle)?;
        let takes_over = pod.container(&working)?;
        if container.image == *empty_image || takes_over.image != sidecar.image {
            continue;
        }
        changed.push((container, empty_image));
        annotations.insert(version_key(&idle), NO_VERSION.to_owned());
        annotations.insert(other_version_key(&working), NO_VERSION.to_owned());
    }
    if changed.is_empty() {
        return None;
    }
    let is_idle = |own: &ObservedContainer| changed.iter().any(|(idle, _)| idle.name == own.name);
    let others = || pod.containers.iter().filter(|own| !is_idle(own));
    let is_ours = |own: &&ObservedContainer| {
        let mut sidecars = set.template.all();
        sidecars.any(|sidecar| sidecar.names_in_pod().any(|name| name == own.name))
    };
    let are_ready = || {
        others()
            .filter(|own| !own.is_init)
            .all(ObservedContainer::is_ready)
    };
    let has_taken_over = others()
        .filter(is_ours)
        .all(|own| own.is_init || is_consistent(set, pod, own, now))
        && (pod.is_ready() || are_ready());
    has_taken_over.then(|| patch(set, pod, &changed, annotations, now))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::sidecarset::annotations::IN_PLACE_STATE;
    use crate::sidecarset::metadata::Whitelist;
    use crate::sidecarset::recorded;
    use crate::sidecarset::upgrade;

    const NOW: &str = "2026-11-22T01:57:57Z";

    fn set(image: &str, version: &str) -> SidecarSet {
        let mut wire = recorded::documents("07-hot-upgrade").remove(0);
        wire["spec"]["containers"][0]["image"] = json!(format!("registry.example/mesh:{image}"));
        wire["metadata"]["resourceVersion"] = json!(version);
        SidecarSet::parse(&serde_json::from_value(wire).unwrap()).unwrap()
    }

    fn pods() -> Vec<Value> {
        let documents = recorded::documents("07-hot-upgrade").into_iter();
        documents
            .filter(|document| document["kind"] == "Pod")
            .collect()
    }

    fn observed(pod: &Value) -> ObservedPod {
        ObservedPod::new(&serde_json::from_value(pod.clone()).unwrap())
    }

    fn upgraded(set: &SidecarSet, pod: &Value) -> Value {
        let whitelist = Whitelist::default();
        let allowed = whitelist.allowed_keys(|_| None, true);
        let pod = observed(pod);
        upgrade::upgrade(set, "mesh-b9f697c58", &pod, &allowed, NOW.parse().unwrap()).patch
    }

    /// Whether a patch makes of the annotations those that were recorded, but for the state in which ours names more.
    fn leads_to(patch: &Value, before: &Value, after: &Value) {
        let mut annotations = before["metadata"]["annotations"].clone();
        for (key, value) in patch["metadata"]["annotations"].as_object().unwrap() {
            annotations[key] = value.clone();
        }
        let recorded = after["metadata"]["annotations"].as_object().unwrap();
        for (key, value) in recorded.iter().filter(|(key, _)| *key != IN_PLACE_STATE) {
            assert_eq!(annotations[key], *value, "{key}");
        }
        let images = patch["spec"]["containers"].as_array().unwrap().iter();
        for container in images {
            let mut wanted = after["spec"]["containers"].as_array().unwrap().iter();
            let wanted = wanted.find(|own| own["name"] == container["name"]).unwrap();
            assert_eq!(container["image"], wanted["image"]);
        }
    }

    // SCS-26, SCS-59
    #[test]
    fn the_container_that_waits_gets_the_new_image_as_recorded() {
        let pods = pods();
        let patch = upgraded(&set("2", "1836"), &pods[0]);
        assert_eq!(
            patch["spec"],
            json!({"containers": [{"name": "mesh-2", "image": "registry.example/mesh:2"}]})
        );
        leads_to(&patch, &pods[0], &pods[1]);
    }

    // SCS-59
    #[test]
    fn where_the_new_image_fails_the_same_container_gets_the_next() {
        let mut pod = pods().remove(1);
        pod["status"]["containerStatuses"][1]["ready"] = json!(false);
        let patch = upgraded(&set("3", "1840"), &pod);
        assert_eq!(patch["spec"]["containers"][0]["name"], "mesh-2");
        let annotations = &patch["metadata"]["annotations"];
        assert_eq!(annotations["version.sidecarset.kruise.io/mesh-2"], "1840");
        assert_eq!(
            annotations["versionalt.sidecarset.kruise.io/mesh-1"],
            "1840"
        );
        // The one that works has this image: nothing of the pair changes.
        let same = upgraded(&set("2", "1850"), &pod);
        assert_eq!(same.get("spec"), None);
    }

    // SCS-60, SDF-46
    #[test]
    fn the_one_that_no_longer_works_is_reset_as_recorded_also_while_upgrades_are_paused() {
        let pods = pods();
        let mut set = set("2", "1836");
        set.update.mode = crate::sidecarset::strategy::UpdateMode::Paused;
        let reset = |pod: &Value| {
            let pod = observed(pod);
            super::reset(&set, PodVersion::Updated, &pod, NOW.parse().unwrap())
        };
        // The new container does not run yet.
        assert_eq!(reset(&pods[1]), None);
        let mut running = pods[1].clone();
        let statuses = &pods[2]["status"]["containerStatuses"];
        running["status"]["containerStatuses"] = statuses.clone();
        leads_to(&reset(&running).unwrap().patch, &running, &pods[2]);
        running["status"]["containerStatuses"][1]["ready"] = json!(false);
        running["status"]["conditions"] = json!([]);
        assert_eq!(reset(&running), None);
        // Once it is done there is nothing more to reset.
        assert_eq!(reset(&pods[2]), None);
        assert_eq!(
            super::reset(
                &set,
                PodVersion::Upgradable,
                &observed(&running),
                NOW.parse().unwrap()
            ),
            None
        );
    }
}
