//! Pods in the index: each is worked out as a whole whenever something it depends on has changed.

use std::sync::Arc;
use std::time::Duration;

use leadsman_api::slim;

use super::pending::Whereabouts;
use super::slots::SlotKey;
use super::{DueWrite, Index, MarkerName, Pass, Sent, Timer};
use crate::cluster::{Interner, Now, ObjectName, ResourceVersion, Source};
use crate::podprobe::contest::Contests;
use crate::podprobe::event::{Kind, Write, WriteTarget};
use crate::podprobe::marker::Marker;
use crate::podprobe::marks::{self, ComparedMark, Conflict, Mark, Wants};
use crate::podprobe::plan::{Entries, Entry, Gap, PodEntries};
use crate::podprobe::pod::Pod;
use crate::podprobe::status::{Share, Trouble};

/// A pod, and what of it is counted elsewhere.
#[derive(Debug)]
pub(super) struct PodState {
    pub(super) seen: Pod,
    /// When it was first seen; monotonic.
    pub(super) since: Duration,
    /// Where its entries are wanted.
    slot: Option<(Arc<str>, SlotKey)>,
    /// What it adds to the tallies of the markers that match it.
    pub(super) shares: Shares,
    pub(super) contests: Contests<Mark>,
    pub(super) timer: Option<Duration>,
    /// What it lacks; none if it has what is wanted.
    due: Option<Box<DueMarks>>,
    /// It was worked out, has what is wanted, and nothing is waited for.
    at_rest: bool,
}

/// The marks that a pod lacks. Kept from the plan that found them until the next one, so that neither the write nor what
/// is remembered of it needs a plan of its own.
#[derive(Debug)]
struct DueMarks {
    wants: Wants,
    /// Those that the pod does not have as they are wanted.
    differing: Vec<ComparedMark>,
}

/// By marker, the one that goes first in front.
pub(super) type Shares = Vec<(MarkerName, Share)>;

/// What follows for a pod from the markers that match it.
struct Outcome {
    shares: Shares,
    wants: Wants,
}

/// Entries of a pod, or why there are none: for each marker that matches, for each of its probes.
type Plans = Vec<Vec<Result<Entry, Gap>>>;

impl Index {
    pub(super) fn see_pod(&mut self, wire: &slim::Pod, source: Source, pass: &mut Pass) {
        let known = self.pods.get(&ObjectName::of(&wire.identity));
        let seen = known.map(|known| &known.seen);
        let seen = Pod::new(wire, seen, &mut self.interners);
        let version = known.map(|known| known.seen.version);
        if self
            .watches
            .is_stale(source, Kind::Pod, &seen.name, seen.version, version)
        {
            return;
        }
        let name = seen.name.clone();
        if known.is_some_and(|known| known.seen.uid != seen.uid) {
            self.lose_pod(&name, pass);
        }
        self.let_go(Kind::Pod, &name, pass);
        if let Some(known) = self.pods.get_mut(&name)
            && known.at_rest
            // Of an agent, more is read than is kept.
            && name.namespace != self.config.agent_namespace
        {
            // Most of what happens to pods is nothing to us.
            known.seen.version = seen.version;
            if known.seen == seen {
                return;
            }
        }
        let controller = self
            .pods
            .get(&name)
            .and_then(|known| known.seen.controller.clone());
        if let Some(controller) = controller
            && seen.controller.is_none()
            && seen.active
        {
            self.count_release(&controller, &seen, pass);
        }
        self.see_agent(&seen, wire, pass);
        if let Some(known) = self.pods.get_mut(&name) {
            known.seen = seen;
        } else {
            let state = PodState {
                seen,
                since: pass.now.monotonic,
                slot: None,
                shares: Shares::new(),
                contests: Contests::default(),
                timer: None,
                due: None,
                at_rest: false,
            };
            self.pods.insert(name.clone(), Box::new(state));
            let namespace = self.namespaces.entry(name.namespace.clone());
            namespace.or_default().insert(name.clone());
        }
        pass.pods.insert(name);
    }

    pub(super) fn lose_pod(
        &mut self,
        name: &ObjectName,
        pass: &mut Pass,
    ) -> Option<ResourceVersion> {
        let (name, mut state) = self.pods.remove_entry(name)?;
        if let Some(pods) = self.namespaces.get_mut(&name.namespace) {
            pods.remove(&name);
            if pods.is_empty() {
                self.namespaces.remove(&name.namespace);
            }
        }
        self.lose_agent(&state.seen, pass);
        self.note_unclaimed(&name, false, pass);
        self.refused.remove(&WriteTarget::PodMarks((*name).clone()));
        if let Some(time) = state.timer {
            self.timers.remove(&(time, Timer::Pod(name.clone())));
        }
        if let Some((node, key)) = state.slot.take() {
            self.want(&node, &key, None, pass);
        }
        self.count(&name, state.shares, &[], pass);
        Some(state.seen.version)
    }

    /// Works a pod out anew from what is observed, and passes on what has changed.
    pub(super) fn work_out(&mut self, name: &Arc<ObjectName>, pass: &mut Pass) {
        #[cfg(test)]
        {
            self.plans += 1;
        }
        let Some(state) = self.pods.get(name) else {
            self.keep_slots(name, pass);
            return;
        };
        let matching = self.matching(&state.seen);
        let plans = self.plan(&state.seen, &matching);
        let held = self.held_entries(&state.seen);
        let wanted = wanted(&state.seen, &plans, held, &mut self.entries);
        let slot = wanted.as_ref().and_then(|_| slot_key(&state.seen));
        if let Some((node, key)) = state.slot.clone()
            && Some(&(node.clone(), key.clone())) != slot.as_ref()
        {
            self.want(&node, &key, None, pass);
        }
        if let Some((node, key)) = &slot {
            self.want(node, key, wanted, pass);
        }
        let Some(state) = self.pods.get(name) else {
            return;
        };
        let outcome = self.judge(name, state, &matching, &plans);
        let unclaimed = state.seen.active && marks::has_unclaimed(&state.seen, &outcome.wants);
        self.note_unclaimed(name, unclaimed, pass);
        let Some(state) = self.pods.get_mut(name) else {
            return;
        };
        state.slot = slot;
        let now = pass.now.monotonic;
        let mut compared = if state.seen.active {
            marks::compare(&state.seen, &outcome.wants, pass.now.wall)
        } else {
            Vec::new()
        };
        let was_visible: Vec<_> = state.contests.visible().cloned().collect();
        state.contests.observe(&compared, now);
        compared.retain(|compared| compared.differs);
        let mut due = compared.iter();
        if due.any(|compared| !state.contests.holds(&compared.key, now)) {
            pass.dirty.insert(WriteTarget::PodMarks((**name).clone()));
        }
        let has_turned = !state.contests.visible().eq(&was_visible);
        let timer = std::mem::replace(&mut state.timer, state.contests.deadline(now));
        let next = state.timer;
        state.at_rest = compared.is_empty() && next.is_none();
        state.due = (!compared.is_empty()).then(|| {
            Box::new(DueMarks {
                wants: outcome.wants,
                differing: compared,
            })
        });
        let before = std::mem::take(&mut state.shares);
        self.count(name, before, &outcome.shares, pass);
        if let Some(state) = self.pods.get_mut(name) {
            state.shares = outcome.shares;
        }
        if timer != next {
            let timer = timer.map(|time| (time, Timer::Pod(name.clone())));
            timer.map(|timer| self.timers.remove(&timer));
            let next = next.map(|time| (time, Timer::Pod(name.clone())));
            self.timers.extend(next);
        }
        let is_over = self.drop_refusal_of_another_write(name, pass.now);
        if has_turned || is_over {
            // The shares were made before it was known what is fought over or refused.
            pass.pods.insert(name.clone());
        }
    }

    /// Forgets that a pod's marks were refused, if another write is due by now or none. Returns whether it did.
    fn drop_refusal_of_another_write(&mut self, name: &ObjectName, now: Now) -> bool {
        let marks = WriteTarget::PodMarks(name.clone());
        let Some(refusal) = self.refused.get(&marks) else {
            return false;
        };
        let due = self.marks_due(name, now);
        let is_same =
            due.is_some_and(|due| super::without_times_and_versions(due.write) == refusal.write);
        !is_same && self.refused.remove(&marks).is_some()
    }

    fn plan(&self, pod: &Pod, matching: &[MarkerName]) -> Plans {
        let observed = self.observed(pod);
        let markers = matching.iter().filter_map(|name| self.marker(name));
        let plans = markers.map(|marker| {
            let probes = marker.probes.iter();
            let entries = probes.map(|probe| Entry::plan(pod, probe, observed));
            entries.collect()
        });
        plans.collect()
    }

    /// What the markers want of a pod, by the verdicts of its node.
    fn judge(
        &self,
        name: &ObjectName,
        state: &PodState,
        matching: &[MarkerName],
        plans: &Plans,
    ) -> Outcome {
        let pod = &state.seen;
        let markers: Vec<&Marker> = matching
            .iter()
            .filter_map(|name| self.marker(name))
            .collect();
        let verdict = |(marker, probe): marks::Place| {
            let entry = plans.get(marker)?.get(probe)?.as_ref().ok()?;
            self.verdict(pod, entry)
        };
        let (mut wants, conflicts) = Wants::new(&markers, verdict);
        if self.holds_marker_in(&name.namespace) {
            wants.hold_unclaimed(&pod.ours);
        }
        let subject: Arc<str> = pod.name.name.as_str().into();
        let whereabouts = Whereabouts::new(self, pod);
        let marks = WriteTarget::PodMarks(name.clone());
        let refusal = self.refused.get(&marks);
        let mut shares = Shares::with_capacity(matching.len());
        for (first, (marker, plans)) in matching.iter().zip(plans).enumerate() {
            let mut share = Share::default();
            let probes = markers.get(first).map_or(&[][..], |marker| &marker.probes);
            for (second, (plan, probe)) in plans.iter().zip(probes).enumerate() {
                let state = verdict((first, second)).map(|verdict| verdict.state);
                whereabouts.count(&mut share, probe, plan, state);
            }
            let contested = state.contests.visible();
            let contested = contested.filter(|mark| {
                let marker = markers.get(first);
                marker.is_some_and(|marker| marks::names(marker, mark))
            });
            share.troubles.extend(contested.map(|mark| {
                let subject = format!("{subject} ({mark})");
                (Trouble::Contested, subject.into())
            }));
            if let Some(refusal) = refusal {
                let text = format!("{subject}: {}", refusal.reason);
                share.troubles.push((Trouble::InvalidSpec, text.into()));
            }
            let own = conflicts
                .iter()
                .filter(|conflict| conflict.loser.0 == first);
            share
                .troubles
                .extend(own.filter_map(|conflict| lost(conflict, matching)));
            share.troubles.sort();
            share.troubles.dedup();
            shares.push((marker.clone(), share));
        }
        Outcome { shares, wants }
    }

    /// Replaces a pod's shares in the tallies.
    fn count(
        &mut self,
        pod: &Arc<ObjectName>,
        mut before: Shares,
        after: &[(MarkerName, Share)],
        pass: &mut Pass,
    ) {
        for (marker, share) in after {
            let place = before.iter().position(|(known, _)| known == marker);
            let old = place.map(|place| before.swap_remove(place).1);
            if old.as_ref() == Some(share) {
                continue;
            }
            let Some(state) = self.markers.get_mut(marker) else {
                continue;
            };
            match old {
                Some(old) => state.tally.remove(&old),
                None => {
                    state.pods.insert(pod.clone());
                }
            }
            state.tally.add(share);
            pass.markers.insert(marker.clone());
        }
        for (marker, old) in before {
            if let Some(state) = self.markers.get_mut(&marker) {
                state.tally.remove(&old);
                state.pods.remove(pod);
                pass.markers.insert(marker);
            }
        }
    }

    /// The marks that are due on a pod: as the last plan has them, but for those that are fought over.
    pub(super) fn marks_due(&self, name: &ObjectName, now: Now) -> Option<DueWrite> {
        let state = self.pods.get(name)?;
        let due = state.due.as_ref()?;
        let is_held = |mark: &Mark| state.contests.holds(mark, now.monotonic);
        let marks = marks::difference(&state.seen, &due.wants, is_held, now.wall)?;
        let changed = due.differing.iter().filter(|one| !is_held(&one.key));
        let changed = changed.map(|one| (one.key.clone(), one.wanted));
        Some(DueWrite {
            write: Write::PodMarks(Box::new(marks)),
            sent: Sent::Marks(changed.collect()),
        })
    }

    /// Takes note that marks of a pod are being written.
    pub(super) fn send_marks(&mut self, name: &ObjectName, sent: Box<[(Mark, u64)]>) {
        if let Some(state) = self.pods.get_mut(name) {
            state.contests.send(sent);
        }
    }

    pub(super) fn pod(&self, name: &ObjectName) -> Option<&Pod> {
        self.pods.get(name).map(|state| &state.seen)
    }
}

/// Where a pod's entries are.
pub(super) fn slot_key(pod: &Pod) -> Option<(Arc<str>, SlotKey)> {
    let node = pod.node.clone()?;
    Some((node, (pod.name.clone(), pod.node_uid.clone())))
}

/// All entries of a pod, with those `held` for markers that do not decode; none if there is not one.
fn wanted(
    pod: &Pod,
    plans: &Plans,
    held: Vec<Entry>,
    pool: &mut Interner<Entries>,
) -> Option<PodEntries> {
    let planned = plans.iter().flatten().flatten().cloned();
    let entries: Vec<_> = planned.chain(held).collect();
    (!entries.is_empty()).then(|| PodEntries::new(pod.ip.clone(), entries, pool))
}

/// The marker that has what another wants.
fn lost(conflict: &Conflict, matching: &[MarkerName]) -> Option<(Trouble, Arc<str>)> {
    let winner = matching.get(conflict.winner.0)?;
    Some((Trouble::Conflict, winner.name.as_str().into()))
}
