//! The state of a pod with regard to a set that injected it: whether it belongs to the set, has its containers, and runs them.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::annotations::{
    CONTAINER_ID, HASH, HASH_WITHOUT_IMAGE, HashEntry, IN_PLACE_STATE, INJECTED_LIST, InPlaceState,
    WORKING_CONTAINER, injected_sets,
};
use super::container::{ContainerKind, SetContainer, Upgrade};
use super::pair::ObservedPair;
use super::set::SidecarSet;
use crate::workload::image::{digest, names_one_image};
use crate::workload::pod::{ObservedContainer, ObservedPod, ObservedStatus};

/// A pod of a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PodState {
    /// The version of the set's containers that it has.
    pub version: PodVersion,
    /// The progress of the runtime with these containers.
    pub progress: Progress,
    /// Whether it is ready.
    pub readiness: PodReadiness,
    /// The set's last upgrade of this pod, and whether the pod was ready before it.
    pub last_upgrade: LastUpgrade,
    /// Whether the set's update strategy selects it.
    pub is_selected: bool,
    /// Whether it became ready, or a container of the set was started, more recently than the set wants of a pod that
    /// counts as available.
    pub is_fresh: bool,
    /// Whether nothing has been seen of the set's containers yet, for a reason that is not theirs: the pod is bound to no
    /// node, or its volumes or init containers are waited for.
    pub is_untried: bool,
}

/// Whether a pod is ready to a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodReadiness {
    /// The pod is ready, and of containers that take turns one waits.
    Ready,
    /// The pod is not ready.
    NotReady,
    /// The pod is not ready, since a hot upgrade of it has yet to be ended: a container has taken over, and the one before it
    /// is still there.
    AwaitsReset,
}

/// Whether an upgrade of a pod by a set may be why the pod is not ready. It records what it found, since the status does not
/// show that later: an application that crashes again and again is ready in between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LastUpgrade {
    /// The set has not upgraded the pod.
    None,
    /// The pod was injected by an earlier set of the name, which is why it is as it is, and is not taken over.
    OfFormerSet,
    /// Nobody can read what it has recorded, or whether there was one.
    Unreadable,
    /// The pod was ready, or an upgrade before was why it was not: if it is not ready now, that may be the set's doing.
    OfReady,
    /// The pod was not ready already, and that was not the set's doing. Or the set has other containers by now, and these were
    /// written by `OpenKruise`, or long before the pod became not ready.
    OfUnready,
}

/// The version of a set's containers that a pod has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodVersion {
    /// The containers of the spec.
    Updated,
    /// Others that differ in nothing but their images.
    Upgradable,
    /// Others that differ in more: it waits to be re-created.
    NotUpgradable,
}

/// The progress of the runtime with the containers of a set in a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The runtime runs what the pod's spec says.
    Consistent,
    /// The same, but not all of them are ready.
    Unready,
    /// A container is ready that is to be replaced: the last upgrade has not begun.
    BeforeRestart,
    /// A container is not there yet.
    Starting,
}

impl PodState {
    /// Whether it has the containers of the spec.
    pub fn is_updated(self) -> bool {
        self.version == PodVersion::Updated
    }

    /// Whether the runtime runs its containers.
    pub fn is_consistent(self) -> bool {
        matches!(self.progress, Progress::Consistent | Progress::Unready)
    }

    /// Whether it was injected by an earlier set of the name, and is not taken over.
    pub fn is_former(self) -> bool {
        self.last_upgrade == LastUpgrade::OfFormerSet
    }

    /// Whether it is ready.
    pub fn is_ready(self) -> bool {
        self.readiness == PodReadiness::Ready
    }

    /// Whether a hot upgrade of it has yet to be ended.
    pub fn awaits_reset(self) -> bool {
        self.readiness == PodReadiness::AwaitsReset
    }

    /// Whether it serves: it is ready, and with these containers.
    pub fn is_serving(self) -> bool {
        self.is_consistent() && self.is_ready()
    }

    /// Whether it serves, and has done so for long enough that others may be upgraded.
    pub fn is_available(self) -> bool {
        self.is_serving() && !self.is_fresh
    }

    /// Whether its upgrade would take down a pod for which others do not wait already.
    pub fn would_go_down(self) -> bool {
        self.is_ready() && !self.is_fresh
    }

    /// Whether it can be upgraded now.
    pub fn is_candidate(self) -> bool {
        self.version == PodVersion::Upgradable
            && self.is_selected
            && self.progress != Progress::BeforeRestart
            && !self.awaits_reset()
    }

    /// Reads the state of a pod of a set at a time; `namespace_label` gives the labels of its namespace, if they are known.
    /// None if the pod does not belong to the set.
    pub fn read<'a>(
        set: &SidecarSet,
        pod: &ObservedPod,
        namespace_label: Option<impl Fn(&str) -> Option<&'a str>>,
        now: Timestamp,
    ) -> Option<Self> {
        let is_member = pod.is_active()
            && set.selects(&pod.name.namespace, namespace_label, |key| pod.label(key))
            && is_injected_by(set, pod)
            && has_containers(set, pod);
        if !is_member {
            return None;
        }
        let hash = hash_in(pod, HASH, &set.name);
        let former = FormerContainers::new(set, pod, hash.as_ref(), now);
        let selector = set.update.selector.as_ref();
        let version = PodVersion::read(set, pod, hash.as_ref());
        let progress = Progress::read(set, pod, &former);
        let last_upgrade = if is_former(set, pod, hash.as_ref()) {
            LastUpgrade::OfFormerSet
        } else {
            LastUpgrade::read(set, pod, (version, progress), &former)
        };
        Some(Self {
            version,
            progress,
            readiness: PodReadiness::read(set, pod, &former),
            last_upgrade,
            is_selected: selector.is_none_or(|selector| selector.matches(|key| pod.label(key))),
            is_fresh: former.fresh_until(set, pod, now) > Some(now),
            is_untried: !pod.is_scheduled
                || sidecars_in(set, pod).all(ObservedContainer::is_untried),
        })
    }
}

impl LastUpgrade {
    fn read(
        set: &SidecarSet,
        pod: &ObservedPod,
        (version, progress): (PodVersion, Progress),
        former: &FormerContainers<'_>,
    ) -> Self {
        // While the set's images are rolled out, a pod that has them counts until it is ready: they may be why it becomes
        // ready again and again, and never stays so.
        let is_of_another = version != PodVersion::Updated;
        // Containers of the set that fail are why it is not ready, however late.
        let is_the_application = || progress == Progress::Consistent;
        match former.state {
            InPlaceState::Of(_) if former.state.was_unready() => Self::OfUnready,
            // `OpenKruise` does not record what it found, and counts pods that have the present containers only
            // (`calculateUpgradeCount`, `pkg/controller/sidecarset/sidecarset_strategy.go`).
            InPlaceState::Of(entry) if is_of_another && !entry.contains(CONTAINER_ID) => {
                Self::OfUnready
            }
            InPlaceState::Of(_)
                if is_of_another && is_the_application() && failed_late(set, pod, former.since) =>
            {
                Self::OfUnready
            }
            InPlaceState::Of(_) => Self::OfReady,
            InPlaceState::Absent => Self::None,
            InPlaceState::Malformed => Self::Unreadable,
        }
    }
}

/// How long after the start of a set's containers a pod may become not ready because of them. Twice the longest time between
/// two starts of a container that crashes (`MaxCrashLoopBackOff`, `pkg/kubelet/kubelet.go`).
const LATE: SignedDuration = SignedDuration::from_mins(10);

/// Whether a pod became not ready long after its containers of the set were started or written, whichever was first: a node
/// that comes back starts them again after the pod has become not ready. It may have become ready and not ready many times
/// in between, so this is a sign and no proof. The times are by the clocks of the node, of the node lifecycle controller
/// (`MarkPodsNotReady`, `pkg/controller/util/node/controller_utils.go`) and of the manager, which differ by less.
fn failed_late(set: &SidecarSet, pod: &ObservedPod, written: Option<Timestamp>) -> bool {
    let statuses = sidecars_in(set, pod).map(|container| container.status.as_ref());
    let starts: Option<Vec<_>> = statuses.map(|status| status?.running?).collect();
    let started = starts.and_then(|starts| starts.into_iter().max());
    let first = started.into_iter().chain(written).min();
    matches!((first, pod.unready_since), (Some(first), Some(since)) if since.duration_since(first) >= LATE)
}

impl PodVersion {
    fn read(set: &SidecarSet, pod: &ObservedPod, hash: Option<&HashEntry<'_>>) -> Self {
        if hash.is_some_and(|entry| *entry.hash == *set.hashes.hash) {
            Self::Updated
        } else if is_upgradable(set, pod) {
            Self::Upgradable
        } else {
            Self::NotUpgradable
        }
    }
}

impl PodReadiness {
    fn read(set: &SidecarSet, pod: &ObservedPod, former: &FormerContainers<'_>) -> Self {
        let has_taken_over = |working: &_| former.is_consistent(working);
        if pairs(set, pod).any(|pair| pair.awaits_reset(has_taken_over)) {
            Self::AwaitsReset
        } else if pod.is_ready() && pairs(set, pod).all(|pair| pair.is_at_rest) {
            // While both containers of a pair run its image, the hot upgrade has not ended
            // (`IsPodReady`, `pkg/control/sidecarcontrol/sidecarset_control.go`).
            Self::Ready
        } else {
            Self::NotReady
        }
    }
}

impl Progress {
    fn read(set: &SidecarSet, pod: &ObservedPod, former: &FormerContainers<'_>) -> Self {
        let mut progress = Self::Consistent;
        for container in sidecars_in(set, pod) {
            if !former.is_consistent(container) {
                if container.is_ready() {
                    // A container that is ready and not what was asked for last is about to be replaced; `OpenKruise` waits for
                    // that too (`IsSidecarSetUpgradable`, `pkg/control/sidecarcontrol/sidecarset_control.go`).
                    return Self::BeforeRestart;
                }
                progress = Self::Starting;
            } else if !container.is_ready() && progress == Self::Consistent {
                progress = Self::Unready;
            }
        }
        // `IsPodStateConsistent` of `OpenKruise` compares these numbers too.
        if pod.has_all_statuses {
            progress
        } else {
            Self::Starting
        }
    }
}

/// The record of a set about its last upgrade of a pod.
pub fn in_place_state<'a>(pod: &'a ObservedPod, set: &str) -> InPlaceState<'a> {
    let text = pod.annotations.get(IN_PLACE_STATE);
    InPlaceState::of_set(text.map(|text| &**text), set)
}

/// Whether a pod was injected by an earlier set of the name, and not taken over; `hash` is its entry of the set.
pub(super) fn is_former(set: &SidecarSet, pod: &ObservedPod, hash: Option<&HashEntry<'_>>) -> bool {
    let is_old = hash.and_then(|hash| hash.since) < Some(set.created);
    is_old && pod.created < Some(set.created) && !set.adopts_pods
}

/// The entry of a set in a hash annotation of a pod.
pub(super) fn hash_in<'a>(pod: &'a ObservedPod, key: &str, set: &str) -> Option<HashEntry<'a>> {
    HashEntry::of_set(pod.annotation(key), set)
}

fn is_injected_by(set: &SidecarSet, pod: &ObservedPod) -> bool {
    let mut sets = injected_sets(pod.annotation(INJECTED_LIST));
    sets.any(|name| *name == *set.name)
}

/// Whether a pod has every container of a set. Init containers do not count.
fn has_containers(set: &SidecarSet, pod: &ObservedPod) -> bool {
    let working = pod.annotation(WORKING_CONTAINER);
    set.template.containers.iter().all(|sidecar| {
        let is_cold = sidecar.upgrade == Upgrade::Cold;
        (is_cold || !working.is_empty())
            && sidecar
                .names_in_pod()
                .all(|name| pod.container(&name).is_some())
    })
}

/// The containers of a set in a pod, native sidecars among them.
fn sidecars_in<'a>(
    set: &SidecarSet,
    pod: &'a ObservedPod,
) -> impl Iterator<Item = &'a ObservedContainer> {
    let sidecars = set
        .template
        .all()
        .filter(|sidecar| sidecar.kind != ContainerKind::Init);
    let names = sidecars.flat_map(SetContainer::names_in_pod);
    names.filter_map(|name| pod.container(&name))
}

/// Whether a pod's containers differ from those of a set in nothing but their images. A pull policy that followed from
/// another image is no difference.
fn is_upgradable(set: &SidecarSet, pod: &ObservedPod) -> bool {
    let Some(entry) = hash_in(pod, HASH_WITHOUT_IMAGE, &set.name) else {
        return false;
    };
    if *entry.hash == *set.hashes.without_image {
        return true;
    }
    let mut sidecars = set.template.all();
    let policy = |name: &str| pod.container(name).and_then(|own| own.pull_policy.clone());
    sidecars.any(|sidecar| sidecar.is_pull_policy_derived)
        && set.template.hash_without_image_in(policy) == entry.hash
}

/// The containers of a set in a pod that take turns.
fn pairs<'a>(set: &'a SidecarSet, pod: &'a ObservedPod) -> impl Iterator<Item = ObservedPair<'a>> {
    let sidecars = set.template.containers.iter();
    sidecars.filter_map(|sidecar| ObservedPair::find(pod, sidecar))
}

/// Finds the pairs of which one container has taken over, and the other has not been given the empty image yet.
pub fn pairs_to_reset<'a>(
    set: &'a SidecarSet,
    pod: &'a ObservedPod,
    now: Timestamp,
) -> impl Iterator<Item = ObservedPair<'a>> {
    pairs(set, pod).filter(move |pair| {
        pair.awaits_reset(|working| FormerContainers::read(set, pod, now).is_consistent(working))
    })
}

/// How long after the grace period of its pod a container that is to be replaced is gone at the latest, if its kubelet
/// works: the kubelet hears of the upgrade, and reports the end. Whether it has heard, its `status.observedGeneration` need
/// not say: one of before KEP-5067 leaves there what a later one wrote (`podStatusStrategy`, `pkg/registry/core/pod/strategy.go`).
const REPLACED_WITHIN: SignedDuration = SignedDuration::from_secs(10);
/// The longest grace period that is waited for.
const LONGEST_GRACE: Duration = Duration::from_mins(10);

/// The state of a pod's containers before their last upgrade, as its annotations record it.
#[derive(Clone, Copy)]
struct FormerContainers<'a> {
    /// The set's record of that upgrade. If it cannot be read, any container may have been upgraded.
    state: InPlaceState<'a>,
    /// The time at which the images were last written, by the annotation.
    since: Option<Timestamp>,
    /// The time until which a container that runs may still be the one that is to be replaced.
    settles: Settles,
}

/// The time from which a container that runs counts as the one that was asked for, though nothing in its status shows that.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Settles {
    /// The container counts as that already.
    Now,
    /// The container counts as that from this time on, unless it is replaced before.
    At(Timestamp),
}

impl<'a> FormerContainers<'a> {
    fn read(set: &SidecarSet, pod: &'a ObservedPod, now: Timestamp) -> Self {
        let hash = hash_in(pod, HASH, &set.name);
        Self::new(set, pod, hash.as_ref(), now)
    }

    /// `hash` is the set's entry in the annotation of hashes.
    fn new(
        set: &SidecarSet,
        pod: &'a ObservedPod,
        hash: Option<&HashEntry<'_>>,
        now: Timestamp,
    ) -> Self {
        let since = hash.and_then(|entry| entry.since);
        Self {
            state: in_place_state(pod, &set.name),
            since,
            settles: Settles::of(pod, since, now),
        }
    }

    /// Whether the runtime runs what the spec says of a container.
    fn is_consistent(&self, container: &ObservedContainer) -> bool {
        let Some(status) = &container.status else {
            return false;
        };
        let is_settled = self.settles == Settles::Now;
        let Some(former) = self.state.former(&container.name) else {
            // The container was never upgraded, or nobody knows.
            let is_malformed = self.state == InPlaceState::Malformed;
            // Nothing was replaced, so what runs was asked for. Where a digest is asked for, the status shows whether
            // it is that one.
            let is_trusted = !is_malformed && digest(&container.image).is_none();
            return is_trusted || is_settled || runs(status, &container.image);
        };
        let is_shown = || {
            let is_another = digest(&container.image).is_none()
                && *status.image_id != *former.image_id
                && (former.container_id.is_none() || !former.image_id.is_empty());
            is_another || runs(status, &container.image)
        };
        match &former.container_id {
            // The former container may have been started anew before the kubelet heard of the upgrade. And where a new name
            // means the same image, nothing shows that it is asked for: a runtime reports either name
            // (kubernetes/kubernetes#51017). In both cases the container is new and its image is the former.
            Some(_) if !former.is_container(status.container_id.as_deref()) => {
                status.running.is_some() && (is_shown() || is_settled)
            }
            // The former container stays where the image that it was started with is asked for again, before its kubelet has
            // heard of another.
            Some(_) => is_settled && status.running.is_some() && runs(status, &container.image),
            None => is_shown() || (is_settled && self.was_started_since(status)),
        }
    }

    /// The end of the set's wait for a pod: after the last of what may have made it unavailable, as far as that is known. A
    /// kubelet may report a container that was started anew without the pod having been not ready in between, and an image that
    /// it has not heard of yet as the present one; so the pod's condition, which decides about the pods of a Deployment
    /// (`IsPodAvailable`, `pkg/api/v1/pod/util.go`), is not enough.
    ///
    /// Pods that were never upgraded are not waited for: where new ones are created all the time, as by Jobs, no old one would
    /// ever be upgraded. A time that is to come means nothing: it stands in an annotation, which others can write, or
    /// comes from a node whose clock is ahead, and the roll-out would stand still until then.
    fn fresh_until(
        &self,
        set: &SidecarSet,
        pod: &ObservedPod,
        now: Timestamp,
    ) -> Option<Timestamp> {
        let wait = SignedDuration::try_from(set.update.min_ready).ok()?;
        if wait.is_zero() || !matches!(self.state, InPlaceState::Of(_)) {
            return None;
        }
        let statuses = sidecars_in(set, pod).filter_map(|container| container.status.as_ref());
        let started = statuses.filter_map(|status| status.running.flatten());
        let times = started.chain(pod.ready.flatten()).chain(self.since);
        let last = times.filter(|time| *time <= now).max()?;
        Some(last.saturating_add(wait).unwrap_or(Timestamp::MAX))
    }

    /// Whether a container was started after its image was written, for upgrades by `OpenKruise`, which does not record the
    /// former container.
    fn was_started_since(&self, status: &ObservedStatus) -> bool {
        let started = status.running.flatten();
        matches!((started, self.since), (Some(started), Some(since)) if started > since)
    }
}

impl Settles {
    fn of(pod: &ObservedPod, since: Option<Timestamp>, now: Timestamp) -> Self {
        // The time stands in an annotation, which others can write: one that is to come means nothing.
        let Some(since) = since.filter(|since| *since <= now) else {
            return Self::Now;
        };
        let grace = SignedDuration::try_from(pod.grace_period.min(LONGEST_GRACE));
        let within = grace.unwrap_or_default().saturating_add(REPLACED_WITHIN);
        match since.checked_add(within) {
            Ok(settled) if settled > now => Self::At(settled),
            _ => Self::Now,
        }
    }
}

/// The time at which a pod counts as upgraded unless a container is replaced before. None if something else decides that.
pub fn settles_at(set: &SidecarSet, pod: &ObservedPod, now: Timestamp) -> Option<Timestamp> {
    let former = FormerContainers::read(set, pod, now);
    let Settles::At(settled) = former.settles else {
        return None;
    };
    let read = |settles| {
        let former = FormerContainers { settles, ..former };
        let progress = Progress::read(set, pod, &former);
        (progress, PodReadiness::read(set, pod, &former))
    };
    (read(former.settles) != read(Settles::Now)).then_some(settled)
}

/// The time until which a pod is [fresh](PodState::is_fresh). None if it is not, or if that does not depend on the time.
pub fn fresh_until(set: &SidecarSet, pod: &ObservedPod, now: Timestamp) -> Option<Timestamp> {
    let until = FormerContainers::read(set, pod, now).fresh_until(set, pod, now);
    until.filter(|until| *until > now)
}

/// Whether a container's status shows that it runs an image: by its digest, else by its name. The repository of a digest is
/// not compared: the runtime completes it.
fn runs(status: &ObservedStatus, image: &str) -> bool {
    match digest(image) {
        Some(digest) => status.image_id.rsplit('@').next() == Some(digest),
        None => names_one_image(&status.image, image),
    }
}
