//! What a played agent reports.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use leadsman_api::node_pod_probe::{ContainerProbe, ContainerProbeState, PodProbeStatus};
use leadsman_api::{NodePodProbe, NodePodProbeStatus};
use leadsman_tests::report::now;

use super::model::{container_status, id_of};

/// What an agent owes an entry, given what it said before: Unknown is said of what was said of another container or
/// handler; a first verdict of an entry without one, except of some, which are pending for long.
pub(crate) fn owed(entry: &ContainerProbe, known: Option<&str>) -> Option<String> {
    match known {
        Some(state) => Some(state.to_owned()),
        None => match entry.name.len() % 3 {
            0 => Some("Failed".to_owned()),
            1 => Some("Succeeded".to_owned()),
            _ => None,
        },
    }
}

/// The status of a node: for each entry what `state` says of it. It is given what was said before of the same container
/// and handler, and Unknown if that was another one.
pub(crate) fn statuses(
    object: &NodePodProbe,
    pods: &BTreeMap<String, Pod>,
    mut state: impl FnMut(&ContainerProbe, Option<&str>) -> Option<String>,
) -> NodePodProbeStatus {
    let before = object.status.clone().unwrap_or_default().pod_probe_statuses;
    let mut status = NodePodProbeStatus::default();
    for of_pod in &object.spec.pod_probes {
        let Some(pod) = pods.get(&of_pod.name) else {
            continue;
        };
        let before = before.iter().filter(|one| one.uid == of_pod.uid);
        let before: Vec<_> = before.flat_map(|one| &one.probe_states).collect();
        let entries = of_pod.probes.iter();
        let probe_states: Vec<_> = entries
            .filter_map(|entry| probe_state(entry, pod, &before, &mut state))
            .collect();
        if !probe_states.is_empty() {
            status.pod_probe_statuses.push(PodProbeStatus {
                name: of_pod.name.clone(),
                namespace: of_pod.namespace.clone(),
                uid: of_pod.uid.clone(),
                probe_states,
                ..PodProbeStatus::default()
            });
        }
    }
    status
}

fn probe_state(
    entry: &ContainerProbe,
    pod: &Pod,
    before: &[&ContainerProbeState],
    state: &mut impl FnMut(&ContainerProbe, Option<&str>) -> Option<String>,
) -> Option<ContainerProbeState> {
    let current = container_status(pod, &entry.container_name).map(id_of);
    let container_id = entry.started_container_id.clone().or(current);
    let known = before.iter().find(|one| one.name == entry.name);
    let fitting =
        known.filter(|one| one.container_id == container_id && one.revision == entry.revision);
    let said = fitting.map(|one| one.state.as_str());
    let state = state(entry, said.or(known.map(|_| "Unknown")))?;
    let same = fitting.filter(|one| one.state == state);
    let at = Some(Time(now()));
    Some(ContainerProbeState {
        last_probe_time: same.map_or(at.clone(), |one| one.last_probe_time.clone()),
        last_transition_time: same.map_or(at, |one| one.last_transition_time.clone()),
        message: Some(String::new()),
        revision: entry.revision.clone(),
        container_id,
        ..ContainerProbeState::new(&entry.name, &state)
    })
}
