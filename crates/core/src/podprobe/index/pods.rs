//! Pods: their observed state, and the marks that are wanted of them.
//!
//! The machine keeps the observed pods and what others need of each one's last plan ([`Pods::set_plan`]), which wants the
//! marks. It knows neither markers nor nodes: plans are made in `pod_plan` from all machines.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use leadsman_reconcile::{Fate, PartRest, Plan, Purpose, WriteKind, WritePart};

use super::PodProbes;
use super::context::{
    Contributions, IndexContext, MarkerName, NodeName, PodKey, PodName, is_contested,
};
use super::pod_plan::PlannedExclusive;
use crate::cluster::{CompactTime, Now, ObjectName, Selector};
use crate::podprobe::marks::{self, ComparedMark, DueMarks, Mark, Wants};
use crate::podprobe::pod::IndexedPod;
use crate::podprobe::writes::{APPLY_MARKS, REMOVE_MARKS, purpose_of};

/// All pods.
#[derive(Debug, Default)]
pub(super) struct Pods {
    // Hash maps: the comparisons of an ordered map would read names all over the memory.
    by_namespace: HashMap<String, HashMap<PodName, Box<PodRecord>>>,
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
    /// The time when it was first seen; monotonic.
    since: Duration,
    /// The node on which its entries are wanted.
    on_node: Option<(NodeName, PodKey)>,
    /// The pod's contributions to the tallies of the markers that match it.
    contributions: Contributions,
    /// The time of the last change of one of its verdicts that any plan has had. A verdict that counts again, because the
    /// edit of a marker was undone, did not change then.
    last_transition: Option<CompactTime>,
    /// The marks that it lacks or does not keep; None if it has what is wanted, and has kept it.
    open: Option<Box<OpenMarks>>,
    /// Whether it was planned, and has what is wanted.
    at_rest: bool,
}

/// The marks that a pod lacks or does not keep, as of its last plan, and why.
#[derive(Debug, Default, PartialEq)]
struct OpenMarks {
    /// The marks that are contested.
    contested: Vec<Mark>,
    /// Why the API server refuses the marks.
    refusal: Option<Arc<str>>,
    /// The time of the change of the verdict that they follow from. None if they follow from something else.
    verdict_since: Option<Timestamp>,
}

impl PodRecord {
    /// The start of the mark latency: the newest transition that this plan adds, or the one already
    /// waiting. `None` on the first plan, whose marks may have been due for any time.
    fn verdict_since(&self, last_transition: Option<Timestamp>) -> Option<Timestamp> {
        let was_matched = !self.contributions.of_pod.is_empty();
        let is_new = was_matched && last_transition.map(Into::into) > self.last_transition;
        let waiting = self.open.as_ref().and_then(|open| open.verdict_since);
        // Marks that were due before keep their time: a later verdict does not make the wait shorter.
        waiting.or(last_transition.filter(|_| is_new))
    }
}

/// The plan of a pod.
pub(super) struct PodPlan {
    /// Whether its marks may be written now.
    pub(super) may_write: bool,
    /// The node on which its entries are wanted. None if it has none.
    pub(super) on_node: Option<(NodeName, PodKey)>,
    pub(super) wants: Wants,
    /// The pod's contributions to the tallies of the markers.
    pub(super) contributions: Contributions,
    /// The time of the last change of its verdicts.
    pub(super) last_transition: Option<Timestamp>,
    /// The time when the next of its verdicts counts that does not yet.
    pub(super) counts_from: Option<Timestamp>,
    /// The part of the plan that concerns exclusive values.
    pub(super) exclusive: PlannedExclusive,
}

/// A removed pod, with what refers to it in the other machines.
pub(super) struct RemovedPod {
    pub(super) pod: IndexedPod,
    pub(super) on_node: Option<(NodeName, PodKey)>,
    pub(super) contributions: Contributions,
}

/// The changes that a plan has made.
pub(super) struct Planned<'a> {
    pub(super) contributions_before: Contributions,
    pub(super) contributions: &'a Contributions,
    /// Whether the plan was made with other contested or refused marks than there are now.
    pub(super) is_outdated: bool,
}

impl Pods {
    fn record(&self, name: &ObjectName) -> Option<&PodRecord> {
        let record = self.by_namespace.get(&name.namespace)?.get(name);
        record.map(|record| &**record)
    }

    fn record_mut(&mut self, name: &ObjectName) -> Option<&mut PodRecord> {
        let record = self.by_namespace.get_mut(&name.namespace)?.get_mut(name);
        record.map(|record| &mut **record)
    }

    fn records(&self) -> impl Iterator<Item = (&PodName, &PodRecord)> {
        let records = self.by_namespace.values().flatten();
        records.map(|(name, record)| (name, &**record))
    }

    pub(super) fn get(&self, name: &ObjectName) -> Option<&IndexedPod> {
        self.record(name).map(|record| &record.pod)
    }

    #[cfg(test)]
    pub(super) fn names(&self) -> impl Iterator<Item = &PodName> {
        self.records().map(|(name, _)| name)
    }

    pub(super) fn in_namespace(&self, namespace: &str) -> impl Iterator<Item = &PodName> {
        let pods = self.by_namespace.get(namespace);
        pods.into_iter().flat_map(HashMap::keys)
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
        let Some(state) = self.record_mut(&snapshot.name) else {
            return false;
        };
        if state.at_rest {
            state.pod.version = snapshot.version;
        }
        state.at_rest && state.pod == *snapshot
    }

    /// Adds or replaces a pod. It is planned later.
    pub(super) fn insert_pod(&mut self, pod: IndexedPod, now: Now) {
        if let Some(state) = self.record_mut(&pod.name) {
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
            open: None,
            at_rest: false,
        };
        let namespace = self.by_namespace.entry(name.namespace.clone());
        namespace.or_default().insert(name, Box::new(state));
    }

    pub(super) fn remove_pod(&mut self, name: &ObjectName) -> Option<RemovedPod> {
        let pods = self.by_namespace.get_mut(&name.namespace)?;
        let state = pods.remove(name)?;
        if pods.is_empty() {
            self.by_namespace.remove(&name.namespace);
        }
        Some(RemovedPod {
            pod: state.pod,
            on_node: state.on_node,
            contributions: state.contributions,
        })
    }

    /// The time when a pod was first seen, and the markers that count it in their tallies and may have marked it.
    pub(super) fn first_seen_and_counting_markers(
        &self,
        name: &ObjectName,
    ) -> Option<(Duration, Vec<MarkerName>)> {
        let state = self.record(name)?;
        let markers = state
            .contributions
            .of_pod
            .iter()
            .map(|(marker, _)| marker.clone());
        Some((state.since, markers.collect()))
    }

    /// The pods that are bound to a node.
    pub(super) fn bound_to(&self, node: &str) -> impl Iterator<Item = &PodName> {
        let bound = self
            .records()
            .filter(move |(_, state)| state.pod.node.as_deref() == Some(node));
        bound.map(|(name, _)| name)
    }

    /// The node on which a pod's entries are wanted.
    pub(super) fn on_node(&self, name: &ObjectName) -> Option<&(NodeName, PodKey)> {
        self.record(name)?.on_node.as_ref()
    }

    fn open_marks(&self, name: &ObjectName) -> Option<&OpenMarks> {
        self.record(name)?.open.as_deref()
    }

    /// The marks of a pod that have been contested for long enough to appear in its markers' statuses.
    pub(super) fn contested_marks(&self, name: &ObjectName) -> impl Iterator<Item = &Mark> {
        let open = self.open_marks(name).into_iter();
        open.flat_map(|open| &open.contested)
    }

    /// Why the API server refuses the marks of a pod.
    pub(super) fn refusal(&self, name: &ObjectName) -> Option<&Arc<str>> {
        self.open_marks(name)?.refusal.as_ref()
    }

    /// Forgets what a pod adds to the tally of a marker, which starts again from zero.
    pub(super) fn forget_contribution(&mut self, name: &ObjectName, marker: &ObjectName) {
        if let Some(state) = self.record_mut(name) {
            let Contributions { of_pod, surplus } = std::mem::take(&mut state.contributions);
            let of_pod = of_pod.into_iter();
            let surplus = surplus.into_iter();
            state.contributions = Contributions {
                of_pod: of_pod.filter(|(counted, _)| **counted != *marker).collect(),
                surplus: surplus.filter(|counted| **counted != *marker).collect(),
            };
        }
    }

    /// Replaces the plan of a pod, wants the marks that it lacks written, and returns what that changes.
    pub(super) fn set_plan(
        &mut self,
        name: &PodName,
        plan: PodPlan,
        cx: &IndexContext,
        writes: &mut Plan<'_, PodProbes>,
    ) -> Option<Planned<'_>> {
        #[cfg(test)]
        {
            self.plans += 1;
        }
        let state = self.record_mut(name)?;
        let now = cx.now.monotonic;
        // The wall clock decides, by which the agent wrote when the verdict changed: if it is set back meanwhile, the
        // pod is planned too early, and again.
        let left = plan
            .counts_from
            .map(|at| at.duration_since(cx.now.wall).max(SignedDuration::ZERO));
        if let Some(left) = left {
            writes.wake_at(now.saturating_add(left.unsigned_abs()));
        }
        // A pod that has ended or is being deleted is not written any more: nothing acts on its marks, but for what another pod
        // waits for.
        let compared = if state.pod.active || plan.exclusive.takes_from_ended {
            marks::compare_marks(&state.pod, &plan.wants, cx.now.wall)
        } else {
            Vec::new()
        };
        let rests = MarkRests::new(name, &compared, writes);
        state.at_rest = !compared.iter().any(|one| one.differs);
        let verdict_since = state.verdict_since(plan.last_transition);
        let due = state.diff(&plan, &rests, cx.now);
        let refusal =
            due.and_then(|due| want_marks((name, due), (&compared, &rests), verdict_since, writes));
        let marks = OpenMarks {
            contested: rests.contested,
            refusal,
            verdict_since: verdict_since.filter(|_| !state.at_rest),
        };
        let open = (marks != OpenMarks::default()).then(|| Box::new(marks));
        let said = |open: &Option<Box<OpenMarks>>| {
            let open = open.as_ref();
            open.map(|open| (open.contested.clone(), open.refusal.clone()))
                .unwrap_or_default()
        };
        // The marker's status names contested and refused marks, and the contributions were computed before this comparison.
        let is_outdated = said(&open) != said(&state.open);
        state.open = open;
        state.last_transition = (state.last_transition).max(plan.last_transition.map(Into::into));
        state.on_node = plan.on_node;
        Some(Planned {
            is_outdated,
            contributions_before: std::mem::replace(&mut state.contributions, plan.contributions),
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

    /// How many contributions to the tallies of markers are kept, and how many names of further markers.
    #[cfg(test)]
    pub(super) fn kept_contributions(&self) -> (usize, usize) {
        let pods = self.records().map(|(_, record)| &record.contributions);
        let kept = pods.map(|kept| (kept.of_pod.len(), kept.surplus.len()));
        kept.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
    }
}

impl PodRecord {
    /// The marks that are to be written now, without those that rest.
    fn diff(&self, plan: &PodPlan, rests: &MarkRests, now: Now) -> Option<DueMarks> {
        let is_resting = |mark: &Mark| rests.resting.contains(mark);
        let is_fenced = plan.exclusive.is_fenced;
        if self.at_rest || !plan.may_write {
            return None;
        }
        marks::diff_marks(&self.pod, &plan.wants, is_resting, is_fenced, now.wall)
    }
}

/// The marks of a pod that rest, since somebody undoes them.
struct MarkRests {
    resting: Vec<Mark>,
    contested: Vec<Mark>,
}

impl MarkRests {
    const KINDS: [&WriteKind; 2] = [&REMOVE_MARKS, &APPLY_MARKS];

    fn new(name: &PodName, compared: &[ComparedMark], writes: &mut Plan<'_, PodProbes>) -> Self {
        let (mut resting, mut contested) = (Vec::new(), Vec::new());
        let now = writes.now().monotonic;
        // No write is remembered of most pods, so that none of their marks rests.
        if !Self::KINDS.iter().any(|kind| writes.remembers(kind, name)) {
            return Self { resting, contested };
        }
        for one in compared {
            let Some(rest) = rest_of(name, part_of(one), writes) else {
                continue;
            };
            if one.differs && rest.until > now {
                resting.push(one.key.clone());
                writes.wake_at(rest.until);
            }
            // A mark that does not differ stands: it was undone once less than it was written.
            let undone = rest.times.saturating_sub(u32::from(!one.differs));
            if is_contested(undone) {
                contested.push(one.key.clone());
                writes.wake_at(rest.quiet_at);
            }
        }
        if !compared.is_empty() {
            let parts = || compared.iter().map(part_of).collect();
            for kind in Self::KINDS {
                writes.want_parts(kind, name.clone(), parts());
            }
        }
        Self { resting, contested }
    }
}

fn part_of(one: &ComparedMark) -> WritePart {
    WritePart {
        part: Purpose::of(&one.key),
        purpose: one.wanted,
    }
}

fn rest_of(name: &ObjectName, part: WritePart, writes: &Plan<'_, PodProbes>) -> Option<PartRest> {
    let kinds = MarkRests::KINDS.into_iter();
    let rests = kinds.filter_map(|kind| writes.part_rest(kind, name, part));
    rests.max_by_key(|rest| rest.times)
}

/// Wants marks written. Returns why the API server refuses that, if it does.
fn want_marks(
    (name, due): (&PodName, DueMarks),
    (compared, rests): (&[ComparedMark], &MarkRests),
    since: Option<Timestamp>,
    writes: &mut Plan<'_, PodProbes>,
) -> Option<Arc<str>> {
    let is_due = |one: &&ComparedMark| one.differs && !rests.resting.contains(&one.key);
    let of_write = |one: &&ComparedMark| due.remove.is_none() || due.removes(&one.key);
    let parts: Vec<_> = compared
        .iter()
        .filter(is_due)
        .filter(of_write)
        .map(part_of)
        .collect();
    // The pod has its marks when the last of the two is done.
    let since = since.filter(|_| due.remove.is_none() || due.apply.is_none());
    // The patch that removes marks which others co-own comes first, and the apply follows from what it leaves.
    let (kind, other, body) = match (due.remove, due.apply) {
        (Some(remove), _) => (&REMOVE_MARKS, &APPLY_MARKS, remove),
        (None, Some(apply)) => (&APPLY_MARKS, &REMOVE_MARKS, apply),
        (None, None) => return None,
    };
    let purpose = purpose_of(&body);
    let fate = writes.fate_of(kind, name, purpose);
    let refusal = fate.and_then(|rest| match rest.fate {
        Fate::Refused(refusal) => Some(refusal.clone().into_reason().into()),
        Fate::Undone(_) | Fate::Gone(_) => None,
    });
    let write = writes.patch(kind, name.clone(), &body);
    write.with_purpose(purpose).waiting_for(other);
    write.of_parts(parts).measured_since(since);
    refusal
}
