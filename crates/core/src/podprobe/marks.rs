//! The marks that a pod should have.
//!
//! A mark is a label, an annotation or a condition. A key that a policy of a matching marker names is governed: the
//! verdict decides its value, or that it is absent. The writes that give a pod its marks are in `write`.

mod exclusive;
mod finding;
mod write;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;
use leadsman_api::limits::EXCLUSIVE_ANNOTATION;

pub(super) use self::exclusive::Membership;
pub use self::finding::{HeldVerdict, RefusedValue};
use self::finding::{PairsOf, ProbeFinding};
pub(super) use self::write::{ComparedMark, DueMarks, compare_marks, condition_status, diff_marks};
use super::exclusive::{Ruling, Stance};
use super::injected::{MARKERS, PROBES};
use super::marker::{Marker, MarkerProbe};
use super::pod::{CoOwner, IndexedPod, Ours};
use super::verdict::Verdict;
use crate::cluster::SortedMap;

/// The desired state of a governed mark.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Want<T> {
    /// The mark has this value.
    Value(T),
    /// The mark is absent, whoever wrote it.
    Absent,
    /// No verdict, or none that counts yet: a mark of ours stays as it is.
    Hold,
    /// The mark is somebody else's: we give up what we own of it and never write it. It goes if we alone own it.
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
struct KeyClaims<T> {
    mark: fn(Arc<str>) -> Mark,
    by_key: BTreeMap<Arc<str>, (ProbePosition, Want<T>)>,
}

impl<T> KeyClaims<T> {
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

/// The desired marks of a pod, and what keeps them from being others.
pub struct DesiredMarks {
    /// The desired states.
    pub wants: Wants,
    /// Probes that do not set a mark which they claim.
    pub conflicts: Vec<Conflict>,
    /// Values that are not valid where a policy uses them.
    pub refused: Vec<RefusedValue>,
    /// Verdicts that do not count yet.
    pub held: Vec<HeldVerdict>,
    /// The stances of verdicts on exclusive values, of the probes that set their labels.
    pub stances: Vec<(ProbePosition, Stance)>,
    /// The rulings on these values; empty until all pods of their groups are known.
    pub rulings: Vec<(ProbePosition, Ruling)>,
}

/// The claims of a pod's probes so far.
struct ClaimedMarks<'a> {
    pod: &'a IndexedPod,
    now: Timestamp,
    labels: KeyClaims<Arc<str>>,
    annotations: KeyClaims<Arc<str>>,
    conditions: KeyClaims<Verdict>,
    conflicts: Vec<Conflict>,
    refused: Vec<RefusedValue>,
    held: Vec<HeldVerdict>,
}

impl ClaimedMarks<'_> {
    /// Claims the keys of both policies, whatever the verdict: the owner of a key must not change with it.
    fn claim_marks(
        &mut self,
        place: ProbePosition,
        probe: &MarkerProbe,
        verdict: Option<&Verdict>,
    ) {
        let pod = self.pod;
        let finding = verdict.map(|verdict| ProbeFinding::new(place, probe, verdict, self.now));
        let finding = finding.as_ref();
        let conflicts = &mut self.conflicts;
        let mut refused = Vec::new();
        if let Some(kind) = &probe.condition_type {
            let seen = pod.conditions.get(kind);
            let want = || finding.map_or(Want::Hold, |it| Want::Value(it.condition(seen)));
            self.conditions.claim_key(kind, place, want, conflicts);
        }
        for pairs in probe.all_pairs() {
            for key in pairs.labels.keys() {
                let ours = pod.ours.labels.contains_key(key);
                let present = pod.labels.get(key).filter(|_| ours);
                let want = || {
                    let of: (fn(_) -> _, PairsOf) = (Mark::Label, |pairs| &pairs.labels);
                    finding.map_or(Want::Hold, |it| it.want(key, of, present, &mut refused))
                };
                self.labels.claim_key(key, place, want, conflicts);
            }
            for key in pairs.annotations.keys() {
                let ours = pod.ours.annotations.contains_key(key);
                let present = pod.annotations.get(key).filter(|_| ours);
                let want = || {
                    let of: (fn(_) -> _, PairsOf) = (Mark::Annotation, |pairs| &pairs.annotations);
                    finding.map_or(Want::Hold, |it| it.want(key, of, present, &mut refused))
                };
                self.annotations.claim_key(key, place, want, conflicts);
            }
        }
        let refused = refused.into_iter();
        self.refused.extend(refused.map(|(mark, why)| RefusedValue {
            probe: place,
            mark,
            why,
        }));
        self.held
            .extend(finding.and_then(|finding| finding.held.clone()));
    }
}

impl DesiredMarks {
    /// The desired marks of a pod that these markers match, sorted by precedence. A probe of a container that the pod lacks
    /// never has a verdict: it holds the marks that no other probe claims, and is in conflict with none. `now` decides
    /// which verdicts have held for as long as their policies say.
    pub fn new<'v>(
        markers: &[&Marker],
        pod: &IndexedPod,
        verdict: impl Fn(ProbePosition) -> Option<Cow<'v, Verdict>>,
        now: Timestamp,
    ) -> Self {
        let mut claims = ClaimedMarks {
            pod,
            now,
            refused: Vec::new(),
            held: Vec::new(),
            labels: KeyClaims::new(Mark::Label),
            annotations: KeyClaims::new(Mark::Annotation),
            conditions: KeyClaims::new(Mark::Condition),
            conflicts: Vec::new(),
        };
        let has_container = |probe: &MarkerProbe| pod.container(&probe.container).is_some();
        for (place, probe) in probes_of(markers).filter(|(_, probe)| has_container(probe)) {
            claims.claim_marks(place, probe, verdict(place).as_deref());
        }
        let conflicts = std::mem::take(&mut claims.conflicts);
        for (place, probe) in probes_of(markers).filter(|(_, probe)| !has_container(probe)) {
            claims.claim_marks(place, probe, None);
        }
        let stances = claims.judge_exclusive(markers, verdict);
        let wants = Wants {
            labels: claims.labels.into_wants(),
            annotations: claims.annotations.into_wants(),
            conditions: claims.conditions.into_wants(),
        };
        Self {
            wants,
            conflicts,
            refused: claims.refused,
            held: claims.held,
            stances,
            rulings: Vec::new(),
        }
    }
}

impl Wants {
    /// Holds marks of ours that no marker claims.
    pub fn hold_unclaimed(&mut self, ours: &Ours) {
        fn hold_co_owned<T: Clone>(wants: &mut SortedMap<Want<T>>, ours: &SortedMap<CoOwner>) {
            let unclaimed: Vec<_> = ours
                .keys()
                .filter(|key| !wants.contains_key(key))
                .map(|key| (key.clone(), Want::Hold))
                .collect();
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
        let keys = ours
            .annotations
            .keys()
            .filter(|key| [PROBES, MARKERS].contains(&&***key));
        self.annotations
            .extend(keys.map(|key| (key.clone(), Want::Hold)));
    }

    /// Whether nothing is governed.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.annotations.is_empty() && self.conditions.is_empty()
    }
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
    let mut pairs = probe.all_pairs();
    match mark {
        Mark::Label(key) => pairs.any(|pairs| pairs.labels.contains_key(key)),
        // Both annotations list the probes of all matching markers.
        Mark::Annotation(key) if [PROBES, MARKERS].contains(&&**key) => {
            probe.condition_type.is_some()
        }
        Mark::Annotation(key) if **key == *EXCLUSIVE_ANNOTATION => probe.exclusive.is_some(),
        Mark::Annotation(key) => pairs.any(|pairs| pairs.annotations.contains_key(key)),
        Mark::Condition(kind) => probe.condition_type.as_ref() == Some(kind),
    }
}

/// The probe that sets a mark of a pod, of markers sorted by precedence: the first that claims it, as in [`DesiredMarks::new`].
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
