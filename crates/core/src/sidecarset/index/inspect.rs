//! What the index knows of a pod and of a set, for those who explain it to somebody. All of it comes from the same
//! functions that decide what is written; nothing is decided here, and nothing is changed.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Index;
use super::context::{PodName, SetName};
use super::pods::{Hold, Lack, Membership};
use super::reason::Reason;
use crate::cluster::{Invalid, ObjectName};
use crate::sidecarset::pod::PodState;
use crate::sidecarset::rollout::{is_down, is_pending};
use crate::sidecarset::set::SidecarSet;
use crate::sidecarset::status::Counts;

/// A set that a pod was injected by, or that selects it.
#[derive(Clone, Debug, PartialEq)]
pub struct InspectedSet<'a> {
    /// Its name.
    pub name: &'a str,
    /// The set.
    pub set: SetByName<'a>,
    /// What the pod is to it, if it was injected by it and still belongs to it.
    pub membership: Option<InspectedMembership<'a>>,
    /// Why the pod lacks it, if it selects the pod and is in force since before the pod was created.
    pub lack: Option<&'a Lack>,
}

/// A set by a name in a pod.
#[derive(Clone, Debug, PartialEq)]
pub enum SetByName<'a> {
    /// It is acted on.
    Active(&'a Arc<SidecarSet>),
    /// It breaks rules.
    Invalid(&'a [Invalid]),
    /// It is being deleted.
    Deleting,
    /// There is none of this name.
    Gone,
}

/// What a pod is to a set that it was injected by.
#[derive(Clone, Debug, PartialEq)]
pub struct InspectedMembership<'a> {
    /// As it is observed.
    pub state: PodState,
    /// Why it is not upgraded, apart from what the roll-out says.
    pub hold: Option<&'a Hold>,
    /// Its place in the roll-out.
    pub turn: Turn,
    /// The revision that it has, as it says.
    pub revision: Option<&'a str>,
}

/// The place of a pod in a roll-out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// It is upgraded now.
    Now,
    /// It waits until others are available again, or have shown that their new image is good.
    Waiting {
        /// Whether it serves, so that it waits for pods that are down. Others are down anyway, and wait for pods whose upgrade
        /// has not shown yet that the image is good.
        would_go_down: bool,
    },
    /// It stays as it is: by the partition, or because the set upgrades nothing.
    Kept,
    /// It is no candidate.
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

/// A set and its pods.
#[derive(Clone, Debug, PartialEq)]
pub struct InspectedPods<'a> {
    /// What its condition says.
    pub reason: Reason,
    /// The message of that.
    pub message: String,
    /// What its status counts.
    pub counts: Counts,
    /// How many pods have each revision.
    pub revisions: &'a BTreeMap<Arc<str>, usize>,
    /// The revision of the set as it is now.
    pub newest: &'a str,
    /// The pods that it selects and that lack it.
    pub lacking: &'a BTreeMap<PodName, Lack>,
}

impl Index {
    /// The sets that a pod was injected by, and those that it lacks. Known after [`Event::Synced`].
    ///
    /// [`Event::Synced`]: crate::sidecarset::event::Event::Synced
    pub fn inspect_pod(&self, name: &ObjectName) -> Vec<InspectedSet<'_>> {
        let Some(entry) = self.pods.get(name) else {
            return Vec::new();
        };
        let lacks = entry.lacks.iter().map(|(set, lack)| (set, Some(lack)));
        let is_lacking = |set: &&SetName| entry.lacks.iter().any(|(lacking, _)| lacking == *set);
        let injected = entry.injected.iter().filter(|set| !is_lacking(set));
        let injected = injected.map(|set| (set, None));
        let sets = injected.chain(lacks).map(|(set, lack)| InspectedSet {
            name: set,
            set: self.known_set(set),
            membership: entry.membership_in(set).map(|member| InspectedMembership {
                state: member.state,
                hold: member.hold.as_ref(),
                turn: self.turn_of(member),
                revision: member.revision.as_deref(),
            }),
            lack,
        });
        sets.collect()
    }

    fn known_set(&self, name: &str) -> SetByName<'_> {
        let Some(entry) = self.sets.get(name) else {
            return SetByName::Gone;
        };
        match (&entry.parsed, entry.active_set()) {
            (Err(errors), _) => SetByName::Invalid(errors),
            (Ok(_), Some(set)) => SetByName::Active(set),
            (Ok(_), None) => SetByName::Deleting,
        }
    }

    fn turn_of(&self, member: &Membership) -> Turn {
        let (Some(candidate), Some(entry)) = (&member.candidate, self.sets.get(&member.set)) else {
            return Turn::None;
        };
        let (rolling, set) = (&entry.members.rolling, entry.active_set());
        if self.is_next(member, None) {
            Turn::Now
        } else if set.is_some_and(|set| rolling.is_waiting(set, candidate)) {
            let would_go_down = candidate.would_go_down();
            Turn::Waiting { would_go_down }
        } else {
            Turn::Kept
        }
    }

    /// The pods that hold the places for which a pod of a set [waits](Turn::Waiting): those that hold one already, and those
    /// that are upgraded now. `would_go_down` says of the pod which places these are. Known after [`Event::Synced`].
    ///
    /// [`Event::Synced`]: crate::sidecarset::event::Event::Synced
    pub fn holders(&self, set: &str, would_go_down: bool) -> Vec<Holder<'_>> {
        let Some(entry) = self.sets.get(set) else {
            return Vec::new();
        };
        let holds_place = if would_go_down { is_down } else { is_pending };
        let pods = entry.members.pods.iter().map(|pod| &**pod);
        let holders = pods.filter_map(|pod| {
            let member = self.pods.get(pod)?.membership_in(set)?;
            let candidate = member.candidate.as_deref();
            let takes_place = candidate.is_some_and(|it| it.would_go_down() == would_go_down);
            let is_next = takes_place && self.is_next(member, None);
            // As the roll-out counts it: a pod whose upgrade was sent holds a place already.
            (is_next || holds_place(member.assumed)).then_some(Holder { pod, is_next })
        });
        holders.collect()
    }

    /// A set and its pods; None if there is no set of this name. Known after [`Event::Synced`].
    ///
    /// [`Event::Synced`]: crate::sidecarset::event::Event::Synced
    pub fn inspect_set(&self, name: &str) -> Option<InspectedPods<'_>> {
        let entry = self.sets.get(name)?;
        let (reason, message) = self.first_problem(name, entry);
        Some(InspectedPods {
            reason,
            message,
            counts: entry.members.counts,
            revisions: &entry.members.revisions,
            newest: entry.history.newest_name(),
            lacking: &entry.lacking,
        })
    }
}
