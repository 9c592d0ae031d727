//! The verdicts that an earlier agent left in the status of the node's object.

use std::collections::HashMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use leadsman_api::NodePodProbeStatus;
use leadsman_api::node_pod_probe::ContainerProbeState;

use super::entries::{PlannedProbe, without_scheme};
use super::status_draft::{MESSAGE_BYTES, read_pod};
use super::verdict::{Verdict, whole_seconds};
use super::{PodName, cut};
use crate::cluster::Now;

/// A verdict of an earlier agent.
pub(super) struct PreviousVerdict {
    pub(super) verdict: Verdict,
    /// The revision of the probe that it is about.
    revision: Option<String>,
}

impl PreviousVerdict {
    /// Whether it may be about the probe as it is planned now.
    ///
    /// OpenKruise's agent writes no revision, and an API server with OpenKruise's CRD keeps none; then only the container
    /// can show that a verdict is about something else.
    pub(super) fn may_be_about(&self, entry: &PlannedProbe) -> bool {
        let revisions = self.revision.as_deref().zip(entry.revision.as_deref());
        revisions.is_none_or(|(previous, planned)| previous == planned)
    }
}

/// The verdicts in a status, by pod and probe. States that are none of ours are left out.
pub(super) fn previous_verdicts(
    status: &NodePodProbeStatus,
    now: Now,
) -> HashMap<(PodName, String), PreviousVerdict> {
    let mut verdicts = HashMap::new();
    for pod in &status.pod_probe_statuses {
        let name = read_pod(pod);
        for state in &pod.probe_states {
            if let Some(verdict) = read_verdict(state, now) {
                let revision = state.revision.clone();
                let previous = PreviousVerdict { verdict, revision };
                verdicts.insert((name.clone(), state.name.clone()), previous);
            }
        }
    }
    verdicts
}

fn read_verdict(state: &ContainerProbeState, now: Now) -> Option<Verdict> {
    let time = |time: &Option<Time>| time.as_ref().map(|time| time.0);
    Some(Verdict {
        state: state.state.parse().ok()?,
        // Another agent may have written more than ours would.
        message: cut(state.message.as_deref().unwrap_or_default(), MESSAGE_BYTES).into(),
        since: time(&state.last_transition_time).unwrap_or(whole_seconds(now.wall)),
        probed: time(&state.last_probe_time),
        container: state.container_id.as_deref().map(without_scheme),
    })
}
