//! Values that only one pod has: who should have them.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use leadsman_api::limits::EXCLUSIVE_ANNOTATION;
use leadsman_api::marker::ExclusiveLabel;
use serde_json::Value;

use super::Oracle;
use super::marker::Row;

/// The record of a value in a pod's annotation.
fn record(pod: &Pod, entry: &str) -> Value {
    let text = pod.annotations().get(EXCLUSIVE_ANNOTATION);
    let records = text.and_then(|text| serde_json::from_str::<Value>(text).ok());
    records.map_or(Value::Null, |records| records[entry].clone())
}

fn exclusive_of<'a>(row: &Row<'a>) -> Option<&'a ExclusiveLabel> {
    let mut policies = row.probe.marker_policy.iter();
    policies.find_map(|policy| policy.exclusive.as_ref())
}

/// The row that sets a label: the first one that names it, of those whose containers the pod has.
fn setter<'a, 'b>(rows: &'b [Row<'a>], label: &str) -> Option<&'b Row<'a>> {
    let sets = |row: &&Row<'_>| {
        let mut policies = row.probe.marker_policy.iter();
        policies.any(|policy| policy.labels.contains_key(label))
    };
    let setters = rows.iter().filter(sets);
    setters.min_by_key(|row| !row.has_container)
}

/// The claim of a pod to the value of a probe.
#[derive(Debug)]
struct Claim {
    version: u64,
    has: bool,
    /// Whether the pod has no verdict: it keeps what it has, unless another one has a better claim.
    is_silent: bool,
    pod: String,
}

/// The claims to the value of one probe, and the pods that have it.
#[derive(Default)]
struct Contest {
    claims: Vec<Claim>,
    holders: Vec<String>,
}

impl Oracle<'_> {
    /// Checks that the pod that claims a value with the highest version has it, and no other.
    pub(super) fn check_exclusive(&self, faults: &mut Vec<String>) {
        let mut contests: BTreeMap<String, Contest> = BTreeMap::new();
        for pod in &self.pods {
            let rows = self.rows(pod);
            for row in &rows {
                let Some(exclusive) = exclusive_of(row) else {
                    continue;
                };
                if setter(&rows, &exclusive.label).is_some_and(|it| std::ptr::eq(it, row)) {
                    let contest = contests.entry(row.entry_name()).or_default();
                    self.note_claim((pod, row), exclusive, contest, faults);
                }
            }
        }
        for (entry, contest) in contests {
            self.check_contest(&entry, contest, faults);
        }
    }

    /// Takes in what a pod claims and has by the row that sets the label.
    fn note_claim(
        &self,
        (pod, row): (&Pod, &Row<'_>),
        exclusive: &ExclusiveLabel,
        contest: &mut Contest,
        faults: &mut Vec<String>,
    ) {
        let (name, entry) = (pod.name_any(), row.entry_name());
        let label = pod.labels().get(&exclusive.label);
        let has = label == Some(&exclusive.value);
        let record = record(pod, &entry);
        let verdict = self.verdict(pod, row);
        let is_silent = verdict.is_none();
        let version = if let Some(verdict) = verdict {
            let values = verdict.values.clone().unwrap_or_default();
            let role = values.get("role");
            let claims = role == Some(&exclusive.value);
            // The label is that of this verdict, or none where it claims in vain; never one of an earlier verdict.
            if role.is_some() && !has && label != role.filter(|_| !claims) {
                faults.push(format!("{name}: {entry} is {label:?} after {values:?}"));
            }
            claims.then(|| values["version"].parse().unwrap_or_default())
        } else {
            has.then(|| record["version"].as_u64().unwrap_or_default())
        };
        // A pod without a verdict may have the label by another marker.
        if !is_silent && has != (record["holds"] == true) {
            faults.push(format!("{name}: {entry} is {label:?} beside {record}"));
        }
        if has {
            contest.holders.push(name.clone());
        }
        contest.claims.extend(version.map(|version| Claim {
            version,
            has,
            is_silent,
            pod: name,
        }));
    }

    fn check_contest(&self, entry: &str, contest: Contest, faults: &mut Vec<String>) {
        let Contest {
            mut claims,
            holders,
        } = contest;
        let versions = self
            .pods
            .iter()
            .filter_map(|pod| record(pod, entry)["version"].as_u64());
        let floor = versions.max().unwrap_or_default();
        claims.retain(|claim| claim.version >= floor || claim.is_silent);
        let expected = claims.iter().max_by_key(|claim| (claim.version, claim.has));
        let is_right = match (expected, &holders[..]) {
            (None, []) => true,
            // Any one of equal claims may have it.
            (Some(expected), [holder]) => claims
                .iter()
                .any(|claim| claim.version == expected.version && claim.pod == *holder),
            _ => false,
        };
        if !is_right {
            faults.push(format!(
                "{entry}: {holders:?} have the value that {claims:?} claim, from {floor} on"
            ));
        }
    }
}
