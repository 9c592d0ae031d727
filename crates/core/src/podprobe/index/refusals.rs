//! Writes that the API server refused for good. A refused write is not repeated until another write of its target is
//! due, its object has changed, or some minutes have passed.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use super::context::Timer;
use crate::cluster::{ObjectName, Timers};
use crate::podprobe::event::{Write, WriteTarget};
use crate::podprobe::pod::IndexedPod;

/// When a refused write is tried again: the cause may have been a webhook, a quota or the API server's store, and no
/// watch shows that it is over.
const KEPT: Duration = Duration::from_mins(5);

/// The refused writes by target.
#[derive(Debug, Default)]
pub(super) struct RefusedWrites {
    by_target: HashMap<WriteTarget, RefusedWrite>,
}

#[derive(Debug)]
struct RefusedWrite {
    write: Write,
    reason: Arc<str>,
    /// When it is tried again, on the monotonic clock.
    until: Duration,
}

impl RefusedWrites {
    /// Remembers a refusal if the write is still the one that is due. Returns whether it is.
    pub(super) fn remember_if_due(
        &mut self,
        target: &WriteTarget,
        (refused, due): (Write, Option<Write>),
        reason: &str,
        now: Duration,
        timers: &mut Timers<Timer>,
    ) -> bool {
        let write = without_times_and_versions(refused);
        // The object may have changed while the request was under way; what is due by now was not refused.
        if due.map(without_times_and_versions).as_ref() != Some(&write) {
            return false;
        }
        let until = now.saturating_add(KEPT);
        timers.set(until, Timer::Refusal(target.clone()));
        let refusal = RefusedWrite {
            write,
            reason: reason.into(),
            until,
        };
        self.by_target.insert(target.clone(), refusal);
        true
    }

    /// Whether this very write was refused.
    pub(super) fn is_refused(&self, target: &WriteTarget, write: &Write) -> bool {
        let refusal = self.by_target.get(target);
        refusal.is_some_and(|refusal| refusal.write == without_times_and_versions(write.clone()))
    }

    /// Why a write of this target was refused.
    fn refusal_reason(&self, target: &WriteTarget) -> Option<&Arc<str>> {
        self.by_target.get(target).map(|refusal| &refusal.reason)
    }

    /// Why the marks of a pod were refused.
    pub(super) fn reason_of_marks(&self, pod: &ObjectName) -> Option<&Arc<str>> {
        // As a rule nothing is refused, and each plan of a pod would allocate a key to ask for it.
        if self.by_target.is_empty() {
            return None;
        }
        self.refusal_reason(&WriteTarget::PodMarks(pod.clone()))
    }

    /// Why the object of a pod's node was refused.
    pub(super) fn reason_of_object(&self, pod: &IndexedPod) -> Option<&Arc<str>> {
        if self.by_target.is_empty() {
            return None;
        }
        self.refusal_reason(&WriteTarget::NodePodProbe(pod.node.as_ref()?.to_string()))
    }

    /// Forgets the refusal of a target. Returns whether there was one.
    pub(super) fn forget_refusal(&mut self, target: &WriteTarget) -> bool {
        self.by_target.remove(target).is_some()
    }

    /// Forgets the refusal of a target when its time has come. Returns whether it did.
    pub(super) fn expire_refusal(&mut self, target: &WriteTarget, now: Duration) -> bool {
        let refusal = self.by_target.get(target);
        refusal.is_some_and(|refusal| refusal.until <= now) && self.forget_refusal(target)
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.by_target.is_empty()
    }
}

/// A write without its times and versions. Two writes that are equal without these are refused for the same reason.
fn without_times_and_versions(mut write: Write) -> Write {
    match &mut write {
        Write::PodMarks(marks) => {
            let bodies = marks.remove.iter_mut().chain(&mut marks.apply);
            for metadata in bodies.filter_map(|body| body.get_mut("metadata")?.as_object_mut()) {
                metadata.remove("resourceVersion");
            }
            let conditions = marks
                .apply
                .as_mut()
                .and_then(|body| body.pointer_mut("/status/conditions"))
                .and_then(|conditions| conditions.as_array_mut());
            for condition in conditions.into_iter().flatten() {
                if let Some(condition) = condition.as_object_mut() {
                    // No webhook and no schema refuses a mark for its time.
                    condition.remove("lastTransitionTime");
                    condition.remove("lastProbeTime");
                }
            }
        }
        Write::MarkerStatus { status, .. } => {
            for condition in &mut status.conditions {
                condition.last_transition_time.0 = Timestamp::UNIX_EPOCH;
            }
        }
        // It moves with each verdict that the agent reports.
        Write::ReplaceNodePodProbe(object) => object.metadata.resource_version = None,
        _ => {}
    }
    write
}
