//! The finalizer of markers, and how long it holds one that is being deleted.
//!
//! `OpenKruise` sets a finalizer on every marker, and a client may wait for it: a marker that does not exist any more
//! has no entries and no marks. Nothing here depends on it, since entries and marks that no marker claims are found
//! without the marker. The finalizer is removed wherever it is found, is set only with `Compatibility::OpenKruise`, and
//! never holds a marker for long.

use std::time::Duration;

use super::{MarkerPhase, MarkerReflection, MarkerState, Markers};
use crate::podprobe::Compatibility;
use crate::podprobe::index::context::{IndexContext, MarkerName};

/// The finalizer by which `OpenKruise`'s manager holds a marker (`pkg/controller/podprobemarker`,
/// `PodProbeMarkerFinalizer`).
pub const FINALIZER: &str = "kruise.io/node-pod-probe-cleanup";

/// How long our finalizer holds a marker that is being deleted, at most. A pod whose write is refused or contested, or
/// a node that was deleted, must not block the deletion of the marker, and with it that of its namespace. The cleanup
/// of ten thousand pods takes less; whatever is left then is removed without the marker.
const MOST_HELD: Duration = Duration::from_mins(1);

impl MarkerState {
    fn is_held(&self) -> bool {
        let ours = self.finalizers.iter().any(|one| one == FINALIZER);
        ours && matches!(self.phase, MarkerPhase::Deleting)
    }
}

impl Markers {
    /// Marks the held markers of a namespace as affected: the marks that they wait for may be gone.
    pub(in crate::podprobe::index) fn mark_held_as_affected(
        &self,
        namespace: &str,
        cx: &mut IndexContext,
    ) {
        let held = self
            .held
            .iter()
            .filter(|marker| marker.namespace == namespace);
        cx.affected.markers.extend(held.cloned());
    }

    /// Restarts the time limit of every marker that is being deleted: before every kind was listed, and while another
    /// manager led, nothing could be cleaned up.
    pub(in crate::podprobe::index) fn restart_deletion_limits(&mut self, cx: &mut IndexContext) {
        let names: Vec<_> = self.by_name.keys().cloned().collect();
        for name in names {
            self.cancel_deletion_limit(&name);
            self.start_deletion_limit(&name, cx);
        }
    }

    /// Starts the time limit of a marker that is held.
    pub(super) fn start_deletion_limit(&mut self, name: &MarkerName, cx: &mut IndexContext) {
        let Some(marker) = self.by_name.get_mut(name) else {
            return;
        };
        // The time counts once: each event of a marker that is being deleted would otherwise prolong it.
        if cx.synced && marker.is_held() && marker.held_until.is_none() {
            let until = cx.now.monotonic.saturating_add(MOST_HELD);
            marker.held_until = Some(until);
            self.held.insert(name.clone());
        }
    }

    /// Cancels the time limit of a marker.
    pub(super) fn cancel_deletion_limit(&mut self, name: &MarkerName) {
        self.held.remove(name);
        if let Some(marker) = self.by_name.get_mut(name) {
            marker.held_until = None;
        }
    }

    /// The finalizers that a marker should have, if it has others. Ours goes when the marker is being deleted and its
    /// entries and marks are gone, or its time is up; those of others stay.
    pub(super) fn wanted_finalizers(
        &self,
        marker: &MarkerState,
        reflection: MarkerReflection,
        now: Duration,
    ) -> Option<Vec<String>> {
        // The finalizers of others are included, since a merge patch replaces a list as a whole (RFC 7396).
        let mut finalizers = marker.finalizers.clone();
        if marker.is_held() {
            let is_overdue = marker.held_until.is_some_and(|time| time <= now);
            let is_gone = reflection.is_acknowledged && !reflection.leaves_marks;
            if !is_gone && !is_overdue {
                return None;
            }
            finalizers.retain(|one| one != FINALIZER);
        } else {
            let is_wanted = self.compatibility == Compatibility::OpenKruise;
            let is_deleting = matches!(marker.phase, MarkerPhase::Deleting);
            // The API server refuses new finalizers of an object that is being deleted
            // (`ValidateNoNewFinalizers`,
            // `staging/src/k8s.io/apimachinery/pkg/api/validation/objectmeta.go`).
            if !is_wanted || is_deleting || finalizers.iter().any(|one| one == FINALIZER) {
                return None;
            }
            finalizers.push(FINALIZER.to_owned());
        }
        Some(finalizers)
    }
}
