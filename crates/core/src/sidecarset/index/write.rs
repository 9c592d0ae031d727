//! The writes that are due, but for statuses.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};

use super::Index;
use super::classify::upgrade_purpose;
use super::context::{PodName, SetName};
use super::pods::PodEntry;
use super::refusals::Purpose;
use crate::cluster::{ObjectName, whole_seconds};
use crate::sidecarset::annotations::{HASH, HASH_WITHOUT_IMAGE, HashEntry};
use crate::sidecarset::condition::{UPGRADABLE, UpgradableCondition};
use crate::sidecarset::event::{Write, WriteTarget};
use crate::sidecarset::pod::is_former;
use crate::sidecarset::rollout::recorded_by_upgrade;
use crate::sidecarset::strategy::UpdateMode;
use crate::sidecarset::upgrade;

/// How long a write that was not answered may have been carried out without a watch that shows it. An API server gives up
/// a request after a minute (`--request-timeout` of kube-apiserver).
const UNANSWERED: Duration = Duration::from_mins(5);

impl Index {
    /// The write of a target that differs from what is stored, with its purpose; not for pods and statuses, which are
    /// remembered as they are sent. None where it was refused.
    pub(super) fn wanted_write(&self, target: &WriteTarget) -> Option<(Write, Purpose)> {
        let wanted = match target {
            WriteTarget::PodCondition(pod) => self.due_condition_write(pod),
            WriteTarget::SetHashes(set) => self.due_hash_write(set),
            WriteTarget::Revisions(set) => {
                let write = self.revision_write(set)?;
                let purpose = revision_purpose(&write);
                Some((write, purpose))
            }
            _ => None,
        };
        wanted.filter(|(_, purpose)| self.refusals.refusal_reason(target, *purpose).is_none())
    }

    /// Notes the writes of a pod that may be due.
    pub(super) fn note_pod_writes(&mut self, name: &PodName) {
        let target = WriteTarget::PodCondition((**name).clone());
        if self.wanted_write(&target).is_some() {
            self.cx.affected.due.insert(target);
        }
        if self
            .pods
            .get(name)
            .is_some_and(|entry| self.hot_upgrade_reset(entry).is_some())
        {
            let target = WriteTarget::Pod((**name).clone());
            self.cx.affected.due.insert(target);
        }
    }

    /// The upgrade of a pod that is due now. It counts as carried out until the pod is observed again.
    ///
    /// If it was sent before and not answered, it may have been carried out. Then it goes before all others of its set that
    /// are not under way: otherwise another pod would be taken down as well.
    pub(super) fn send_upgrade(&mut self, name: &ObjectName) -> Option<Write> {
        let entry = self.pods.get_mut(name)?;
        let name = entry.pod.name.clone();
        // Whether the pod is upgraded is decided without the place that it holds itself.
        let unanswered = entry.sent.take();
        if unanswered.is_some() {
            self.recount_pod(&name);
        }
        let Some((set, patch, purpose)) = self.next_upgrade(&name, unanswered.as_ref()) else {
            if let Some(set) = unanswered {
                self.keep_unanswered(&name, set);
            }
            return None;
        };
        self.unanswered.remove(&name);
        let is_reset = self
            .pods
            .get(&name)
            .is_some_and(|entry| self.hot_upgrade_reset(entry).is_some());
        self.resets.record_sent(&name, is_reset);
        let write = Write::Pod {
            pod: (*name).clone(),
            patch: Box::new(patch),
        };
        self.refusals
            .record_sent(&WriteTarget::Pod((*name).clone()), purpose);
        if let Some(entry) = self.pods.get_mut(&name) {
            entry.sent = Some(set);
        }
        self.recount_pod(&name);
        Some(write)
    }

    /// Keeps the place of a pod whose upgrade was not answered and is not sent again now: it may have been carried out. That
    /// ends with another version of the pod, or when the watch would have shown one long ago.
    fn keep_unanswered(&mut self, name: &PodName, set: SetName) {
        if !self.unanswered.contains_key(name) {
            let until = self.cx.now.monotonic.saturating_add(UNANSWERED);
            self.unanswered.insert(name.clone(), until);
            let target = WriteTarget::Pod((**name).clone());
            self.cx.timers.set(until, target);
        }
        if let Some(entry) = self.pods.get_mut(name) {
            entry.sent = Some(set);
        }
        self.recount_pod(name);
    }

    /// Frees the place of a pod whose upgrade was not answered, when its time has come.
    pub(super) fn expire_unanswered(&mut self, target: &WriteTarget) {
        let WriteTarget::Pod(pod) = target else {
            return;
        };
        let until = self.unanswered.get(pod);
        if until.is_some_and(|until| *until <= self.cx.now.monotonic) {
            self.unanswered.remove(pod);
            if let Some(entry) = self.pods.get_mut(pod) {
                entry.sent = None;
            }
        }
    }

    /// Notes that the upgrade of a pod which was not answered may be sent again.
    pub(super) fn note_unanswered(&mut self, name: &PodName) {
        let is_sent = |entry: &PodEntry| entry.sent.is_some();
        if self.unanswered.contains_key(name) && self.pods.get(name).is_some_and(is_sent) {
            let target = WriteTarget::Pod((**name).clone());
            self.cx.affected.due.insert(target);
        }
    }

    /// The patch of a pod that is due now, and the set that it is for: a container that no longer works is reset first.
    fn next_upgrade(
        &self,
        name: &PodName,
        unanswered: Option<&SetName>,
    ) -> Option<(SetName, Value, Purpose)> {
        let entry = self.pods.get(name)?;
        // Before any upgrade: the next image goes to the container that the reset makes idle.
        if let Some(reset) = self.hot_upgrade_reset(entry) {
            return Some(reset);
        }
        let next = entry
            .memberships
            .iter()
            .find(|member| self.is_next(member, unanswered))?;
        let set_entry = self.sets.get(&next.set)?;
        let set = set_entry.active_set()?;
        let allowed = self.allowed_keys(set);
        let revision = set_entry.history.newest_name();
        let pod = (&entry.pod, recorded_by_upgrade(next.state));
        let upgrade = upgrade::plan_upgrade(set, revision, pod, &allowed, self.cx.now.wall);
        let purpose = upgrade_purpose(set, entry);
        Some((next.set.clone(), upgrade.patch, purpose))
    }

    /// The end of a hot upgrade of a pod, with the set that it is of. It takes no place in a roll-out: a pod whose hot
    /// upgrade has not ended counts as one that is down already. So it is due whatever the set says about upgrades, and also
    /// if the pod does not belong to the set any more, by its labels or for want of a container that the set has got since.
    fn hot_upgrade_reset(&self, entry: &PodEntry) -> Option<(SetName, Value, Purpose)> {
        entry.injected.iter().find_map(|name| {
            let set_entry = self.sets.get(name)?;
            let set = set_entry.active_set()?;
            let reset = upgrade::reset(set, &entry.pod, self.cx.now.wall)?;
            let hash = HashEntry::of_set(entry.pod.annotation(HASH), name);
            let is_former = is_former(set, &entry.pod, hash.as_ref());
            let is_sent = entry.sent.as_ref() == Some(name);
            let target = WriteTarget::Pod((*entry.pod.name).clone());
            let purpose = Purpose::of_fingerprint(("reset", name, &entry.pod.uid));
            let is_refused = self.refusals.refusal_reason(&target, purpose).is_some();
            let is_due = entry.pod.is_active() && !is_former && !is_sent && !is_refused;
            is_due.then(|| (name.clone(), reset.patch, purpose))
        })
    }

    #[cfg(test)]
    pub(super) fn is_chosen(&self, pod: &ObjectName) -> bool {
        let entry = self.pods.get(pod);
        let mut members = entry.into_iter().flat_map(|entry| &entry.memberships);
        members.any(|member| self.is_next(member, None))
    }

    /// Counts a pod anew, and moves the boundaries of its sets.
    fn recount_pod(&mut self, name: &PodName) {
        self.compare_pod(name);
        // What else follows from it is compared with the next event: it may be that others are upgraded now.
        let sets = self.cx.affected.sets.clone();
        for set in &sets {
            self.settle_rollout(set);
        }
    }

    /// The status of a set that is due now.
    pub(super) fn send_status(&mut self, name: &str) -> Option<Write> {
        let target = WriteTarget::SetStatus(name.to_owned());
        let due = self.due_status(name)?;
        if self.refusals.refusal_reason(&target, due.purpose).is_some() {
            return None;
        }
        self.refusals.record_sent(&target, due.purpose);
        let entry = self.sets.get_mut(name)?;
        entry.event.with_status = due.event;
        Some(due.write)
    }

    /// The write that is due for a set's revisions.
    pub(super) fn revision_write(&self, name: &str) -> Option<Write> {
        let entry = self.sets.get(name)?;
        let set = entry.active_set()?;
        let used = entry.members.revisions.keys();
        let used = used.chain(entry.members.injected.keys()).cloned();
        let namespace = &self.config.namespace;
        self.revisions
            .due_write((set, &entry.wire), &entry.history, used, namespace)
    }

    pub(super) fn due_hash_write(&self, name: &str) -> Option<(Write, Purpose)> {
        let entry = self.sets.get(name)?;
        let set = entry.active_set()?;
        let wanted = [
            (HASH, &set.hashes.hash),
            (HASH_WITHOUT_IMAGE, &set.hashes.without_image),
        ];
        let meta = &entry.wire.metadata;
        let present = |key: &str| meta.annotations.as_ref()?.get(key);
        if wanted
            .iter()
            .all(|(key, hash)| present(key).is_some_and(|present| **present == ***hash))
        {
            return None;
        }
        let annotations: BTreeMap<_, _> = wanted
            .into_iter()
            .map(|(key, hash)| (key, &**hash))
            .collect();
        let purpose = Purpose::of_fingerprint(&annotations);
        // Without a version: nobody else's is overwritten, and a set that is edited meanwhile is patched again.
        let patch = json!({"metadata": {"uid": meta.uid, "annotations": annotations}});
        let write = Write::SetHashes {
            set: name.to_owned(),
            patch: Box::new(patch),
        };
        Some((write, purpose))
    }

    /// The condition of a pod that says whether it can be upgraded.
    fn due_condition_write(&self, name: &ObjectName) -> Option<(Write, Purpose)> {
        let entry = self.pods.get(name)?;
        if !entry.pod.is_active() || (entry.injected.is_empty() && entry.condition.is_none()) {
            return None;
        }
        // What a set is that breaks a rule is not known.
        let is_unknown = |set| {
            self.sets
                .get(set)
                .is_some_and(|entry| entry.parsed.is_err())
        };
        if entry.injected.iter().any(|set| is_unknown(set)) {
            return None;
        }
        let upgrades = |set: &str| {
            let set = self.sets.get(set).and_then(|entry| entry.active_set());
            set.is_some_and(|set| set.update.mode != UpdateMode::NotUpdate)
        };
        let members = entry.memberships.iter();
        let versions = members
            .filter(|member| upgrades(&member.set))
            .map(|member| (member.set.clone(), member.state.version));
        let is_present = entry.condition.is_some();
        let wanted =
            UpgradableCondition::of(&versions.collect(), is_present, self.config.condition);
        let present = entry.condition.as_ref();
        let is_equal = match (&wanted, present) {
            (None, None) => true,
            (Some(wanted), Some(present)) => {
                wanted.is_upgradable == present.is_upgradable && *wanted.message == *present.message
            }
            _ => false,
        };
        if is_equal {
            return None;
        }
        let purpose =
            Purpose::of_fingerprint(wanted.as_ref().map(|one| (one.is_upgradable, &one.message)));
        let write = Write::PodCondition {
            pod: name.clone(),
            patch: Box::new(self.condition_patch(entry, wanted.as_ref())),
        };
        Some((write, purpose))
    }

    fn condition_patch(&self, entry: &PodEntry, wanted: Option<&UpgradableCondition>) -> Value {
        let condition = match wanted {
            None => json!({"type": UPGRADABLE, "$patch": "delete"}),
            Some(wanted) => {
                let status = if wanted.is_upgradable {
                    "True"
                } else {
                    "False"
                };
                let mut condition = json!({
                    "type": UPGRADABLE, "status": status, "reason": wanted.reason(), "message": wanted.message,
                });
                let before = entry.condition.as_ref().map(|before| before.is_upgradable);
                // Left out otherwise: a strategic merge patch then keeps the time of the last change.
                if before != Some(wanted.is_upgradable) {
                    let now = Time(whole_seconds(self.cx.now.wall));
                    condition["lastTransitionTime"] = json!(now);
                }
                condition
            }
        };
        json!({"metadata": {"uid": &*entry.pod.uid}, "status": {"conditions": [condition]}})
    }
}

/// What the write of a revision is to achieve.
pub(super) fn revision_purpose(write: &Write) -> Purpose {
    match write {
        Write::PatchRevision { revision, patch } => {
            let label = patch["metadata"].get("labels").map(Value::to_string);
            Purpose::of_fingerprint((1, &revision.name, patch["revision"].as_i64(), label))
        }
        Write::DeleteRevision { revision, .. } => Purpose::of_fingerprint((2, &revision.name)),
        Write::CreateRevision(object) => Purpose::of_fingerprint((0, object.to_string())),
        // No other write is of a revision (`Revisions::due_write`).
        _ => Purpose::of_fingerprint(3),
    }
}
