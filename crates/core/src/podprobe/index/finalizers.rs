//! The finalizer of markers: when a marker that is being deleted is let go.
//!
//! `OpenKruise` sets a finalizer on every marker, and whoever deletes one may wait for it: once the marker is gone, its
//! entries and marks are. Here nothing depends on it, since what no marker claims is found without the marker. So it is
//! honoured where it is found, set only for clients that wait for it, and never holds a marker for long.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use super::markers::{MarkerState, Rules};
use super::{DueWrite, Index, MarkerName, Pass, Sent, Timer};
use crate::cluster::{Now, ObjectName};
use crate::podprobe::Compatibility;
use crate::podprobe::contest::fingerprint;
use crate::podprobe::event::Write;

/// The finalizer by which `OpenKruise`'s manager holds a marker (`pkg/controller/podprobemarker`,
/// `PodProbeMarkerFinalizer`).
pub const FINALIZER: &str = "kruise.io/node-pod-probe-cleanup";

/// A marker that is being deleted is held no longer than this, whatever is left of it: a pod whose write is refused or
/// fought over, or a node that is gone, must not keep a marker, and with it its namespace, for ever. Ten thousand pods
/// take less; what is left then goes without the marker.
const HELD: Duration = Duration::from_mins(1);

/// Markers that are being deleted, and what they wait for.
#[derive(Debug, Default)]
pub(super) struct Deletions {
    /// Markers that our finalizer holds.
    held: BTreeSet<MarkerName>,
    /// By namespace, the pods that have marks of ours which no marker claims.
    unclaimed: HashMap<String, BTreeSet<Arc<ObjectName>>>,
}

impl MarkerState {
    fn is_held(&self) -> bool {
        let ours = self.finalizers.iter().any(|one| one == FINALIZER);
        ours && matches!(self.rules, Rules::Ending)
    }
}

impl Index {
    /// Notes whether a pod has marks of ours that no marker claims.
    pub(super) fn note_unclaimed(
        &mut self,
        pod: &Arc<ObjectName>,
        is_unclaimed: bool,
        pass: &mut Pass,
    ) {
        let Deletions { held, unclaimed } = &mut self.deletions;
        if is_unclaimed {
            let pods = unclaimed.entry(pod.namespace.clone()).or_default();
            pods.insert(pod.clone());
            return;
        }
        let Some(pods) = unclaimed.get_mut(&pod.namespace) else {
            return;
        };
        pods.remove(pod);
        if pods.is_empty() {
            unclaimed.remove(&pod.namespace);
            let waiting = held.iter();
            let waiting = waiting.filter(|marker| marker.namespace == pod.namespace);
            pass.markers.extend(waiting.cloned());
        }
    }

    /// Counts anew how long each marker that is being deleted has been held: before every kind was listed, and while
    /// another manager wrote, nothing could be done about it.
    pub(super) fn limit_all_deletions(&mut self, now: Now) {
        let names: Vec<_> = self.markers.keys().cloned().collect();
        for name in names {
            self.unlimit_deletion(&name);
            self.limit_deletion(&name, now);
        }
    }

    /// Begins to count how long a marker has been held, if it is being deleted.
    pub(super) fn limit_deletion(&mut self, name: &MarkerName, now: Now) {
        let Some(marker) = self.markers.get_mut(name) else {
            return;
        };
        if self.synced && marker.is_held() && marker.held_until.is_none() {
            marker.held_until = Some(now.monotonic.saturating_add(HELD));
            let timer = marker.held_until;
            let timer = timer.map(|time| (time, Timer::Marker(name.clone())));
            self.timers.extend(timer);
            self.deletions.held.insert(name.clone());
        }
    }

    /// Takes back what [`Index::limit_deletion`] began.
    pub(super) fn unlimit_deletion(&mut self, name: &MarkerName) {
        self.deletions.held.remove(name);
        let marker = self.markers.get_mut(name);
        if let Some(time) = marker.and_then(|marker| marker.held_until.take()) {
            self.timers.remove(&(time, Timer::Marker(name.clone())));
        }
    }

    /// The finalizers that a marker should have, if it has others. Ours goes when the marker is being deleted and its
    /// entries and marks are gone, or its time is up; those of others stay.
    pub(super) fn finalizers_wanted(
        &self,
        name: &ObjectName,
        marker: &MarkerState,
        now: Now,
    ) -> Option<Vec<String>> {
        let mut finalizers = marker.finalizers.clone();
        if marker.is_held() {
            let overdue = marker.held_until.is_some_and(|time| time <= now.monotonic);
            let unclaimed = &self.deletions.unclaimed;
            let left =
                self.unacknowledged.contains_key(name) || unclaimed.contains_key(&name.namespace);
            if left && !overdue {
                return None;
            }
            finalizers.retain(|one| one != FINALIZER);
        } else {
            let wanted = self.config.compatibility == Compatibility::OpenKruise;
            let ending = matches!(marker.rules, Rules::Ending);
            if !wanted || ending || finalizers.iter().any(|one| one == FINALIZER) {
                return None;
            }
            finalizers.push(FINALIZER.to_owned());
        }
        Some(finalizers)
    }

    /// The write of a marker's finalizers that is due.
    pub(super) fn finalizers_due(&self, name: &ObjectName, now: Now) -> Option<DueWrite> {
        let marker = self.markers.get(name)?;
        if marker.finalizer_contest.holds(now.monotonic) {
            return None;
        }
        let finalizers = self.finalizers_wanted(name, marker, now)?;
        // A marker without any is gone when the watch says so.
        let sent = Sent::whole(fingerprint(&finalizers), !finalizers.is_empty());
        Some(DueWrite {
            write: Write::MarkerFinalizers {
                marker: name.clone(),
                uid: marker.uid.clone(),
                resource_version: marker.resource_version.clone(),
                finalizers,
            },
            sent,
        })
    }
}
