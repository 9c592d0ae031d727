//! The reasons of a set's condition, in one table: names, order, what they mean and what to do about them. The documentation
//! has the same table, and the metrics count by it.

/// The type of the condition.
pub const READY: &str = "Ready";

/// Why a set does, or does not do, what it says. Of several reasons the first in this order is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// The set breaks a rule, and is not acted on.
    InvalidSpec,
    /// An older set claims the same, and wins on pods that both select.
    Conflict,
    /// New pods are pinned to a revision that does not exist.
    RevisionMissing,
    /// The set patches annotations that the administrator does not allow.
    MetadataNotAllowed,
    /// Writes were refused.
    WriteRefused,
    /// Pods that it selects lack its containers.
    NotInjected,
    /// New pods are not injected yet, or are injected as an earlier generation says.
    NotInForce,
    /// Pods differ in more than their images, and wait to be re-created.
    NotUpgradablePods,
    /// Pods were injected by an earlier set of its name.
    FormerPods,
    /// Pods keep the revision that new pods are pinned to.
    PinnedPods,
    /// The set does what it says.
    InForce,
}

/// The facts about a reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReasonFacts {
    /// The reason.
    pub reason: Reason,
    /// The name of the reason, as the condition has it.
    pub name: &'static str,
    /// The status of the condition: whether the set does what it says, though pods may have to be re-created for it.
    pub is_ready: bool,
    /// Whether people are told of it by an event.
    pub is_told: bool,
    /// The meaning of the reason, in words.
    pub meaning: &'static str,
    /// The action that a user is to take, in words.
    pub action: &'static str,
}

/// The facts about each reason, in the order of [`Reason`].
const TABLE: [ReasonFacts; 11] = [
    ReasonFacts {
        reason: Reason::InvalidSpec,
        name: "InvalidSpec",
        is_ready: false,
        is_told: true,
        meaning: "the set breaks a rule: new pods do not get it (with `failure-policy: Fail` they are refused), and its pods stay as they are",
        action: "correct the fields that the message names",
    },
    ReasonFacts {
        reason: Reason::Conflict,
        name: "Conflict",
        is_ready: false,
        is_told: true,
        meaning: "an older set has the same container, volume or annotation: pods that both select get that one",
        action: "rename what both have, or select other pods",
    },
    ReasonFacts {
        reason: Reason::RevisionMissing,
        name: "RevisionMissing",
        is_ready: false,
        is_told: true,
        meaning: "new pods are pinned to a revision that does not exist: they get the newest",
        action: "correct `injectionStrategy.revision`, or remove it",
    },
    ReasonFacts {
        reason: Reason::MetadataNotAllowed,
        name: "MetadataNotAllowed",
        is_ready: false,
        is_told: true,
        meaning: "the whitelist does not allow an annotation of `patchPodMetadata`, which is left out",
        action: "add a rule to the ConfigMap, or take the annotation out of the set",
    },
    ReasonFacts {
        reason: Reason::WriteRefused,
        name: "WriteRefused",
        is_ready: false,
        is_told: true,
        meaning: "the upgrade of pods, or a revision, was refused, by whom the message says; it is tried again after five minutes",
        action: "change what the message names: a policy, a quota or another webhook that forbids the write, or a pod whose annotations are full (256 KiB)",
    },
    ReasonFacts {
        reason: Reason::NotInjected,
        name: "NotInjected",
        is_ready: false,
        is_told: true,
        meaning: "pods that the set selects were created without its containers",
        action: "create them again; see that a manager serves the webhook",
    },
    ReasonFacts {
        reason: Reason::NotInForce,
        name: "NotInForce",
        is_ready: false,
        is_told: false,
        meaning: "new pods do not get this generation yet: the API servers do not know the webhook of it",
        action: "wait some seconds; if it stays so, `kubectl leadsman doctor` says why",
    },
    ReasonFacts {
        reason: Reason::NotUpgradablePods,
        name: "NotUpgradablePods",
        is_ready: true,
        is_told: true,
        meaning: "pods differ in more than images, and keep what they have",
        action: "create them again; `kubectl leadsman drift` lists them",
    },
    ReasonFacts {
        reason: Reason::FormerPods,
        name: "FormerPods",
        is_ready: true,
        is_told: true,
        meaning: "pods are of an earlier set of this name, and are not upgraded",
        action: "annotate the set with `sidecarset.leadsman.io/adopt-pods: \"true\"` to take them over",
    },
    ReasonFacts {
        reason: Reason::PinnedPods,
        name: "PinnedPods",
        is_ready: true,
        is_told: false,
        meaning: "pods were injected with the pinned revision in place of the newest, and keep it as intended",
        action: "nothing; to upgrade them, change or remove `injectionStrategy.revision`",
    },
    ReasonFacts {
        reason: Reason::InForce,
        name: "InForce",
        is_ready: true,
        is_told: false,
        meaning: "nothing is wrong; the message says whether injection or upgrades are paused, how many pods differ in fields that no upgrade changes, and how many lack a variable of `transferEnv`",
        action: "nothing",
    },
];

impl Reason {
    /// All of them, the most severe first.
    pub const ALL: [Self; TABLE.len()] = {
        let mut all = [Self::InForce; TABLE.len()];
        let mut place = 0;
        while place < TABLE.len() {
            all[place] = TABLE[place].reason;
            assert!(all[place] as usize == place, "the table has their order");
            place += 1;
        }
        all
    };

    /// The facts about the reason.
    pub const fn facts(self) -> ReasonFacts {
        TABLE[self as usize]
    }

    /// The name in the condition.
    pub const fn as_str(self) -> &'static str {
        self.facts().name
    }

    /// Whether the set does what it says.
    pub const fn is_ready(self) -> bool {
        self.facts().is_ready
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::sidecarset::set::ADOPT_PODS;

    const DOCUMENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/sidecarset.md");

    // SDF-55
    #[test]
    fn the_reasons_are_documented_in_their_order_with_what_to_do() {
        let rows = Reason::ALL.map(|reason| {
            let facts = reason.facts();
            let status = if facts.is_ready { "True" } else { "False" };
            let ReasonFacts {
                name,
                meaning,
                action,
                ..
            } = facts;
            format!("| `{name}` | {status} | {meaning} | {action} |\n")
        });
        let table = rows.concat();
        let text = fs::read_to_string(DOCUMENT).unwrap();
        assert!(
            text.contains(&format!("|---|---|---|---|\n{table}\n")),
            "the table of docs/sidecarset.md, \"The status\", is to be:\n{table}"
        );
        assert!(Reason::FormerPods.facts().action.contains(ADOPT_PODS));
    }
}
