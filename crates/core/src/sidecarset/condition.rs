//! The pod's condition that says whether its sets can upgrade it in place.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::pod::PodVersion;
use crate::workload::go_json::{FieldOrder, GoValue};

/// The type of the condition.
pub const UPGRADABLE: &str = "SidecarSetUpgradable";

/// The condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpgradableCondition {
    /// Whether all sets of the pod can upgrade it.
    pub is_upgradable: bool,
    /// A JSON object: whether each of the sets can.
    pub message: String,
}

/// The rule by which a pod gets the condition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenWritten {
    /// The condition is written once some set cannot upgrade the pod, and from then on: an upgradable pod costs no write.
    #[default]
    OnceNotUpgradable,
    /// The condition is written for each pod of a set that upgrades pods; `OpenKruise` writes it with the first upgrade.
    Always,
}

impl UpgradableCondition {
    /// The reason.
    pub fn reason(&self) -> &'static str {
        if self.is_upgradable {
            "AllSidecarsetUpgradable"
        } else {
            "UpdateImmutableField"
        }
    }

    /// The condition that a pod is to have, by what it is to each of its sets; None if it is to have none. A set that was
    /// deleted has no place in it.
    pub fn of(
        sets: &BTreeMap<Arc<str>, PodVersion>,
        is_present: bool,
        written: WhenWritten,
    ) -> Option<Self> {
        let is_upgradable = |version: &PodVersion| *version != PodVersion::NotUpgradable;
        let all_upgradable = sets.values().all(is_upgradable);
        let is_wanted = !all_upgradable || is_present || written == WhenWritten::Always;
        if sets.is_empty() || !is_wanted {
            return None;
        }
        let entries = sets.iter().map(|(set, version)| {
            let value = GoValue::Scalar(is_upgradable(version).into());
            (set.to_string(), value)
        });
        Some(Self {
            is_upgradable: all_upgradable,
            message: GoValue::Object(entries.collect()).to_text(FieldOrder::Sorted),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sidecarset::tests::recorded;

    fn condition(
        sets: &[(&str, PodVersion)],
        is_present: bool,
        written: WhenWritten,
    ) -> Option<UpgradableCondition> {
        let sets = sets
            .iter()
            .map(|(set, version)| (Arc::from(*set), *version))
            .collect();
        UpgradableCondition::of(&sets, is_present, written)
    }

    // SCS-66
    #[test]
    fn the_condition_is_written_as_recorded() {
        let recorded = &recorded::documents("08-pod-not-upgradable")[1]["status"]["conditions"][0];
        assert_eq!(recorded["type"], UPGRADABLE);
        let sets = [
            ("metrics", PodVersion::Updated),
            ("log-agent", PodVersion::NotUpgradable),
        ];
        let written = condition(&sets, false, WhenWritten::OnceNotUpgradable).unwrap();
        assert_eq!(recorded["message"], written.message);
        assert_eq!(
            (recorded["status"] == "True", recorded["reason"].as_str()),
            (written.is_upgradable, Some(written.reason()))
        );
        let recorded =
            &recorded::documents("04-pod-upgraded-in-place")[0]["status"]["conditions"][0];
        let written = condition(
            &[("log-agent", PodVersion::Updated)],
            false,
            WhenWritten::Always,
        )
        .unwrap();
        assert_eq!(recorded["message"], written.message);
        assert_eq!(recorded["reason"], written.reason());
    }

    // SDF-39, SDF-50
    #[test]
    fn it_follows_what_is_and_is_not_written_for_nothing() {
        let upgradable = [("a", PodVersion::Upgradable), ("b", PodVersion::Updated)];
        assert_eq!(
            condition(&upgradable, false, WhenWritten::OnceNotUpgradable),
            None
        );
        // It was False, and the edit was taken back.
        assert!(
            condition(&upgradable, true, WhenWritten::OnceNotUpgradable)
                .unwrap()
                .is_upgradable
        );
        // All sets were deleted.
        assert_eq!(condition(&[], true, WhenWritten::Always), None);
    }
}
