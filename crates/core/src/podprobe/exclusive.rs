//! Values of a label that only one pod of a group has: who claims one, who has it, and in which order it moves.
//!
//! A pod *may have* a value while it has the label, or while its record says that it has it. The record is an annotation of the
//! pod ([`EXCLUSIVE_ANNOTATION`]), which is written before the label is given and changed by the very write that takes the label
//! away. So objects alone show where a write that gives the label may still be under way, whoever has sent it; and as such a
//! write is of one version of the pod, the write that changes the record puts an end to it.
//!
//! The value is given to a pod when no other one may have it, and when the watch has shown the pod's own record: then it has
//! shown all that anybody wrote to other pods before. A manager whose watch lags behind what another one has written thus
//! cannot give a value that it does not know to be taken.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use leadsman_api::limits::{self, EXCLUSIVE_ANNOTATION};
use leadsman_api::marker as wire;
use serde::{Deserialize, Serialize};

use super::output::{OutputValues, TextPart, ValueText};
use super::pod::IndexedPod;
use super::verdict::Verdict;
use crate::cluster::{FieldErrors, PodName, names};

/// A value of a label that only one pod of a group has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exclusive {
    /// The label.
    pub label: Arc<str>,
    /// The value.
    pub value: Arc<str>,
    /// The name of the value in the output that is the version of a claim.
    pub version: Option<Arc<str>>,
    /// The label by which pods are grouped; None if all of the marker are one group.
    pub group_by: Option<Arc<str>>,
}

impl Exclusive {
    /// Reads what a policy says; its names of values are checked by `check_value_name`.
    pub(super) fn read(
        policy: &wire::ProbeMarkerPolicy,
        check_value_name: impl FnOnce(&str, &mut FieldErrors<'_>),
        report: &mut FieldErrors<'_>,
    ) -> Option<Self> {
        let exclusive = policy.exclusive.as_ref()?;
        if policy.state == "Failed" {
            let message = "claims nothing: only a probe that succeeds claims an exclusive value";
            report.field("exclusive").add(message);
        }
        let mut report = report.field("exclusive");
        let mut at = report.field("label");
        at.at_most_chars(&exclusive.label, limits::QUALIFIED_NAME);
        if !sets_label(policy, &exclusive.label) {
            let label = &exclusive.label;
            at.add(format!("{label:?} is no label that this policy sets"));
        }
        let mut at = report.field("value");
        if exclusive.value.is_empty() {
            at.add("must not be empty");
        }
        at.check(names::label_value(&exclusive.value));
        let version = exclusive.version.as_deref().and_then(|text| {
            let mut at = report.field("version");
            at.at_most_chars(text, limits::LABEL);
            let name = value_name(text);
            match &name {
                Some(name) => check_value_name(name, &mut at),
                None => at.add(format!(
                    "{text:?} is no value of the output, as $(version) is"
                )),
            }
            name
        });
        if let Some(group_by) = &exclusive.group_by {
            report
                .field("groupBy")
                .check(names::qualified_name(group_by));
        }
        Some(Self {
            label: exclusive.label.as_str().into(),
            value: exclusive.value.as_str().into(),
            version,
            group_by: exclusive.group_by.as_deref().map(Into::into),
        })
    }

    /// Checks what the policies of a probe together have to say of it.
    pub(super) fn check_policies(
        policies: &[wire::ProbeMarkerPolicy],
        report: &mut FieldErrors<'_>,
    ) {
        for exclusive in policies
            .iter()
            .filter_map(|policy| policy.exclusive.as_ref())
        {
            if let Some(label) = &exclusive.group_by
                && policies.iter().any(|policy| sets_label(policy, label))
            {
                report.add(format!(
                    "sets label {label:?} of exclusive.groupBy: a verdict would take the pod to another group"
                ));
            }
            let mut failed = policies.iter().filter(|policy| policy.state == "Failed");
            if failed.any(|policy| policy.labels.get(&exclusive.label) == Some(&exclusive.value)) {
                report.add(format!(
                    "sets the exclusive value {:?} for Failed too, which claims nothing",
                    exclusive.value
                ));
            }
        }
    }

    /// The group of a pod; None for pods without the label that groups them, and where all are one.
    pub fn group_of(&self, pod: &IndexedPod) -> Option<Arc<str>> {
        pod.labels.get(self.group_by.as_deref()?).cloned()
    }

    /// Whether a pod has the value.
    pub fn is_shown_by(&self, pod: &IndexedPod) -> bool {
        pod.labels.get(&self.label) == Some(&self.value)
    }

    /// Reads the claim of a verdict that would give a pod the value.
    ///
    /// # Errors
    ///
    /// The version is no number of 64 bits.
    pub(super) fn read_claim(&self, verdict: &Verdict) -> Result<Claim, String> {
        let version = self.version.as_ref().map(|name| {
            let values: Option<&OutputValues> = verdict.values.as_deref();
            let value = values.and_then(|values| values.get(name));
            let text = value.map_or("", |text| text);
            let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
            let number = text.parse::<u64>().ok().filter(|_| is_number);
            number.ok_or_else(|| format!("version {text:?} is not a number from 0 to {}", u64::MAX))
        });
        Ok(Claim {
            version: version.transpose()?,
            since: verdict.since,
        })
    }
}

fn sets_label(policy: &wire::ProbeMarkerPolicy, key: &str) -> bool {
    let mut outputs = policy.outputs.iter();
    policy.labels.contains_key(key) || outputs.any(|output| output.labels.contains_key(key))
}

/// The name in a text that is `$(name)` and nothing else.
fn value_name(text: &str) -> Option<Arc<str>> {
    match ValueText::parse(text) {
        ValueText::Filled(parts) => match &*parts {
            [TextPart::Value(name)] => Some(name.clone()),
            _ => None,
        },
        ValueText::Fixed(_) => None,
    }
}

/// The claim of a pod to a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The claim's version; None where claims have none.
    pub version: Option<u64>,
    /// The time of the last change of the verdict that the claim follows from.
    pub since: Option<Timestamp>,
}

/// The record of a value in a pod's annotation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Whether it has the value, or is about to get it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub holds: bool,
    /// The highest version that it had, or that was higher than that of a claim of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u64>,
    /// The time from which the pod's claim counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
    /// The value of the label by which the pods are grouped: in another group the version says nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
}

impl Record {
    /// The record as it counts in the group of this value.
    #[must_use]
    pub fn in_group(&self, group: Option<&str>) -> Self {
        Self {
            version: self.version.filter(|_| self.group.as_deref() == group),
            group: group.map(str::to_owned),
            ..self.clone()
        }
    }

    /// The record that is left when the pod does not have the value any more.
    fn of_past(version: Option<u64>) -> Option<Self> {
        version.map(|version| Self {
            version: Some(version),
            ..Self::default()
        })
    }
}

/// The records of a pod, by `<marker>#<probe>`.
pub type Records = BTreeMap<String, Record>;

/// Whether a pod has records.
pub(super) fn has_records(pod: &IndexedPod) -> bool {
    pod.ours.annotations.contains_key(EXCLUSIVE_ANNOTATION)
}

/// Reads the records of a pod. What another client has written there counts for nothing.
pub fn read_records(pod: &IndexedPod) -> Records {
    let text = pod
        .annotations
        .get(EXCLUSIVE_ANNOTATION)
        .filter(|_| has_records(pod));
    let read = text.map(|text| serde_json::from_str(text).unwrap_or_default());
    read.unwrap_or_default()
}

/// A pod that claims an exclusive value, has it or had it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValueMember {
    /// The stance of the pod's verdict.
    pub stance: Stance,
    /// Whether it has the label.
    pub shows: bool,
    /// The record in the pod's annotation.
    pub record: Option<Record>,
    /// Whether the watch has shown the pod as it is known, and not only the reply to a write.
    pub is_watched: bool,
}

/// The stance of a pod on an exclusive value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stance {
    /// The pod is to have it.
    Claims(Claim),
    /// Nothing that counts: the pod keeps what it has, unless another one has a better claim.
    Silent,
    /// The pod is not to have it.
    Declines,
    /// The pod has ended, or no marker with the value matches it any more. It defends nothing.
    Gone,
}

impl ValueMember {
    /// Whether it has the value, or a write is possibly under way that gives it to it.
    pub fn may_have(&self) -> bool {
        self.shows || self.record.as_ref().is_some_and(|record| record.holds)
    }

    /// Whether it has anything to do with who has the value.
    pub fn counts(&self) -> bool {
        self.may_have() || self.record.is_some() || matches!(self.stance, Stance::Claims(_))
    }

    fn recorded_version(&self) -> Option<u64> {
        self.record.as_ref()?.version
    }

    fn recorded_since(&self) -> Option<Timestamp> {
        Some(self.record.as_ref()?.since.as_ref()?.0)
    }
}

/// The pods that have to do with one value.
#[derive(Clone, Debug, Default)]
pub struct Group {
    /// Whether claims have versions.
    pub is_versioned: bool,
    members: BTreeMap<PodName, ValueMember>,
    election: Election,
}

/// The result of choosing the pod that is to have the value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Election {
    /// The pod; None if nobody claims it.
    pub holder: Option<PodName>,
    /// Whether it claims the value. One that does not has it from before, and nothing is known of it.
    pub is_claimed: bool,
    /// The highest version that was ever proved to one of the pods.
    pub floor: Option<u64>,
}

/// The decision on one pod and the value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ruling {
    /// The pod keeps what it has.
    Stays,
    /// The pod has the value, or gets it now.
    Has,
    /// The pod gets the value once the watch shows that its record says so.
    Announced,
    /// The pod gets the value once these pods have lost it.
    Awaits(Vec<PodName>),
    /// Another pod has a better claim, or has the value with as good a one.
    Lost(PodName),
    /// A higher version than its own was proved before.
    Outdated(u64),
    /// The pod is not to have the value by its verdict.
    Declines,
}

impl Group {
    /// Replaces a member; None or one that does not count is none. Returns whether anything changes for others.
    pub fn set_member(&mut self, pod: &PodName, member: Option<ValueMember>) -> bool {
        let member = member.filter(ValueMember::counts);
        if self.members.get(pod) == member.as_ref() {
            return false;
        }
        let may_have = |member: Option<&ValueMember>| member.is_some_and(ValueMember::may_have);
        let is_there = may_have(member.as_ref());
        let before = match member {
            Some(member) => self.members.insert(pod.clone(), member),
            None => self.members.remove(pod),
        };
        let elected = std::mem::take(&mut self.election);
        self.election = self.elect();
        may_have(before.as_ref()) != is_there || self.election != elected
    }

    /// Whether nobody has to do with the value.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// The choice of the pod that is to have the value.
    pub fn election(&self) -> &Election {
        &self.election
    }

    /// A pod, as far as it counts.
    pub fn member(&self, pod: &PodName) -> Option<&ValueMember> {
        self.members.get(pod)
    }

    /// The pods that may have the value.
    pub fn possible_holders(&self) -> impl Iterator<Item = (&PodName, &ValueMember)> {
        self.members.iter().filter(|(_, member)| member.may_have())
    }

    /// Whether the value may be given to a pod: no other one may have it.
    pub fn may_give(&self, pod: &PodName) -> bool {
        self.possible_holders().all(|(other, _)| other == pod)
    }

    fn elect(&self) -> Election {
        let members = self.members.values();
        let floor = members
            .filter_map(ValueMember::recorded_version)
            .max()
            .filter(|_| self.is_versioned);
        let candidates = self.members.iter().filter_map(|(pod, member)| {
            let (version, since) = match member.stance {
                Stance::Claims(claim) => (claim.version, claim.since),
                // A pod that has never got the value must not keep others from it.
                Stance::Silent if member.shows => {
                    (member.recorded_version(), member.recorded_since())
                }
                Stance::Silent | Stance::Declines | Stance::Gone => return None,
            };
            let is_claimed = matches!(member.stance, Stance::Claims(_));
            if is_claimed && version < floor {
                return None;
            }
            let version = version.filter(|_| self.is_versioned);
            let has = member.may_have();
            // A pod that has the value keeps it against claims of its version; without versions the later claim counts first.
            let rank = (version, has && self.is_versioned, since, has, Reverse(pod));
            Some((rank, is_claimed))
        });
        let best = candidates.max();
        Election {
            floor,
            is_claimed: best.as_ref().is_some_and(|(_, is_claimed)| *is_claimed),
            holder: best.map(|((.., Reverse(pod)), _)| pod.clone()),
        }
    }

    /// The decision on a pod.
    pub fn ruling(&self, pod: &PodName) -> Ruling {
        let Some(member) = self.members.get(pod) else {
            return Ruling::Declines;
        };
        let Election {
            holder,
            is_claimed,
            floor,
        } = &self.election;
        let other = holder.as_ref().filter(|holder| *holder != pod);
        match (&member.stance, other) {
            (Stance::Declines, _) => Ruling::Declines,
            (Stance::Silent | Stance::Gone, Some(other)) if *is_claimed => {
                Ruling::Lost(other.clone())
            }
            (Stance::Silent | Stance::Gone, _) => Ruling::Stays,
            (Stance::Claims(claim), other) => match floor {
                Some(floor) if claim.version < Some(*floor) => Ruling::Outdated(*floor),
                _ => match other {
                    Some(other) => Ruling::Lost(other.clone()),
                    None => self.way_to_value(pod, member),
                },
            },
        }
    }

    /// How far the pod is that is to have the value.
    fn way_to_value(&self, pod: &PodName, member: &ValueMember) -> Ruling {
        if member.shows {
            return Ruling::Has;
        }
        if !member.may_have() {
            return Ruling::Announced;
        }
        let others: Vec<_> = self
            .possible_holders()
            .filter(|(other, _)| *other != pod)
            .map(|(other, _)| other.clone())
            .collect();
        if !others.is_empty() {
            Ruling::Awaits(others)
        } else if member.is_watched {
            Ruling::Has
        } else {
            Ruling::Announced
        }
    }

    /// The record that a pod is to have.
    pub fn wanted_record(&self, pod: &PodName, ruling: &Ruling) -> Option<Record> {
        let member = self.members.get(pod)?;
        let known = member.record.as_ref();
        let version = member.recorded_version();
        match (&member.stance, ruling) {
            (_, Ruling::Stays) => known.cloned(),
            (Stance::Claims(claim), Ruling::Has | Ruling::Announced | Ruling::Awaits(_)) => {
                // A version counts from its first claim; without versions the last transition is compared.
                let is_same = claim.version.is_some() && claim.version == version;
                let since = known.and_then(|known| known.since.clone());
                Some(Record {
                    holds: true,
                    version: claim.version,
                    since: since.filter(|_| is_same).or(claim.since.map(Time)),
                    group: None,
                })
            }
            (Stance::Claims(claim), _) => {
                // A pod that knows of a higher version claims in vain, also when that is forgotten elsewhere.
                let proved = self.highest_version().filter(|_| version <= claim.version);
                Record::of_past(version.max(proved))
            }
            (Stance::Silent | Stance::Declines | Stance::Gone, _) => Record::of_past(version),
        }
    }

    /// The highest version that is known: that of the holder too, whose record may not say so yet.
    fn highest_version(&self) -> Option<u64> {
        let name = self.election.holder.as_ref();
        let holder = name.and_then(|name| self.members.get(name));
        let claimed = holder.and_then(|holder| match holder.stance {
            Stance::Claims(claim) => claim.version,
            Stance::Silent | Stance::Declines | Stance::Gone => None,
        });
        self.election.floor.max(claimed)
    }
}

#[cfg(test)]
mod tests;
