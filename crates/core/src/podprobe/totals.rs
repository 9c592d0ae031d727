//! The statuses of all markers, added up, as metrics show them.

use leadsman_api::PodProbeMarkerStatus;

use super::status::{PROBING, READY};

/// The reasons of condition `Ready` by which markers are counted. The last one stands for all others, and for no condition.
pub const REASONS: [&str; 18] = [
    PROBING,
    "InvalidSpec",
    "Cycle",
    "Conflict",
    "InvalidValue",
    "ContainerNotFound",
    "PortNotFound",
    "NoConditionType",
    "TooManyProbes",
    "Refused",
    "NoNode",
    "VirtualNode",
    "NoAgent",
    "AgentSilent",
    "CannotProbe",
    "NoAddress",
    "Contested",
    "None",
];

/// Sums over the statuses of all markers, as the API server has them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StatusTotals {
    /// Markers by the reason of their condition `Ready`, in the order of [`REASONS`].
    pub markers: [i64; REASONS.len()],
    /// Matching pods.
    pub matched_pods: i64,
    /// Probes of matching pods whose verdict is Succeeded.
    pub succeeded: i64,
    /// Probes of matching pods whose verdict is Failed.
    pub failed: i64,
    /// Probes of matching pods whose verdict is Unknown.
    pub unknown: i64,
    /// Probes of matching pods without a verdict.
    pub pending: i64,
    /// Probes of matching pods whose agent does not report. They count by their last verdict too.
    pub silent: i64,
}

impl StatusTotals {
    pub(super) fn add_status(&mut self, status: &PodProbeMarkerStatus) {
        self.count_status(status, 1);
    }

    /// Removes a status that was added before.
    pub(super) fn remove_status(&mut self, status: &PodProbeMarkerStatus) {
        self.count_status(status, -1);
    }

    fn count_status(&mut self, status: &PodProbeMarkerStatus, by: i64) {
        let mut conditions = status.conditions.iter();
        let ready = conditions.find(|condition| condition.type_ == READY);
        let place = ready.and_then(|ready| REASONS.iter().position(|one| *one == ready.reason));
        let markers = &mut self.markers[place.unwrap_or(REASONS.len() - 1)];
        *markers += by;
        debug_assert!(*markers >= 0, "a status was removed that was not added");
        // Numbers that another client has written may be of any size.
        let add = |sum: &mut i64, count: i64| *sum = sum.wrapping_add(count.wrapping_mul(by));
        add(
            &mut self.matched_pods,
            status.matched_pods.unwrap_or_default(),
        );
        for probe in &status.probes {
            add(&mut self.succeeded, probe.succeeded);
            add(&mut self.failed, probe.failed);
            add(&mut self.unknown, probe.unknown);
            add(&mut self.pending, probe.pending);
            add(&mut self.silent, probe.silent);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::podprobe::status::Trouble;

    fn status(reason: &str, succeeded: i64, silent: i64) -> PodProbeMarkerStatus {
        serde_json::from_value(json!({
            "matchedPods": 3,
            "probes": [{"name": "p", "succeeded": succeeded, "pending": 3 - succeeded, "silent": silent}],
            "conditions": [{"type": "Ready", "status": "True", "reason": reason, "message": "",
                "lastTransitionTime": "2026-01-02T03:04:05Z"}],
        }))
        .unwrap()
    }

    #[test]
    fn what_is_removed_again_leaves_the_others() {
        let mut totals = StatusTotals::default();
        let (good, bad) = (status("Probing", 3, 0), status("AgentSilent", 2, 3));
        totals.add_status(&good);
        totals.add_status(&bad);
        totals.add_status(&PodProbeMarkerStatus::default());
        assert_eq!((totals.matched_pods, totals.succeeded), (6, 5));
        assert_eq!((totals.pending, totals.silent), (1, 3));
        let of = |reason: &str, totals: &StatusTotals| {
            totals.markers[REASONS.iter().position(|one| *one == reason).unwrap()]
        };
        assert_eq!((of("Probing", &totals), of("None", &totals)), (1, 1));
        assert_eq!(
            (of("AgentSilent", &totals), of("Conflict", &totals)),
            (1, 0)
        );
        totals.remove_status(&bad);
        totals.remove_status(&PodProbeMarkerStatus::default());
        let mut expected = StatusTotals::default();
        expected.add_status(&good);
        assert_eq!(totals, expected);
    }

    #[test]
    fn every_reason_of_a_marker_is_counted_by_its_name() {
        let name: Arc<str> = "n".into();
        let (probe, container, port) = (name.clone(), name.clone(), name);
        let named = Trouble::PortNotFound {
            probe: probe.clone(),
            container: container.clone(),
            port,
        };
        let troubles = [
            Trouble::InvalidSpec,
            Trouble::Cycle,
            Trouble::Conflict,
            Trouble::InvalidValue {
                probe: probe.clone(),
            },
            Trouble::ContainerNotFound {
                probe: probe.clone(),
                container,
            },
            named,
            Trouble::NoConditionType { probe },
            Trouble::TooManyProbes,
            Trouble::Refused,
            Trouble::NoNode,
            Trouble::VirtualNode,
            Trouble::NoAgent,
            Trouble::AgentSilent,
            Trouble::CannotProbe,
            Trouble::NoAddress,
            Trouble::Contested,
        ];
        let reasons: Vec<_> = troubles.iter().map(Trouble::as_reason).collect();
        assert_eq!(reasons, REASONS[1..17]);
    }
}
