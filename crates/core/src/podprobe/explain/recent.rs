//! What an agent tells of the recent runs of a pod's probes, beside what the objects say.

use super::explanation::{Explanation, MarkerFit, ProbeExplanation};
use super::reason::CauseReason;
use crate::podprobe::history::ProbeHistory;

impl Explanation {
    /// Adds the recent runs of this pod's probes; those of others are passed over.
    pub fn add_recent_runs(&mut self, history: &[ProbeHistory]) {
        for recent in history {
            // Of a pod that was recreated, the runs of the one before are kept for a while.
            if *recent.namespace != self.namespace
                || *recent.pod != self.name
                || *recent.uid != self.uid
            {
                continue;
            }
            if let Some(probe) = self.probe_mut(&recent.marker, &recent.probe) {
                probe.in_a_row = recent.in_a_row;
                probe.runs.clone_from(&recent.runs);
            }
            self.count_towards_threshold(recent);
        }
    }

    fn probe_mut(&mut self, marker: &str, probe: &str) -> Option<&mut ProbeExplanation> {
        let mut markers = self.markers.iter_mut();
        let marker = markers.find(|one| one.name == marker)?;
        match &mut marker.fit {
            MarkerFit::Matches { probes } => probes.iter_mut().find(|one| one.name == probe),
            _ => None,
        }
    }

    /// A verdict that is not there yet: how far it is.
    fn count_towards_threshold(&mut self, recent: &ProbeHistory) {
        let Some(in_a_row) = recent.in_a_row else {
            return;
        };
        let waits =
            |reason| [CauseReason::ThresholdNotReached, CauseReason::NoVerdict].contains(&reason);
        let causes = self.causes.iter_mut().filter(|cause| {
            waits(cause.reason)
                && cause.marker.as_deref() == Some(&*recent.marker)
                && cause.probe.as_deref() == Some(&*recent.probe)
        });
        for cause in causes {
            cause.message = format!("{}; so far {in_a_row}", cause.message);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::explanation::Cause;
    use super::super::{MarkerExplanation, PodGroup, group_by_causes};
    use super::*;

    fn explanation() -> Explanation {
        let probe = ProbeExplanation {
            name: "idle".to_owned(),
            container: "main".to_owned(),
            does: "exec idle".to_owned(),
            verdict: None,
            in_a_row: None,
            runs: Vec::new(),
            next: String::new(),
        };
        let cause = Cause {
            marker: Some("m".to_owned()),
            probe: Some("idle".to_owned()),
            ..Cause::new_resolving(CauseReason::ThresholdNotReached, "no verdict yet")
        };
        Explanation {
            namespace: "ns".to_owned(),
            name: "p".to_owned(),
            uid: "u".to_owned(),
            complete: true,
            node: None,
            phase: None,
            causes: vec![cause],
            markers: vec![MarkerExplanation {
                name: "m".to_owned(),
                fit: MarkerFit::Matches {
                    probes: vec![probe],
                },
                reported: None,
            }],
            marks: Vec::new(),
            unread: Vec::new(),
        }
    }

    fn history(pod: &str, probe: &str) -> ProbeHistory {
        let history = json!({"namespace": "ns", "pod": pod, "uid": "u", "container": "main", "marker": "m", "probe": probe,
            "inARow": {"result": "Failed", "count": 2, "threshold": 3},
            "runs": [{"time": "2026-01-02T03:04:05.000000Z", "durationSeconds": 0.5, "result": "Failed"}]});
        serde_json::from_value(history).unwrap()
    }

    // PRB-12, PRB-26
    #[test]
    fn recent_runs_are_told_beside_their_probe_and_counted_towards_its_threshold() {
        let mut explained = explanation();
        let untouched = explained.clone();
        let of_predecessor = ProbeHistory {
            uid: "before".into(),
            ..history("p", "idle")
        };
        let others = [
            history("other", "idle"),
            history("p", "another"),
            of_predecessor,
        ];
        explained.add_recent_runs(&others);
        assert_eq!(explained, untouched);
        explained.add_recent_runs(&[history("p", "idle")]);
        let MarkerFit::Matches { probes } = &explained.markers[0].fit else {
            panic!("{explained:?}");
        };
        assert_eq!(probes[0].runs.len(), 1);
        let expected = "no verdict yet; so far 2 of 3 failures in a row";
        assert_eq!(explained.causes[0].message, expected);
        let groups: Vec<PodGroup> = group_by_causes(&[explained]);
        assert_eq!(groups.len(), 1);
    }
}
