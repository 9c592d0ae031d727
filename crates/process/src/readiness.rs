//! Readiness as named conditions, each with the reason why it does not hold.
//!
//! Ready is when all of them hold; a condition can be lost again. Before the first one is registered nothing has
//! started, so a process without conditions is not ready.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// All conditions of a process.
#[derive(Clone, Debug, Default)]
pub struct Readiness(Arc<Mutex<BTreeMap<Cow<'static, str>, Held>>>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Held {
    Yes,
    No { reason: String },
}

/// A handle that sets a condition. The condition keeps its last state when the handle is dropped.
#[derive(Debug)]
pub struct Condition {
    name: Cow<'static, str>,
    readiness: Readiness,
}

impl Readiness {
    /// Registers a condition that does not hold yet, for this reason. A name is one condition: registering it again
    /// takes it over.
    pub fn condition(
        &self,
        name: impl Into<Cow<'static, str>>,
        reason: impl Into<String>,
    ) -> Condition {
        let name = name.into();
        let reason = reason.into();
        self.lock().insert(name.clone(), Held::No { reason });
        Condition {
            name,
            readiness: self.clone(),
        }
    }

    /// Whether all conditions hold.
    pub fn is_ready(&self) -> bool {
        let conditions = self.lock();
        !conditions.is_empty() && conditions.values().all(|held| *held == Held::Yes)
    }

    /// One line for each condition, those that do not hold with their reason.
    pub fn text(&self) -> String {
        let conditions = self.lock();
        if conditions.is_empty() {
            return "nothing has started yet\n".to_owned();
        }
        let mut text = String::new();
        for (name, held) in &*conditions {
            let written = match held {
                Held::Yes => writeln!(text, "[+] {name}"),
                Held::No { reason } => writeln!(text, "[-] {name}: {reason}"),
            };
            written.expect("writing to a String cannot fail");
        }
        text
    }

    /// Whether this changed anything.
    fn set(&self, name: &str, held: &Held) -> bool {
        let mut conditions = self.lock();
        let registered = conditions.get_mut(name).filter(|known| *known != held);
        registered.map(|known| *known = held.clone()).is_some()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Cow<'static, str>, Held>> {
        // Each change is one insertion, so what a panicking thread left is whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Condition {
    /// It holds from now on.
    pub fn ready(&self) {
        if self.readiness.set(&self.name, &Held::Yes) {
            tracing::info!(condition = &*self.name, "ready");
        }
    }

    /// It does not hold, for this reason. Logged when the reason is a new one.
    pub fn not_ready(&self, reason: impl Into<String>) {
        let reason = reason.into();
        let held = Held::No {
            reason: reason.clone(),
        };
        if self.readiness.set(&self.name, &held) {
            tracing::warn!(condition = &*self.name, reason, "not ready");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_is_when_every_condition_holds_and_can_be_lost() {
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
