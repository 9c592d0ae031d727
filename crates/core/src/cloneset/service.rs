//! The readiness gate by which hooks keep pods out of service while they hold them.
//!
//! The message of its condition lists who keeps the pod out, as `OpenKruise` writes it: the pod is in service once nobody does.
//! A pod without the gate stays as it is.

use jiff::Timestamp;
use leadsman_api::slim::Pod;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// The readiness gate, and its condition.
pub(super) const SERVICE_GATE: &str = "KruisePodReady";
/// The hook before a deletion, as the condition names it.
pub(super) const PRE_DELETE: &str = "preDeleteHook";
/// The hook before an update in place.
pub(super) const PRE_UPDATE: &str = "preUpdateHook";
/// The part of us that writes such entries.
const LIFECYCLE: &str = "Lifecycle";
/// Entries of a message that are read, at most.
const MOST: usize = 32;

/// A client that keeps a pod out of service, with its key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ServiceBlocker {
    user_agent: String,
    key: String,
}

/// The condition of a pod that has the gate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Service {
    /// Whether the condition is True; None if nobody has written it.
    is_open: Option<bool>,
    /// The clients that are listed, in the order of the message.
    holders: Vec<ServiceBlocker>,
}

impl Service {
    /// Reads the condition of a pod; None if the pod does not have the gate. A message that says something else names nobody.
    pub(super) fn read(pod: &Pod) -> Option<Self> {
        let mut gates = pod.spec.readiness_gates.iter();
        gates.find(|gate| gate.condition_type == SERVICE_GATE)?;
        let mut conditions = pod.status.conditions.iter();
        let Some(condition) = conditions.find(|one| one.type_ == SERVICE_GATE) else {
            return Some(Self::default());
        };
        let message = condition.message.as_deref().unwrap_or_default();
        let mut holders: Vec<ServiceBlocker> = serde_json::from_str(message).unwrap_or_default();
        holders.truncate(MOST);
        Some(Self {
            is_open: Some(condition.status == "True"),
            holders,
        })
    }

    /// Whether the pod is out of service by it.
    pub(super) fn is_closed(&self) -> bool {
        self.is_open == Some(false)
    }

    /// Whether a hook keeps the pod out of service.
    pub(super) fn is_held_by(&self, hook: &str) -> bool {
        let mut holders = self.holders.iter();
        holders.any(|one| one.user_agent == LIFECYCLE && one.key == hook)
    }

    /// The condition once this hook, and no other one, keeps the pod out of service. What others have written stays.
    pub(super) fn held_by(&self, hook: Option<&str>) -> Self {
        let others = self
            .holders
            .iter()
            .filter(|one| one.user_agent != LIFECYCLE)
            .cloned();
        let ours = hook.map(|hook| ServiceBlocker {
            user_agent: LIFECYCLE.to_owned(),
            key: hook.to_owned(),
        });
        let mut holders: Vec<_> = others.chain(ours).collect();
        holders.sort();
        Self {
            is_open: Some(holders.is_empty()),
            holders,
        }
    }

    /// The condition as a patch has it.
    pub(super) fn to_condition(&self, at: Timestamp) -> Value {
        let status = if self.is_closed() { "False" } else { "True" };
        let message = serde_json::to_string(&self.holders).unwrap_or_default();
        json!({"type": SERVICE_GATE, "status": status, "message": message,
            "lastTransitionTime": at.to_string()})
    }
}
