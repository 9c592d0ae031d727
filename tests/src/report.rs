//! Playing a node's agent: verdicts into the status of its `NodePodProbe`.

use anyhow::{Context, Result};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use leadsman_api::node_pod_probe::{ContainerProbe, ContainerProbeState, PodProbe, PodProbeStatus};
use leadsman_api::{NodePodProbe, NodePodProbeStatus};
use serde_json::json;

use crate::wait_for_object;

/// Reports a verdict as a node's agent would: the spec's revision and container echoed, others' verdicts kept.
///
/// # Errors
/// The API server's, or when the entry does not appear.
pub async fn report(
    client: &Client,
    node: &str,
    pod: (&str, &str),
    entry: &str,
    state: &str,
    message: &str,
) -> Result<()> {
    report_all(client, node, &[(pod, entry)], state, message).await
}

/// An entry as `((namespace, pod), marker#probe)`.
pub type EntryName<'a> = ((&'a str, &'a str), &'a str);

/// The same for several entries of a node in one write.
///
/// # Errors
/// The API server's, or when one of the entries does not appear.
pub async fn report_all(
    client: &Client,
    node: &str,
    entries: &[EntryName<'_>],
    state: &str,
    message: &str,
) -> Result<()> {
    let probes: Api<NodePodProbe> = Api::all(client.clone());
    let at = now();
    let what = format!("entries {entries:?}");
    let seen = wait_for_object(&probes, node, &what, |probe| {
        let mut status = probe.status.clone().unwrap_or_default();
        for (pod, entry) in entries {
            let (of_pod, found) = entry_of(probe, *pod, entry)
                .with_context(|| format!("no entry {entry} of {pod:?}"))?;
            put(
                &mut status,
                of_pod,
                verdict(found, pod.1, state, message, at),
            );
        }
        Ok(status)
    });
    let status = seen.await?;
    let params = PatchParams {
        field_manager: Some("agent".into()),
        ..PatchParams::default()
    };
    probes
        .patch_status(node, &params, &Patch::Merge(json!({"status": status})))
        .await?;
    Ok(())
}

fn entry_of<'a>(
    probe: &'a NodePodProbe,
    (ns, pod): (&str, &str),
    entry: &str,
) -> Option<(&'a PodProbe, &'a ContainerProbe)> {
    let mut pods = probe.spec.pod_probes.iter();
    let of_pod = pods.find(|p| p.namespace == ns && p.name == pod)?;
    Some((of_pod, of_pod.probes.iter().find(|e| e.name == entry)?))
}

/// The verdict of an entry of a pod, with its revision and container as an agent echoes them.
#[must_use]
pub fn verdict(
    entry: &ContainerProbe,
    pod: &str,
    state: &str,
    message: &str,
    at: jiff::Timestamp,
) -> ContainerProbeState {
    let at = Some(Time(at));
    let started = entry.started_container_id.clone();
    ContainerProbeState {
        last_probe_time: at.clone(),
        last_transition_time: at,
        message: Some(message.to_owned()),
        revision: entry.revision.clone(),
        container_id: started.or_else(|| Some(format!("{pod}-{}-1", entry.container_name))),
        ..ContainerProbeState::new(&entry.name, state)
    }
}

/// In the place of what was reported for the entry before.
fn put(status: &mut NodePodProbeStatus, of_pod: &PodProbe, verdict: ContainerProbeState) {
    let pods = &mut status.pod_probe_statuses;
    let index = pods.iter().position(|p| p.uid == of_pod.uid);
    let index = index.unwrap_or_else(|| {
        pods.push(PodProbeStatus {
            name: of_pod.name.clone(),
            namespace: of_pod.namespace.clone(),
            uid: of_pod.uid.clone(),
            probe_states: Vec::new(),
            ..PodProbeStatus::default()
        });
        pods.len() - 1
    });
    let verdicts = &mut pods[index].probe_states;
    verdicts.retain(|known| known.name != verdict.name);
    verdicts.push(verdict);
}

#[expect(
    clippy::disallowed_methods,
    reason = "the one door to the clock of the suites"
)]
/// The time of day, for what a played agent reports.
pub fn now() -> jiff::Timestamp {
    jiff::Timestamp::now()
}
