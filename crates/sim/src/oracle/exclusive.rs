//! Values that only one pod has: who should have them.

use std::collections::{BTreeMap, BTreeSet};

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

impl Oracle<'_> {
    /// Checks that the pod that claims a value with the highest version has it, and no other.
    pub(super) fn check_exclusive(&self, faults: &mut Vec<String>) {
        // The claims by probe, each with whether the pod has the value, and all pods that have it.
        let mut claims: BTreeMap<String, Vec<(u64, bool, String)>> = BTreeMap::new();
        let mut holders: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let mut silent = BTreeSet::new();
        for pod in &self.pods {
            let rows = self.rows(pod);
            for row in &rows {
                let (Some(exclusive), entry) = (exclusive_of(row), row.entry_name()) else {
                    continue;
                };
                let is_setter =
                    setter(&rows, &exclusive.label).is_some_and(|it| std::ptr::eq(it, row));
                if !is_setter {
                    continue;
                }
                let label = pod.labels().get(&exclusive.label);
                let has = label == Some(&exclusive.value);
                let version = match self.verdict(pod, row) {
                    Some(verdict) => {
                        let values = verdict.values.clone().unwrap_or_default();
                        let role = values.get("role");
                        let claims = role == Some(&exclusive.value);
                        // The label is that of this verdict, or none where it claims in vain; never one of an earlier verdict.
                        if role.is_some() && !has && label != role.filter(|_| !claims) {
                            let name = pod.name_any();
                            faults.push(format!("{name}: {entry} is {label:?} after {values:?}"));
                        }
                        claims.then(|| values["version"].parse().unwrap_or_default())
                    }
                    // A pod without a verdict keeps what it has, unless another one has a better claim.
                    None if has => {
                        silent.insert((entry.clone(), pod.name_any()));
                        let recorded = record(pod, &entry)["version"].as_u64();
                        Some(recorded.unwrap_or_default())
                    }
                    None => continue,
                };
                if let Some(version) = version {
                    let claim = (version, has, pod.name_any());
                    claims.entry(entry.clone()).or_default().push(claim);
                }
                if has {
                    holders
                        .entry(entry.clone())
                        .or_default()
                        .push(pod.name_any());
                }
                // A pod without a verdict may have the label by another marker.
                let is_silent = silent.contains(&(entry.clone(), pod.name_any()));
                let holds = record(pod, &entry)["holds"].as_bool().unwrap_or_default();
                if has != holds && !is_silent {
                    let name = pod.name_any();
                    faults.push(format!(
                        "{name}: {entry} is {label:?} beside {}",
                        record(pod, &entry)
                    ));
                }
            }
        }
        for (entry, mut claims) in claims {
            let proved = self
                .pods
                .iter()
                .filter_map(|pod| record(pod, &entry)["version"].as_u64());
            let floor = proved.max().unwrap_or_default();
            claims.retain(|(version, _, pod)| {
                *version >= floor || silent.contains(&(entry.clone(), pod.clone()))
            });
            let expected = claims
                .iter()
                .max_by_key(|(version, has, _)| (*version, *has));
            let holders = holders.remove(&entry).unwrap_or_default();
            let is_right = match (expected, &holders[..]) {
                (None, []) => true,
                // Any one of equal claims may have it.
                (Some((version, ..)), [holder]) => claims
                    .iter()
                    .any(|(own, _, pod)| own == version && pod == holder),
                _ => false,
            };
            if !is_right {
                faults.push(format!(
                    "{entry}: {holders:?} have the value that {claims:?} claim, from {floor} on"
                ));
            }
        }
        for (entry, holders) in holders {
            faults.push(format!(
                "{entry}: {holders:?} have a value that nobody claims"
            ));
        }
    }
}
