//! The events of a pod about containers that were reset: what is under way, and what is to be told.

use std::collections::{BTreeMap, BTreeSet};

use leadsman_api::limits;

use super::context::PodName;
use crate::cluster::{ObjectName, truncate};
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
            // The API server may say more about a refusal.
            note: truncate(&note, limits::EVENT_NOTE_BYTES).to_owned(),
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

#[cfg(test)]
mod tests {
    use super::*;

    const NOTE: usize = limits::EVENT_NOTE_BYTES;

    // SCS-67
    #[test]
    fn a_refusal_of_any_length_is_told_in_a_note_that_the_api_server_takes() {
        let name = ObjectName {
            namespace: "shop".to_owned(),
            name: "web".to_owned(),
        };
        let pod = PodName::from(name);
        let mut resets = Resets::default();
        resets.record_sent(&pod, true);
        assert!(resets.record_answer(&pod, "u", Some(&"é".repeat(NOTE))));
        let note = &resets.due[&*pod].note;
        assert!((NOTE - 1..=NOTE).contains(&note.len()), "{}", note.len());
    }
}
