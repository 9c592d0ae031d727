//! The index: the observed state of the cluster as far as sets need it, and the writes that follow from it.
//!
//! A state machine without a clock, a client or a task. [`Index::observe`] takes an event and returns the objects that
//! may have to be written; its cost is proportional to the change. [`Index::due`] returns the write of an object when
//! there is room to send it, so that many changes to one object cost one request. Both depend only on the observed
//! state, apart from two things that are remembered: writes that were refused, and of a pod whose upgrade is under way
//! that it may have been carried out. The latter ends with any other version of the pod, or after some minutes.
//!
//! | module | holds |
//! |---|---|
//! | `sets` | the sets, and what is counted of their pods |
//! | `pods` | the pods, and what each is to the sets that it was injected by |
//! | `revisions` | the revisions of the sets, and which write of them is due |
//! | `classify` | what a pod is to sets, from what all of them are |
//! | `conflicts` | which sets cannot be on one pod together |
//! | `observe` | events on their way in |
//! | `status`, `write` | the writes that are due |
//! | `reason` | what a set's condition may say |
//! | `inspect` | what is known of a pod or a set, for those who explain it |
//! | `snapshots` | what the webhooks answer by |
//! | `refusals` | writes that the API server refused |
//! | `resets` | the events about containers that were reset |
//! | `totals` | all sets added up, for metrics |
//! | `context` | the time, the timers, and the list of what an event affects |
//!
//! Each event takes the same course. First it is taken in, and what it affects is noted. Then the pods named there are
//! compared with their sets, which moves the counts of those. Last the writes of the affected sets are compared with what
//! is stored. While this process does not write, the second and third are left out.

mod classify;
mod conflicts;
mod context;
mod inspect;
mod observe;
mod pods;
mod reason;
mod refusals;
mod resets;
mod revisions;
mod sets;
mod snapshots;
mod status;
#[cfg(test)]
mod tests;
mod totals;
mod write;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use self::context::{Affected, IndexContext, PodName};
pub use self::inspect::{InspectedMembership, InspectedPods, InspectedSet, SetByName, Turn};
use self::pods::Pods;
pub use self::pods::{Hold, Lack};
pub use self::reason::{READY, Reason, ReasonFacts};
use self::refusals::Refusals;
use self::resets::Resets;
use self::revisions::Revisions;
use self::sets::{KnownBarrier, Sets};
use self::snapshots::SnapshotChanges;
pub use self::totals::{REASONS, SetTotals};
use super::condition::WhenWritten;
use super::event::{Event, WatchedKind, Write, WriteTarget};
use super::metadata::{AllowedKeys, Whitelist};
use super::render::RenderOptions;
use super::set::{FailurePolicy, SidecarSet};
use super::snapshot::NamespaceLabels;
use crate::cluster::{Effects, Interners, Invalid, Now, ObjectName, ResourceVersion, Watches};

/// The settings of the index.
#[derive(Clone, Debug)]
pub struct Config {
    /// The namespace of the manager: of revisions and of the whitelist.
    pub namespace: String,
    /// Whether sets may patch any annotation where the whitelist has no rule for them.
    pub allows_unlisted_metadata: bool,
    /// When a pod gets the condition that says whether it can be upgraded.
    pub condition: WhenWritten,
    /// How sets are injected.
    pub render: RenderOptions,
    /// What becomes of a pod without an answer, if API servers call for all pods, and not for those of the sets alone.
    pub standing_rule: Option<FailurePolicy>,
    /// The namespaces whose pods are never refused, beside `kube-system` and that of the manager.
    pub protected_namespaces: Vec<String>,
    /// Whether pods that a pin has kept from the newest revision are upgraded like others, as `OpenKruise` does.
    pub upgrades_pinned: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            namespace: leadsman_api::DEFAULT_NAMESPACE.to_owned(),
            allows_unlisted_metadata: false,
            condition: WhenWritten::default(),
            render: RenderOptions::default(),
            standing_rule: None,
            protected_namespaces: Vec::new(),
            upgrades_pinned: false,
        }
    }
}

/// The observed state of the cluster, and the writes that follow from it.
#[derive(Debug)]
pub struct Index {
    config: Config,
    sets: Sets,
    pods: Pods,
    revisions: Revisions,
    namespaces: Arc<NamespaceLabels>,
    namespace_versions: BTreeMap<Arc<str>, ResourceVersion>,
    whitelist: Arc<Whitelist>,
    whitelist_errors: Arc<[Invalid]>,
    whitelist_version: Option<ResourceVersion>,
    whitelist_text: Option<String>,
    /// The version since which the whitelist is as it is.
    whitelist_since: ResourceVersion,
    barrier: KnownBarrier,
    /// Whether the API server keeps our fields of a set's status.
    keeps_fields: bool,
    watches: Watches<WatchedKind>,
    changes: SnapshotChanges,
    refusals: Refusals,
    /// The pods whose upgrade was not answered and is not sent again now, and until when they keep their places.
    unanswered: BTreeMap<PodName, Duration>,
    resets: Resets,
    interners: Interners,
    cx: IndexContext,
}

impl Index {
    /// An index that has observed nothing yet.
    pub fn new(config: Config) -> Self {
        Self {
            config,
            sets: Sets::default(),
            pods: Pods::default(),
            revisions: Revisions::default(),
            namespaces: Arc::default(),
            namespace_versions: BTreeMap::new(),
            whitelist: Arc::default(),
            whitelist_errors: Arc::default(),
            whitelist_version: None,
            whitelist_text: None,
            whitelist_since: ResourceVersion::UNKNOWN,
            barrier: KnownBarrier::Unknown,
            keeps_fields: true,
            watches: Watches::default(),
            changes: SnapshotChanges::default(),
            refusals: Refusals::default(),
            unanswered: BTreeMap::new(),
            resets: Resets::default(),
            interners: Interners::default(),
            cx: IndexContext::default(),
        }
    }

    /// Takes in what happened at `now`.
    pub fn observe(&mut self, event: Event, now: Now) -> Effects<WriteTarget> {
        self.cx.now = now;
        self.dispatch_event(event);
        while let Some(target) = self.cx.timers.pop_due(now.monotonic) {
            self.refusals.expire_refusal(&target, now.monotonic);
            // A timer says only that something of the target is due: refusal, answer and settling each look at their
            // own time.
            self.expire_unanswered(&target);
            self.mark_for_recomputing(&target);
        }
        if self.cx.synced {
            self.recompute_affected();
        } else {
            // `Synced` affects everything anyway.
            self.cx.affected = Affected::default();
        }
        let due = std::mem::take(&mut self.cx.affected.due);
        Effects {
            dirty: due.into_iter().collect(),
            deadline: self.cx.timers.deadline(),
        }
    }

    /// The write that is due for a target, if there is one. It counts as sent. No write of the target may be under way.
    pub fn due(&mut self, target: &WriteTarget, now: Now) -> Option<Write> {
        self.cx.now = now;
        if !self.cx.synced {
            return None;
        }
        // What was sent before was lost with its answer, or it would have been reported by now.
        self.refusals.take_sent_purpose(target);
        match target {
            WriteTarget::Pod(pod) => self.send_upgrade(pod),
            WriteTarget::SetStatus(set) => self.send_status(set),
            WriteTarget::SetEvent(set) => {
                // Taken when it is sent, so at most once: what a lost event would have told, the
                // condition says.
                let entry = self.sets.get_mut(set)?;
                entry
                    .event
                    .due
                    .take()
                    .map(|note| Write::Event(Box::new(note)))
            }
            WriteTarget::PodEvent(pod) => {
                let note = self.resets.due.remove(pod)?;
                Some(Write::Event(Box::new(note)))
            }
            WriteTarget::PodCondition(_)
            | WriteTarget::SetHashes(_)
            | WriteTarget::Revisions(_) => {
                let (write, purpose) = self.wanted_write(target)?;
                self.refusals.record_sent(target, purpose);
                Some(write)
            }
        }
    }

    /// The annotations that a set may patch.
    fn allowed_keys<'a>(&'a self, set: &'a SidecarSet) -> AllowedKeys<'a> {
        let label = |key: &str| set.labels.get(key).map(String::as_str);
        self.whitelist
            .allowed_keys(label, self.config.allows_unlisted_metadata)
    }

    /// Compares what an event has affected.
    fn recompute_affected(&mut self) {
        let affected = std::mem::take(&mut self.cx.affected);
        for pod in &affected.selected {
            self.compare_selection(pod);
        }
        for pod in &affected.pods {
            self.compare_pod(pod);
            self.note_unanswered(pod);
        }
        let mut sets = affected.sets;
        // After the pods, whose comparison affects sets of its own.
        sets.append(&mut self.cx.affected.sets);
        for set in &sets {
            self.compare_set(set);
        }
        self.cx.affected.due.extend(affected.due);
    }

    /// Finds the writes of a set that may be due, its pods' among them.
    fn compare_set(&mut self, name: &Arc<str>) {
        self.settle_rollout(name);
        self.note_drift(name);
        let targets = [
            WriteTarget::SetHashes(name.to_string()),
            WriteTarget::Revisions(name.to_string()),
        ];
        for target in targets {
            if self.wanted_write(&target).is_some() {
                self.cx.affected.due.insert(target);
            }
        }
        if self.is_status_due(name) {
            let target = WriteTarget::SetStatus(name.to_string());
            self.cx.affected.due.insert(target);
        }
    }

    /// What a target is affected by: everything that its write depends on is compared again.
    fn mark_for_recomputing(&mut self, target: &WriteTarget) {
        let affected = &mut self.cx.affected;
        match target {
            WriteTarget::Pod(pod) | WriteTarget::PodCondition(pod) | WriteTarget::PodEvent(pod) => {
                affected
                    .pods
                    .extend(self.pods.get(pod).map(|entry| entry.pod.name.clone()));
            }
            WriteTarget::SetStatus(set)
            | WriteTarget::SetHashes(set)
            | WriteTarget::Revisions(set)
            | WriteTarget::SetEvent(set) => {
                affected.sets.insert(set.as_str().into());
            }
        }
    }

    /// The labels of a namespace, if it is known.
    fn namespace_label<'a>(
        &'a self,
        namespace: &str,
    ) -> Option<impl Fn(&str) -> Option<&'a str> + use<'a>> {
        let labels = self.namespaces.get(namespace)?;
        Some(|key: &str| labels.get(key).map(|value| &**value))
    }

    /// The version in which an object is known.
    fn known_version(&self, kind: WatchedKind, name: &ObjectName) -> Option<ResourceVersion> {
        match kind {
            WatchedKind::Set => self.sets.get(&name.name).map(|entry| entry.version),
            WatchedKind::Pod => self.pods.get(name).map(|entry| entry.version),
            WatchedKind::Namespace => self.namespace_versions.get(&*name.name).copied(),
            WatchedKind::Revision => self.revisions.get(&name.name).map(|own| own.version),
            WatchedKind::Configuration => self.whitelist_version,
        }
    }
}
