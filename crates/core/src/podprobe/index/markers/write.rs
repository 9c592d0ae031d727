//! The writes of a marker: its status, and its finalizers.

use jiff::Timestamp;
use leadsman_api::{PodProbeMarker, PodProbeMarkerStatus};
use leadsman_reconcile::{Assumption, Plan, Purpose};
use serde_json::json;

use super::{MarkerPhase, MarkerReflection, MarkerState, Markers};
use crate::podprobe::index::PodProbes;
use crate::podprobe::index::context::MarkerName;
use crate::podprobe::status::{self, READY, StatusInputs};
use crate::podprobe::writes::{MARKER_FINALIZERS, MARKER_STATUS};

impl Markers {
    /// Wants a marker's status and finalizers written where they differ from what is wanted.
    pub(in crate::podprobe::index) fn plan_marker(
        &mut self,
        name: &MarkerName,
        reflection: MarkerReflection,
        plan: &mut Plan<'_, PodProbes>,
    ) {
        #[cfg(test)]
        {
            self.comparisons += 1;
        }
        let Some(marker) = self.by_name.get(name) else {
            return;
        };
        let (now, uid) = (plan.now(), &marker.uid);
        let version = &marker.resource_version;
        if let Some(status) = self.wanted_status(marker, reflection, now.wall) {
            // The uid keeps a marker from getting the status of a predecessor of its name. The version is needed because a
            // merge patch replaces the whole list of conditions, and those of others must not be lost. An apply is not
            // possible: where the CRD lacks one of the fields, as OpenKruise's does, the API server fails an apply that has
            // it, and drops it from a merge patch.
            let body = json!({
                "metadata": {"uid": uid, "resourceVersion": version},
                "status": status,
            });
            plan.patch(&MARKER_STATUS, name.clone(), &body)
                .with_purpose(Purpose::of((uid, purpose_of_status(&status))));
        }
        if let Some(finalizers) = self.wanted_finalizers(marker, reflection, now.monotonic) {
            // A merge patch replaces the whole list, hence the resourceVersion: if somebody has added a finalizer since, it is
            // answered with 409.
            let body = json!({"metadata": {
                "uid": uid, "resourceVersion": version, "finalizers": finalizers,
            }});
            let write = plan.patch(&MARKER_FINALIZERS, name.clone(), &body);
            write.with_purpose(Purpose::of((uid, &finalizers)));
            if finalizers.is_empty() {
                write.ending_object();
                write.assuming::<PodProbeMarker>(|| Assumption::Gone);
            }
        }
        if let Some(until) = marker.held_until.filter(|until| *until > now.monotonic) {
            plan.wake_at(until);
        }
    }

    /// The status that a marker should have, if it has another.
    fn wanted_status(
        &self,
        marker: &MarkerState,
        reflection: MarkerReflection,
        now: Timestamp,
    ) -> Option<PodProbeMarkerStatus> {
        let refused = match &marker.phase {
            MarkerPhase::Active(_) => None,
            MarkerPhase::Stopped(_, reason) => Some((reason.trouble(), reason.message())),
            MarkerPhase::Invalid(trouble, errors) => Some((trouble, errors.as_str())),
            MarkerPhase::Deleting => return None,
        };
        let inputs = StatusInputs {
            generation: marker.generation,
            acknowledged: reflection.is_acknowledged,
            refused,
            status: &marker.status,
            holders: &marker.holders,
            summaries: self.keeps_summaries,
        };
        status::diff_status(&marker.tally, &inputs, now)
    }
}

/// The purpose of a write of a status: what we write of it, without its times. The conditions of other writers are left
/// out: they may change each time that ours is undone.
fn purpose_of_status(status: &PodProbeMarkerStatus) -> Purpose {
    let probes = status.probes.iter().map(|probe| {
        let counts = [
            probe.succeeded,
            probe.failed,
            probe.unknown,
            probe.pending,
            probe.silent,
        ];
        let holders = probe.holders.iter();
        let holders = holders.map(|one| (&one.group, &one.pod, &one.version));
        (&probe.name, counts, holders.collect::<Vec<_>>())
    });
    let conditions = status
        .conditions
        .iter()
        .filter(|one| one.type_ == READY)
        .map(|one| (&one.type_, &one.status, &one.reason, &one.message));
    Purpose::of((
        status.observed_generation,
        status.matched_pods,
        probes.collect::<Vec<_>>(),
        conditions.collect::<Vec<_>>(),
    ))
}
