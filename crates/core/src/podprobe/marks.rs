//! The marks that a pod should have.
//!
//! A mark is a label, an annotation or a condition. A key that a policy of a matching marker names is governed: the
//! verdict decides its value, or that it is absent. The writes that give a pod its marks are in `write`.

mod write;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;
use std::sync::Arc;

pub(super) use self::write::{ComparedMark, compare_marks, condition_status, diff_marks};
use super::injected::{MARKERS, PROBES};
use super::marker::{Marker, MarkerProbe, Policy};
use super::pod::{CoOwner, IndexedPod, Ours};
use super::probe::State;
use super::verdict::Verdict;
use crate::cluster::SortedMap;

/// The desired state of a governed mark.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Want<T> {
    /// This value.
    Value(T),
    /// It is absent, whoever wrote it.
    Absent,
    /// There is no verdict: a mark of ours stays as it is.
    Hold,
    /// It is somebody else's: we give up what we own of it and never write it. It goes if we alone own it.
    Leave,
}

/// The desired states of a pod's governed marks. Those of every pod are kept at once where every pod is to be marked, as
/// when the first manager of a cluster starts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Wants {
    /// Labels by key.
    pub labels: SortedMap<Want<Arc<str>>>,
    /// Annotations by key.
    pub annotations: SortedMap<Want<Arc<str>>>,
    /// Conditions by type.
    pub conditions: SortedMap<Want<Verdict>>,
}

/// A probe of a pod: the index of its marker among the matching ones, and its own index in the marker.
pub type ProbePosition = (usize, usize);

/// Two probes that claim the same mark of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// The mark.
    pub mark: Mark,
    /// The probe that sets the mark.
    pub winner: ProbePosition,
    /// The probe that does not.
    pub loser: ProbePosition,
}

/// Assigns keys to probes: the first claim wins.
struct Claims<T> {
    mark: fn(Arc<str>) -> Mark,
    by_key: BTreeMap<Arc<str>, (ProbePosition, Want<T>)>,
}

impl<T> Claims<T> {
    fn new(mark: fn(Arc<str>) -> Mark) -> Self {
        Self {
            mark,
            by_key: BTreeMap::new(),
        }
    }

    fn claim_key(
        &mut self,
        key: &Arc<str>,
        place: ProbePosition,
        want: impl FnOnce() -> Want<T>,
        conflicts: &mut Vec<Conflict>,
    ) {
        match self.by_key.entry(key.clone()) {
            Entry::Vacant(vacant) => {
                vacant.insert((place, want()));
            }
            // The other policy of the same probe.
            Entry::Occupied(claim) if claim.get().0 == place => {}
            Entry::Occupied(claim) => conflicts.push(Conflict {
                mark: (self.mark)(key.clone()),
                winner: claim.get().0,
                loser: place,
            }),
        }
    }

    fn into_wants(self) -> SortedMap<Want<T>> {
        let claims = self.by_key.into_iter();
        claims.map(|(key, (_, want))| (key, want)).collect()
    }
}

/// The claims of a pod's probes so far.
struct ClaimedMarks {
    labels: Claims<Arc<str>>,
    annotations: Claims<Arc<str>>,
    conditions: Claims<Verdict>,
    conflicts: Vec<Conflict>,
}

impl ClaimedMarks {
    /// Claims the keys of both policies, whatever the verdict: the owner of a key must not change with it.
    fn claim_marks(
        &mut self,
        place: ProbePosition,
        probe: &MarkerProbe,
        verdict: Option<&Verdict>,
    ) {
        let conflicts = &mut self.conflicts;
        if let Some(kind) = &probe.condition_type {
            let want = || verdict.map_or(Want::Hold, |verdict| Want::Value(verdict.clone()));
            self.conditions.claim_key(kind, place, want, conflicts);
        }
        for policy in [&probe.succeeded, &probe.failed].into_iter().flatten() {
            for key in policy.labels.keys() {
                let want = || desired_value(verdict, probe, key, |policy| &policy.labels);
                self.labels.claim_key(key, place, want, conflicts);
            }
            for key in policy.annotations.keys() {
                let want = || desired_value(verdict, probe, key, |policy| &policy.annotations);
                self.annotations.claim_key(key, place, want, conflicts);
            }
        }
    }
}

impl Wants {
    /// The desired marks of a pod that these markers match, sorted by precedence. A probe of a container that the pod lacks
    /// never has a verdict: it holds the marks that no other probe claims, and is in conflict with none.
    pub fn new<'v>(
        markers: &[&Marker],
        pod: &IndexedPod,
        verdict: impl Fn(ProbePosition) -> Option<&'v Verdict>,
    ) -> (Self, Vec<Conflict>) {
        let mut claims = ClaimedMarks {
            labels: Claims::new(Mark::Label),
            annotations: Claims::new(Mark::Annotation),
            conditions: Claims::new(Mark::Condition),
            conflicts: Vec::new(),
        };
        let has_container = |probe: &MarkerProbe| pod.container(&probe.container).is_some();
        for (place, probe) in probes_of(markers).filter(|(_, probe)| has_container(probe)) {
            claims.claim_marks(place, probe, verdict(place));
        }
        let conflicts = std::mem::take(&mut claims.conflicts);
        for (place, probe) in probes_of(markers).filter(|(_, probe)| !has_container(probe)) {
            claims.claim_marks(place, probe, None);
        }
        let wants = Self {
            labels: claims.labels.into_wants(),
            annotations: claims.annotations.into_wants(),
            conditions: claims.conditions.into_wants(),
        };
        (wants, conflicts)
    }

    /// Holds marks of ours that no marker claims.
    pub fn hold_unclaimed(&mut self, ours: &Ours) {
        fn hold_co_owned<T: Clone>(wants: &mut SortedMap<Want<T>>, ours: &SortedMap<CoOwner>) {
            let unclaimed = ours.keys().filter(|key| !wants.contains_key(key));
            let unclaimed: Vec<_> = unclaimed.map(|key| (key.clone(), Want::Hold)).collect();
            if !unclaimed.is_empty() {
                wants.extend(unclaimed);
            }
        }
        hold_co_owned(&mut self.labels, &ours.labels);
        hold_co_owned(&mut self.annotations, &ours.annotations);
        hold_co_owned(&mut self.conditions, &ours.conditions);
    }

    /// Has the annotations that pass probes to a provider stay as they are.
    pub fn hold_injected(&mut self, ours: &Ours) {
        let keys = ours.annotations.keys();
        let keys = keys.filter(|key| [PROBES, MARKERS].contains(&&***key));
        self.annotations
            .extend(keys.map(|key| (key.clone(), Want::Hold)));
    }

    /// Whether nothing is governed.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.annotations.is_empty() && self.conditions.is_empty()
    }
}

/// The policy of the verdict's state decides: the key has its value, or is absent.
fn desired_value(
    verdict: Option<&Verdict>,
    probe: &MarkerProbe,
    key: &Arc<str>,
    pairs: fn(&Policy) -> &BTreeMap<Arc<str>, Arc<str>>,
) -> Want<Arc<str>> {
    let Some(verdict) = verdict else {
        return Want::Hold;
    };
    let policy = match verdict.state {
        State::Succeeded => probe.succeeded.as_ref(),
        State::Failed => probe.failed.as_ref(),
        // Unknown says that what was known is void, so neither policy holds.
        State::Unknown => None,
    };
    let value = policy.and_then(|policy| pairs(policy).get(key));
    value.map_or(Want::Absent, |value| Want::Value(value.clone()))
}

/// A label, an annotation or a condition of a pod, by its key or type.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mark {
    /// A label.
    Label(Arc<str>),
    /// An annotation.
    Annotation(Arc<str>),
    /// A condition.
    Condition(Arc<str>),
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Label(key) => write!(f, "label {key}"),
            Self::Annotation(key) => write!(f, "annotation {key}"),
            Self::Condition(kind) => write!(f, "condition {kind}"),
        }
    }
}

/// Whether a marker sets a mark for some verdict.
pub(super) fn claims_mark(marker: &Marker, mark: &Mark) -> bool {
    let mut probes = marker.probes.iter();
    probes.any(|probe| probe_claims(probe, mark))
}

/// Whether a probe sets a mark for some verdict.
fn probe_claims(probe: &MarkerProbe, mark: &Mark) -> bool {
    let mut policies = [&probe.succeeded, &probe.failed].into_iter().flatten();
    match mark {
        Mark::Label(key) => policies.any(|policy| policy.labels.contains_key(key)),
        // These two annotations list the probes of all matching markers.
        Mark::Annotation(key) if [PROBES, MARKERS].contains(&&**key) => {
            probe.condition_type.is_some()
        }
        Mark::Annotation(key) => policies.any(|policy| policy.annotations.contains_key(key)),
        Mark::Condition(kind) => probe.condition_type.as_ref() == Some(kind),
    }
}

/// The probe that sets a mark of a pod, of markers sorted by precedence: the first that claims it, as in [`Wants::new`].
pub(super) fn find_setter(
    markers: &[&Marker],
    pod: &IndexedPod,
    mark: &Mark,
) -> Option<ProbePosition> {
    let claiming = probes_of(markers).filter(|(_, probe)| probe_claims(probe, mark));
    let setter = claiming.min_by_key(|(_, probe)| pod.container(&probe.container).is_none());
    setter.map(|(place, _)| place)
}

/// The probes of markers, in order of precedence.
fn probes_of<'a>(markers: &'a [&Marker]) -> impl Iterator<Item = (ProbePosition, &'a MarkerProbe)> {
    let markers = markers.iter().enumerate();
    markers.flat_map(|(first, marker)| {
        let probes = marker.probes.iter().enumerate();
        probes.map(move |(second, probe)| ((first, second), probe))
    })
}

/// Whether a pod has a mark of ours that no matching marker claims.
pub fn has_unclaimed(pod: &IndexedPod, wants: &Wants) -> bool {
    let ours = &pod.ours;
    let labels = ours.labels.iter();
    let annotations = ours.annotations.iter();
    let conditions = ours.conditions.iter();
    labels
        .map(|(key, _)| wants.labels.contains_key(key))
        .chain(annotations.map(|(key, _)| {
            // No policy names these two; that they are to go says that no marker has a part in them any more.
            match wants.annotations.get(key) {
                Some(Want::Absent) => ![PROBES, MARKERS].contains(&&**key),
                want => want.is_some(),
            }
        }))
        .chain(conditions.map(|(kind, _)| wants.conditions.contains_key(kind)))
        .any(|claimed| !claimed)
}
