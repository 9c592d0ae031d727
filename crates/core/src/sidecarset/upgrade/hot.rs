//! Containers that take turns: the upgrade gives the new image to the one that waits, which takes over from the one that
//! works by itself; then the other gets the image that does nothing. When that is due is `ObservedPair::awaits_reset`
//! (`pair`); whether it may be written now, `reconcile/pod_writes`.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::{ChangedContainer, PodUpgrade, UpgradeRecord, build_patch, record_former_containers};
use crate::sidecarset::annotations::{
    HASH, WORKING_CONTAINER, other_version_key, version_key, working_containers,
    write_working_containers,
};
use crate::sidecarset::container::SetContainer;
use crate::sidecarset::pair::{NO_VERSION, ObservedPair};
use crate::sidecarset::pod::{hash_in, pairs_to_reset};
use crate::sidecarset::set::SidecarSet;
use crate::workload::pod::ObservedPod;

/// The container of a pair that an upgrade changes, with its annotations. None if the one that works has the image already.
pub(super) fn upgrade<'a>(
    set: &SidecarSet,
    pod: &'a ObservedPod,
    sidecar: &'a SetContainer,
    annotations: &mut BTreeMap<String, String>,
) -> Option<ChangedContainer<'a>> {
    let pair = ObservedPair::find(pod, sidecar)?;
    if pair.working.image == sidecar.image {
        return None;
    }
    let [upgraded, other] = pair.by_turn();
    let version = annotations.get(&version_key(&other.name)).cloned();
    // The two containers see both versions in their environment, and tell by them which of them is
    // the newer.
    annotations.insert(version_key(&upgraded.name), set.version.to_string());
    annotations.insert(
        other_version_key(&upgraded.name),
        version.unwrap_or_else(|| NO_VERSION.to_owned()),
    );
    annotations.insert(other_version_key(&other.name), set.version.to_string());
    let text = annotations.get(WORKING_CONTAINER).map(String::as_str);
    let mut working = working_containers(text.unwrap_or_default());
    working.insert(sidecar.name.to_string(), upgraded.name.to_string());
    annotations.insert(
        WORKING_CONTAINER.to_owned(),
        write_working_containers(&working),
    );
    Some((upgraded, &sidecar.image))
}

/// The end of a hot upgrade: containers that no longer work get the image that does nothing. None if there are none, or
/// those that are to take over have not done so. That follows from the pod alone, whatever the set has become since.
pub fn reset(set: &SidecarSet, pod: &ObservedPod, now: Timestamp) -> Option<PodUpgrade> {
    let mut changed: Vec<ChangedContainer<'_>> = Vec::new();
    let mut annotations = BTreeMap::new();
    for pair in pairs_to_reset(set, pod, now) {
        changed.push((pair.idle, pair.empty_image));
        annotations.insert(version_key(&pair.idle.name), NO_VERSION.to_owned());
        annotations.insert(other_version_key(&pair.working.name), NO_VERSION.to_owned());
    }
    if changed.is_empty() {
        return None;
    }
    let hash = hash_in(pod, HASH, &set.name)
        .map(|entry| entry.hash)
        .unwrap_or_default();
    let record = UpgradeRecord {
        set: &set.name,
        found: None,
        hash: &hash,
        now,
    };
    record_former_containers(pod, &changed, &mut annotations, &record);
    Some(build_patch(pod, &changed, annotations))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::sidecarset::annotations::IN_PLACE_STATE;
    use crate::sidecarset::metadata::Whitelist;
    use crate::sidecarset::pod::{LastUpgrade, PodState, PodVersion};
    use crate::sidecarset::strategy::UpdateMode;
    use crate::sidecarset::tests::recorded;
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
        let found = LastUpgrade::OfReady;
        let now = NOW.parse().unwrap();
        upgrade::plan_upgrade(set, "mesh-b9f697c58", (&pod, found), &allowed, now).patch
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

    /// The recorded pod whose container `mesh-2` has the new image, and runs it.
    fn taken_over() -> Value {
        let pods = pods();
        let mut running = pods[1].clone();
        let statuses = &pods[2]["status"]["containerStatuses"];
        running["status"]["containerStatuses"] = statuses.clone();
        running
    }

    fn reset_of(set: &SidecarSet, pod: &Value) -> Option<Value> {
        let reset = super::reset(set, &observed(pod), NOW.parse().unwrap());
        reset.map(|reset| reset.patch)
    }

    fn state(set: &SidecarSet, pod: &Value) -> PodState {
        PodState::read(
            set,
            &observed(pod),
            None::<fn(&str) -> Option<&'static str>>,
            NOW.parse().unwrap(),
        )
        .unwrap()
    }

    // SCS-60, SDF-46
    #[test]
    fn the_one_that_no_longer_works_is_reset_as_recorded_whatever_the_set_has_become() {
        let pods = pods();
        let mut edited = set("2", "1836");
        edited.update.mode = UpdateMode::NotUpdate;
        // In more than its image, so that the pod waits to be created again.
        let mut other = recorded::documents("07-hot-upgrade").remove(0);
        other["spec"]["containers"][0]["env"] = json!([{"name": "A"}]);
        let other = SidecarSet::parse(&serde_json::from_value(other).unwrap()).unwrap();
        for set in [set("2", "1836"), edited, set("3", "1840"), other] {
            // The new container does not run yet.
            assert_eq!(reset_of(&set, &pods[1]), None);
            let mut running = taken_over();
            assert!(state(&set, &running).awaits_reset() && !state(&set, &running).is_serving());
            let patch = reset_of(&set, &running).unwrap();
            leads_to(&patch, &running, &pods[2]);
            // It is recorded for what the pod has, and not for what the set is by now.
            let recorded = patch["metadata"]["annotations"][IN_PLACE_STATE].as_str();
            let recorded: Value = serde_json::from_str(recorded.unwrap()).unwrap();
            let before = pods[2]["metadata"]["annotations"][IN_PLACE_STATE].as_str();
            let before: Value = serde_json::from_str(before.unwrap()).unwrap();
            assert_eq!(recorded["mesh"]["revision"], before["mesh"]["revision"]);
            running["status"]["containerStatuses"][1]["ready"] = json!(false);
            assert_eq!(reset_of(&set, &running), None);
            // Once it is done there is nothing more to reset.
            assert_eq!(reset_of(&set, &pods[2]), None);
        }
    }

    // SCS-60, SDF-46
    #[test]
    fn an_application_that_is_not_ready_holds_up_no_reset() {
        let mut pod = taken_over();
        pod["status"]["conditions"] = json!([]);
        pod["status"]["containerStatuses"][2]["ready"] = json!(false);
        assert!(reset_of(&set("2", "1836"), &pod).is_some());
    }

    // SCS-46, SDF-46
    #[test]
    fn a_pod_is_no_candidate_before_its_last_hot_upgrade_has_ended() {
        let mut pod = taken_over();
        // Going back would give mesh-1 the image that it has, and then stop mesh-2, which serves.
        for image in ["1", "3"] {
            assert!(!state(&set(image, "1840"), &pod).is_candidate(), "{image}");
        }
        // Where it fails, the next image replaces it.
        pod["status"]["containerStatuses"][1]["ready"] = json!(false);
        for image in ["1", "3"] {
            assert!(state(&set(image, "1840"), &pod).is_candidate(), "{image}");
            let patch = upgraded(&set(image, "1840"), &pod);
            assert_eq!(patch["spec"]["containers"][0]["name"], "mesh-2");
        }
    }

    // SCS-59
    #[test]
    fn where_both_fail_the_one_that_serves_is_not_replaced() {
        let mut pod = taken_over();
        for place in [0, 1] {
            pod["status"]["containerStatuses"][place]["ready"] = json!(false);
        }
        let patch = upgraded(&set("3", "1840"), &pod);
        assert_eq!(patch["spec"]["containers"][0]["name"], "mesh-2");
    }

    // SCS-56, SCS-60
    #[test]
    fn another_empty_image_is_for_new_pods() {
        let mut set = recorded::documents("07-hot-upgrade").remove(0);
        set["spec"]["containers"][0]["upgradeStrategy"]["hotUpgradeEmptyImage"] = json!("empty:2");
        let set = SidecarSet::parse(&serde_json::from_value(set).unwrap()).unwrap();
        let pod = pods().remove(0);
        assert_eq!(reset_of(&set, &pod), None);
        let state = state(&set, &pod);
        assert_eq!(state.version, PodVersion::NotUpgradable);
        assert!(state.is_serving());
    }
}
