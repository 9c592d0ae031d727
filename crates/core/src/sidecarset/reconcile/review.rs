//! A set and all of its pods, looked at together: the roll-out, what the status counts, and what is wrong. What is written
//! follows from this, and so does what is explained to people.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use leadsman_reconcile::{Now, Purpose};

use super::member::{Hold, lack, state_after_upgrade};
use super::world::{KnownSet, SetMember, SetWorld, StoredPod, StoredSet};
use super::{SetMemory, SidecarSets};
use crate::cluster::ObjectName;
use crate::sidecarset::pod::{PodState, PodVersion};
use crate::sidecarset::rollout::{RollingPod, Rollout};
use crate::sidecarset::set::SidecarSet;
use crate::sidecarset::status::Counts;

/// The writes of pods that were refused, or are undone each time, for what reason and until when they rest.
pub(super) type Resting = HashMap<(ObjectName, Purpose), (Arc<str>, Duration)>;

/// A pod of a set.
pub(super) struct ReviewedPod {
    pub(super) pod: Arc<StoredPod>,
    pub(super) member: Arc<SetMember>,
    /// The state as it is observed; the status counts this.
    pub(super) state: PodState,
    /// The state if the write that is under way has been carried out; budgets count this.
    pub(super) assumed: PodState,
    /// Whether that write is of this set.
    pub(super) is_sent: bool,
    /// Whether it is of another one: what becomes of it has to be known before this set writes the pod.
    is_sent_by_another: bool,
    /// Why its upgrade was refused, also where it may be sent again by now.
    pub(super) refused: Option<Arc<str>>,
    /// Why it is not upgraded, apart from what the roll-out says.
    pub(super) hold: Option<Hold>,
}

/// A set that is acted on, with its pods.
pub(super) struct SetReview {
    /// The set's pods by name.
    pub(super) pods: Vec<ReviewedPod>,
    pub(super) rollout: Rollout,
    pub(super) counts: Counts,
    /// How many pods have each revision.
    pub(super) revisions: BTreeMap<Arc<str>, usize>,
    /// How many were injected with each revision.
    pub(super) injected: BTreeMap<Arc<str>, usize>,
    pub(super) not_upgradable: Listed,
    pub(super) refused: Listed,
    pub(super) former: Listed,
    pub(super) pinned: Listed,
    /// Pods that lack a variable which the set transfers.
    pub(super) without_variable: Listed,
    /// The time at which a pod becomes something else to the set, if nothing shows that before.
    pub(super) until: Option<Timestamp>,
}

/// Pods that have something in common: how many, and the place of the first one by name.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Listed {
    pub(super) count: usize,
    first: Option<usize>,
}

/// The sums over the pods of a set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetSums {
    /// The counts of the set's status.
    pub counts: Counts,
    /// Pods that differ in more than their images.
    pub not_upgradable: usize,
    /// Pods whose upgrade was refused.
    pub refused: usize,
    /// Pods that an earlier set of the name injected.
    pub former: usize,
    /// Pods that the set selects and that lack it.
    pub lacking: usize,
}

impl SetSums {
    pub(super) fn add(&mut self, other: Self) {
        self.counts += other.counts;
        self.not_upgradable += other.not_upgradable;
        self.refused += other.refused;
        self.former += other.former;
        self.lacking += other.lacking;
    }
}

impl Listed {
    fn add(&mut self, place: usize) {
        self.count += 1;
        self.first.get_or_insert(place);
    }

    /// The first one by name.
    pub(super) fn first(self, review: &SetReview) -> Option<&ReviewedPod> {
        review.pods.get(self.first?)
    }
}

impl SidecarSets {
    /// Looks at a set that is acted on, and at its pods. Its cost is proportional to these; what follows from a single pod is
    /// kept with it.
    pub(super) fn review(
        &self,
        set: &Arc<SidecarSet>,
        world: &SetWorld,
        resting: &Resting,
        now: Now,
    ) -> SetReview {
        let mut review = SetReview {
            pods: Vec::new(),
            rollout: Rollout::default(),
            counts: Counts::default(),
            revisions: BTreeMap::new(),
            injected: BTreeMap::new(),
            not_upgradable: Listed::default(),
            refused: Listed::default(),
            former: Listed::default(),
            pinned: Listed::default(),
            without_variable: Listed::default(),
            until: None,
        };
        // Pods come by namespace, so each is looked up once.
        let mut namespace = ("", None);
        for pod in world.pods.find(&set.name) {
            let own = &*pod.name().namespace;
            if namespace.0 != own {
                namespace = (own, world.namespace(own));
            }
            let member = self.member_in(set, pod, namespace.1, now.wall);
            review.until = review.until.into_iter().chain(member.until).min();
            if let Some(state) = member.state {
                review.add(self.review_pod((set, pod, member, state), world, resting, now));
            }
        }
        let rolling = review.pods.iter().map(|own| RollingPod {
            state: own.assumed,
            place: own
                .member
                .place
                .as_deref()
                .filter(|_| own.may_be_upgraded()),
            labels: &own.member.labels,
            is_sent: own.is_sent,
        });
        review.rollout = Rollout::plan(set, &rolling.collect::<Vec<_>>());
        review
    }

    fn review_pod(
        &self,
        (set, pod, member, state): (&Arc<SidecarSet>, &Arc<StoredPod>, Arc<SetMember>, PodState),
        world: &SetWorld,
        resting: &Resting,
        now: Now,
    ) -> ReviewedPod {
        // Few are asked for something at a time.
        let is_asked = world.pods.is_asked(pod.name());
        let assumed = is_asked.then(|| world.pods.assumed(pod.name())).flatten();
        let sent_by = assumed.and_then(|assumed| assumed.sent.as_ref());
        let is_sent = sent_by == Some(&set.name);
        let is_old = state.version != PodVersion::Updated;
        let rest = refused_upgrade(set, pod, resting).filter(|_| is_old);
        let rests = rest.filter(|(_, until)| *until > now.monotonic);
        let refused = rest.map(|(reason, _)| reason.clone());
        let find_hold = || self.hold(pod, (set, &member, state), world, now.wall);
        let hold = match (rests, &refused) {
            (Some(_), Some(reason)) => Some(Hold::Refused(reason.clone())),
            _ => is_old.then(find_hold).flatten(),
        };
        ReviewedPod {
            refused,
            hold,
            // A patch that was sent counts as done until it is answered, or two pods would take one place.
            assumed: if is_sent {
                state_after_upgrade(state)
            } else {
                state
            },
            pod: pod.clone(),
            is_sent_by_another: sent_by.is_some() && !is_sent,
            is_sent,
            state,
            member,
        }
    }

    /// The pods that a set selects and that lack it. All pods are looked at where something of the set has changed; afterwards
    /// each of them says itself when it is something else.
    pub(super) fn find_lacking(
        set: Option<&Arc<SidecarSet>>,
        world: &SetWorld,
        memory: &mut SetMemory,
    ) {
        let in_force = memory.in_force.in_force.as_ref();
        let since = in_force.map(|in_force| in_force.since.0);
        let selection = set.zip(since).map(|(set, since)| Selection {
            set: set.clone(),
            since,
            winners: world.conflicts.winners(&set.name).cloned().collect(),
        });
        if memory.selection != selection {
            let pods = selection.iter().flat_map(|_| world.pods.iter());
            let lacking = pods.filter_map(|(_, pod)| {
                let Selection { set, since, .. } = selection.as_ref()?;
                Some((pod.name().clone(), lack(set, *since, pod, world)?))
            });
            memory.lacking = lacking.collect();
            memory.selection = selection;
        }
    }
}

/// The facts that decide which pods lack a set.
#[derive(Clone, Debug)]
pub(super) struct Selection {
    pub(super) set: Arc<SidecarSet>,
    pub(super) since: Timestamp,
    /// The older sets that claim the same.
    winners: Vec<Arc<SidecarSet>>,
}

impl PartialEq for Selection {
    fn eq(&self, other: &Self) -> bool {
        let are_same = |(one, other): (&Arc<SidecarSet>, _)| Arc::ptr_eq(one, other);
        self.since == other.since
            && Arc::ptr_eq(&self.set, &other.set)
            && self.winners.len() == other.winners.len()
            && self.winners.iter().zip(&other.winners).all(are_same)
    }
}

fn refused_upgrade<'a>(
    set: &SidecarSet,
    pod: &StoredPod,
    resting: &'a Resting,
) -> Option<&'a (Arc<str>, Duration)> {
    if resting.is_empty() {
        return None;
    }
    let name = (**pod.name()).clone();
    resting.get(&(name, upgrade_purpose(set, pod)))
}

/// The purpose of the upgrade of a pod by a set.
pub(super) fn upgrade_purpose(set: &SidecarSet, pod: &StoredPod) -> Purpose {
    Purpose::of((&set.name, &set.hashes.hash, &pod.pod.uid))
}

impl ReviewedPod {
    fn may_be_upgraded(&self) -> bool {
        self.hold.is_none() && !self.is_sent_by_another
    }
}

impl SetReview {
    fn add(&mut self, own: ReviewedPod) {
        let place = self.pods.len();
        let member = &own.member;
        self.counts.add(own.state);
        if let Some(revision) = &member.revision {
            *self.revisions.entry(revision.clone()).or_default() += 1;
        }
        // A pod that no upgrade has changed was injected with the revision that it has.
        if let Some(injected) = member.injected.as_ref().or(member.revision.as_ref()) {
            *self.injected.entry(injected.clone()).or_default() += 1;
        }
        if member.lacks_variable {
            self.without_variable.add(place);
        }
        let listed = match (&own.hold, own.state.version) {
            // The lists are of pods that wait, and an updated one has what it is to have.
            (_, PodVersion::Updated) => None,
            _ if own.refused.is_some() => Some(&mut self.refused),
            (Some(Hold::Former), _) => Some(&mut self.former),
            (Some(Hold::Pinned), _) => Some(&mut self.pinned),
            (_, PodVersion::NotUpgradable) => Some(&mut self.not_upgradable),
            _ => None,
        };
        if let Some(listed) = listed {
            listed.add(place);
        }
        self.pods.push(own);
    }

    pub(super) fn sums(&self, lacking: usize) -> SetSums {
        SetSums {
            counts: self.counts,
            not_upgradable: self.not_upgradable.count,
            refused: self.refused.count,
            former: self.former.count,
            lacking,
        }
    }
}

/// A set in its world, as its status speaks of it.
#[derive(Clone, Copy)]
pub(super) struct SetView<'a> {
    pub(super) name: &'a str,
    pub(super) stored: &'a StoredSet,
    pub(super) known: &'a KnownSet,
    pub(super) world: &'a SetWorld,
    pub(super) memory: &'a SetMemory,
    /// The set with its pods; None for a set that breaks a rule.
    pub(super) review: Option<&'a SetReview>,
}
