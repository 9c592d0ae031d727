//! The membership of a pod in a set that it was injected by, and why a pod lacks a set that selects it.

use std::sync::{Arc, PoisonError};

use jiff::Timestamp;

use super::SidecarSets;
use super::world::{SetMember, SetWorld, StoredNamespace, StoredPod};
use crate::sidecarset::annotations::{
    HASH, HashEntries, HashEntry, InPlaceState, MISSING_VARIABLES, missing_variables,
};
use crate::sidecarset::container::{SetContainer, TransferSource, hot_names};
use crate::sidecarset::pod::{
    PodState, PodVersion, Progress, fresh_until, in_place_state, settles_at,
};
use crate::sidecarset::rollout::{UpgradePlace, recorded_by_upgrade};
use crate::sidecarset::set::SidecarSet;
use crate::workload::pod::ObservedPod;

/// Why a pod is not upgraded by a set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hold {
    /// The pod's last write was refused, for this reason.
    Refused(Arc<str>),
    /// An older set claims the same, and wins.
    Conflict(Arc<str>),
    /// An earlier set of the same name injected the pod.
    Former,
    /// The pod was injected with the revision that new pods are pinned to, in place of the newest.
    Pinned,
}

/// Why a pod lacks a set that selects it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lack {
    /// No webhook answered when it was created.
    Missed,
    /// The pod has a container of this name.
    OwnContainer(Arc<str>),
}

impl SidecarSets {
    /// The membership of a pod in a set that it was injected by.
    pub(super) fn member(
        &self,
        set: &Arc<SidecarSet>,
        pod: &StoredPod,
        world: &SetWorld,
        now: Timestamp,
    ) -> Arc<SetMember> {
        self.member_in(set, pod, world.namespace(&pod.name().namespace), now)
    }

    /// The same where the namespace of the pod was looked up.
    pub(super) fn member_in(
        &self,
        set: &Arc<SidecarSet>,
        pod: &StoredPod,
        namespace: Option<&Arc<StoredNamespace>>,
        now: Timestamp,
    ) -> Arc<SetMember> {
        // Nothing is left half done in it by a panic.
        let mut known = pod.members.0.lock().unwrap_or_else(PoisonError::into_inner);
        let place = known.iter().position(|one| one.set.name == set.name);
        if let Some(place) = place {
            let member = &known[place];
            let is_over = member.until.is_some_and(|until| until <= now);
            if member.is_of(set, namespace) && !is_over {
                return member.clone();
            }
            known.swap_remove(place);
        }
        let member = Arc::new(self.read_member(set, pod, namespace, now));
        known.reserve_exact(1);
        known.push(member.clone());
        member
    }

    fn read_member(
        &self,
        set: &Arc<SidecarSet>,
        stored: &StoredPod,
        namespace: Option<&Arc<StoredNamespace>>,
        now: Timestamp,
    ) -> SetMember {
        let pod = &*stored.pod;
        let label = namespace.map(|namespace| |key: &str| namespace.label(key));
        let state = PodState::read(set, pod, label, now);
        let text = pod.annotations.get(HASH);
        let hash = text.and_then(|text| HashEntry::of_set(text, &set.name));
        let in_place = in_place_state(pod, &set.name);
        // Equal to the names that other pods have, as a rule.
        let share = |name: &str| self.interners.borrow_mut().strings.share(name);
        let share_field = |name: Option<&std::borrow::Cow<'_, str>>| name.map(|name| share(name));
        let may_change = |state: PodState| !state.is_consistent() || state.is_fresh;
        let until = state.filter(|state| may_change(*state)).and_then(|_| {
            let times = [settles_at(set, pod, now), fresh_until(set, pod, now)];
            times.into_iter().flatten().min()
        });
        let candidate = state.filter(|state| state.is_candidate());
        SetMember {
            until,
            place: candidate.map(|_| UpgradePlace::new(set, pod).into()),
            labels: set.update.scattered_labels(pod),
            revision: share_field(hash.as_ref().and_then(|hash| hash.revision.as_ref())),
            newest: share_field(hash.as_ref().and_then(|hash| hash.newest.as_ref())),
            injected: in_place.injected().map(|revision| share(&revision)),
            is_as_injected: in_place == InPlaceState::Absent,
            lacks_variable: missing_variable(pod, set).is_some(),
            state,
            namespace: namespace.cloned(),
            set: set.clone(),
        }
    }

    /// Why a pod of a set is not upgraded, apart from what the roll-out and refused writes say. The first reason is told, and
    /// each of them keeps the pod out of the roll-out by itself.
    pub(super) fn hold(
        &self,
        pod: &StoredPod,
        (set, member, state): (&SidecarSet, &SetMember, PodState),
        world: &SetWorld,
        now: Timestamp,
    ) -> Option<Hold> {
        self.hold_by_older_set(set, pod, world, now)
            .or_else(|| state.is_former().then_some(Hold::Former))
            .or_else(|| self.hold_as_pinned(set, member, world))
    }

    /// Finds an older set that is in the way. Two sets are in each other's way only on a pod that has both.
    fn hold_by_older_set(
        &self,
        set: &SidecarSet,
        pod: &StoredPod,
        world: &SetWorld,
        now: Timestamp,
    ) -> Option<Hold> {
        if pod.injected.len() < 2 || world.conflicts.winners(&set.name).next().is_none() {
            return None;
        }
        let mut others = pod.injected.iter();
        let winner = others.find(|other| {
            world.conflicts.is_winner(other, &set.name)
                && world
                    .active_set(other)
                    .is_some_and(|other| self.member(other, pod, world, now).state.is_some())
        })?;
        Some(Hold::Conflict(winner.clone()))
    }

    /// Whether the pod was injected with the revision that new pods are pinned to, in place of the one that is the newest. Its
    /// entry of hashes says so: a time of the pod and one of a revision tell nothing within a second. `OpenKruise` and former
    /// versions recorded nothing there. Such a pod counts as pinned unless an upgrade gave it the revision: an image that
    /// stays until the pin ends does less harm than one that is replaced though it was pinned.
    fn hold_as_pinned(
        &self,
        set: &SidecarSet,
        member: &SetMember,
        world: &SetWorld,
    ) -> Option<Hold> {
        let history = &world.known.get(&set.name)?.history;
        let pinned = &history.pinned.as_ref()?.revision.name;
        let present = history.newest_name();
        let was_kept_from_newest = match &member.newest {
            Some(newest) => **newest == *present,
            None => member.is_as_injected,
        };
        let is_pinned = !self.config.upgrades_pinned
            && **pinned != *present
            && member.revision.as_ref() == Some(pinned)
            && was_kept_from_newest;
        is_pinned.then_some(Hold::Pinned)
    }
}

/// The state of a pod once its upgrade has been written, or the end of a hot upgrade, which comes first.
pub(super) fn state_after_upgrade(state: PodState) -> PodState {
    // The end of a hot upgrade replaces an idle image and changes no version.
    let (version, last_upgrade) = if state.awaits_reset() {
        (state.version, state.last_upgrade)
    } else {
        (PodVersion::Updated, recorded_by_upgrade(state))
    };
    PodState {
        version,
        progress: Progress::Starting,
        last_upgrade,
        ..state
    }
}

/// The first variable that a set transfers and that was not there when the pod was created, as the webhook has recorded, with
/// its container. One that the set transfers no more is none.
pub(super) fn missing_variable(pod: &ObservedPod, set: &SidecarSet) -> Option<(String, String)> {
    let is_transferred = |container: &str, variable: &String| {
        let mut transfers = set.template.all().flat_map(|sidecar| &sidecar.transfers);
        transfers.any(|transfer| {
            // The container that a label or an annotation names was decided when the pod was created.
            let is_from =
                !matches!(&transfer.source, TransferSource::Named(own) if own != container);
            is_from && transfer.names.contains(variable)
        })
    };
    let mut recorded =
        missing_variables(pod.annotations.get(MISSING_VARIABLES)?, &set.name).into_iter();
    recorded.find(|(container, variable)| is_transferred(container, variable))
}

/// Why a pod lacks a set that is in force since some time, if it does.
pub(super) fn lack(
    set: &SidecarSet,
    since: Timestamp,
    pod: &StoredPod,
    world: &SetWorld,
) -> Option<Lack> {
    // No webhook had the set before that time, so nothing was missed.
    let is_missing = !set.is_injection_paused
        && pod.pod.created > Some(since)
        && !pod.is_mirror
        && pod.pod.is_active()
        && selects(set, pod, world)
        && !is_injected(set, pod)
        && !gives_way_to_older(set, pod, world);
    is_missing.then(|| lack_of(set, pod))
}

pub(super) fn selects(set: &SidecarSet, pod: &StoredPod, world: &SetWorld) -> bool {
    let pod = &pod.pod;
    let namespace = world.namespace(&pod.name.namespace);
    let namespace_label = namespace.map(|namespace| |key: &str| namespace.label(key));
    set.selects(&pod.name.namespace, namespace_label, |key| pod.label(key))
}

/// Whether an older set that selects the pod claims the same. One whose injection is paused gives the pod nothing, unless
/// it did before.
fn gives_way_to_older(set: &SidecarSet, pod: &StoredPod, world: &SetWorld) -> bool {
    let mut winners = world.conflicts.winners(&set.name);
    winners.any(|winner| {
        let claims = !winner.is_injection_paused || is_injected(winner, pod);
        claims && selects(winner, pod, world)
    })
}

/// Whether a set was injected into a pod. One that was made of an injected pod while no webhook answered has the annotations
/// of that one, and none of the containers.
fn is_injected(set: &SidecarSet, stored: &StoredPod) -> bool {
    let pod = &stored.pod;
    let has = |name: &str| pod.container(name).is_some();
    let has_present = || {
        let mut names = set.template.all().flat_map(SetContainer::names_in_pod);
        names.any(|name| has(&name))
    };
    // The pod may have got other containers than the set has now.
    let has_former = || {
        let text = pod.annotations.get(HASH).map(|text| &**text);
        let hashes = HashEntries::from_annotation(text.unwrap_or_default(), Timestamp::UNIX_EPOCH);
        let mut names = hashes.sidecars(&set.name).peekable();
        let is_unknown = names.peek().is_none();
        is_unknown || names.any(|name| has(name) || hot_names(name).iter().any(|name| has(name)))
    };
    stored.is_injected_by(&set.name) && (has_present() || has_former())
}

fn lack_of(set: &SidecarSet, pod: &StoredPod) -> Lack {
    let mut names = set.template.all().flat_map(SetContainer::names_in_pod);
    let own = names.find(|name| pod.pod.container(name).is_some());
    own.map_or(Lack::Missed, Lack::OwnContainer)
}
