//! What a pod would get if it were created now: the injection of the webhook, with everything that it leaves out.

use jiff::Timestamp;
use serde::Serialize;

use super::{KnownSets, NotSelected, SetReason};
use crate::sidecarset::metadata::{AllowedKeys, Whitelist};
use crate::sidecarset::render::{Injected, Remark, inject_sets};
use crate::sidecarset::selection::{NewPod, offer};
use crate::sidecarset::set::SidecarSet;
use crate::workload::JsonObject;

/// What sets do to a pod that is created.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct InjectionReport {
    /// Each set, by name.
    pub sets: Vec<SetReport>,
    /// The pod with what it gets.
    #[serde(skip)]
    pub pod: JsonObject,
}

/// What a set does to a pod that is created.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SetReport {
    /// Its name.
    pub set: String,
    /// Whether it is injected, and why not.
    #[serde(flatten)]
    pub outcome: SetOutcome,
    /// What of it does not take effect.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub remarks: Vec<String>,
}

/// Whether a set is injected, and why not.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "outcome", rename_all_fields = "camelCase")]
pub enum SetOutcome {
    /// It is.
    Injected {
        /// In this revision.
        revision: String,
    },
    /// It selects the pod, which cannot have it; a remark says why.
    LeftOut {
        /// What is in the way.
        reason: SetReason,
        /// The older set that has the same; None if the pod itself has.
        #[serde(skip_serializing_if = "Option::is_none")]
        older: Option<String>,
    },
    /// It does not select the pod.
    NotSelected {
        /// Everything that is in the way.
        causes: Vec<NotSelected>,
    },
    /// It breaks rules, and is not acted on.
    Invalid {
        /// Which.
        errors: Vec<String>,
    },
}

impl SetOutcome {
    /// Whether it is injected.
    pub fn is_injected(&self) -> bool {
        matches!(self, Self::Injected { .. })
    }
}

/// What sets do to a pod that is created in a namespace.
pub fn report(
    pod: &JsonObject,
    namespace: &str,
    sets: &KnownSets,
    now: Timestamp,
) -> InjectionReport {
    let new_pod = NewPod::new(pod, namespace);
    let labels = sets.namespaces.get(namespace);
    let none = Whitelist::default();
    let mut injections = Vec::new();
    let mut reports: Vec<_> = sets
        .invalid
        .iter()
        .map(|invalid| SetReport {
            set: invalid.name.clone(),
            outcome: SetOutcome::Invalid {
                errors: invalid.errors.clone(),
            },
            remarks: Vec::new(),
        })
        .collect();
    for known in &sets.valid {
        let allowed = sets.allowed_keys(&known.set, &none);
        let label = labels.map(|labels| |key: &str| labels.get(key).map(String::as_str));
        let outcome = match offer(&known.set, &known.history, allowed, &new_pod, label) {
            Ok(injection) => {
                let revision = injection.revision.to_owned();
                injections.push(injection);
                SetOutcome::Injected { revision }
            }
            Err(_) => SetOutcome::NotSelected {
                causes: NotSelected::find(&known.set, &new_pod, labels),
            },
        };
        reports.push(SetReport {
            set: known.set.name.to_string(),
            outcome,
            remarks: Vec::new(),
        });
    }
    // All sets at once, as in the webhook: one may be left out because of another.
    let injected = inject_sets(pod, &injections, sets.render, now);
    for report in &mut reports {
        report.add_remarks(&injected);
    }
    reports.sort_by(|a, b| a.set.cmp(&b.set));
    InjectionReport {
        sets: reports,
        pod: injected.additions.apply(pod),
    }
}

impl SetReport {
    fn add_remarks(&mut self, injected: &Injected) {
        let own = injected
            .remarks
            .iter()
            .filter(|(set, _)| **set == *self.set);
        for (_, remark) in own {
            if remark.leaves_out_the_set() {
                let (reason, older) = match remark {
                    Remark::Overlap { older, .. } => (SetReason::Conflict, Some(older.to_string())),
                    Remark::HostPort(_) | Remark::HostNetwork(_) => (SetReason::HostPort, None),
                    Remark::OwnDevice(_) => (SetReason::OwnVolume, None),
                    Remark::Misfit(_) => (SetReason::WouldBeInvalid, None),
                    _ => (SetReason::OwnContainer, None),
                };
                self.outcome = SetOutcome::LeftOut { reason, older };
            }
            self.remarks.push(remark.to_string());
        }
    }
}

impl KnownSets {
    /// The annotations that a set may patch. `none` is a list without rules.
    pub(super) fn allowed_keys<'a>(
        &'a self,
        set: &SidecarSet,
        none: &'a Whitelist,
    ) -> AllowedKeys<'a> {
        let label = |key: &str| set.labels.get(key).map(String::as_str);
        match &self.whitelist {
            Some(whitelist) => whitelist.allowed_keys(label, self.is_allowed_without_rules),
            None => none.allowed_keys(label, true),
        }
    }
}
