//! Requests that the process lacks the permission for.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use leadsman_process::ReadinessCheck;
use leadsman_process::reply::{Disposition, RetryCause, describe_missing_rights};
use leadsman_reconcile::WriteKind;

/// The API server's reasons for each kind of write that it forbids. One check for all features:
/// they share an account.
#[derive(Clone)]
pub(crate) struct Permissions(Arc<Mutex<Forbidden>>);

struct Forbidden {
    /// The reasons, by the name of the feature and the label of the write.
    reasons: BTreeMap<(&'static str, &'static str), String>,
    check: ReadinessCheck,
}

impl Permissions {
    /// No request has been forbidden yet.
    pub(crate) fn new(check: ReadinessCheck) -> Self {
        check.set_ready();
        let reasons = BTreeMap::new();
        Self(Arc::new(Mutex::new(Forbidden { reasons, check })))
    }

    /// Records what a reply to a feature says about permissions.
    pub(crate) fn note_reply(
        &self,
        feature: &'static str,
        kind: &WriteKind,
        disposition: &Disposition,
    ) {
        let mut forbidden = self.lock_forbidden();
        let is_changed = match disposition {
            Disposition::Retry {
                cause: RetryCause::NoRight,
                reason,
                ..
            } => forbidden
                .reasons
                .insert((feature, kind.label), reason.clone())
                .is_none(),
            Disposition::Done => forbidden.reasons.remove(&(feature, kind.label)).is_some(),
            // Any other failure says nothing about the right.
            _ => false,
        };
        // The first reason alone is kept: those of other objects differ in the name of the object.
        if is_changed {
            forbidden.update_check();
        }
    }

    /// Records that a feature has nothing left to write. What it was forbidden has become needless, and no reply would
    /// ever tell whether it still is.
    pub(crate) fn note_idle(&self, feature: &'static str) {
        let mut forbidden = self.lock_forbidden();
        let before = forbidden.reasons.len();
        forbidden.reasons.retain(|(of, _), _| *of != feature);
        if forbidden.reasons.len() < before {
            forbidden.update_check();
        }
    }

    /// No panic leaves it half changed: the check follows the reasons.
    fn lock_forbidden(&self) -> MutexGuard<'_, Forbidden> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Forbidden {
    fn update_check(&self) {
        if self.reasons.is_empty() {
            self.check.set_ready();
            return;
        }
        let reasons: BTreeSet<_> = self.reasons.values().map(String::as_str).collect();
        self.check.set_not_ready(describe_missing_rights(reasons));
    }
}
