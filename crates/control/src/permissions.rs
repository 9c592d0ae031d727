//! Requests that the process lacks the permission for.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use leadsman_process::ReadinessCheck;
use leadsman_process::reply::{Cause, Disposition, describe_missing_rights};

use crate::request::RequestKind;

/// What the API server says about each kind of request that it forbids. One for all features: they share an account.
#[derive(Clone)]
pub(crate) struct Permissions(Arc<Mutex<Forbidden>>);

struct Forbidden {
    reasons: BTreeMap<RequestKind, String>,
    check: ReadinessCheck,
}

impl Permissions {
    /// No request has been forbidden yet.
    pub(crate) fn new(check: ReadinessCheck) -> Self {
        check.ready();
        let reasons = BTreeMap::new();
        Self(Arc::new(Mutex::new(Forbidden { reasons, check })))
    }

    /// Records what a reply says about permissions.
    pub(crate) fn note(&self, kind: RequestKind, disposition: &Disposition) {
        // Each change is one insertion or removal, so a panic leaves no half-made state.
        let mut forbidden = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_changed = match disposition {
            Disposition::Retry {
                cause: Cause::NoRight,
                reason,
                ..
            } => forbidden.reasons.insert(kind, reason.clone()).is_none(),
            Disposition::Done => forbidden.reasons.remove(&kind).is_some(),
            _ => false,
        };
        // Only the first reason is kept: those of other objects differ in the name of the object.
        if is_changed {
            forbidden.update_check();
        }
    }
}

impl Forbidden {
    fn update_check(&self) {
        if self.reasons.is_empty() {
            self.check.ready();
            return;
        }
        let reasons = self.reasons.values().map(String::as_str);
        self.check.not_ready(describe_missing_rights(reasons));
    }
}
