//! The events of a pod about containers that were reset: what is under way, and what is to be told.

use std::collections::{BTreeMap, BTreeSet};

use super::context::PodName;
use crate::cluster::ObjectName;
use crate::sidecarset::event::EventNote;

/// At most one of either kind for a pod.
#[derive(Debug, Default)]
pub(super) struct Resets {
    /// The pods whose reset has not been answered.
    unanswered: BTreeSet<PodName>,
    pub(super) due: BTreeMap<ObjectName, EventNote>,
}

impl Resets {
    /// Records that a patch of a pod is sent.
    pub(super) fn record_sent(&mut self, pod: &PodName, is_reset: bool) {
        if is_reset {
            self.unanswered.insert(pod.clone());
        } else {
            // The next answer is that of this patch, which resets nothing.
            self.unanswered.remove(pod);
        }
    }

    /// Records the end of a patch of a pod, with the reason if it was refused. Returns whether there is something to tell.
    pub(super) fn record_answer(
        &mut self,
        pod: &PodName,
        uid: &str,
        refused: Option<&str>,
    ) -> bool {
        if !self.unanswered.remove(pod) {
            return false;
        }
        let (reason, note) = match refused {
            None => (
                "ResetContainerSucceed",
                "reset sidecar container image empty successfully".to_owned(),
            ),
            Some(refused) => (
                "ResetContainerFailed",
                format!(
                    "reset sidecar container image empty failed, trying again in minutes: {refused}"
                ),
            ),
        };
        let note = EventNote {
            regarding: (**pod).clone(),
            uid: uid.to_owned(),
            is_warning: refused.is_some(),
            reason,
            note,
        };
        self.due.insert((**pod).clone(), note);
        true
    }

    /// Forgets a pod.
    pub(super) fn forget_pod(&mut self, pod: &ObjectName) {
        self.unanswered.remove(pod);
        self.due.remove(pod);
    }
}
