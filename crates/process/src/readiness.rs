//! Readiness as named conditions, each with the reason why it does not hold.
//!
//! A process is ready while all of them hold. A process without conditions has not started anything yet, and is not ready.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// All conditions of a process.
#[derive(Clone, Debug, Default)]
pub struct Readiness(Arc<Mutex<BTreeMap<Cow<'static, str>, ConditionState>>>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum ConditionState {
    Holds,
    Fails { reason: String },
}

/// A handle that sets a condition. The condition keeps its last state when the handle is dropped.
#[derive(Debug)]
pub struct Condition {
    name: Cow<'static, str>,
    readiness: Readiness,
}

impl Readiness {
    /// Registers a condition that does not hold yet, for this reason. A condition of the same name is replaced.
    pub fn condition(
        &self,
        name: impl Into<Cow<'static, str>>,
        reason: impl Into<String>,
    ) -> Condition {
        let name = name.into();
        let reason = reason.into();
        self.lock()
            .insert(name.clone(), ConditionState::Fails { reason });
        Condition {
            name,
            readiness: self.clone(),
        }
    }

    /// Whether there are conditions, and all of them hold.
    pub fn is_ready(&self) -> bool {
        let conditions = self.lock();
        !conditions.is_empty()
            && conditions
                .values()
                .all(|state| *state == ConditionState::Holds)
    }

    /// The body of `/readyz`: a line for each condition, with the reason of each that does not hold.
    pub fn text(&self) -> String {
        let conditions = self.lock();
        if conditions.is_empty() {
            return "nothing has started yet\n".to_owned();
        }
        let mut text = String::new();
        for (name, state) in &*conditions {
            let written = match state {
                ConditionState::Holds => writeln!(text, "[+] {name}"),
                ConditionState::Fails { reason } => writeln!(text, "[-] {name}: {reason}"),
            };
            written.expect("writing to a String cannot fail");
        }
        text
    }

    /// Sets a condition. Returns whether that changed anything.
    fn set(&self, name: &str, state: &ConditionState) -> bool {
        let mut conditions = self.lock();
        let registered = conditions.get_mut(name).filter(|known| *known != state);
        registered.map(|known| *known = state.clone()).is_some()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Cow<'static, str>, ConditionState>> {
        // Each change is one insertion, so what a panicking thread left is whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Condition {
    /// Marks the condition as holding.
    pub fn ready(&self) {
        if self.readiness.set(&self.name, &ConditionState::Holds) {
            tracing::info!(condition = &*self.name, "ready");
        }
    }

    /// Marks the condition as not holding, for this reason. Logged when the reason has changed.
    pub fn not_ready(&self, reason: impl Into<String>) {
        let reason = reason.into();
        let state = ConditionState::Fails {
            reason: reason.clone(),
        };
        if self.readiness.set(&self.name, &state) {
            tracing::warn!(condition = &*self.name, reason, "not ready");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_ready_while_every_condition_holds() {
        let readiness = Readiness::default();
        assert!(!readiness.is_ready(), "nothing has started");
        let pods = readiness.condition("pods", "not listed yet");
        let nodes = readiness.condition("nodes", "not listed yet");
        pods.ready();
        assert!(!readiness.is_ready());
        assert_eq!(readiness.text(), "[-] nodes: not listed yet\n[+] pods\n");
        nodes.ready();
        assert!(readiness.is_ready());
        pods.not_ready("the watch failed");
        assert!(!readiness.is_ready());
        assert_eq!(readiness.text(), "[+] nodes\n[-] pods: the watch failed\n");
    }

    #[test]
    fn a_dropped_condition_keeps_its_last_state() {
        let readiness = Readiness::default();
        drop(readiness.condition("pods", "not listed yet"));
        assert_eq!(readiness.text(), "[-] pods: not listed yet\n");
    }
}
