//! Readiness as named checks, each of which passes, or fails for a reason.
//!
//! A process is ready while all of them pass, as an API server is (`/readyz?verbose`,
//! `k8s.io/apiserver/pkg/server/healthz`). Without a check nothing has started yet, and the process is not ready.
//!
//! By readiness a Service chooses where calls go. So for a process that others call, a check of what it does by itself counts
//! only until it has passed or failed for the first time: trouble there must not take away those who answer.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// All checks of a process.
#[derive(Clone, Debug, Default)]
pub struct Readiness(Arc<Mutex<Checks>>);

#[derive(Debug, Default)]
struct Checks {
    by_name: BTreeMap<Cow<'static, str>, Check>,
    is_called: bool,
}

#[derive(Debug)]
struct Check {
    scope: Scope,
    state: CheckState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scope {
    /// The answers to calls depend on it.
    Calls,
    /// The work that the process does by itself depends on it.
    OwnWork,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum CheckState {
    /// The check has neither passed nor failed yet.
    Pending {
        reason: String,
    },
    Passes,
    Fails {
        reason: String,
    },
}

/// The handle that sets a check, which keeps its last state when the handle is dropped.
#[derive(Debug)]
pub struct ReadinessCheck {
    name: Cow<'static, str>,
    readiness: Readiness,
}

impl Readiness {
    /// Adds a check that fails for this reason until it passes. One of the same name is replaced.
    pub fn add_check(
        &self,
        name: impl Into<Cow<'static, str>>,
        reason: impl Into<String>,
    ) -> ReadinessCheck {
        self.insert_check(name.into(), reason.into(), Scope::Calls)
    }

    /// Adds a check of what the process does by itself: no answer to a call depends on it.
    pub fn add_own_check(
        &self,
        name: impl Into<Cow<'static, str>>,
        reason: impl Into<String>,
    ) -> ReadinessCheck {
        self.insert_check(name.into(), reason.into(), Scope::OwnWork)
    }

    /// Records that others call this process, so that it is ready while it can answer them.
    pub fn expect_calls(&self) {
        self.lock_checks().is_called = true;
    }

    fn insert_check(
        &self,
        name: Cow<'static, str>,
        reason: String,
        scope: Scope,
    ) -> ReadinessCheck {
        let state = CheckState::Pending { reason };
        let check = Check { scope, state };
        self.lock_checks().by_name.insert(name.clone(), check);
        ReadinessCheck {
            name,
            readiness: self.clone(),
        }
    }

    /// Whether there are checks, and all of them pass, as far as they count.
    pub fn is_ready(&self) -> bool {
        let checks = self.lock_checks();
        let is_called = checks.is_called;
        let mut states = checks.by_name.values();
        !checks.by_name.is_empty() && states.all(|check| check.permits_calls(is_called))
    }

    /// The body of `/readyz`: a line for each check, with the reason if it fails; `[!]` if the process is ready all the same.
    pub fn to_text(&self) -> String {
        let checks = self.lock_checks();
        if checks.by_name.is_empty() {
            return "nothing has started yet\n".to_owned();
        }
        let mut text = String::new();
        for (name, check) in &checks.by_name {
            let written = match &check.state {
                CheckState::Passes => writeln!(text, "[+] {name}"),
                CheckState::Pending { reason } | CheckState::Fails { reason } => {
                    let permits_calls = check.permits_calls(checks.is_called);
                    let sign = if permits_calls { '!' } else { '-' };
                    writeln!(text, "[{sign}] {name}: {reason}")
                }
            };
            written.expect("writing to a String cannot fail");
        }
        text
    }

    /// Sets a check. Returns whether that changed anything.
    fn set_check(&self, name: &str, state: &CheckState) -> bool {
        let mut checks = self.lock_checks();
        let registered = checks
            .by_name
            .get_mut(name)
            .filter(|known| known.state != *state);
        registered
            .map(|known| known.state = state.clone())
            .is_some()
    }

    fn lock_checks(&self) -> MutexGuard<'_, Checks> {
        // Each change is one insertion, so a panic leaves no half-made state.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Check {
    /// Whether the process is ready as far as this check is concerned.
    fn permits_calls(&self, is_called: bool) -> bool {
        match self.state {
            CheckState::Passes => true,
            CheckState::Pending { .. } => false,
            CheckState::Fails { .. } => is_called && self.scope == Scope::OwnWork,
        }
    }
}

impl ReadinessCheck {
    /// Records that the check passes.
    pub fn set_ready(&self) {
        if self.readiness.set_check(&self.name, &CheckState::Passes) {
            tracing::info!(check = &*self.name, "ready");
        }
    }

    /// Records that the check fails for this reason. Logged when the reason is another one than before.
    pub fn set_not_ready(&self, reason: impl Into<String>) {
        let reason = reason.into();
        let state = CheckState::Fails {
            reason: reason.clone(),
        };
        if self.readiness.set_check(&self.name, &state) {
            tracing::warn!(check = &*self.name, reason, "not ready");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_ready_while_every_check_passes() {
        let readiness = Readiness::default();
        assert!(!readiness.is_ready(), "nothing has started");
        let pods = readiness.add_check("pods", "not listed yet");
        let nodes = readiness.add_check("nodes", "not listed yet");
        pods.set_ready();
        assert!(!readiness.is_ready());
        assert_eq!(readiness.to_text(), "[-] nodes: not listed yet\n[+] pods\n");
        nodes.set_ready();
        assert!(readiness.is_ready());
        pods.set_not_ready("the watch failed");
        assert!(!readiness.is_ready());
        assert_eq!(
            readiness.to_text(),
            "[+] nodes\n[-] pods: the watch failed\n"
        );
    }

    // SDF-63
    #[test]
    fn a_process_that_others_call_is_ready_while_it_can_answer_them() {
        let readiness = Readiness::default();
        let sets = readiness.add_check("sets", "not listed yet");
        let nodes = readiness.add_own_check("nodes", "not listed yet");
        sets.set_ready();
        readiness.expect_calls();
        assert!(!readiness.is_ready(), "it may be about to lead");
        nodes.set_not_ready("forbidden");
        assert!(readiness.is_ready());
        assert_eq!(readiness.to_text(), "[!] nodes: forbidden\n[+] sets\n");
        sets.set_not_ready("the watch failed");
        assert!(!readiness.is_ready());
    }

    #[test]
    fn a_process_that_nobody_calls_is_ready_while_it_can_do_its_own_work() {
        let readiness = Readiness::default();
        let nodes = readiness.add_own_check("nodes", "not listed yet");
        nodes.set_not_ready("forbidden");
        assert!(!readiness.is_ready());
        assert_eq!(readiness.to_text(), "[-] nodes: forbidden\n");
        nodes.set_ready();
        assert!(readiness.is_ready());
    }

    #[test]
    fn a_dropped_check_keeps_its_last_state() {
        let readiness = Readiness::default();
        drop(readiness.add_check("pods", "not listed yet"));
        assert_eq!(readiness.to_text(), "[-] pods: not listed yet\n");
    }
}
