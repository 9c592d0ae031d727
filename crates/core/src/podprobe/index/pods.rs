//! Pods: their observed state, the marks that are due on them, and which marks are contested.
//!
//! The machine keeps the observed pods and the result of each one's last plan ([`Pods::set_plan`]), from which the due
//! marks follow ([`Pods::due_write`]). It knows neither markers nor nodes: plans are made in `pod_plan` from all three
//! machines.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::context::{
    Contributions, DueWrite, IndexContext, MarkerName, NodeName, PodKey, PodName, Sent, Timer,
};
use super::groups::GroupName;
use super::pod_plan::PlannedExclusive;
use crate::cluster::{Now, ObjectName, ResourceVersion, Selector};
use crate::podprobe::contest::Contests;
use crate::podprobe::event::{Write, WriteTarget};
use crate::podprobe::marks::{self, ComparedMark, Mark, Wants};
use crate::podprobe::pod::IndexedPod;

/// All pods.
#[derive(Debug, Default)]
pub(super) struct Pods {
    // A hash map: the comparisons of an ordered map would read names all over the memory.
    by_name: HashMap<PodName, Box<PodRecord>>,
    by_namespace: HashMap<String, HashSet<PodName>>,
    /// The pods with marks of ours that no marker claims, by namespace.
    unclaimed: HashMap<String, BTreeSet<PodName>>,
    /// The number of plans made.
    #[cfg(test)]
    pub(super) plans: usize,
}

/// A pod with the result of its last plan.
#[derive(Debug)]
struct PodRecord {
    pod: IndexedPod,
    /// When it was first seen; monotonic.
    since: Duration,
    /// The node on which its entries are wanted.
    on_node: Option<(NodeName, PodKey)>,
    /// What it adds to the tallies of the markers that match it.
    contributions: Contributions,
    /// When the last of its verdicts changed that any plan has had. One that counts again, because the edit of a marker was
    /// undone, did not change then.
    last_transition: Option<Timestamp>,
    contests: Contests<Mark>,
    contest_timer: Option<Duration>,
    /// When the next of its verdicts counts that does not yet.
    hold_timer: Option<Duration>,
    /// The due marks. None if it has what is wanted.
    due: Option<Box<DueMarks>>,
    /// Whether it was planned, has what is wanted, and waits for nothing.
    at_rest: bool,
}

impl PodRecord {
    /// The start of the mark latency: the newest transition that this plan adds, or the one already
    /// waiting. `None` on the first plan, whose marks may have been due for any time.
    fn verdict_since(&self, last_transition: Option<Timestamp>) -> Option<Timestamp> {
        let was_matched = !self.contributions.of_pod.is_empty();
        let is_new = was_matched && last_transition > self.last_transition;
        let waiting = self.due.as_ref().and_then(|due| due.verdict_since);
        // What was due before keeps its time: a later verdict does not make the wait shorter.
        waiting.or(last_transition.filter(|_| is_new))
    }
}

/// The plan of a pod.
pub(super) struct PodPlan {
    /// The node on which its entries are wanted. None if it has none.
    pub(super) on_node: Option<(NodeName, PodKey)>,
    pub(super) wants: Wants,
    /// What it adds to the tallies of the markers.
    pub(super) contributions: Contributions,
    /// When the last of its verdicts changed.
    pub(super) last_transition: Option<Timestamp>,
    /// When the next of its verdicts counts that does not yet.
    pub(super) counts_from: Option<Timestamp>,
    /// What it has to do with exclusive values.
    pub(super) exclusive: PlannedExclusive,
}

/// The due marks of a pod, kept from one plan to the next, so that neither the write nor its contest needs another
/// plan.
#[derive(Debug)]
struct DueMarks {
    wants: Wants,
    /// The marks that differ from what is wanted.
    differing: Vec<ComparedMark>,
    /// When the verdict changed that they follow from. None if they follow from something else.
    verdict_since: Option<Timestamp>,
    exclusive: PlannedExclusive,
}

/// A removed pod, with what refers to it in the other machines.
pub(super) struct RemovedPod {
    pub(super) pod: IndexedPod,
    pub(super) on_node: Option<(NodeName, PodKey)>,
    pub(super) contributions: Contributions,
}

/// What a plan has changed.
pub(super) struct Planned<'a> {
    pub(super) contributions_before: Contributions,
    pub(super) contributions: &'a Contributions,
    /// Whether the plan was made with other contested marks than there are now.
    pub(super) is_outdated: bool,
}

impl Pods {
    pub(super) fn get(&self, name: &ObjectName) -> Option<&IndexedPod> {
        self.by_name.get(name).map(|state| &state.pod)
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &PodName> {
        self.by_name.keys()
    }

    pub(super) fn in_namespace(&self, namespace: &str) -> impl Iterator<Item = &PodName> {
        self.by_namespace.get(namespace).into_iter().flatten()
    }

    /// The pods of a namespace whose labels a selector matches.
    pub(super) fn selected_by(
        &self,
        namespace: &str,
        selector: &Selector,
    ) -> impl Iterator<Item = &PodName> {
        self.in_namespace(namespace).filter(|name| {
            let pod = self.get(name);
            selector.matches(|key| pod?.labels.get(key).map(|value| &**value))
        })
    }

    /// Whether a snapshot changes nothing that is read of a pod at rest, as most do. Its resourceVersion is taken over.
    pub(super) fn is_unchanged(&mut self, snapshot: &IndexedPod) -> bool {
        let Some(state) = self.by_name.get_mut(&snapshot.name) else {
            return false;
        };
        if state.at_rest {
            state.pod.version = snapshot.version;
        }
        state.at_rest && state.pod == *snapshot
    }

    /// Adds or replaces a pod. It is planned later.
    pub(super) fn insert_pod(&mut self, pod: IndexedPod, now: Now) {
        if let Some(state) = self.by_name.get_mut(&pod.name) {
            // The rest stays until the pod is planned again: tallies are reduced by what was added
            // to them.
            state.pod = pod;
            return;
        }
        let name = pod.name.clone();
        let state = PodRecord {
            pod,
            since: now.monotonic,
            on_node: None,
            contributions: Contributions::default(),
            last_transition: None,
            contests: Contests::default(),
            contest_timer: None,
            hold_timer: None,
            due: None,
            at_rest: false,
        };
        self.by_name.insert(name.clone(), Box::new(state));
        let namespace = self.by_namespace.entry(name.namespace.clone());
        namespace.or_default().insert(name);
    }

    pub(super) fn remove_pod(
        &mut self,
        name: &ObjectName,
        cx: &mut IndexContext,
    ) -> Option<RemovedPod> {
        let (name, mut state) = self.by_name.remove_entry(name)?;
        if let Some(pods) = self.by_namespace.get_mut(&name.namespace) {
            pods.remove(&name);
            if pods.is_empty() {
                self.by_namespace.remove(&name.namespace);
            }
        }
        cx.timers.reset(&mut state.contest_timer, None, || {
            Timer::PodContest(name.clone())
        });
        let timer = || Timer::Hold(name.clone());
        cx.timers.reset(&mut state.hold_timer, None, timer);
        Some(RemovedPod {
            pod: state.pod,
            on_node: state.on_node,
            contributions: state.contributions,
        })
    }

    /// When a pod was first seen, and the markers in whose tallies it is counted and of which it may have marks.
    pub(super) fn first_seen_and_counting_markers(
        &self,
        name: &ObjectName,
    ) -> Option<(Duration, Vec<MarkerName>)> {
        let state = self.by_name.get(name)?;
        let markers = state.contributions.of_pod.iter();
        let markers = markers.map(|(marker, _)| marker.clone());
        Some((state.since, markers.collect()))
    }

    /// The pods that are bound to a node.
    pub(super) fn bound_to(&self, node: &str) -> impl Iterator<Item = &PodName> {
        let pods = self.by_name.iter();
        let bound = pods.filter(move |(_, state)| state.pod.node.as_deref() == Some(node));
        bound.map(|(name, _)| name)
    }

    /// The node on which a pod's entries are wanted.
    pub(super) fn on_node(&self, name: &ObjectName) -> Option<&(NodeName, PodKey)> {
        self.by_name.get(name)?.on_node.as_ref()
    }

    /// The marks of a pod that have been contested for long enough to appear in its markers' statuses.
    pub(super) fn contested_marks(&self, name: &ObjectName) -> impl Iterator<Item = &Mark> {
        let state = self.by_name.get(name);
        state
            .into_iter()
            .flat_map(|state| state.contests.visible_targets())
    }

    /// Forgets what a pod adds to the tally of a marker, which starts again from zero.
    pub(super) fn forget_contribution(&mut self, name: &ObjectName, marker: &ObjectName) {
        if let Some(state) = self.by_name.get_mut(name) {
            let Contributions { of_pod, surplus } = &mut state.contributions;
            of_pod.retain(|(counted, _)| **counted != *marker);
            surplus.retain(|counted| **counted != *marker);
        }
    }

    /// Replaces the plan of a pod, compares the pod with it, and returns what that changes.
    pub(super) fn set_plan(
        &mut self,
        name: &PodName,
        plan: PodPlan,
        cx: &mut IndexContext,
    ) -> Option<Planned<'_>> {
        #[cfg(test)]
        {
            self.plans += 1;
        }
        let state = self.by_name.get_mut(name)?;
        let PodPlan {
            on_node,
            wants,
            contributions,
            last_transition,
            counts_from,
            exclusive,
        } = plan;
        let now = cx.now.monotonic;
        // By the clock of the wall, by which the agent wrote when the verdict changed: if it is set back meanwhile, the pod is
        // planned too early, and again.
        let left = counts_from.map(|at| at.duration_since(cx.now.wall).max(SignedDuration::ZERO));
        let ends = left.map(|left| now.saturating_add(left.unsigned_abs()));
        cx.timers
            .reset(&mut state.hold_timer, ends, || Timer::Hold(name.clone()));
        // A pod that has ended or is being deleted is not written any more: nothing acts on its marks, but for what another pod
        // waits for.
        let mut compared = if state.pod.active || exclusive.takes_from_ended {
            marks::compare_marks(&state.pod, &wants, cx.now.wall)
        } else {
            Vec::new()
        };
        // Taken before the contests see this comparison: the plan was made with these.
        let was_visible: Vec<_> = state.contests.visible_targets().cloned().collect();
        // With the equal ones, since a mark that is observed as wanted is what ends its contest.
        state.contests.observe_values(&compared, now);
        compared.retain(|one| one.differs);
        let mut waiting = compared.iter();
        if waiting.any(|one| !state.contests.delays_writes_of(&one.key, now)) {
            let target = WriteTarget::PodMarks((**name).clone());
            cx.affected.due.insert(target);
        }
        let next = state.contests.next_comparison_at(now);
        cx.timers.reset(&mut state.contest_timer, next, || {
            Timer::PodContest(name.clone())
        });
        // Only a pod at rest may ignore an event without a change; a contest needs to see each one.
        state.at_rest = compared.is_empty() && next.is_none();
        let verdict_since = state.verdict_since(last_transition);
        state.due = (!compared.is_empty()).then(|| {
            Box::new(DueMarks {
                wants,
                differing: compared,
                verdict_since,
                exclusive,
            })
        });
        state.last_transition = state.last_transition.max(last_transition);
        state.on_node = on_node;
        Some(Planned {
            // The marker's status names contested marks, and the contributions were computed before this comparison.
            is_outdated: !state.contests.visible_targets().eq(&was_visible),
            contributions_before: std::mem::replace(&mut state.contributions, contributions),
            contributions: &state.contributions,
        })
    }

    /// Records whether a pod has marks of ours that no marker claims. Returns whether it was the last such pod of its
    /// namespace.
    pub(super) fn set_unclaimed(&mut self, name: &PodName, is_unclaimed: bool) -> bool {
        if is_unclaimed {
            let pods = self.unclaimed.entry(name.namespace.clone()).or_default();
            pods.insert(name.clone());
            return false;
        }
        let Some(pods) = self.unclaimed.get_mut(&name.namespace) else {
            return false;
        };
        pods.remove(name);
        let is_last = pods.is_empty();
        if is_last {
            self.unclaimed.remove(&name.namespace);
        }
        is_last
    }

    /// Whether a pod of a namespace has marks of ours that no marker claims.
    pub(super) fn has_unclaimed_in(&self, namespace: &str) -> bool {
        self.unclaimed.contains_key(namespace)
    }

    /// Forgets all contests: while another manager writes, its marks may be seen before the verdicts that they follow
    /// from.
    pub(super) fn forget_contests(&mut self) {
        #[expect(clippy::iter_over_hash_type, reason = "each is reset by itself")]
        for state in self.by_name.values_mut() {
            state.contests = Contests::default();
        }
    }

    /// The due marks of a pod by its last plan, without those that a contest delays.
    pub(super) fn due_write(&self, name: &ObjectName, now: Now) -> Option<DueWrite> {
        let state = self.by_name.get(name)?;
        let due = state.due.as_ref()?;
        let is_held = |mark: &Mark| state.contests.delays_writes_of(mark, now.monotonic);
        let is_fenced = due.exclusive.is_fenced;
        let marks = marks::diff_marks(&state.pod, &due.wants, is_held, is_fenced, now.wall)?;
        let changed = due.differing.iter().filter(|one| !is_held(&one.key));
        let changed = changed.filter(|one| marks.apply.is_some() || marks.removes(&one.key));
        let changed = changed.map(|one| (one.key.clone(), one.wanted));
        let sent = Sent::Marks(changed.collect());
        Some(DueWrite {
            write: Write::PodMarks(Box::new(marks)),
            sent,
        })
    }

    /// The groups whose values the due marks of a pod give it.
    pub(super) fn given_values(
        &self,
        name: &ObjectName,
    ) -> Option<(&PodName, impl Iterator<Item = &GroupName>)> {
        let (name, state) = self.by_name.get_key_value(name)?;
        let due = state.due.iter();
        Some((name, due.flat_map(|due| due.exclusive.gives.iter())))
    }

    /// When the verdict changed from which the due marks of a pod follow.
    pub(super) fn verdict_since(&self, name: &ObjectName) -> Option<Timestamp> {
        let due = self.by_name.get(name)?.due.as_ref()?;
        due.verdict_since
    }

    /// Records that marks of a pod are being written.
    pub(super) fn note_sent(&mut self, name: &ObjectName, sent: Box<[(Mark, u64)]>) {
        if let Some(state) = self.by_name.get_mut(name) {
            state.contests.record_send(sent);
        }
    }

    /// Records that a write was carried out. Returns whether the pod has to be compared with what was written.
    pub(super) fn note_written(&mut self, name: &ObjectName, now: Duration) -> bool {
        let state = self.by_name.get_mut(name);
        state.is_some_and(|state| state.contests.record_written(now))
    }

    /// Marks a pod for planning.
    pub(super) fn mark_for_planning(&self, name: &ObjectName, cx: &mut IndexContext) {
        if let Some((name, _)) = self.by_name.get_key_value(name) {
            cx.affected.pods.insert(name.clone());
        }
    }

    /// Reconsiders the marks that a contest has delayed until now.
    pub(super) fn end_contest_wait(&mut self, name: PodName, cx: &mut IndexContext) {
        if let Some(state) = self.by_name.get_mut(&name) {
            state.contest_timer = None;
            cx.affected.pods.insert(name);
        }
    }

    /// Plans a pod again when a verdict has held for long enough.
    pub(super) fn end_hold(&mut self, name: PodName, cx: &mut IndexContext) {
        if let Some(state) = self.by_name.get_mut(&name) {
            state.hold_timer = None;
            cx.affected.pods.insert(name);
        }
    }

    pub(super) fn known_version(&self, name: &ObjectName) -> Option<ResourceVersion> {
        self.get(name).map(|pod| pod.version)
    }

    /// How many contributions to the tallies of markers are kept, and how many names of further markers.
    #[cfg(test)]
    pub(super) fn kept_contributions(&self) -> (usize, usize) {
        let pods = self.by_name.values().map(|state| &state.contributions);
        let kept = pods.map(|kept| (kept.of_pod.len(), kept.surplus.len()));
        kept.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
    }

    /// Whether no write is delayed.
    #[cfg(test)]
    pub(super) fn waits_for_nothing(&self) -> bool {
        let mut pods = self.by_name.values();
        pods.all(|state| state.contests.next_comparison_at(Duration::ZERO).is_none())
    }
}
