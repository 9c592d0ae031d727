//! The inspection of a pod and of a set, for those who explain them to somebody. All of it comes from the functions that decide
//! what is written; nothing is decided here.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use leadsman_reconcile::Now;

use super::in_force::InForceMemory;
use super::member::{Hold, Lack, lack};
use super::review::{Resting, ReviewedPod, SetReview};
use super::world::SetWorld;
use super::{Config, SetName, SidecarSets};
use crate::cluster::{Invalid, ObjectName};
use crate::sidecarset::pod::PodState;
use crate::sidecarset::rollout::{is_down, is_pending};
use crate::sidecarset::set::SidecarSet;

/// All sets with their pods, as they are now.
pub struct Inspection<'a> {
    world: &'a SetWorld,
    sets: BTreeMap<SetName, InspectedReview>,
}

struct InspectedReview {
    /// The time since which the set is in force.
    since: Option<Timestamp>,
    review: Option<SetReview>,
    turns: Vec<Turn>,
}

/// A set that a pod was injected by, or that selects it.
#[derive(Clone, Debug, PartialEq)]
pub struct InspectedSet<'a> {
    /// The set's name.
    pub name: &'a str,
    /// The set.
    pub set: SetByName<'a>,
    /// The pod's membership, if it was injected by the set and still belongs to it.
    pub membership: Option<InspectedMembership<'a>>,
    /// Why the pod lacks it, if it selects the pod and is in force since before the pod was created.
    pub lack: Option<Lack>,
}

/// A set by a name in a pod.
#[derive(Clone, Debug, PartialEq)]
pub enum SetByName<'a> {
    /// The set is acted on.
    Active(&'a Arc<SidecarSet>),
    /// The set breaks rules.
    Invalid(&'a [Invalid]),
    /// The set is being deleted.
    Deleting,
    /// No set has this name.
    Gone,
}

/// The membership of a pod in a set that it was injected by.
#[derive(Clone, Debug, PartialEq)]
pub struct InspectedMembership<'a> {
    /// The state as it is observed.
    pub state: PodState,
    /// Why it is not upgraded, apart from what the roll-out says.
    pub hold: Option<&'a Hold>,
    /// The pod's place in the roll-out.
    pub turn: Turn,
    /// The revision that it has, as it says.
    pub revision: Option<&'a str>,
}

/// The place of a pod in a roll-out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// The pod is upgraded now.
    Now,
    /// The pod waits until others are available again, or have shown that their new image is good.
    Waiting {
        /// Whether it serves, so that it waits for pods that are down. Others are down anyway, and wait for pods whose upgrade
        /// has not shown yet that the image is good.
        would_go_down: bool,
    },
    /// The pod stays as it is: by the partition, or because the set upgrades nothing.
    Kept,
    /// The pod is no candidate.
    None,
}

/// A pod that holds a place for which others wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder<'a> {
    /// The pod.
    pub pod: &'a ObjectName,
    /// Whether it is upgraded now, and not yet.
    pub is_next: bool,
}

impl<'a> Inspection<'a> {
    /// Looks at all sets of a world.
    pub fn new(config: &Config, world: &'a SetWorld, now: Now) -> Self {
        let feature = SidecarSets::new(config.clone(), ());
        let sets = world.known.keys().filter_map(|name| {
            let inspected = InspectedReview::new(&feature, name, world, now)?;
            Some((name.clone(), inspected))
        });
        Self {
            sets: sets.collect(),
            world,
        }
    }

    /// The sets that a pod was injected by, and those that it lacks.
    pub fn inspect_pod(&self, name: &ObjectName) -> Vec<InspectedSet<'_>> {
        let Some(pod) = self.world.pods.observed(name) else {
            return Vec::new();
        };
        let lacks: BTreeMap<_, _> = self
            .sets
            .iter()
            .filter_map(|(set, inspected)| {
                let active = self.world.known.get(set)?.active_set()?;
                Some((set, lack(active, inspected.since?, pod, self.world)?))
            })
            .collect();
        let injected = pod
            .injected
            .iter()
            .filter(|set| !lacks.contains_key(*set))
            .map(|set| (set, None));
        let lacks = lacks.iter().map(|(set, lack)| (*set, Some(lack.clone())));
        let sets = injected.chain(lacks).map(|(set, lack)| InspectedSet {
            name: set,
            set: self.known_set(set),
            membership: self.membership(set, name),
            lack,
        });
        sets.collect()
    }

    fn known_set(&self, name: &str) -> SetByName<'_> {
        let Some(known) = self.world.known.get(name) else {
            return SetByName::Gone;
        };
        match (&known.parsed, known.active_set()) {
            (Err(errors), _) => SetByName::Invalid(errors),
            (Ok(_), Some(set)) => SetByName::Active(set),
            (Ok(_), None) => SetByName::Deleting,
        }
    }

    fn membership(&self, set: &str, pod: &ObjectName) -> Option<InspectedMembership<'_>> {
        let inspected = self.sets.get(set)?;
        let pods = &inspected.review.as_ref()?.pods;
        let place = pods
            .binary_search_by(|own| (**own.pod.name()).cmp(pod))
            .ok()?;
        let own = &pods[place];
        Some(InspectedMembership {
            state: own.state,
            hold: own.hold.as_ref(),
            turn: inspected.turns[place],
            revision: own.member.revision.as_deref(),
        })
    }

    /// The pods that hold the places for which a pod of a set [waits](Turn::Waiting): those that hold one already, and those
    /// that are upgraded now. `would_go_down` says of the pod which places these are.
    pub fn holders(&self, set: &str, would_go_down: bool) -> Vec<Holder<'_>> {
        let Some(inspected) = self.sets.get(set) else {
            return Vec::new();
        };
        let holds_place = if would_go_down { is_down } else { is_pending };
        let pods = inspected.review.iter().flat_map(|review| &review.pods);
        let holders = pods.zip(&inspected.turns).filter_map(|(own, turn)| {
            let takes_place = own.assumed.would_go_down() == would_go_down;
            let is_next = takes_place && *turn == Turn::Now;
            // The roll-out counts the same: a pod whose upgrade was sent holds a place already.
            (is_next || holds_place(own.assumed)).then_some(Holder {
                pod: own.pod.name(),
                is_next,
            })
        });
        holders.collect()
    }
}

impl InspectedReview {
    fn new(feature: &SidecarSets, name: &str, world: &SetWorld, now: Now) -> Option<Self> {
        let (stored, known) = world.set(name)?;
        let set = known.active_set();
        let mut memory = InForceMemory::default();
        feature.update_in_force((stored, known), world, &mut memory, now);
        let review = set.map(|set| feature.review(set, world, &Resting::default(), now));
        let turns = review.as_ref().map(turns).unwrap_or_default();
        Some(Self {
            since: memory.in_force.map(|in_force| in_force.since.0),
            review,
            turns,
        })
    }
}

/// The turns of the pods of a set, by their places.
fn turns(review: &SetReview) -> Vec<Turn> {
    let mut turns = vec![Turn::None; review.pods.len()];
    let rollout = &review.rollout;
    for place in &rollout.next {
        turns[*place] = Turn::Now;
    }
    for place in &rollout.kept {
        turns[*place] = Turn::Kept;
    }
    for place in &rollout.waiting {
        let ReviewedPod { assumed, .. } = &review.pods[*place];
        let would_go_down = assumed.would_go_down();
        turns[*place] = Turn::Waiting { would_go_down };
    }
    turns
}
