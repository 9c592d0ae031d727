//! Writes that the API server refused, or that another client undid. Such a write is not repeated until another write of
//! its target is due, or some minutes have passed.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use crate::cluster::Timers;
use crate::sidecarset::event::WriteTarget;

/// When a refused write is tried again: the cause may have been a webhook, a quota or a policy, and no watch shows that it
/// is over.
pub(super) const KEPT: Duration = Duration::from_mins(5);
/// Refusals that are kept of a target: more than a pod has sets. Others are of what was wanted before an edit, and whoever
/// may edit a pod could make any number of them.
const MOST: usize = 64;

/// What a write is to achieve, without its times and versions. Two writes of a target with the same purpose are refused
/// for the same reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Purpose(u64);

impl Purpose {
    pub(super) fn of_fingerprint(what: impl Hash) -> Self {
        let mut hasher = DefaultHasher::new();
        what.hash(&mut hasher);
        Self(hasher.finish())
    }
}

#[derive(Debug, Default)]
pub(super) struct Refusals {
    /// By target, one for each purpose: several sets may write one pod.
    refused: HashMap<WriteTarget, Vec<Refusal>>,
    /// The purposes of the writes that have not been answered; at most one for each target.
    unanswered: HashMap<WriteTarget, Purpose>,
}

#[derive(Debug)]
struct Refusal {
    purpose: Purpose,
    reason: Arc<str>,
    until: Duration,
}

impl Refusals {
    /// Records that a write is sent.
    pub(super) fn record_sent(&mut self, target: &WriteTarget, purpose: Purpose) {
        self.unanswered.insert(target.clone(), purpose);
    }

    /// Records that no write of a target is under way. Returns the purpose of the last one.
    pub(super) fn take_sent_purpose(&mut self, target: &WriteTarget) -> Option<Purpose> {
        self.unanswered.remove(target)
    }

    /// Remembers that writes of this purpose are refused.
    pub(super) fn remember_refusal(
        &mut self,
        target: &WriteTarget,
        (purpose, reason): (Purpose, &str),
        now: Duration,
        timers: &mut Timers<WriteTarget>,
    ) {
        let until = now.saturating_add(KEPT);
        timers.set(until, target.clone());
        let refusal = Refusal {
            purpose,
            reason: reason.into(),
            until,
        };
        let refused = self.refused.entry(target.clone()).or_default();
        refused.retain(|known| known.purpose != purpose && known.until > now);
        refused.push(refusal);
        // The oldest goes: it is most likely of what was wanted before an edit.
        if refused.len() > MOST {
            refused.remove(0);
        }
    }

    /// Why writes of this purpose are refused, if they are.
    pub(super) fn refusal_reason(
        &self,
        target: &WriteTarget,
        purpose: Purpose,
    ) -> Option<&Arc<str>> {
        if self.refused.is_empty() {
            return None;
        }
        let mut refused = self.refused.get(target)?.iter();
        let refusal = refused.find(|refusal| refusal.purpose == purpose);
        refusal.map(|refusal| &refusal.reason)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.refused.is_empty()
    }

    /// Forgets the refusal of a target.
    pub(super) fn forget_refusal(&mut self, target: &WriteTarget) {
        self.unanswered.remove(target);
        self.refused.remove(target);
    }

    /// Forgets the refusal of a target when its time has come.
    pub(super) fn expire_refusal(&mut self, target: &WriteTarget, now: Duration) {
        if let Some(refused) = self.refused.get_mut(target) {
            refused.retain(|refusal| refusal.until > now);
            if refused.is_empty() {
                self.refused.remove(target);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_refusals_of_a_target_are_kept_than_there_is_room_for() {
        let target = WriteTarget::SetStatus("log".into());
        let (mut refusals, mut timers) = (Refusals::default(), Timers::default());
        for what in 0..=MOST {
            let refused = (Purpose::of_fingerprint(what), "no");
            refusals.remember_refusal(&target, refused, Duration::ZERO, &mut timers);
        }
        let is_kept = |what: usize| {
            refusals
                .refusal_reason(&target, Purpose::of_fingerprint(what))
                .is_some()
        };
        assert!(!is_kept(0));
        assert!((1..=MOST).all(is_kept));
    }
}
