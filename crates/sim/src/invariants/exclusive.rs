//! A value that only one pod has is given to no pod while another one has it, and no version is lower than one before.

use std::collections::BTreeMap;
use std::sync::Arc;

use leadsman_api::limits::EXCLUSIVE_ANNOTATION;
use leadsman_api_model::{ApiServer, Change};
use serde_json::{Map, Value};

use crate::kubelet::text;
use crate::process::is_manager;
use crate::resources::TENANT;
use crate::story::Story;
use crate::tenants::PRIMARY;

/// The pods as they are stored, by name.
#[derive(Default)]
pub(super) struct Holders(BTreeMap<String, Arc<Value>>);

impl Holders {
    pub(super) fn note_restore(&mut self, server: &ApiServer) {
        let pods = server.objects("pods").into_iter();
        let pods = pods.filter(|pod| text(pod, "namespace") == TENANT);
        self.0 = pods
            .map(|pod| (text(&pod, "name").to_owned(), pod))
            .collect();
    }

    /// Takes in a change of a pod; judged is only what a manager has written.
    pub(super) fn observe_pod(&mut self, change: &Change, is_judged: bool, story: &Story) {
        let Some(after) = &change.after else {
            self.0.remove(&change.name);
            return;
        };
        if text(after, "namespace") != TENANT {
            return;
        }
        if is_judged && is_manager(&change.user) {
            self.check_given(change.before.as_deref(), after, story);
            check_versions(change.before.as_deref(), after, story);
        }
        self.0.insert(change.name.clone(), Arc::clone(after));
    }

    fn check_given(&self, before: Option<&Value>, after: &Value, story: &Story) {
        let labels = after["metadata"]["labels"].as_object();
        let given = labels.into_iter().flatten().filter(|(key, value)| {
            let was = before.map(|before| &before["metadata"]["labels"][*key]);
            *value == PRIMARY && was != Some(value)
        });
        for (key, _) in given {
            let own = holding(after);
            let others = self.0.iter().filter(|(name, pod)| {
                *name != text(after, "name")
                    && pod["metadata"]["labels"][key] == PRIMARY
                    && holding(pod).iter().any(|entry| own.contains(entry))
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
}

/// What a pod has proved does not go backwards on it.
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

/// The probes whose values a pod has, by its own record.
fn holding(pod: &Value) -> Vec<String> {
    let records = records(pod).into_iter();
    let holding = records.filter(|(_, record)| record["holds"] == true);
    holding.map(|(entry, _)| entry).collect()
}
