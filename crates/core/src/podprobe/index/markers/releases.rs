//! Released pods: a marker sets a label that is in a workload's selector.
//!
//! The workload's controller releases a pod whose labels do not match any more (`ReleasePod`,
//! `pkg/controller/controller_ref_manager.go`) and creates another one in its place, which is marked too: pods without
//! end. The sign of it: pods with the marker's labels lose their controller, and one of them was created after another
//! had been released. The marker is stopped until its spec is edited. A restarted manager counts from the beginning.
//!
//! The marks of a stopped marker are removed, because the workload may adopt a pod without them again.
//!
//! A limit: somebody who takes three pods out of a workload by hand within ten minutes, one of them a replacement,
//! stops a marker whose labels these pods have.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::label_uses::label_keys_set_by;
use super::{MarkerChange, Markers, StopReason};
use crate::podprobe::index::context::{IndexContext, MarkerName, PodName};
use crate::podprobe::pod::IndexedPod;

/// Pods with a marker's labels that lost their controller.
#[derive(Debug, Default)]
pub(super) struct Releases {
    latest: VecDeque<Release>,
}

#[derive(Debug)]
struct Release {
    controller: Arc<str>,
    pod: PodName,
    /// The marker's labels that the pod had.
    keys: BTreeSet<Arc<str>>,
    /// The monotonic times when the pod was first seen, and when it lost its controller.
    pod_since: Duration,
    at: Duration,
}

impl Releases {
    /// The number of releases within [`Releases::WITHIN`] that is no coincidence.
    const ENOUGH: usize = 3;
    const WITHIN: Duration = Duration::from_mins(10);
    const KEPT: usize = 64;

    /// Counts one more release. Returns the message for the status if the releases have no end: there are enough of one
    /// controller, and one of the pods was created after another had been released. When somebody orphans the pods of a
    /// workload, none is created afterwards.
    fn count_release(&mut self, release: Release) -> Option<String> {
        let (now, controller) = (release.at, release.controller.clone());
        self.latest.push_back(release);
        // The bound holds however fast pods are released; older ones would not change the result, three are enough.
        while let Some(first) = self.latest.front()
            && (now.saturating_sub(first.at) > Self::WITHIN || self.latest.len() > Self::KEPT)
        {
            self.latest.pop_front();
        }
        let same = || {
            let latest = self.latest.iter();
            latest.filter(|release| release.controller == controller)
        };
        let first = same().map(|release| release.at).min()?;
        // The releases end by themselves unless a pod came after the first: the pods are used up.
        let is_replaced = same().any(|release| release.pod_since > first);
        if !is_replaced || same().count() < Self::ENOUGH {
            return None;
        }
        let released: Vec<_> = same().map(|release| release.pod.name.as_str()).collect();
        // The count was checked above: there are at least as many.
        let pods = &released[released.len() - Self::ENOUGH..];
        let distinct: BTreeSet<_> = same().flat_map(|release| &release.keys).collect();
        let keys: Vec<_> = distinct.iter().map(|key| &***key).collect();
        Some(format!(
            "stopped: label {} takes pods {} out of the selector of their workload, which replaces them without end; remove the label from this marker's policies",
            keys.join(" or "),
            pods.join(", "),
        ))
    }
}

const _: () = assert!(Releases::ENOUGH < Releases::KEPT);

impl Markers {
    /// Counts a pod that has lost its controller against the markers whose labels it has, and stops those whose pods
    /// are released without end. `since` is when the pod was first seen.
    pub(in crate::podprobe::index) fn count_release(
        &mut self,
        markers: &[MarkerName],
        (pod, since): (&IndexedPod, Duration),
        controller: &Arc<str>,
        cx: &mut IndexContext,
    ) -> Vec<MarkerChange> {
        let mut changes = Vec::new();
        for name in markers {
            let Some(state) = self.by_name.get_mut(name) else {
                continue;
            };
            let Some(marker) = state.phase.as_active() else {
                continue;
            };
            let mut keys = label_keys_set_by(marker);
            // A label that the marker did not set on this pod did not take it out of the selector.
            keys.retain(|key| pod.ours.labels.contains_key(key));
            if keys.is_empty() {
                continue;
            }
            let endless = state.releases.count_release(Release {
                controller: controller.clone(),
                pod: pod.name.clone(),
                keys,
                pod_since: since,
                at: cx.now.monotonic,
            });
            if let Some(message) = endless {
                changes.extend(self.set_stopped(name, Some(StopReason::Release(message)), cx));
            }
        }
        changes
    }
}
