//! What a pod is to sets, from what all of them are.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use super::Index;
use super::context::{PodName, SetName};
use super::pods::{Hold, Lack, Membership, PodEntry, state_after_upgrade};
use super::refusals::Purpose;
use super::sets::SetEntry;
use crate::sidecarset::annotations::{
    HASH, HashEntries, HashEntry, InPlaceState, MISSING_VARIABLES, missing_variables,
};
use crate::sidecarset::container::{SetContainer, TransferSource, hot_names};
use crate::sidecarset::event::WriteTarget;
use crate::sidecarset::pod::{PodState, PodVersion, fresh_until, in_place_state, settles_at};
use crate::sidecarset::rollout::queue::RollingCandidate;
use crate::sidecarset::set::SidecarSet;
use crate::workload::pod::ObservedPod;

impl Index {
    /// Compares a pod with the sets that it was injected by, and counts it where it belongs.
    pub(super) fn compare_pod(&mut self, name: &PodName) {
        let Some(entry) = self.pods.get(name) else {
            return;
        };
        let memberships = self.memberships_of(entry);
        // Most events change nothing that is counted, and leave the order of the roll-out alone.
        if memberships != entry.memberships {
            self.count_pod(name, memberships);
        }
        self.set_settle_timer(name);
        self.note_pod_writes(name);
    }

    /// Looks at a pod again when its last upgrade counts as done, if nothing shows that before, and when it has been ready for
    /// as long as a set wants.
    fn set_settle_timer(&mut self, name: &PodName) {
        let Some(entry) = self.pods.get(name) else {
            return;
        };
        let now = self.cx.now;
        let unclear = entry
            .memberships
            .iter()
            .filter(|member| !member.state.is_consistent() || member.state.is_fresh);
        let sets = unclear.filter_map(|member| self.sets.get(&member.set)?.active_set());
        let times = sets.flat_map(|set| {
            let (pod, now) = (&entry.pod, now.wall);
            [settles_at(set, pod, now), fresh_until(set, pod, now)]
        });
        // The next one is found when this one has passed.
        if let Some(next) = times.flatten().min() {
            let left = next.duration_since(now.wall).unsigned_abs();
            // In whole seconds, so that the events of a pod until then set few timers.
            let until = now.monotonic.saturating_add(left).as_secs() + 1;
            let target = WriteTarget::Pod((**name).clone());
            self.cx.timers.set(Duration::from_secs(until), target);
        }
    }

    /// Takes a pod out of the sets that it was counted in.
    pub(super) fn uncount_pod(&mut self, entry: &PodEntry) {
        let name = &entry.pod.name;
        for member in &entry.memberships {
            if let Some(set) = self.sets.get_mut(&member.set) {
                set.members.remove_member(name, member);
                self.cx.affected.sets.insert(member.set.clone());
            }
        }
        for (set, _) in &entry.lacks {
            if let Some(set) = self.sets.get_mut(set) {
                set.lacking.remove(name);
            }
            self.cx.affected.sets.insert(set.clone());
        }
    }

    fn count_pod(&mut self, name: &PodName, memberships: Vec<Membership>) {
        let Some(entry) = self.pods.get_mut(name) else {
            return;
        };
        let before = std::mem::replace(&mut entry.memberships, memberships);
        for member in before {
            if let Some(set) = self.sets.get_mut(&member.set) {
                set.members.remove_member(name, &member);
            }
            self.cx.affected.sets.insert(member.set);
        }
        let Some(entry) = self.pods.get(name) else {
            return;
        };
        for member in &entry.memberships {
            if let Some(set) = self.sets.get_mut(&member.set) {
                set.members.add_member(name, member);
            }
            self.cx.affected.sets.insert(member.set.clone());
        }
    }

    /// What a pod is to the sets that it was injected by.
    pub(super) fn memberships_of(&self, entry: &PodEntry) -> Vec<Membership> {
        if entry.injected.is_empty() {
            return Vec::new();
        }
        let pod = &entry.pod;
        let hashes = pod.annotations.get(HASH);
        let sets = entry.injected.iter().filter_map(|name| self.sets.get(name));
        let states = sets.filter_map(|set_entry| {
            let set = set_entry.active_set()?;
            let label = self.namespace_label(&pod.name.namespace);
            Some((
                set_entry,
                set,
                PodState::read(set, pod, label, self.cx.now.wall)?,
            ))
        });
        let states: Vec<_> = states.collect();
        let sets: Vec<_> = states.iter().map(|(_, set, _)| *set).collect();
        let members = states.iter().map(|(set_entry, set, state)| {
            // A patch that was sent counts as done until it is answered, or two pods would take one place.
            let assumed = if entry.sent.as_ref() == Some(&set.name) {
                state_after_upgrade(*state)
            } else {
                *state
            };
            let hash = hashes.and_then(|hashes| HashEntry::of_set(hashes, &set.name));
            let revision = hash.as_ref().and_then(|hash| hash.revision.as_deref());
            let hold = if state.version == PodVersion::Updated {
                None
            } else {
                // The first one is told. Each of them keeps the pod out of the roll-out by itself.
                self.refused_upgrade(entry, set)
                    .or_else(|| self.hold_by_older_set(set, &sets))
                    .or_else(|| state.is_former().then_some(Hold::Former))
                    .or_else(|| self.hold_as_pinned((set, set_entry), pod, hash.as_ref()))
            };
            let can_be_upgraded = assumed.is_candidate() && hold.is_none();
            Membership {
                set: set.name.clone(),
                state: *state,
                assumed,
                hold,
                candidate: can_be_upgraded
                    .then(|| RollingCandidate::new(set, pod, assumed))
                    .map(Arc::new),
                labels: set.update.scattered_labels(pod),
                // Equal to the name of a known revision, as a rule.
                revision: revision.map(|revision| self.shared_revision(revision)),
                injected: in_place_state(pod, &set.name)
                    .injected()
                    .map(|revision| self.shared_revision(&revision)),
                lacks_variable: missing_variable(pod, set).is_some(),
            }
        });
        members.collect()
    }

    fn shared_revision(&self, name: &str) -> Arc<str> {
        let known = self.revisions.shared_name(name);
        known.cloned().unwrap_or_else(|| name.into())
    }

    fn refused_upgrade(&self, entry: &PodEntry, set: &SidecarSet) -> Option<Hold> {
        if self.refusals.is_empty() {
            return None;
        }
        let target = WriteTarget::Pod((*entry.pod.name).clone());
        let reason = self
            .refusals
            .refusal_reason(&target, upgrade_purpose(set, entry))?;
        Some(Hold::Refused(reason.clone()))
    }

    /// Whether an older set of the pod claims the same.
    fn hold_by_older_set(&self, set: &SidecarSet, others: &[&Arc<SidecarSet>]) -> Option<Hold> {
        // Only on a pod that has both are two sets in each other's way.
        if others.len() < 2 {
            return None;
        }
        let conflicts = &self.sets.conflicts;
        let mut others = others.iter();
        let winner = others.find(|other| conflicts.is_winner(&other.name, &set.name))?;
        Some(Hold::Conflict(winner.name.clone()))
    }

    /// Whether the pod was injected with the revision that new pods are pinned to, in place of the one that is the newest. Its
    /// entry of hashes says so: a time of the pod and one of a revision tell nothing within a second. `OpenKruise` and former
    /// versions recorded nothing there. Such a pod counts as pinned unless an upgrade gave it the revision: an image that
    /// stays until the pin ends does less harm than one that is replaced though it was pinned.
    fn hold_as_pinned(
        &self,
        (set, set_entry): (&SidecarSet, &SetEntry),
        pod: &ObservedPod,
        hash: Option<&HashEntry<'_>>,
    ) -> Option<Hold> {
        let pinned = &set_entry.history.pinned.as_ref()?.revision.name;
        let HashEntry {
            revision, newest, ..
        } = hash?;
        let present = set_entry.history.newest_name();
        let was_kept_from_newest = match newest {
            Some(newest) => **newest == *present,
            None => in_place_state(pod, &set.name) == InPlaceState::Absent,
        };
        let is_pinned = !self.config.upgrades_pinned
            && **pinned != *present
            && revision.as_deref() == Some(&**pinned)
            && was_kept_from_newest;
        is_pinned.then_some(Hold::Pinned)
    }

    /// Compares a pod with the sets that it was not injected by.
    pub(super) fn compare_selection(&mut self, name: &PodName) {
        let Some(entry) = self.pods.get(name) else {
            return;
        };
        let lacks = self.missing_sets(entry);
        if lacks == entry.lacks {
            return;
        }
        for (set, _) in entry.lacks.iter().chain(&lacks) {
            self.cx.affected.sets.insert(set.clone());
        }
        let before: Vec<_> = entry.lacks.iter().map(|(set, _)| set.clone()).collect();
        for set in before {
            if let Some(set) = self.sets.get_mut(&set) {
                set.lacking.remove(name);
            }
        }
        for (set, lack) in &lacks {
            if let Some(set) = self.sets.get_mut(set) {
                set.lacking.insert(name.clone(), lack.clone());
            }
        }
        if let Some(entry) = self.pods.get_mut(name) {
            entry.lacks = lacks;
        }
    }

    /// The sets that select a pod and that it lacks.
    fn missing_sets(&self, entry: &PodEntry) -> Vec<(SetName, Lack)> {
        if entry.is_mirror || !entry.pod.is_active() {
            return Vec::new();
        }
        let lacks = self.sets.iter().filter_map(|(name, set_entry)| {
            let set = set_entry.active_set()?;
            let in_force = set_entry.in_force.as_ref()?;
            // Before that time no webhook had the set, so nothing was missed.
            let is_later = entry.pod.created > Some(in_force.since.0);
            let is_expected = !set.is_injection_paused
                && is_later
                && self.selects_entry(set, entry)
                && !is_injected(set, entry)
                && !self.gives_way_to_older(set, entry);
            is_expected.then(|| (name.clone(), lack_of(set, entry)))
        });
        lacks.collect()
    }

    pub(super) fn selects_entry(&self, set: &SidecarSet, entry: &PodEntry) -> bool {
        let namespace = &entry.pod.name.namespace;
        let label = |key: &str| entry.pod.label(key);
        set.selects(namespace, self.namespace_label(namespace), label)
    }

    /// Whether an older set that selects the pod claims the same. One whose injection is paused gives the pod nothing, unless
    /// it did before.
    fn gives_way_to_older(&self, set: &SidecarSet, entry: &PodEntry) -> bool {
        let mut winners = self.sets.conflicts.winners(&set.name);
        winners.any(|winner| {
            let claims = !winner.is_injection_paused || is_injected(winner, entry);
            claims && self.selects_entry(winner, entry)
        })
    }

    /// Decides which pods of a set are upgraded now.
    pub(super) fn settle_rollout(&mut self, name: &SetName) {
        let Some(entry) = self.sets.get_mut(name) else {
            return;
        };
        let Some(set) = entry.active_set().cloned() else {
            return;
        };
        let chosen = entry.members.rolling.settle(&set);
        let targets = chosen.iter().map(|pod| WriteTarget::Pod((**pod).clone()));
        self.cx.affected.due.extend(targets);
    }

    /// Whether a set upgrades a pod now; `unanswered` is the set whose upgrade of it was sent before.
    pub(super) fn is_next(&self, member: &Membership, unanswered: Option<&SetName>) -> bool {
        let Some(entry) = self.sets.get(&member.set) else {
            return false;
        };
        let Some(candidate) = &member.candidate else {
            return false;
        };
        let rolling = &entry.members.rolling;
        // An upgrade without an answer may have been carried out: its pod keeps its place until that is known.
        let is_unanswered = unanswered == Some(&member.set);
        rolling.is_next(candidate) || (is_unanswered && rolling.may_wait(candidate))
    }
}

/// What the upgrade of a pod by a set is to achieve.
pub(super) fn upgrade_purpose(set: &SidecarSet, entry: &PodEntry) -> Purpose {
    Purpose::of_fingerprint((&set.name, &set.hashes.hash, &entry.pod.uid))
}

/// The first variable that a set transfers and that was not there when the pod was created, as the webhook has recorded, with
/// its container. One that the set transfers no more is none.
pub(super) fn missing_variable(pod: &ObservedPod, set: &SidecarSet) -> Option<(String, String)> {
    let is_transferred = |container: &str, variable: &String| {
        let mut transfers = set.template.all().flat_map(|sidecar| &sidecar.transfers);
        transfers.any(|transfer| {
            // What a label or an annotation named was decided when the pod was created.
            let is_from =
                !matches!(&transfer.source, TransferSource::Named(own) if own != container);
            is_from && transfer.names.contains(variable)
        })
    };
    let recorded = missing_variables(pod.annotations.get(MISSING_VARIABLES)?, &set.name);
    let mut recorded = recorded.into_iter();
    recorded.find(|(container, variable)| is_transferred(container, variable))
}

/// Whether a set was injected into a pod. One that was made of an injected pod while no webhook answered has the annotations
/// of that one, and none of the containers.
fn is_injected(set: &SidecarSet, entry: &PodEntry) -> bool {
    let has = |name: &str| entry.pod.container(name).is_some();
    let has_present = || {
        let mut names = set.template.all().flat_map(SetContainer::names_in_pod);
        names.any(|name| has(&name))
    };
    // It may have got other containers than the set has now.
    let has_former = || {
        let text = entry.pod.annotations.get(HASH).map(|text| &**text);
        let hashes = HashEntries::from_annotation(text.unwrap_or_default(), Timestamp::UNIX_EPOCH);
        let mut names = hashes.sidecars(&set.name).peekable();
        let is_unknown = names.peek().is_none();
        is_unknown || names.any(|name| has(name) || hot_names(name).iter().any(|name| has(name)))
    };
    entry.is_injected_by(&set.name) && (has_present() || has_former())
}

fn lack_of(set: &SidecarSet, entry: &PodEntry) -> Lack {
    let mut names = set.template.all().flat_map(SetContainer::names_in_pod);
    let own = names.find(|name| entry.pod.container(name).is_some());
    own.map_or(Lack::Missed, Lack::OwnContainer)
}
