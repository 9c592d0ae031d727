//! The status of a set, from what its pods are to it.

use std::ops::AddAssign;

use leadsman_api::SidecarSetStatus;

use super::pod::PodState;
use super::set::SidecarSet;

/// The counts of a status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Pods.
    pub matched: usize,
    /// Pods that have the containers of the spec.
    pub updated: usize,
    /// Pods that are consistent and ready.
    pub ready: usize,
    /// Pods that are updated and ready.
    pub updated_ready: usize,
}

impl Counts {
    /// Counts one more pod.
    pub fn add(&mut self, pod: PodState) {
        *self += Self::of(pod);
    }

    fn of(pod: PodState) -> Self {
        let is_ready = pod.is_serving();
        Self {
            matched: 1,
            updated: usize::from(pod.is_updated()),
            ready: usize::from(is_ready),
            updated_ready: usize::from(pod.is_updated() && is_ready),
        }
    }
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.matched += other.matched;
        self.updated += other.updated;
        self.ready += other.ready;
        self.updated_ready += other.updated_ready;
    }
}

/// The status of a set, but for its conditions, which stay.
pub fn status(
    set: &SidecarSet,
    counts: Counts,
    latest_revision: &str,
    collisions: i32,
    present: Option<&SidecarSetStatus>,
) -> SidecarSetStatus {
    let number = |count| i64::try_from(count).unwrap_or(i64::MAX);
    SidecarSetStatus {
        observed_generation: set.generation,
        matched_pods: number(counts.matched),
        updated_pods: number(counts.updated),
        ready_pods: number(counts.ready),
        updated_ready_pods: number(counts.updated_ready),
        latest_revision: Some(latest_revision.to_owned()),
        collision_count: Some(collisions),
        in_force: present.and_then(|present| present.in_force.clone()),
        conditions: present
            .map(|present| present.conditions.clone())
            .unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::sidecarset::pod::PodVersion;
    use crate::sidecarset::tests::recorded;
    use crate::workload::pod::ObservedPod;

    fn now() -> jiff::Timestamp {
        "2027-01-01T00:00:00Z".parse().unwrap()
    }

    // SCS-62
    #[test]
    fn the_status_is_written_as_recorded() {
        let stored = recorded::documents("01-sidecarset-stored").remove(1);
        let set = SidecarSet::parse(&serde_json::from_value(stored.clone()).unwrap()).unwrap();
        let pod = recorded::documents("03-pod-injected").remove(0);
        let pod = ObservedPod::new(&serde_json::from_value(pod).unwrap());
        let state =
            PodState::read(&set, &pod, None::<fn(&str) -> Option<&'static str>>, now()).unwrap();
        let mut counts = Counts::default();
        let empty = status(&set, counts, "r", 0, None);
        let expected = json!({"matchedPods": 0, "updatedPods": 0, "readyPods": 0, "observedGeneration": 1, "latestRevision": "r", "collisionCount": 0});
        assert_eq!(serde_json::to_value(empty).unwrap(), expected);
        counts.add(state);
        counts.add(state);
        let written = status(&set, counts, "log-agent-6bf48c598b", 0, None);
        assert_eq!(serde_json::to_value(written).unwrap(), stored["status"]);
    }

    // SCS-41, SCS-62
    #[test]
    fn a_pinned_pod_is_matched_and_not_updated_as_recorded() {
        let [set, pod, ..]: &[Value] = &recorded::documents("06-pinned-injection") else {
            panic!("a set and a pod")
        };
        let parsed = SidecarSet::parse(&serde_json::from_value(set.clone()).unwrap()).unwrap();
        let pod = ObservedPod::new(&serde_json::from_value(pod.clone()).unwrap());
        let state = PodState::read(
            &parsed,
            &pod,
            None::<fn(&str) -> Option<&'static str>>,
            now(),
        )
        .unwrap();
        assert_eq!(state.version, PodVersion::Upgradable);
        let mut counts = Counts::default();
        counts.add(state);
        let written = status(&parsed, counts, "log-agent-6cc95d769f", 0, None);
        assert_eq!(serde_json::to_value(written).unwrap(), set["status"]);
    }

    // SCS-56, SCS-62
    #[test]
    fn a_pod_whose_two_containers_both_work_is_not_ready_as_recorded() {
        let documents = recorded::documents("07-hot-upgrade");
        let mut set = documents[0].clone();
        let read = |set: &Value, pod: &Value| {
            let set = SidecarSet::parse(&serde_json::from_value(set.clone()).unwrap()).unwrap();
            let pod = ObservedPod::new(&serde_json::from_value(pod.clone()).unwrap());
            PodState::read(&set, &pod, None::<fn(&str) -> Option<&'static str>>, now()).unwrap()
        };
        let injected = read(&set, &documents[1]);
        assert!(injected.is_updated() && injected.is_serving());
        set["spec"]["containers"][0]["image"] = json!("registry.example/mesh:2");
        let upgraded = read(&set, &documents[2]);
        assert!(upgraded.is_updated() && !upgraded.is_ready() && !upgraded.is_consistent());
        let reset = read(&set, &documents[3]);
        assert!(reset.is_updated() && reset.is_ready() && !reset.is_consistent());
    }
}
