//! Values of labels that only one pod of a group has: the groups, and who of them is to have the value.
//!
//! A group has the pods that claim its value, that may have it, or whose records tell of a version. What they are is set when
//! an event arrives and with each plan of a pod ([`Groups::set_memberships`]), so that the group knows of a pod that may have the value before the plan
//! of that pod can give it. Markers and nodes are unknown.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use leadsman_api::limits::EXCLUSIVE_HOLDERS;
use leadsman_api::marker::ExclusiveHolder;

use super::context::{IndexContext, MarkerName, PodName};
use crate::cluster::{ObjectName, ResourceVersion};
use crate::podprobe::exclusive::{Group, Record, Ruling, ValueMember};

/// The name of a group.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct GroupName {
    pub(super) marker: MarkerName,
    /// The name of the probe.
    pub(super) probe: Arc<str>,
    /// The value of the label by which the pods are grouped.
    pub(super) value: Option<Arc<str>>,
}

/// A pod in a group, by its verdict and its marks.
#[derive(Debug)]
pub(super) struct NewMember {
    pub(super) group: GroupName,
    pub(super) is_versioned: bool,
    pub(super) member: ValueMember,
}

/// All groups.
#[derive(Debug, Default)]
pub(super) struct Groups {
    by_name: BTreeMap<GroupName, Group>,
    of_pod: HashMap<PodName, Vec<GroupName>>,
    /// The version up to which the watch has shown all pods.
    watched: ResourceVersion,
    /// Pods that get a value once the watch has come to their versions.
    unwatched: BTreeSet<(u64, PodName)>,
}

impl Groups {
    /// Records that the watch of pods has come to a version.
    pub(super) fn note_watched(&mut self, version: ResourceVersion, cx: &mut IndexContext) {
        self.watched = self.watched.max(version);
        while let Some((version, _)) = self.unwatched.first()
            && self.has_watched(Some(*version))
            && let Some((_, pod)) = self.unwatched.pop_first()
        {
            cx.affected.pods.insert(pod);
        }
    }

    /// Records that the watch of pods begins again with a list of this version, which may be an earlier one.
    pub(super) fn note_listed(&mut self, version: ResourceVersion, cx: &mut IndexContext) {
        self.watched = version;
        self.note_watched(version, cx);
    }

    /// Whether the watch has shown what happened up to a version; one that is not known is no reason to wait.
    pub(super) fn has_watched(&self, version: Option<u64>) -> bool {
        version.is_none_or(|version| {
            let watched = self.watched.number();
            watched.is_some_and(|watched| version <= watched)
        })
    }

    /// Replaces what a pod, known in this version, has to do with exclusive values. Affects others where that changes who is
    /// to have one.
    pub(super) fn set_memberships(
        &mut self,
        pod: &PodName,
        version: Option<u64>,
        members: Vec<NewMember>,
        cx: &mut IndexContext,
    ) {
        let before = self.of_pod.remove(pod).unwrap_or_default();
        let names: Vec<_> = members.iter().map(|new| new.group.clone()).collect();
        for name in before.iter().filter(|name| !names.contains(name)) {
            self.set_member(name, pod, None, cx);
        }
        for new in members {
            if let Some(version) = version.filter(|_| !new.member.is_watched) {
                self.unwatched.insert((version, pod.clone()));
            }
            let group = self.by_name.entry(new.group.clone()).or_default();
            group.is_versioned = new.is_versioned;
            self.set_member(&new.group, pod, Some(new.member), cx);
        }
        if !names.is_empty() {
            self.of_pod.insert(pod.clone(), names);
        }
    }

    /// Removes a pod that is not there any more.
    pub(super) fn remove_pod(&mut self, pod: &PodName, cx: &mut IndexContext) {
        self.set_memberships(pod, None, Vec::new(), cx);
    }

    fn set_member(
        &mut self,
        name: &GroupName,
        pod: &PodName,
        member: Option<ValueMember>,
        cx: &mut IndexContext,
    ) {
        let Some(group) = self.by_name.get_mut(name) else {
            return;
        };
        let before = group.election().clone();
        let known = group.member(pod).cloned();
        let changes_others = group.set_member(pod, member);
        if group.member(pod) != known.as_ref() {
            cx.affected.markers.insert(name.marker.clone());
        }
        if changes_others {
            // The affected pods are those whose label or record follows from the election, not all that claim the value
            // in vain. Only the elected pod waits for the others that may have the value.
            let elected = before.holder.iter().chain(&group.election().holder);
            let is_as_before = *group.election() == before;
            let possible = group
                .possible_holders()
                .filter(|_| !is_as_before)
                .map(|(pod, _)| pod);
            let others = elected.chain(possible).filter(|other| *other != pod);
            cx.affected.pods.extend(others.cloned());
        }
        if group.is_empty() {
            self.by_name.remove(name);
        }
    }

    /// The ruling on a pod in a group, and the record that the pod should have.
    pub(super) fn ruling(&self, name: &GroupName, pod: &PodName) -> (Ruling, Option<Record>) {
        let Some(group) = self.by_name.get(name) else {
            return (Ruling::Declines, None);
        };
        let ruling = group.ruling(pod);
        let record = group.wanted_record(pod, &ruling);
        (ruling, record)
    }

    /// Whether no other pod may have the value of a group.
    pub(super) fn may_give(&self, name: &GroupName, pod: &PodName) -> bool {
        let group = self.by_name.get(name);
        group.is_some_and(|group| group.may_give(pod))
    }

    /// The pods that have the values of a marker's probes, by the name of the probe: of each probe the first groups.
    pub(super) fn holders_of(
        &self,
        marker: &ObjectName,
    ) -> BTreeMap<Arc<str>, Vec<ExclusiveHolder>> {
        // The map is empty where no marker has such a value.
        if self.by_name.is_empty() {
            return BTreeMap::new();
        }
        let first = GroupName {
            marker: Arc::new(marker.clone()),
            probe: "".into(),
            value: None,
        };
        let groups = self
            .by_name
            .range(first..)
            .take_while(|(name, _)| *name.marker == *marker);
        let mut holders: BTreeMap<Arc<str>, Vec<ExclusiveHolder>> = BTreeMap::new();
        for (name, group) in groups {
            let all = holders.entry(name.probe.clone()).or_default();
            if all.len() == EXCLUSIVE_HOLDERS {
                continue;
            }
            let mut shown = group.possible_holders().filter(|(_, member)| member.shows);
            if let Some((pod, member)) = shown.next() {
                let record = member.record.clone().unwrap_or_default();
                all.push(ExclusiveHolder {
                    group: name.value.as_ref().map(ToString::to_string),
                    pod: pod.name.clone(),
                    version: record.version.map(|version| version.to_string()),
                    since: record.since,
                });
            }
        }
        holders
    }
}
