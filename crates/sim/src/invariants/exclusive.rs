//! A value that only one pod has is given to no pod while another one has it, and no version is lower than one before.
//! Only one pod of those of one marker and probe has it: what two markers give, two pods may have (PPM-23).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use leadsman_api::limits::EXCLUSIVE_ANNOTATION;
use leadsman_api_model::{ApiServer, StoredChange};
use serde_json::{Map, Value};

use crate::kubelet::text;
use crate::process::is_manager;
use crate::resources::TENANT;
use crate::story::Story;
use crate::tenants::PRIMARY;

/// The holders of exclusive values.
#[derive(Default)]
pub(super) struct Holders {
    /// The pods as they are stored, by name.
    pods: BTreeMap<String, Arc<Value>>,
    /// The labels that a probe of a marker has ever set exclusively, with the name of its records.
    given_by: BTreeSet<(String, String)>,
}

impl Holders {
    /// Takes in a marker.
    pub(super) fn note_marker(&mut self, marker: &Value) {
        let probes = marker["spec"]["probes"].as_array();
        for probe in probes.into_iter().flatten() {
            let policies = probe["markerPolicy"].as_array().into_iter().flatten();
            let labels = policies.filter_map(|policy| policy["exclusive"]["label"].as_str());
            let entry = format!(
                "{}#{}",
                text(marker, "name"),
                probe["name"].as_str().unwrap_or_default()
            );
            self.given_by
                .extend(labels.map(|label| (label.to_owned(), entry.clone())));
        }
    }

    pub(super) fn note_restore(&mut self, server: &ApiServer) {
        let pods = server
            .objects("pods")
            .into_iter()
            .filter(|pod| text(pod, "namespace") == TENANT);
        self.pods = pods
            .map(|pod| (text(&pod, "name").to_owned(), pod))
            .collect();
    }

    /// Takes in a change of a pod; judged is only what a manager has written.
    pub(super) fn observe_pod(&mut self, change: &StoredChange, is_judged: bool, story: &Story) {
        let Some(after) = &change.after else {
            self.pods.remove(&change.name);
            return;
        };
        if text(after, "namespace") != TENANT {
            return;
        }
        if is_judged && is_manager(&change.user) {
            self.check_given(change.before.as_deref(), after, story);
            check_versions(change.before.as_deref(), after, story);
        }
        self.pods.insert(change.name.clone(), Arc::clone(after));
    }

    fn check_given(&self, before: Option<&Value>, after: &Value, story: &Story) {
        let labels = after["metadata"]["labels"].as_object();
        let given = labels.into_iter().flatten().filter(|(key, value)| {
            let was = before.map(|before| &before["metadata"]["labels"][*key]);
            *value == PRIMARY && was != Some(value)
        });
        for (key, _) in given {
            let own = self.holding(after, key);
            // A record may be older than an edit by which its marker gives another label. So a pod with several records was given
            // the value by any of them, and it is missed if that was one that the other pod has too.
            let others = self.pods.iter().filter(|(name, pod)| {
                *name != text(after, "name")
                    && pod["metadata"]["labels"][key] == PRIMARY
                    && !own.is_empty()
                    && own.is_subset(&self.holding(pod, key))
            });
            for (other, _) in others {
                let name = text(after, "name");
                story.violate(
                    "never two holders",
                    format_args!("{name} got {key}={PRIMARY} while {other} had it"),
                );
            }
            if own.is_empty() {
                let name = text(after, "name");
                story.violate(
                    "never two holders",
                    format_args!("{name} got {key} without a record"),
                );
            }
        }
    }

    /// The probes that give the label and whose values a pod has, by its own record.
    fn holding(&self, pod: &Value, label: &str) -> BTreeSet<String> {
        let records = records(pod).into_iter();
        let held = records.filter(|(_, record)| record["holds"] == true);
        held.map(|(entry, _)| (label.to_owned(), entry))
            .filter(|given| self.given_by.contains(given))
            .map(|(_, entry)| entry)
            .collect()
    }
}

/// Checks that the versions that a pod has proved do not go backwards.
fn check_versions(before: Option<&Value>, after: &Value, story: &Story) {
    let known = before.map(records).unwrap_or_default();
    for (entry, record) in records(after) {
        let version = |record: &Value| record["version"].as_u64();
        let before = known.get(&entry).and_then(version);
        if version(&record) < before {
            let name = text(after, "name");
            let what = format_args!("{name}: {entry} went back from {before:?} to {record}");
            story.violate("a version never goes backwards", what);
        }
    }
}

fn records(pod: &Value) -> Map<String, Value> {
    let text = pod["metadata"]["annotations"][EXCLUSIVE_ANNOTATION].as_str();
    let read = text.and_then(|text| serde_json::from_str(text).ok());
    read.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::tenants::label_key;

    fn marker(name: &str, label: usize) -> Value {
        let exclusive = json!({"label": label_key(label), "value": PRIMARY});
        let probe =
            json!({"name": "p0", "markerPolicy": [{"state": "Succeeded", "exclusive": exclusive}]});
        json!({"metadata": {"name": name}, "spec": {"probes": [probe]}})
    }

    /// A pod that has the value of these markers by its record, and the labels of these numbers.
    fn pod(name: &str, markers: &[&str], labels: &[usize]) -> Value {
        let records = markers.iter().map(|marker| {
            let entry = format!("{marker}#p0");
            (entry, json!({"holds": true, "version": 1}))
        });
        let records: Map<_, _> = records.collect();
        let labels = labels
            .iter()
            .map(|label| (label_key(*label), json!(PRIMARY)));
        let labels: Map<_, _> = labels.collect();
        let annotations = json!({EXCLUSIVE_ANNOTATION: Value::from(records).to_string()});
        let metadata = json!({"namespace": TENANT, "name": name, "labels": labels, "annotations": annotations});
        json!({"metadata": metadata})
    }

    #[test]
    fn two_pods_have_a_value_only_by_two_markers() {
        // The markers by whose records each of two pods has label 1 in the end, and whether that is a violation.
        let table: [(&[&str], &[&str], bool); 7] = [
            (&["m1"], &["m1"], true),
            (&["m1", "m2"], &["m1"], true),
            // The second one may have it by m2.
            (&["m1"], &["m1", "m2"], false),
            (&["m1"], &["m2"], false),
            // Both have announced that they have the value of m0, which gives another label.
            (&["m0", "m1"], &["m0", "m2"], false),
            (&["m1"], &[], true),
            (&["m1"], &["m0"], true),
        ];
        for (first, second, is_violation) in table {
            let mut holders = Holders::default();
            for (name, label) in [("m0", 0), ("m1", 1), ("m2", 1)] {
                holders.note_marker(&marker(name, label));
            }
            let has = Arc::new(pod("a", first, &[1]));
            holders.pods.insert("a".to_owned(), has);
            let (before, after) = (pod("b", second, &[]), pod("b", second, &[1]));
            let story = Story::begin();
            holders.check_given(Some(&before), &after, &story);
            let (_, violations) = story.end();
            assert_eq!(
                !violations.is_empty(),
                is_violation,
                "{first:?} {second:?}: {violations:?}"
            );
        }
    }
}
