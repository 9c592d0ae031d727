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

/// The desired states of a pod's governed marks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Wants {
    /// Labels by key.
    pub labels: BTreeMap<Arc<str>, Want<Arc<str>>>,
    /// Annotations by key.
    pub annotations: BTreeMap<Arc<str>, Want<Arc<str>>>,
    /// Conditions by type.
    pub conditions: BTreeMap<Arc<str>, Want<Verdict>>,
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
struct Claims<'a, T> {
    mark: fn(Arc<str>) -> Mark,
    wants: &'a mut BTreeMap<Arc<str>, Want<T>>,
    owners: BTreeMap<Arc<str>, ProbePosition>,
}

impl<'a, T> Claims<'a, T> {
    fn new(mark: fn(Arc<str>) -> Mark, wants: &'a mut BTreeMap<Arc<str>, Want<T>>) -> Self {
        let owners = BTreeMap::new();
        Self {
            mark,
            wants,
            owners,
        }
    }

    fn claim_key(
        &mut self,
        key: &Arc<str>,
        place: ProbePosition,
        want: impl FnOnce() -> Want<T>,
        conflicts: &mut Vec<Conflict>,
    ) {
        match self.owners.entry(key.clone()) {
            Entry::Vacant(vacant) => {
                vacant.insert(place);
                self.wants.insert(key.clone(), want());
            }
            // The other policy of the same probe.
            Entry::Occupied(owner) if *owner.get() == place => {}
            Entry::Occupied(owner) => conflicts.push(Conflict {
                mark: (self.mark)(key.clone()),
                winner: *owner.get(),
                loser: place,
            }),
        }
    }
}

impl Wants {
    /// The desired marks of a pod that these markers match, sorted by precedence. Each probe claims the keys of both its
    /// policies, whatever its verdict is, so that a verdict never changes which probe sets a key.
    pub fn new<'v>(
        markers: &[&Marker],
        verdict: impl Fn(ProbePosition) -> Option<&'v Verdict>,
    ) -> (Self, Vec<Conflict>) {
        let mut wants = Self::default();
        let mut conflicts = Vec::new();
        let mut labels = Claims::new(Mark::Label, &mut wants.labels);
        let mut annotations = Claims::new(Mark::Annotation, &mut wants.annotations);
        let mut conditions = Claims::new(Mark::Condition, &mut wants.conditions);
        for (first, marker) in markers.iter().enumerate() {
            for (second, probe) in marker.probes.iter().enumerate() {
                let place = (first, second);
                let verdict = verdict(place);
                if let Some(kind) = &probe.condition_type {
                    let want =
                        || verdict.map_or(Want::Hold, |verdict| Want::Value(verdict.clone()));
                    conditions.claim_key(kind, place, want, &mut conflicts);
                }
                // Both policies claim their keys, whatever the verdict: the owner of a key must not change with it.
                for policy in [&probe.succeeded, &probe.failed].into_iter().flatten() {
                    for key in policy.labels.keys() {
                        let want = || desired_value(verdict, probe, key, |policy| &policy.labels);
                        labels.claim_key(key, place, want, &mut conflicts);
                    }
                    for key in policy.annotations.keys() {
                        let want =
                            || desired_value(verdict, probe, key, |policy| &policy.annotations);
                        annotations.claim_key(key, place, want, &mut conflicts);
                    }
                }
            }
        }
        (wants, conflicts)
    }

    /// Holds marks of ours that no marker claims.
    pub fn hold_unclaimed(&mut self, ours: &Ours) {
        fn hold_co_owned<T>(wants: &mut BTreeMap<Arc<str>, Want<T>>, ours: &SortedMap<CoOwner>) {
            for (key, _) in ours.iter() {
                wants.entry(key.clone()).or_insert(Want::Hold);
            }
        }
        hold_co_owned(&mut self.labels, &ours.labels);
        hold_co_owned(&mut self.annotations, &ours.annotations);
        hold_co_owned(&mut self.conditions, &ours.conditions);
    }

    /// Has the annotations that pass probes to a provider stay as they are.
    pub fn hold_injected(&mut self, ours: &Ours) {
        for (key, _) in ours.annotations.iter() {
            if [PROBES, MARKERS].contains(&&**key) {
                self.annotations.insert(key.clone(), Want::Hold);
            }
        }
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

/// The probe that sets a mark, of markers sorted by precedence: the first that claims it, as in [`Wants::new`].
pub(super) fn find_setter(markers: &[&Marker], mark: &Mark) -> Option<ProbePosition> {
    let probes = markers.iter().enumerate().flat_map(|(first, marker)| {
        let probes = marker.probes.iter().enumerate();
        probes.map(move |(second, probe)| ((first, second), probe))
    });
    let mut claiming = probes.filter(|(_, probe)| probe_claims(probe, mark));
    claiming.next().map(|(place, _)| place)
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
