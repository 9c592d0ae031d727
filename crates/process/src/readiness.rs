//! Readiness as named checks, each of which passes, or fails for a reason.
//!
//! A process is ready while all of them pass, as an API server is (`/readyz?verbose`,
//! `k8s.io/apiserver/pkg/server/healthz`). Without a check nothing has started yet, and the process is not ready.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// All checks of a process.
#[derive(Clone, Debug, Default)]
pub struct Readiness(Arc<Mutex<BTreeMap<Cow<'static, str>, CheckState>>>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum CheckState {
    Passes,
    Fails { reason: String },
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
        let name = name.into();
        let reason = reason.into();
        self.lock_checks()
            .insert(name.clone(), CheckState::Fails { reason });
        ReadinessCheck {
            name,
            readiness: self.clone(),
        }
    }

    /// Whether there are checks, and all of them pass.
    pub fn is_ready(&self) -> bool {
        let checks = self.lock_checks();
        !checks.is_empty() && checks.values().all(|state| *state == CheckState::Passes)
    }

    /// The body of `/readyz`: a line for each check, with the reason if it fails.
    pub fn to_text(&self) -> String {
        let checks = self.lock_checks();
        if checks.is_empty() {
            return "nothing has started yet\n".to_owned();
        }
        let mut text = String::new();
        for (name, state) in &*checks {
            let written = match state {
                CheckState::Passes => writeln!(text, "[+] {name}"),
                CheckState::Fails { reason } => writeln!(text, "[-] {name}: {reason}"),
            };
            written.expect("writing to a String cannot fail");
        }
        text
    }

    /// Sets a check. Returns whether that changed anything.
    fn set_check(&self, name: &str, state: &CheckState) -> bool {
        let mut checks = self.lock_checks();
        let registered = checks.get_mut(name).filter(|known| *known != state);
        registered.map(|known| *known = state.clone()).is_some()
    }

    fn lock_checks(&self) -> MutexGuard<'_, BTreeMap<Cow<'static, str>, CheckState>> {
        // Each change is one insertion, so a panic leaves no half-made state.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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

    #[test]
    fn a_dropped_check_keeps_its_last_state() {
        let readiness = Readiness::default();
        drop(readiness.add_check("pods", "not listed yet"));
        assert_eq!(readiness.to_text(), "[-] pods: not listed yet\n");
    }
}
