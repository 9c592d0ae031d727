//! The marks of a pod for values that only one pod of a group has: the label where it is the pod's, and the record of what the
//! pod has, which is an annotation.

use std::borrow::Cow;
use std::sync::Arc;

use leadsman_api::limits::EXCLUSIVE_ANNOTATION;

use super::{
    ClaimedMarks, DesiredMarks, Mark, ProbePosition, RefusedValue, Want, Wants, probes_of,
};
use crate::podprobe::exclusive::{Exclusive, Record, Records, Ruling, Stance, read_records};
use crate::podprobe::marker::Marker;
use crate::podprobe::pod::IndexedPod;
use crate::podprobe::verdict::Verdict;

impl ClaimedMarks<'_> {
    /// Returns the stances of the verdicts on the exclusive values whose labels their probes set. A claim without a valid
    /// version is none, and refused.
    pub(super) fn judge_exclusive<'v>(
        &mut self,
        markers: &[&Marker],
        verdict: impl Fn(ProbePosition) -> Option<Cow<'v, Verdict>>,
    ) -> Vec<(ProbePosition, Stance)> {
        let mut stances = Vec::new();
        for (place, probe) in probes_of(markers) {
            let Some(exclusive) = &probe.exclusive else {
                continue;
            };
            let Some((setter, want)) = self.labels.by_key.get_mut(&exclusive.label) else {
                continue;
            };
            if *setter != place {
                continue;
            }
            let stance = match want {
                Want::Hold => Stance::Silent,
                Want::Value(value) if *value == exclusive.value => {
                    let claim = verdict(place).map(|verdict| exclusive.read_claim(&verdict));
                    match claim {
                        Some(Ok(claim)) => Stance::Claims(claim),
                        Some(Err(why)) => {
                            *want = Want::Absent;
                            self.refused.push(RefusedValue {
                                probe: place,
                                mark: Mark::Label(exclusive.label.clone()),
                                why,
                            });
                            Stance::Declines
                        }
                        None => Stance::Silent,
                    }
                }
                Want::Value(_) | Want::Absent | Want::Leave => Stance::Declines,
            };
            stances.push((place, stance));
        }
        stances
    }
}

/// The decision on a pod and one exclusive value.
pub(in crate::podprobe) struct Membership<'a> {
    /// `<marker>#<probe>`.
    pub(in crate::podprobe) entry: &'a str,
    pub(in crate::podprobe) exclusive: &'a Exclusive,
    pub(in crate::podprobe) ruling: Ruling,
    /// The record that the pod is to have.
    pub(in crate::podprobe) record: Option<Record>,
    /// Whether no matching marker has the value.
    pub(in crate::podprobe) is_past: bool,
}

impl DesiredMarks {
    /// Gives the pod the exclusive values that are its own, and takes the others away. Records of other markers go, unless they
    /// are kept.
    pub(in crate::podprobe) fn settle_exclusive(
        &mut self,
        pod: &IndexedPod,
        memberships: &[Membership<'_>],
        keeps_others: bool,
    ) {
        if memberships.is_empty() {
            return;
        }
        let mut records = if keeps_others {
            read_records(pod)
        } else {
            Records::new()
        };
        for one in memberships {
            let label = &one.exclusive.label;
            match &one.ruling {
                Ruling::Has if !one.is_past => {
                    let value = one.exclusive.value.clone();
                    self.set_label(label, Want::Value(value));
                }
                Ruling::Lost(_) if one.is_past => self.take_from_past_member(pod, label),
                Ruling::Announced | Ruling::Awaits(_) | Ruling::Lost(_) | Ruling::Outdated(_) => {
                    self.set_label(label, Want::Absent);
                }
                Ruling::Has | Ruling::Stays | Ruling::Declines => {}
            }
            records.remove(one.entry);
            // A marker that does not match any more leaves nothing on a pod, unless the pod has ended and is left as it is, or its
            // init containers run again.
            let record = one
                .record
                .clone()
                .filter(|_| !one.is_past || !pod.is_target());
            records.extend(record.map(|record| (one.entry.to_owned(), record)));
        }
        self.wants.set_records(pod, &records);
    }

    fn set_label(&mut self, label: &Arc<str>, want: Want<Arc<str>>) {
        if let Some(known) = self.wants.labels.get_mut(label) {
            *known = want;
        }
    }

    /// Takes a label from a pod that has ended or that the marker does not match any more. All else of one that has ended stays.
    fn take_from_past_member(&mut self, pod: &IndexedPod, label: &Arc<str>) {
        if !pod.active {
            self.wants.hold_unclaimed(&pod.ours);
        }
        if self
            .wants
            .labels
            .get(label)
            .is_none_or(|want| *want == Want::Hold)
        {
            let taken = [(label.clone(), Want::Absent)];
            self.wants.labels.extend(taken);
        }
    }
}

impl Wants {
    fn set_records(&mut self, pod: &IndexedPod, records: &Records) {
        let want = if !records.is_empty() {
            let text = serde_json::to_string(records);
            Want::Value(text.expect("records are plain JSON").into())
        } else if pod.ours.annotations.contains_key(EXCLUSIVE_ANNOTATION) {
            Want::Absent
        } else {
            return;
        };
        self.annotations
            .extend([(EXCLUSIVE_ANNOTATION.into(), want)]);
    }
}
