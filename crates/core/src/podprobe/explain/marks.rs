//! The marks on a pod, what they should be, and who wrote them.

use leadsman_api::slim::{FieldOwner, Owned};

use super::PodContext;
use super::explanation::{MarkExplanation, Owner};
use crate::podprobe::index::{InspectedFit, InspectedMark};
use crate::podprobe::marks::{HeldVerdict, Mark, ProbePosition, Want};
use crate::podprobe::verdict::Verdict;

impl PodContext<'_> {
    pub(super) fn explain_marks(&self) -> Vec<MarkExplanation> {
        let marks = self.inspected.marks.iter();
        marks.map(|mark| self.explain_mark(mark)).collect()
    }

    fn explain_mark(&self, inspected: &InspectedMark) -> MarkExplanation {
        let (kind, key, value) = self.present_value(&inspected.mark);
        let wants = &self.inspected.wants;
        let plain = |value: &str| format!("{value:?}");
        let mut all = self.inspected.held.iter();
        let held = all.find(|held| Some(held.probe) == inspected.setter);
        let wanted = match &inspected.mark {
            Mark::Label(key) => describe_wanted(wants.labels.get(key), held, |value| plain(value)),
            Mark::Annotation(key) => {
                describe_wanted(wants.annotations.get(key), held, |value| plain(value))
            }
            Mark::Condition(kind) => {
                describe_wanted(wants.conditions.get(kind), held, |verdict: &Verdict| {
                    plain(crate::podprobe::marks::condition_status(verdict.state))
                })
            }
        };
        MarkExplanation {
            kind,
            key: key.to_owned(),
            value,
            wanted,
            differs: inspected.differs,
            set_by: inspected.setter.and_then(|place| self.probe_name(place)),
            owners: self.owners_of(&inspected.mark),
        }
    }

    /// Kind, key and present value of a mark.
    pub(super) fn present_value<'m>(
        &self,
        mark: &'m Mark,
    ) -> (&'static str, &'m str, Option<String>) {
        let pair = |pairs: &[(String, String)], key: &str| {
            let mut pairs = pairs.iter();
            let pair = pairs.find(|(own, _)| own == key);
            pair.map(|(_, value)| value.clone())
        };
        match mark {
            Mark::Label(key) => ("label", key, pair(&self.wire.labels, key)),
            Mark::Annotation(key) => ("annotation", key, pair(&self.wire.annotations, key)),
            Mark::Condition(kind) => {
                let mut conditions = self.wire.status.conditions.iter();
                let condition = conditions.find(|one| *one.type_ == **kind);
                let status = condition.map(|condition| condition.status.clone());
                ("condition", kind, status)
            }
        }
    }

    /// The name of a probe of a matching marker, as `MARKER#PROBE`.
    pub(super) fn probe_name(&self, (marker, probe): ProbePosition) -> Option<String> {
        let marker = self.inspected.markers.get(marker)?;
        let InspectedFit::Matches(parsed, _) = &marker.fit else {
            return None;
        };
        parsed
            .probes
            .get(probe)
            .map(|probe| probe.entry.to_string())
    }

    /// The field managers that own a mark.
    pub(super) fn owners_of(&self, mark: &Mark) -> Vec<Owner> {
        let owns = |owned: &Owned| match mark {
            Mark::Label(key) => owned.labels.iter().any(|own| **own == **key),
            Mark::Annotation(key) => owned.annotations.iter().any(|own| **own == **key),
            Mark::Condition(kind) => owned.conditions.iter().any(|own| **own == **kind),
        };
        let owners = self.wire.owners.iter().filter(|owner| owns(&owner.owned));
        owners.map(to_owner).collect()
    }
}

fn to_owner(owner: &FieldOwner) -> Owner {
    Owner {
        manager: owner.manager.clone(),
        operation: owner.operation.clone(),
        subresource: owner.subresource.clone(),
        time: owner.time.clone(),
    }
}

/// The value that a mark should have, in words.
fn describe_wanted<T>(
    want: Option<&Want<T>>,
    held: Option<&HeldVerdict>,
    text: impl Fn(&T) -> String,
) -> String {
    match want {
        Some(Want::Value(value)) => text(value),
        Some(Want::Absent) => "absent".to_owned(),
        Some(Want::Hold) => match held {
            Some(HeldVerdict {
                until: Some(until), ..
            }) => format!("as it is until {until}"),
            Some(_) => "as it is: the verdict does not count".to_owned(),
            None => "as it is: no verdict".to_owned(),
        },
        Some(Want::Leave) => "left to the provider".to_owned(),
        None => "absent: no marker sets it".to_owned(),
    }
}
