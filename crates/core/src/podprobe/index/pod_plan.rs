//! The plan of a pod: the entries that its node should have of it, and the marks that follow from the verdicts.
//!
//! The only place that reads all machines. It changes none of them.

use std::borrow::Cow;
use std::sync::Arc;

use jiff::Timestamp;

use super::context::{IndexContext, MarkerName};
use super::groups::{GroupName, Groups, NewMember};
use super::markers::Markers;
use super::nodes::NodeView;
use super::situation::{PodSituation, ProbedBy};
use crate::cluster::ObjectName;
use crate::podprobe::exclusive::{
    Exclusive, Record, Records, Ruling, Stance, ValueMember, read_records,
};
use crate::podprobe::marker::{MARKERS_PER_POD, Marker, MarkerProbe};
use crate::podprobe::marks::{
    self, Conflict, DesiredMarks, Mark, Membership, ProbePosition, RefusedValue, Want, Wants,
};
use crate::podprobe::plan::{Entry, Gap, PodEntries};
use crate::podprobe::pod::IndexedPod;
use crate::podprobe::serverless::Provided;
use crate::podprobe::status::{Pending, PodContribution, Trouble};
use crate::podprobe::verdict::Verdict;

/// The markers that match a pod, in order of precedence.
pub(super) type Matching<'a> = [(&'a MarkerName, &'a Marker)];

/// The entry of the pod, or why there is none, for each probe of each matching marker.
pub(super) struct PlannedEntries(Vec<Vec<Result<Entry, Gap>>>);

impl PlannedEntries {
    /// `observed` are the entries that the object of the pod's node has now.
    pub(super) fn new(
        pod: &IndexedPod,
        matching: &Matching<'_>,
        observed: Option<&PodEntries>,
    ) -> Self {
        let plans = matching.iter().enumerate().map(|(place, (_, marker))| {
            if place >= MARKERS_PER_POD {
                return vec![Err(Gap::TooManyMarkers); marker.probes.len()];
            }
            let probes = marker.probes.iter();
            let entries = probes.map(|probe| Entry::plan_entry(pod, probe, observed));
            entries.collect()
        });
        Self(plans.collect())
    }

    /// All entries that a pod should have, including the `undecodable` ones, which belong to markers that cannot be
    /// decoded. None if there are none.
    pub(super) fn to_pod_entries(
        &self,
        pod: &IndexedPod,
        undecodable: Vec<Entry>,
        cx: &mut IndexContext,
    ) -> Option<PodEntries> {
        let planned = self.0.iter().flatten().flatten().cloned();
        let entries: Vec<_> = planned.chain(undecodable).collect();
        let is_any = !entries.is_empty();
        is_any.then(|| PodEntries::new(pod.ip.clone(), entries, &mut cx.entries))
    }
}

/// The inputs of a pod's marks and contributions, besides its entries.
pub(super) struct Observations<'a> {
    pub(super) pod: &'a IndexedPod,
    pub(super) node: NodeView<'a>,
    /// Whether the provider of its node runs its probes. None while there is no such node.
    pub(super) has_provider: Option<bool>,
    /// Why the object of its node was refused.
    pub(super) refused_object: Option<&'a Arc<str>>,
    /// Why its marks were refused.
    pub(super) refused_marks: Option<&'a Arc<str>>,
    /// Marks that are contested.
    pub(super) contested: Vec<&'a Mark>,
    /// Whether a marker of its namespace cannot be decoded: it may be the one that claims otherwise unclaimed marks.
    pub(super) keeps_unclaimed: bool,
    /// The time of day, by which verdicts that have to hold for some time count.
    pub(super) now: Timestamp,
    /// Markers that do not match the pod any more may be those of its records.
    pub(super) markers: &'a Markers,
}

/// Everything that follows from the verdicts on a pod.
pub(super) struct PlannedMarks {
    /// The marks that the pod should have.
    pub(super) wants: Wants,
    /// The pod's contributions to the tallies.
    pub(super) contributions: Box<[(MarkerName, PodContribution)]>,
    /// The time when the last of the verdicts changed.
    pub(super) last_transition: Option<Timestamp>,
    /// The time when the next verdict counts that does not yet.
    pub(super) counts_from: Option<Timestamp>,
    pub(super) exclusive: PlannedExclusive,
}

/// The part of a pod's plan that concerns exclusive values.
#[derive(Debug, Default)]
pub(in crate::podprobe::index) struct PlannedExclusive {
    /// Whether it has to do with any: its marks are written for the version of the pod that was planned, and no other. What an
    /// apply repeats of a record, or leaves out, would put an older one back.
    pub(super) is_fenced: bool,
    /// Whether one is taken from a pod that has ended, of which nothing else is written.
    pub(super) takes_from_ended: bool,
    /// The groups whose values it gives the pod.
    pub(super) gives: Box<[GroupName]>,
}

/// An exclusive value with which a pod has to do.
struct ExclusiveOfPod<'a> {
    /// The probe, of those of matching markers.
    place: Option<ProbePosition>,
    /// `<marker>#<probe>`.
    entry: &'a str,
    exclusive: &'a Exclusive,
    group: GroupName,
    stance: Stance,
}

impl Observations<'_> {
    /// `matching` are the markers of which the pod may have probes.
    pub(super) fn plan_marks(
        &self,
        matching: &Matching<'_>,
        PlannedEntries(entries): &PlannedEntries,
        groups: &Groups,
    ) -> PlannedMarks {
        let markers = markers_of_pod(matching);
        let provided = self.provided_probes(&markers);
        let provided = provided.as_ref();
        let verdict_at = |place| self.verdict_at(place, &markers, entries, provided);
        let (desired, exclusive) = self.desired_marks(matching, entries, provided, groups);
        let DesiredMarks {
            wants,
            conflicts,
            refused,
            held,
            ..
        } = desired;
        let situation = PodSituation::new(self.pod, self.node, self.refused_object);
        let mut contributions = Vec::with_capacity(matching.len());
        let mut last_transition = None;
        for (first, ((name, marker), entries)) in matching.iter().zip(entries).enumerate() {
            let mut contribution = PodContribution::default();
            for (second, (entry, probe)) in entries.iter().zip(&marker.probes).enumerate() {
                let place = (first, second);
                let verdict = verdict_at(place);
                let verdict = verdict.as_deref();
                last_transition = last_transition.max(verdict.and_then(|verdict| verdict.since));
                let state = verdict.map(|verdict| verdict.state);
                let prober = prober_of(place, provided);
                situation.count_probe(&mut contribution, probe, entry, (prober, state));
            }
            contribution.troubles.extend(self.mark_troubles(marker));
            let own = conflicts
                .iter()
                .filter(|conflict| conflict.loser.0 == first);
            let troubles = own.filter_map(|conflict| conflict_trouble(conflict, matching));
            contribution.troubles.extend(troubles);
            let own = refused.iter().filter(|value| value.probe.0 == first);
            let troubles = own.filter_map(|value| self.refusal_trouble(value, marker));
            contribution.troubles.extend(troubles);
            // Sorted, because a status is compared as a whole: another order would be another status.
            contribution.troubles.sort();
            contribution.troubles.dedup();
            contributions.push(((*name).clone(), contribution));
        }
        PlannedMarks {
            wants,
            contributions: contributions.into(),
            last_transition,
            counts_from: held.iter().filter_map(|held| held.until).min(),
            exclusive,
        }
    }

    /// The pod's memberships in groups of exclusive values, by its verdicts and its marks.
    pub(super) fn plan_memberships(
        &self,
        matching: &Matching<'_>,
        PlannedEntries(entries): &PlannedEntries,
        groups: &Groups,
    ) -> Vec<NewMember> {
        let records = read_records(self.pod);
        // Hardly any pods have to do with exclusive values, and the others cost no more than this.
        if records.is_empty() && !matching.iter().any(|(_, marker)| marker.has_exclusive()) {
            return Vec::new();
        }
        let markers = markers_of_pod(matching);
        let provided = self.provided_probes(&markers);
        let verdict_at = |place| self.verdict_at(place, &markers, entries, provided.as_ref());
        let desired = DesiredMarks::new(&markers, self.pod, verdict_at, self.now);
        let all = self.exclusive_of_pod(matching, &desired.stances, &records);
        let members = all.into_iter().map(|one| NewMember {
            member: ValueMember {
                stance: one.stance,
                shows: one.exclusive.is_shown_by(self.pod),
                record: records
                    .get(one.entry)
                    .map(|record| record.in_group(one.group.value.as_deref())),
                is_watched: groups.has_watched(self.pod.version.number()),
            },
            group: one.group,
            is_versioned: one.exclusive.version.is_some(),
        });
        members.collect()
    }

    /// The exclusive values of the probes that set their labels, and those of which the pod has records, of markers that do not
    /// match it any more.
    fn exclusive_of_pod<'b>(
        &'b self,
        matching: &Matching<'b>,
        stances: &[(ProbePosition, Stance)],
        records: &'b Records,
    ) -> Vec<ExclusiveOfPod<'b>> {
        let own = stances.iter().filter_map(|(place, stance)| {
            let (name, marker) = matching.get(place.0)?;
            let probe = marker.probes.get(place.1)?;
            let stance = if self.pod.active {
                *stance
            } else {
                Stance::Gone
            };
            self.exclusive_of_probe((name, probe), Some(*place), stance)
        });
        let mut all: Vec<_> = own.collect();
        for entry in records.keys() {
            if all.iter().any(|one| one.entry == entry) {
                continue;
            }
            let Some((marker, probe)) = entry.split_once('#') else {
                continue;
            };
            let name = ObjectName {
                namespace: self.pod.name.namespace.clone(),
                name: marker.to_owned(),
            };
            let known = self.markers.active_entry(&name);
            let past = known.and_then(|(name, marker)| {
                let mut probes = marker.probes.iter();
                let probe = probes.find(|one| *one.name == *probe)?;
                self.exclusive_of_probe((name, probe), None, Stance::Gone)
            });
            all.extend(past);
        }
        all
    }

    fn exclusive_of_probe<'b>(
        &self,
        (marker, probe): (&MarkerName, &'b MarkerProbe),
        place: Option<ProbePosition>,
        stance: Stance,
    ) -> Option<ExclusiveOfPod<'b>> {
        let exclusive = probe.exclusive.as_deref()?;
        let group = GroupName {
            marker: marker.clone(),
            probe: probe.name.clone(),
            value: exclusive.group_of(self.pod),
        };
        Some(ExclusiveOfPod {
            place,
            entry: &probe.entry,
            exclusive,
            group,
            stance,
        })
    }

    /// Settles who has exclusive values. Returns also what is decided of the probes of matching markers.
    fn settle_exclusive(
        &self,
        matching: &Matching<'_>,
        desired: &mut DesiredMarks,
        groups: &Groups,
    ) -> (PlannedExclusive, Vec<(ProbePosition, Ruling)>) {
        let records = read_records(self.pod);
        let stances = std::mem::take(&mut desired.stances);
        let all = self.exclusive_of_pod(matching, &stances, &records);
        let pod = &self.pod.name;
        let decided: Vec<(Ruling, Option<Record>)> = all
            .iter()
            .map(|one| groups.ruling(&one.group, pod))
            .collect();
        let memberships: Vec<_> = all
            .iter()
            .zip(&decided)
            .map(|(one, (ruling, record))| Membership {
                entry: one.entry,
                exclusive: one.exclusive,
                ruling: ruling.clone(),
                record: record.clone().map(|record| Record {
                    group: one.group.value.as_deref().map(str::to_owned),
                    ..record
                }),
                is_past: one.place.is_none(),
            })
            .collect();
        desired.settle_exclusive(self.pod, &memberships, self.keeps_unclaimed);
        // The label is given by the marker that sets it, whatever records there are of others.
        let placed = all.iter().filter(|one| one.place.is_some());
        let gives = placed.filter(|one| {
            let label = desired.wants.labels.get(&one.exclusive.label);
            let gives = matches!(label, Some(Want::Value(value)) if *value == one.exclusive.value);
            gives && !one.exclusive.is_shown_by(self.pod)
        });
        let planned = PlannedExclusive {
            is_fenced: !all.is_empty() || !records.is_empty(),
            takes_from_ended: !self.pod.active
                && decided
                    .iter()
                    .any(|(one, _)| matches!(one, Ruling::Lost(_))),
            gives: gives.map(|one| one.group.clone()).collect(),
        };
        let rulings = all
            .iter()
            .zip(decided)
            .filter_map(|(one, (ruling, _))| Some((one.place?, ruling)));
        (planned, rulings.collect())
    }

    /// The trouble with a value in the output of a marker's probe.
    fn refusal_trouble(
        &self,
        value: &RefusedValue,
        marker: &Marker,
    ) -> Option<(Trouble, Arc<str>)> {
        let probe = marker.probes.get(value.probe.1)?.name.clone();
        let pod = &self.pod.name.name;
        let subject = format!("{pod} ({}: {})", value.mark, value.why);
        Some((Trouble::InvalidValue { probe }, subject.into()))
    }

    /// The probes that the provider of its node is asked to run; None on other nodes.
    fn provided_probes(&self, markers: &[&Marker]) -> Option<Provided> {
        (self.has_provider == Some(true)).then(|| Provided::new(markers, self.pod))
    }

    fn verdict_at<'v>(
        &'v self,
        place: ProbePosition,
        markers: &[&Marker],
        entries: &[Vec<Result<Entry, Gap>>],
        provided: Option<&'v Provided>,
    ) -> Option<Cow<'v, Verdict>> {
        let verdict = if let Some(provided) = provided {
            provided.verdict_of(place)
        } else {
            let entry = entries.get(place.0)?.get(place.1)?.as_ref().ok()?;
            self.node.current_verdict(self.pod, entry)
        };
        let probe = markers.get(place.0)?.probes.get(place.1)?;
        Some(probe.judge_verdict(verdict?))
    }

    fn desired_marks(
        &self,
        matching: &Matching<'_>,
        entries: &[Vec<Result<Entry, Gap>>],
        provided: Option<&Provided>,
        groups: &Groups,
    ) -> (DesiredMarks, PlannedExclusive) {
        let markers = markers_of_pod(matching);
        let verdict_at = |place| self.verdict_at(place, &markers, entries, provided);
        let mut desired = DesiredMarks::new(&markers, self.pod, verdict_at, self.now);
        let (exclusive, rulings) = self.settle_exclusive(matching, &mut desired, groups);
        desired.rulings = rulings;
        let wants = &mut desired.wants;
        // The conditions of a virtual node's pod are the provider's own; the marks that follow from them are ours.
        if let Some(provided) = provided {
            provided.leave_conditions(self.pod, wants);
        }
        // The provider's annotations are not governed while a marker cannot be decoded: it may have
        // a part in them.
        if self.keeps_unclaimed {
            wants.hold_unclaimed(&self.pod.ours);
        } else if let Some(provided) = provided {
            provided.govern_annotations(self.pod, wants);
        } else if self.has_provider.is_none() {
            // The provider may register its node again.
            wants.hold_injected(&self.pod.ours);
        }
        (desired, exclusive)
    }

    /// Inspects what the marks follow from, for [`Machines::inspect_pod`](super::Machines::inspect_pod).
    pub(super) fn inspect_plan(
        &self,
        matching: &Matching<'_>,
        PlannedEntries(entries): &PlannedEntries,
        groups: &Groups,
    ) -> InspectedPlan {
        let markers = markers_of_pod(matching);
        let provided = self.provided_probes(&markers);
        let provided = provided.as_ref();
        let (desired, _) = self.desired_marks(matching, entries, provided, groups);
        let situation = PodSituation::new(self.pod, self.node, self.refused_object);
        let inspect = |place: ProbePosition, entry: &Result<Entry, Gap>, probe: &MarkerProbe| {
            let verdict = self.verdict_at(place, &markers, entries, provided);
            let verdict = verdict.map(Cow::into_owned);
            let state = verdict.as_ref().map(|verdict| verdict.state);
            let prober = prober_of(place, provided);
            let cause = situation.pending_cause(probe, entry, (prober, state));
            InspectedProbe {
                entry: entry.clone(),
                trouble: cause.and_then(|cause| situation.trouble_of_cause(cause, probe, entry)),
                cause,
                verdict,
            }
        };
        let matched = matching.iter().zip(entries).enumerate();
        let probes = matched.map(|(first, ((_, marker), entries))| {
            let pairs = entries.iter().zip(&marker.probes).enumerate();
            let probes =
                pairs.map(|(second, (entry, probe))| inspect((first, second), entry, probe));
            probes.collect()
        });
        InspectedPlan {
            probes: probes.collect(),
            desired,
        }
    }

    /// The troubles with a marker's marks on the pod.
    fn mark_troubles(&self, marker: &Marker) -> impl Iterator<Item = (Trouble, Arc<str>)> {
        let subject = &self.pod.name.name;
        let contested = self
            .contested
            .iter()
            .filter(|mark| marks::claims_mark(marker, mark))
            .map(move |mark| {
                let subject = format!("{subject} ({mark})");
                (Trouble::Contested, subject.into())
            });
        let refused = self.refused_marks.map(|reason| {
            let subject = format!("{subject}: {reason}");
            (Trouble::InvalidSpec, subject.into())
        });
        contested.chain(refused)
    }
}

/// The markers of which the probes are run: the first ones of those that match.
pub(super) fn markers_of_pod<'a>(matching: &Matching<'a>) -> Vec<&'a Marker> {
    let markers = matching.iter().take(MARKERS_PER_POD);
    markers.map(|(_, marker)| *marker).collect()
}

/// The party that runs the probe at this place.
fn prober_of(place: ProbePosition, provided: Option<&Provided>) -> ProbedBy<'_> {
    match provided {
        Some(provided) => ProbedBy::Provider(provided.obstacle_of(place)),
        None => ProbedBy::Agent,
    }
}

/// The probes and desired marks of a pod's plan.
pub(super) struct InspectedPlan {
    /// The probes of each matching marker.
    pub(super) probes: Vec<Vec<InspectedProbe>>,
    pub(super) desired: DesiredMarks,
}

/// A probe of a pod as the index judges it.
#[derive(Clone, Debug)]
pub struct InspectedProbe {
    /// The probe's entry in the object of the node, or why it has none.
    pub entry: Result<Entry, Gap>,
    /// The probe's verdict; None before the first one.
    pub verdict: Option<Verdict>,
    /// Why it has no verdict, or none that anybody keeps up to date.
    pub cause: Option<Pending>,
    /// The trouble that the cause stands for and its subject, unless it resolves by itself.
    pub trouble: Option<(Trouble, Arc<str>)>,
}

/// The trouble of the marker that loses a conflict: it names the winner.
fn conflict_trouble(conflict: &Conflict, matching: &Matching<'_>) -> Option<(Trouble, Arc<str>)> {
    let (winner, _) = matching.get(conflict.winner.0)?;
    Some((Trouble::Conflict, winner.name.as_str().into()))
}
