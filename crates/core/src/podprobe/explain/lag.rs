//! Whether the agents report, and whether what they report is on the pods.

use jiff::{SignedDuration, Timestamp};

use super::ObservedCluster;
use crate::cluster::ObjectName;
use crate::podprobe::index::{InspectedFit, InspectedPod};
use crate::podprobe::marks::ProbePosition;

impl ObservedCluster {
    /// The nodes whose agents do not report, although probes of theirs are wanted.
    pub fn silent_nodes(&self) -> Vec<String> {
        let silent = self.index.unreachable_agents().into_keys();
        silent.map(|name| name.to_string()).collect()
    }

    /// The pods that lack a mark whose verdict is older than this: a manager writes it within seconds.
    pub fn late_pods(&self, patience: SignedDuration) -> Vec<&ObjectName> {
        let is_late = |name: &&ObjectName| {
            let inspected = self.index.inspect_pod(name, self.now);
            inspected.is_some_and(|pod| {
                let differing = pod.marks.iter().filter(|mark| mark.differs);
                // A mark that no probe sets any more has no verdict by which it could be late.
                let mut since = differing.filter_map(|mark| verdict_since(&pod, mark.setter?));
                since.any(|since| self.now.wall.duration_since(since) > patience)
            })
        };
        self.pods.keys().filter(is_late).collect()
    }
}

/// Since when a probe has its verdict.
fn verdict_since(pod: &InspectedPod<'_>, (marker, probe): ProbePosition) -> Option<Timestamp> {
    let InspectedFit::Matches(_, probes) = &pod.markers.get(marker)?.fit else {
        return None;
    };
    probes.get(probe)?.verdict.as_ref()?.since
}
