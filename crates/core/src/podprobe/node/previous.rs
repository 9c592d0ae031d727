//! The verdicts that an earlier agent left in the status of the node's object.

use std::collections::HashMap;

use leadsman_api::NodePodProbeStatus;

use super::entries::{PlannedProbe, strip_id_scheme};
use super::key::PodIdentity;
use super::status_draft::read_pod;
use crate::cluster::{Interner, Now, whole_seconds};
use crate::podprobe::verdict::Verdict;

/// Verdicts by pod and probe, without the container: the same probe may be about another one now.
pub(super) type VerdictsByProbe = HashMap<(PodIdentity, String), Verdict>;

/// The verdicts in a status. States that are none of ours are left out.
pub(super) fn previous_verdicts(status: &NodePodProbeStatus, now: Now) -> VerdictsByProbe {
    let mut strings = Interner::default();
    let mut verdicts = HashMap::new();
    for pod in &status.pod_probe_statuses {
        let name = read_pod(pod);
        for state in &pod.probe_states {
            let Some(mut verdict) = Verdict::from_wire(state, None, &mut strings) else {
                continue;
            };
            // A verdict with neither time nor container would count as one about an earlier
            // container, and each restart of the agent would turn it Unknown.
            verdict.since.get_or_insert(whole_seconds(now.wall));
            verdict.container = verdict.container.as_deref().map(strip_id_scheme);
            verdicts.insert((name.clone(), state.name.clone()), verdict);
        }
    }
    verdicts
}

/// Whether a verdict of an earlier agent may be about the probe as it is planned now.
///
/// OpenKruise's agent writes no revision, and an API server with OpenKruise's CRD keeps none. Then only the container
/// tells that a verdict is about something else.
pub(super) fn may_be_about(verdict: &Verdict, entry: &PlannedProbe) -> bool {
    let revisions = verdict.revision.as_deref().zip(entry.revision.as_deref());
    revisions.is_none_or(|(previous, planned)| previous == planned)
}
