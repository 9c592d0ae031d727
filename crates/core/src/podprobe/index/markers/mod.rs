//! Markers: which of them match a pod, what their statuses count, and which are not acted on.
//!
//! | in | out |
//! |---|---|
//! | markers as they are observed: [`Markers::observe_marker`], [`Markers::remove_marker`] | which markers match a pod: [`Markers::markers_matching`] |
//! | what each pod adds to their tallies: [`Markers::count_contributions`] | statuses and finalizers that differ: [`Markers::plan_marker`] |
//! | how far nodes and pods reflect a marker: [`MarkerReflection`] | |
//! | pods that lost their controller: [`Markers::count_release`] | markers that are stopped: [`MarkerChange`] |
//!
//! Pods are known by name only; nodes are unknown.
//!
//! | module | holds |
//! |---|---|
//! | `ages` | which markers of a namespace are the oldest, as only so many are acted on |
//! | `selectors` | markers by the labels that they require |
//! | `label_uses` | which labels markers set and read, and which markers can feed each other |
//! | `phase` | whether a marker is acted on |
//! | `loops` | markers that set the labels that each other selects by |
//! | `releases` | markers whose labels make a workload release its pods |
//! | `write` | what is to be written of a marker |
//! | `finalizers` | how long a marker that is being deleted is held |

mod ages;
mod finalizers;
mod label_uses;
mod loops;
mod phase;
mod releases;
mod selectors;
#[cfg(test)]
mod tests;
mod write;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use leadsman_api::marker::ExclusiveHolder;
use leadsman_api::{PodProbeMarker, PodProbeMarkerStatus};

use self::ages::Ages;
pub use self::finalizers::FINALIZER;
use self::label_uses::LabelUses;
#[cfg(test)]
pub(super) use self::label_uses::comparisons;
pub(super) use self::phase::{MarkerPhase, StopReason};
use self::releases::Releases;
use self::selectors::SelectorIndex;
use super::context::{Contributions, IndexContext, MarkerName, PodName};
use crate::cluster::{Invalid, ObjectName, Selector};
use crate::podprobe::Compatibility;
use crate::podprobe::marker::Marker;
use crate::podprobe::pod::IndexedPod;
use crate::podprobe::status::{Tally, Trouble};
use crate::podprobe::totals::StatusTotals;

/// All markers.
#[derive(Debug)]
pub(super) struct Markers {
    by_name: HashMap<MarkerName, MarkerState>,
    ages: Ages,
    selectors: SelectorIndex,
    labels: LabelUses,
    /// Markers that are being deleted and that our finalizer holds.
    held: BTreeSet<MarkerName>,
    compatibility: Compatibility,
    /// Markers that have changed since they were last taken. None where nobody takes them.
    changed: Option<BTreeSet<MarkerName>>,
    /// The sums over the statuses of all of them.
    totals: StatusTotals,
    /// Whether the API server keeps all fields of a marker's status, beyond those that `OpenKruise`'s CRD has.
    keeps_summaries: bool,
    /// The number of comparisons made.
    #[cfg(test)]
    pub(super) comparisons: usize,
}

/// A marker.
#[derive(Debug)]
struct MarkerState {
    uid: String,
    generation: i64,
    /// The resourceVersion as it is written.
    resource_version: Option<String>,
    finalizers: Vec<String>,
    /// While it is being deleted: until when our finalizer holds it. None while that time has not begun.
    held_until: Option<Duration>,
    status: PodProbeMarkerStatus,
    phase: MarkerPhase,
    /// The pods that are counted in the tally.
    pods: BTreeSet<PodName>,
    tally: Tally,
    /// The pods that have the exclusive values of its probes, by the probe's name.
    holders: BTreeMap<Arc<str>, Vec<ExclusiveHolder>>,
    releases: Releases,
}

/// A change in which pods a marker matches, or in what it wants of them.
#[derive(Debug)]
pub(super) struct MarkerChange {
    pub(super) name: MarkerName,
    /// The pods that were counted in its tally before, which starts again from zero.
    pub(super) uncounted: BTreeSet<PodName>,
    /// Whether it may select pods that were not counted.
    pub(super) selects_others: bool,
}

/// How far the cluster reflects a marker.
#[derive(Clone, Copy, Debug)]
pub(super) struct MarkerReflection {
    /// Every `NodePodProbe` has exactly the entries that the marker wants.
    pub(super) is_acknowledged: bool,
    /// A pod of its namespace has marks of ours that no marker claims.
    pub(super) leaves_marks: bool,
}

impl Markers {
    /// No marker yet. Of each namespace the `most` oldest are acted on. Changes are recorded for
    /// [`Markers::take_changed`] only if `keeps_changes`.
    pub(super) fn new(compatibility: Compatibility, most: usize, keeps_changes: bool) -> Self {
        Self {
            by_name: HashMap::new(),
            ages: Ages::new(most),
            selectors: SelectorIndex::default(),
            labels: LabelUses::default(),
            held: BTreeSet::new(),
            compatibility,
            changed: keeps_changes.then(BTreeSet::new),
            totals: StatusTotals::default(),
            keeps_summaries: true,
            #[cfg(test)]
            comparisons: 0,
        }
    }

    /// The sums over the statuses of all markers.
    pub(super) fn totals(&self) -> StatusTotals {
        self.totals
    }

    /// The markers that match a pod, in order of precedence: the older first, then by name.
    pub(super) fn markers_matching(&self, pod: &IndexedPod) -> Vec<(&MarkerName, &Marker)> {
        if !pod.is_target() {
            return Vec::new();
        }
        let label = |key: &str| pod.labels.get(key).map(|value| &**value);
        let candidates = self.selectors.candidates_for(pod);
        let active = candidates.filter_map(|name| Some((name, self.active_marker(name)?)));
        let mut found: Vec<_> = active
            .filter(|(_, marker)| marker.selector.matches(label))
            .collect();
        // The age decides and then the name, never the verdicts: which marker has a key must not alternate.
        found.sort_by(|(name, marker), (other_name, other)| {
            (marker.created, name).cmp(&(other.created, other_name))
        });
        found
    }

    /// A marker that is acted on.
    fn active_marker(&self, name: &ObjectName) -> Option<&Marker> {
        self.by_name.get(name)?.phase.as_active()
    }

    /// A marker that is acted on, with its name as others share it.
    pub(super) fn active_entry(&self, name: &ObjectName) -> Option<(&MarkerName, &Marker)> {
        let (name, state) = self.by_name.get_key_value(name)?;
        Some((name, state.phase.as_active()?))
    }

    /// Replaces who has the exclusive values of a marker.
    pub(super) fn set_holders(
        &mut self,
        name: &ObjectName,
        holders: BTreeMap<Arc<str>, Vec<ExclusiveHolder>>,
    ) {
        if let Some(marker) = self.by_name.get_mut(name) {
            marker.holders = holders;
        }
    }

    /// The selector of a marker that is acted on.
    pub(super) fn selector_of(&self, name: &ObjectName) -> Option<&Selector> {
        self.active_marker(name).map(|marker| &marker.selector)
    }

    pub(super) fn marker_names(&self) -> impl Iterator<Item = &MarkerName> {
        self.by_name.keys()
    }

    /// The markers of a namespace, each with whether it is acted on.
    pub(super) fn phases_in(
        &self,
        namespace: &str,
    ) -> impl Iterator<Item = (&ObjectName, &MarkerPhase)> {
        let markers = self
            .by_name
            .iter()
            .filter(move |(name, _)| name.namespace == namespace);
        markers.map(|(name, marker)| (&**name, &marker.phase))
    }

    /// The generation of a marker, and its status as it was observed last.
    pub(super) fn observed_status(
        &self,
        name: &ObjectName,
    ) -> Option<(i64, &PodProbeMarkerStatus)> {
        let marker = self.by_name.get(name)?;
        Some((marker.generation, &marker.status))
    }

    /// Adds or replaces a marker. None if no pod has to be planned again.
    pub(super) fn observe_marker(
        &mut self,
        wire: &PodProbeMarker,
        cx: &mut IndexContext,
    ) -> Option<MarkerChange> {
        let name = Arc::new(ObjectName::of(&wire.metadata));
        let kept = self.keep_stopped(&name, self.parse_phase(wire));
        let phase = self.limit_by_age(kept);
        let new = MarkerState::new(wire, phase);
        // Even if the spec is the same: another client may have changed status or finalizers.
        cx.affected.markers.insert(name.clone());
        if let Some(known) = self.by_name.get_mut(&name)
            && known.uid == new.uid
            && is_same_phase(&known.phase, &new.phase)
        {
            // The same spec: pods need not be planned again, only the status and its sums are replaced.
            self.totals.remove_status(&known.status);
            self.totals.add_status(&new.status);
            known.replace_contents(new);
            return None;
        }
        let (before, uncounted) = self.remove_with_counted_pods(&name).unzip();
        let selector = before
            .as_ref()
            .and_then(|before| Some(&before.phase.as_active()?.selector));
        let selects_others = new
            .phase
            .as_active()
            .is_some_and(|marker| selector != Some(&marker.selector));
        self.insert_marker(&name, new);
        self.start_deletion_limit(&name, cx);
        Some(MarkerChange {
            name,
            uncounted: uncounted.unwrap_or_default(),
            selects_others,
        })
    }

    /// Removes a marker.
    pub(super) fn remove_marker(
        &mut self,
        name: &ObjectName,
        cx: &mut IndexContext,
    ) -> Option<MarkerChange> {
        let (name, _) = self.by_name.get_key_value(name)?;
        let name = name.clone();
        let (_, uncounted) = self.remove_with_counted_pods(&name)?;
        self.labels.observe_marker(&name, None, false);
        // Planned once more, so that nothing is written of it any more.
        cx.affected.markers.insert(name.clone());
        Some(MarkerChange {
            name,
            uncounted,
            selects_others: false,
        })
    }

    /// Replaces the phase of a marker that was not edited.
    fn replace_phase(
        &mut self,
        name: &MarkerName,
        phase: MarkerPhase,
        cx: &mut IndexContext,
    ) -> Option<MarkerChange> {
        let (mut state, uncounted) = self.remove_with_counted_pods(name)?;
        if let Some(marker) = phase.as_valid() {
            state.tally = Tally::new(marker.probes.iter().map(|probe| &*probe.name));
        }
        let selects_others = phase.as_active().is_some();
        state.phase = phase;
        cx.affected.markers.insert(name.clone());
        self.insert_marker(name, state);
        Some(MarkerChange {
            name: name.clone(),
            uncounted,
            selects_others,
        })
    }

    /// Inserts a marker that is not there.
    fn insert_marker(&mut self, name: &MarkerName, state: MarkerState) {
        let is_stopped = matches!(state.phase, MarkerPhase::Stopped(..));
        let labels = &mut self.labels;
        labels.observe_marker(name, state.phase.loop_member(), is_stopped);
        if let Some(marker) = state.phase.as_valid() {
            self.ages.insert_marker(name, marker.created);
        }
        if let Some(marker) = state.phase.as_active() {
            self.selectors.insert_marker(name, &marker.selector);
            note_change(&mut self.changed, name);
        }
        self.totals.add_status(&state.status);
        self.by_name.insert(name.clone(), state);
    }

    /// Removes a marker, and returns it with the pods that are counted in its tally. Its label uses stay: it is inserted
    /// again, or they are removed too.
    fn remove_with_counted_pods(
        &mut self,
        name: &MarkerName,
    ) -> Option<(MarkerState, BTreeSet<PodName>)> {
        // First, while the marker can still be found by its name.
        self.cancel_deletion_limit(name);
        let mut state = self.by_name.remove(name)?;
        self.totals.remove_status(&state.status);
        if let Some(marker) = state.phase.as_valid() {
            self.ages.remove_marker(name, marker.created);
        }
        if let Some(marker) = state.phase.as_active() {
            self.selectors.remove_marker(name, &marker.selector);
            note_change(&mut self.changed, name);
        }
        let pods = std::mem::take(&mut state.pods);
        Some((state, pods))
    }

    /// The markers that have changed since the last call: each as it is acted on now, None if it is not acted on.
    pub(super) fn take_changed(&mut self) -> Vec<(MarkerName, Option<Arc<Marker>>)> {
        let changed = self
            .changed
            .as_mut()
            .map(std::mem::take)
            .into_iter()
            .flatten();
        let markers = changed.map(|name| {
            let marker = self.active_marker(&name).cloned();
            (name, marker.map(Arc::new))
        });
        markers.collect()
    }

    fn parse_phase(&self, wire: &PodProbeMarker) -> MarkerPhase {
        if wire.metadata.deletion_timestamp.is_some() {
            return MarkerPhase::Deleting;
        }
        match Marker::parse(wire, self.compatibility) {
            Ok(marker) => MarkerPhase::Active(marker),
            Err(errors) => {
                let trouble = if loops::selects_by_own_label(wire) {
                    Trouble::Cycle
                } else {
                    Trouble::InvalidSpec
                };
                let errors: Vec<_> = errors.iter().map(Invalid::to_string).collect();
                MarkerPhase::Invalid(trouble, errors.join("; "))
            }
        }
    }

    /// The phase after a new observation: a stopped marker stays stopped until its spec is edited, or until its loop is
    /// open.
    fn keep_stopped(&self, name: &ObjectName, phase: MarkerPhase) -> MarkerPhase {
        let known = self.by_name.get(name).map(|known| &known.phase);
        match (known, phase) {
            (Some(MarkerPhase::Stopped(known, reason)), MarkerPhase::Active(new))
                if known.uid == new.uid
                    && asks_the_same(known, &new)
                    && match reason {
                        // Whether a loop is open follows from the specs, and is judged again by itself.
                        StopReason::Loop(_) => true,
                        // Nothing shows that a workload would keep its pods now, so after releases any edit
                        // is the sign to try again.
                        StopReason::Release(_) => known.generation == new.generation,
                        // The age is judged at each observation.
                        StopReason::Surplus(_) => false,
                    } =>
            {
                MarkerPhase::Stopped(new, reason.clone())
            }
            (_, phase) => phase,
        }
    }

    /// Stops or restarts a marker. None if nothing changes.
    fn set_stopped(
        &mut self,
        name: &MarkerName,
        reason: Option<StopReason>,
        cx: &mut IndexContext,
    ) -> Option<MarkerChange> {
        let phase = match (&self.by_name.get(name)?.phase, reason) {
            (MarkerPhase::Stopped(_, known), Some(reason)) if *known == reason => return None,
            (MarkerPhase::Active(marker) | MarkerPhase::Stopped(marker, _), Some(reason)) => {
                MarkerPhase::Stopped(marker.clone(), reason)
            }
            (MarkerPhase::Stopped(marker, _), None) => MarkerPhase::Active(marker.clone()),
            (MarkerPhase::Active(_) | MarkerPhase::Invalid(..) | MarkerPhase::Deleting, _) => {
                return None;
            }
        };
        self.replace_phase(name, phase, cx)
    }

    /// Records whether the API server keeps all fields of a marker's status.
    pub(super) fn set_keeps_summaries(&mut self, keeps: bool, cx: &mut IndexContext) {
        if std::mem::replace(&mut self.keeps_summaries, keeps) != keeps {
            cx.affected.markers.extend(self.by_name.keys().cloned());
        }
    }

    /// Replaces what a pod adds to the tallies.
    pub(super) fn count_contributions(
        &mut self,
        pod: &PodName,
        before: &Contributions,
        after: &Contributions,
        cx: &mut IndexContext,
    ) {
        // Hardly any plan changes the surplus, and it may be many times the rest.
        let with_surplus = before.surplus != after.surplus;
        // Contributions are paired by name, not by place: the order of precedence may have changed between the two plans.
        let mut before: BTreeMap<_, _> = before.by_marker(with_surplus).collect();
        for (name, contribution) in after.by_marker(with_surplus) {
            let old = before.remove(name);
            if old == Some(contribution) {
                continue;
            }
            let Some(marker) = self.by_name.get_mut(name) else {
                continue;
            };
            match old {
                Some(old) => marker.tally.remove_pod(old),
                None => {
                    marker.pods.insert(pod.clone());
                }
            }
            marker.tally.add_pod(contribution);
            cx.affected.markers.insert(name.clone());
        }
        for (name, old) in before {
            if let Some(marker) = self.by_name.get_mut(name) {
                marker.tally.remove_pod(old);
                marker.pods.remove(pod);
                cx.affected.markers.insert(name.clone());
            }
        }
    }
}

impl MarkerState {
    fn new(wire: &PodProbeMarker, phase: MarkerPhase) -> Self {
        let meta = &wire.metadata;
        let names = wire.spec.probes.iter().map(|probe| probe.name.as_str());
        Self {
            uid: meta.uid.clone().unwrap_or_default(),
            generation: meta.generation.unwrap_or_default(),
            resource_version: meta.resource_version.clone(),
            finalizers: meta.finalizers.clone().unwrap_or_default(),
            held_until: None,
            status: wire.status.clone().unwrap_or_default(),
            phase,
            pods: BTreeSet::new(),
            tally: Tally::new(names),
            holders: BTreeMap::new(),
            releases: Releases::default(),
        }
    }

    /// Takes over what has no effect on the pods.
    fn replace_contents(&mut self, new: Self) {
        if self.generation != new.generation {
            // The releases so far were answered by the edit.
            self.releases = Releases::default();
        }
        self.generation = new.generation;
        self.resource_version = new.resource_version;
        self.finalizers = new.finalizers;
        self.status = new.status;
        self.phase = new.phase;
    }
}

/// Whether no pod has to be planned again; a generation alone changes nothing.
fn is_same_phase(known: &MarkerPhase, new: &MarkerPhase) -> bool {
    match (known, new) {
        (MarkerPhase::Active(known), MarkerPhase::Active(new)) => asks_the_same(known, new),
        (MarkerPhase::Stopped(known, reason), MarkerPhase::Stopped(new, same)) => {
            reason == same && asks_the_same(known, new)
        }
        (MarkerPhase::Deleting, MarkerPhase::Deleting) => true,
        // The names of the probes may have changed too.
        _ => false,
    }
}

fn asks_the_same(known: &Marker, new: &Marker) -> bool {
    known.selector == new.selector && known.probes == new.probes && known.created == new.created
}

fn note_change(changed: &mut Option<BTreeSet<MarkerName>>, name: &MarkerName) {
    if let Some(changed) = changed {
        changed.insert(name.clone());
    }
}
