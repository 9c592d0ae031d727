//! Explanations for people: what sets do to a pod, and why not. Decisions come from the rules of the other modules, as those of
//! the manager and its webhook do; only words are added here.
//!
//! | module | holds |
//! |---|---|
//! | here | the sets, as far as they are known |
//! | `objects` | the objects as they were read |
//! | `explanation` | why a pod was not injected, or not upgraded |
//! | `groups` | the pods of a workload by what each set does to them |
//! | `injection` | what a pod would get if it were created now, and why a set does not select it |
//! | `injected_pod`, `difference` | a pod as it is, and in which fields it differs from that |
//! | `drift` | the pods of a set by what a re-creation would change |

mod difference;
mod drift;
mod explanation;
mod groups;
mod injected_pod;
mod injection;
mod objects;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use leadsman_api::SidecarSetStatus;

use super::metadata::Whitelist;
use super::render::RenderOptions;
use super::selection::SetHistory;
use super::set::SidecarSet;

pub use self::difference::FieldDifference;
pub use self::drift::{DriftRemedy, DriftReport, PodDrift};
pub use self::explanation::{SetCause, SetExplanation, SetReason, explain};
pub use self::groups::{PodsBySet, SetPodGroup, group_by_set};
pub use self::injected_pod::PodObject;
pub use self::injection::{InjectionReport, NotSelected, SetOutcome, SetReport, report};
pub use self::objects::{ObservedSets, SetObjects, SetSummary, name_of, parse, summarize_set};

/// Labels of an object.
pub type Labels = BTreeMap<String, String>;

/// The sets, and what their injection follows from.
#[derive(Clone, Debug, Default)]
pub struct KnownSets {
    /// The sets that can be acted on.
    pub valid: Vec<KnownSet>,
    /// The other sets, by name, with what is wrong with them.
    pub invalid: Vec<InvalidSet>,
    /// The labels of namespaces, as far as they are known.
    pub namespaces: BTreeMap<String, Labels>,
    /// The administrator's list of annotations; None if it is not known, and every annotation counts as allowed.
    pub whitelist: Option<Whitelist>,
    /// Whether sets may patch any annotation where no rule of the list applies to them.
    pub is_allowed_without_rules: bool,
    /// How the manager injects.
    pub render: RenderOptions,
}

/// A set, and its revisions.
#[derive(Clone, Debug)]
pub struct KnownSet {
    /// The set.
    pub set: SidecarSet,
    /// The set's revisions.
    pub history: SetHistory,
    /// The set's status.
    pub status: SidecarSetStatus,
}

/// A set that breaks a rule.
#[derive(Clone, Debug)]
pub struct InvalidSet {
    /// The set's name.
    pub name: String,
    /// The broken rules.
    pub errors: Vec<String>,
}
