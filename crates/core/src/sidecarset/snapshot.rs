//! The state that the webhooks answer by, immutable: the sets and all that an injection, or the review of a set, depends on.
//! The feature makes a new one whenever something of it changes, in every replica.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use super::annotations::{HASH, HashEntries, IN_PLACE_STATE};
use super::metadata::{AllowedKeys, Whitelist};
use super::namespaces_tag::namespaces_tag;
use super::render::{Additions, Injected, Injection, RenderOptions, inject_sets};
use super::revision::RevisionOwners;
use super::selection::check_selected;
use super::selection::{NewPod, NotOffered, SetHistory, offer};
use super::set::{FAILURE_POLICY_ANNOTATION, FailurePolicy, SidecarSet};
use crate::cluster::{Invalid, ResourceVersion, SortedMap, truncate};
use crate::workload::JsonObject;
use crate::workload::object::{inner, text};

/// How long one request to create a pod may ask several webhooks, one after the other: their timeouts, of at most 30 s
/// each, are within that of the request (`--request-timeout` of the API server).
const ONE_REQUEST: Duration = Duration::from_mins(1);

/// Maximum length of the message to whoever creates a pod that is refused.
const REFUSAL_BYTES: usize = 1024;

/// The labels of each namespace.
pub type NamespaceLabels = BTreeMap<Arc<str>, SortedMap<Arc<str>>>;

/// The state that pods are injected by. A clone is cheap.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// The versions that the lists and the watches have shown.
    pub version: SnapshotVersion,
    /// The sets that are valid, by name.
    pub sets: Arc<Vec<SnapshotSet>>,
    /// The sets that are invalid, and without which no pod of theirs is to be created.
    pub refusing: Arc<Vec<RefusingSet>>,
    /// The namespaces.
    pub namespaces: Arc<NamespaceLabels>,
    /// The annotations that sets may patch.
    pub whitelist: Arc<Whitelist>,
    /// The errors in the list of these annotations.
    pub whitelist_errors: Arc<[Invalid]>,
    /// Whether a set may patch any where the whitelist has no rule for it.
    pub allows_unlisted_metadata: bool,
    /// The owner of each revision.
    pub revisions: Arc<RevisionOwners>,
    /// The namespace of the revisions and of the whitelist.
    pub own_namespace: Arc<str>,
    /// How sets are injected.
    pub options: RenderOptions,
    /// The rule for a pod without an answer, if the API server calls for all pods, and not for those of the sets alone.
    pub standing_rule: Option<FailurePolicy>,
}

/// How new a snapshot is: the newest version of each kind that an injection depends on. Versions of two kinds are not
/// compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SnapshotVersion {
    /// The version of the sets.
    pub sets: ResourceVersion,
    /// The version of the revisions.
    pub revisions: ResourceVersion,
    /// The version of the list of annotations that sets may patch.
    pub whitelist: ResourceVersion,
}

impl SnapshotVersion {
    /// Whether this is known to lack what the other includes.
    pub fn lacks(self, other: Self) -> bool {
        other.sets.is_later_than(self.sets)
            || other.revisions.is_later_than(self.revisions)
            || other.whitelist.is_later_than(self.whitelist)
    }

    /// The version that includes both.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        Self {
            sets: self.sets.max(other.sets),
            revisions: self.revisions.max(other.revisions),
            whitelist: self.whitelist.max(other.whitelist),
        }
    }
}

/// A set.
#[derive(Clone, Debug)]
pub struct SnapshotSet {
    /// The set.
    pub set: Arc<SidecarSet>,
    /// The set's revisions.
    pub history: Arc<SetHistory>,
    /// The least version of a snapshot that knows the set as it is now: its generation, the revision that new pods are pinned
    /// to, and the list of annotations if it patches any. What is in force already is left out.
    pub needs: SnapshotVersion,
}

/// A set that is invalid and refuses its pods.
#[derive(Clone, Debug)]
pub struct RefusingSet {
    /// The set as far as it can be read, for the pods that it selects.
    pub set: Arc<SidecarSet>,
    /// The faults of the set.
    pub errors: Arc<[Invalid]>,
    /// The least version of a snapshot that knows the set as it is now.
    pub needs: SnapshotVersion,
}

impl Snapshot {
    /// Injects a pod that is being created in this namespace. A pod that the same request has just been injected into gets
    /// nothing more.
    pub fn inject(&self, pod: &JsonObject, namespace: &str, now: Timestamp) -> Injected {
        let new = NewPod::new(pod, namespace);
        let offered: Vec<_> = self.offers(&new).filter_map(Result::ok).collect();
        let mut injected = inject_sets(pod, &offered, self.options, now);
        if was_just_injected(pod, &offered, &injected, now) {
            injected.additions = Additions::default();
        }
        injected
    }

    /// Why a pod must not be created, by a call that refuses pods without an answer: a set that asked for that cannot be
    /// injected, since it is invalid.
    pub fn refusal(&self, pod: &JsonObject, namespace: &str) -> Option<String> {
        let new = NewPod::new(pod, namespace);
        let refusing = self
            .refusing
            .iter()
            .find(|known| self.selects(&known.set, &new).is_ok())?;
        let errors: Vec<_> = refusing.errors.iter().map(Invalid::to_string).collect();
        let name = &refusing.set.name;
        let message = format!(
            "SidecarSet {name:?} asks for no pod without its containers ({FAILURE_POLICY_ANNOTATION}: Fail) and is invalid: \
             correct it, pause its injection or remove the annotation; {}",
            errors.join("; ")
        );
        Some(truncate(&message, REFUSAL_BYTES).to_owned())
    }

    /// Whether the labels of this namespace are known as far as the pod depends on them. Those of a namespace that has just
    /// been created may not be. Those that are known are not the present ones, or not those that the API server knows, where it
    /// has called by a selector that does not select them: `tag` is that of the call ([`ScopeCall::tag`]).
    ///
    /// [`ScopeCall::tag`]: super::scope::ScopeCall::tag
    pub fn knows_namespace(&self, pod: &JsonObject, namespace: &str, tag: Option<u16>) -> bool {
        let new = NewPod::new(pod, namespace);
        let mut sets = self
            .sets
            .iter()
            .map(|known| &known.set)
            .chain(self.refusing.iter().map(|known| &known.set));
        !sets.any(|set| match self.selects(set, &new) {
            Err(NotOffered::NamespaceUnknown) => true,
            Err(NotOffered::Namespace) => tag.is_some() && namespaces_tag(&set.namespaces) == tag,
            _ => false,
        })
    }

    fn selects(&self, set: &SidecarSet, pod: &NewPod<'_>) -> Result<(), NotOffered> {
        check_selected(set, pod, self.namespace_label(pod.namespace))
    }

    fn namespace_label<'a>(
        &'a self,
        namespace: &str,
    ) -> Option<impl Fn(&str) -> Option<&'a str> + use<'a>> {
        let labels = self.namespaces.get(namespace)?;
        Some(move |key: &str| labels.get(key).map(|value| &**value))
    }

    /// Yields what each set offers to a pod, or why it offers nothing.
    fn offers(&self, pod: &NewPod<'_>) -> impl Iterator<Item = Result<Injection<'_>, NotOffered>> {
        self.sets.iter().map(move |known| {
            let set = &known.set;
            let allowed = self.allowed_keys(set);
            let label = self.namespace_label(pod.namespace);
            offer(set, &known.history, allowed, pod, label)
        })
    }

    /// The annotations that a set may patch.
    pub(super) fn allowed_keys(&self, set: &SidecarSet) -> AllowedKeys<'_> {
        let label = |key: &str| set.labels.get(key).map(String::as_str);
        self.whitelist
            .allowed_keys(label, self.allows_unlisted_metadata)
    }

    /// The version that includes what each set needs.
    pub fn barrier(&self) -> SnapshotVersion {
        let of_sets = self.sets.iter().map(|known| known.needs);
        let needs = of_sets.chain(self.refusing.iter().map(|known| known.needs));
        needs.fold(SnapshotVersion::default(), SnapshotVersion::max)
    }
}

fn annotation<'a>(pod: &'a JsonObject, key: &str) -> Option<&'a str> {
    text(inner(inner(pod, "metadata")?, "annotations")?, key)
}

/// Whether an earlier call for the same request has injected these sets: the configuration may have several webhooks that
/// match a pod. Otherwise the pod was copied from an injected one, and what it has may have been edited.
fn was_just_injected(
    pod: &JsonObject,
    offered: &[Injection<'_>],
    injected: &Injected,
    now: Timestamp,
) -> bool {
    let Some(hashes) = annotation(pod, HASH) else {
        return false;
    };
    let hashes = HashEntries::from_annotation(hashes, now);
    let is_recent = |since: Timestamp| now.duration_since(since).unsigned_abs() < ONE_REQUEST;
    let mut chosen = offered
        .iter()
        .filter(|injection| injected.sets.contains(&injection.set.name));
    let has_entry = |injection: &Injection<'_>| {
        hashes.entry_of(&injection.set.name).is_some_and(|entry| {
            *entry.hash == *injection.hashes.hash
                && entry.revision.as_deref() == Some(injection.revision)
                && entry.since.is_some_and(is_recent)
        })
    };
    hashes.sets().count() == injected.sets.len()
        && chosen.all(has_entry)
        // The annotation is of an upgrade.
        && annotation(pod, IN_PLACE_STATE).is_none()
        && injected.additions.has_nothing_new(pod)
}

#[cfg(test)]
mod tests;
