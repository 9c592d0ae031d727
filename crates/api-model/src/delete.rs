//! Deletions: preconditions, grace of pods, finalizers, and what becomes of dependents (`BeforeDelete` in
//! `k8s.io/apiserver/pkg/registry/rest/delete.go`, `updateForGracefulDeletionAndFinalizers` in `registry/store.go`).

use std::sync::Arc;

use http::StatusCode;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::request::Call;
use crate::resource::{Generation, Resource};
use crate::server::{Answer, Connection};
use crate::status::{Failure, Named};
use crate::store::{Author, Object, ObjectKey, ObjectStore, encode};
use crate::write::{keeps_namespace, stored_answer};

pub(crate) const ORPHAN: &str = "orphan";
pub(crate) const FOREGROUND: &str = "foregroundDeletion";

/// `DeleteOptions`, as far as they matter.
#[derive(Debug, Default)]
pub(crate) struct DeleteOptions {
    grace: Option<i64>,
    propagation: Option<String>,
}

/// The outcome of a deletion.
pub(crate) enum Deletion {
    /// The object is gone. Its last state, with the version of the deletion.
    Gone(Arc<Object>),
    /// The object waits for its kubelet or its finalizers.
    Pending(Arc<Object>),
}

impl Connection {
    pub(crate) async fn delete(
        &self,
        kind: usize,
        resource: &Resource,
        call: &Call,
    ) -> Result<Answer, Failure> {
        let body = if call.body.is_empty() {
            json!({})
        } else {
            call.read_body()?
        };
        let options = read_options(&body, call)?;
        let key = ObjectKey {
            kind,
            namespace: call.namespace.clone(),
            name: call.name.clone(),
        };
        let named = Named {
            resource,
            name: &call.name,
        };
        let old = self
            .server
            .store()
            .objects
            .get(&key)
            .cloned()
            .ok_or_else(|| named.not_found())?;
        self.validate(
            resource,
            call,
            "DELETE",
            &call.name,
            &Value::Null,
            Some(&old.value),
        )
        .await?;
        let mut store = self.server.store();
        let old = store
            .objects
            .get(&key)
            .cloned()
            .ok_or_else(|| named.not_found())?;
        check_preconditions(resource, &call.name, &body["preconditions"], &old.value)?;
        if loses_version(resource, &options, &body["preconditions"], &old.value) {
            return Err(named.modified());
        }
        if call.is_dry_run() {
            return Ok(Answer::of_read(success(resource, &old.value)));
        }
        let before = store.version;
        let deleted = store
            .delete(&key, &options, self.author(call))
            .ok_or_else(|| named.not_found())?;
        let changed = Some(store.version).filter(|version| *version > before);
        drop(store);
        self.server.wake_watches(Some(kind));
        let code = StatusCode::OK;
        Ok(match deleted {
            Deletion::Pending(object) => stored_answer(code, &object),
            Deletion::Gone(object) => Answer::Whole {
                code,
                body: if resource.returns_deleted {
                    object.text()
                } else {
                    success(resource, &object.value)
                },
                changed,
            },
        })
    }
}

impl ObjectStore {
    /// Deletes an object, or marks it as being deleted. None if there is none.
    pub(crate) fn delete(
        &mut self,
        key: &ObjectKey,
        options: &DeleteOptions,
        by: Author<'_>,
    ) -> Option<Deletion> {
        let old = self.objects.get(key).cloned()?;
        let resource = Arc::clone(&self.resources[key.kind]);
        let mut marked = (*old.value).clone();
        let is_pod = resource.plural == "pods" && resource.group.is_empty();
        let finalizers = finalizers_with_policy(&marked, options);
        let metadata = &mut marked["metadata"];
        let has_finalizers = !finalizers.is_empty();
        if has_finalizers {
            metadata["finalizers"] = json!(finalizers);
        } else {
            metadata
                .as_object_mut()
                .map(|metadata| metadata.remove("finalizers"));
        }
        let waits = has_finalizers || keeps_namespace(&resource, &marked);
        let grace = is_pod.then(|| grace_of_pod(&old.value, options));
        let is_graceful = is_pod && !has_no_grace(&old.value);
        match grace {
            None if waits => mark_as_deleting(&mut marked, by.time, 0, &resource),
            None => {}
            Some(grace) => {
                let stored = old.value["metadata"]["deletionGracePeriodSeconds"].as_i64();
                let is_deleting = old.value["metadata"].get("deletionTimestamp").is_some();
                // A grace that has begun can only be shortened.
                if is_deleting && stored.is_some_and(|stored| stored > 0 && stored <= grace) {
                    return Some(Deletion::Pending(old));
                }
                if is_graceful {
                    mark_as_deleting(&mut marked, by.time, grace, &resource);
                }
            }
        }
        let mut last = old;
        if marked != *last.value && (waits || is_graceful) {
            last = self.put(key.clone(), marked, by)?;
        }
        if waits || grace.is_some_and(|grace| grace > 0) {
            return Some(Deletion::Pending(last));
        }
        self.remove(key, by).map(Deletion::Gone)
    }
}

/// How long a pod's kubelet has (`CheckGracefulDelete`, `pkg/registry/core/pod/strategy.go`).
fn grace_of_pod(pod: &Value, options: &DeleteOptions) -> i64 {
    let spec = &pod["spec"];
    let is_scheduled = spec["nodeName"]
        .as_str()
        .is_some_and(|node| !node.is_empty());
    let has_ended = matches!(
        pod["status"]["phase"].as_str(),
        Some("Succeeded" | "Failed")
    );
    if !is_scheduled || has_ended {
        return 0;
    }
    let stored = pod["metadata"]["deletionGracePeriodSeconds"].as_i64();
    let own = spec["terminationGracePeriodSeconds"].as_i64();
    let grace = options.grace.or(stored).or(own).unwrap_or_default();
    if grace < 0 { 1 } else { grace }
}

/// Whether a pod is being deleted and its grace is over.
fn has_no_grace(pod: &Value) -> bool {
    let metadata = &pod["metadata"];
    let grace = metadata["deletionGracePeriodSeconds"]
        .as_i64()
        .unwrap_or_default();
    metadata.get("deletionTimestamp").is_some() && grace == 0
}

fn mark_as_deleting(object: &mut Value, now: Timestamp, grace: i64, resource: &Resource) {
    let metadata = &mut object["metadata"];
    let was_deleting = metadata.get("deletionTimestamp").is_some();
    if !was_deleting && resource.generation != Generation::Absent {
        let generation = metadata["generation"].as_i64().unwrap_or_default();
        metadata["generation"] = json!(generation + 1);
    }
    let end = now
        .saturating_add(SignedDuration::from_secs(grace))
        .unwrap_or(now);
    let until = json!(end.strftime("%Y-%m-%dT%H:%M:%SZ").to_string());
    if !was_deleting || grace > 0 || until.as_str() < metadata["deletionTimestamp"].as_str() {
        metadata["deletionTimestamp"] = until;
    }
    metadata["deletionGracePeriodSeconds"] = json!(grace);
    if resource.plural == "namespaces" {
        object["status"]["phase"] = json!("Terminating");
    }
}

/// The finalizers by which the garbage collection knows what to do first (`deletionFinalizersForGarbageCollection`).
fn finalizers_with_policy(object: &Value, options: &DeleteOptions) -> Vec<String> {
    let finalizers: Vec<_> = object["metadata"]["finalizers"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .map(str::to_owned)
        .collect();
    let policy = match options.propagation.as_deref() {
        Some("Orphan") => Some(ORPHAN),
        Some("Foreground") => Some(FOREGROUND),
        Some(_) => None,
        None => finalizers
            .iter()
            .find_map(|one| [ORPHAN, FOREGROUND].into_iter().find(|own| own == one)),
    };
    let others = finalizers
        .iter()
        .filter(|one| ![ORPHAN, FOREGROUND].contains(&one.as_str()));
    others.cloned().chain(policy.map(str::to_owned)).collect()
}

fn read_options(body: &Value, call: &Call) -> Result<DeleteOptions, Failure> {
    let text = |name: &str| match call.parameter(name) {
        "" => body[name].as_str().map(str::to_owned),
        text => Some(text.to_owned()),
    };
    let given = call.number("gracePeriodSeconds")?;
    let grace = given.and_then(|grace| i64::try_from(grace).ok());
    let propagation = match body["orphanDependents"].as_bool() {
        Some(true) => Some("Orphan".to_owned()),
        Some(false) => Some("Background".to_owned()),
        None => text("propagationPolicy"),
    };
    Ok(DeleteOptions {
        grace: grace.or(body["gracePeriodSeconds"].as_i64()),
        propagation,
    })
}

/// Whether a deletion that names a version is refused whatever the version: one that takes the last finalizer and has no
/// grace compares with an object that was never read (`errDeleteNow` in `updateForGracefulDeletionAndFinalizers`).
fn loses_version(
    resource: &Resource,
    options: &DeleteOptions,
    preconditions: &Value,
    old: &Value,
) -> bool {
    let metadata = &old["metadata"];
    let is_pod = resource.plural == "pods" && resource.group.is_empty();
    let had_finalizers = metadata["finalizers"]
        .as_array()
        .is_some_and(|list| !list.is_empty());
    preconditions["resourceVersion"].is_string()
        && (!is_pod || has_no_grace(old))
        && had_finalizers
        && finalizers_with_policy(old, options).is_empty()
        && !keeps_namespace(resource, old)
}

fn check_preconditions(
    resource: &Resource,
    name: &str,
    wanted: &Value,
    old: &Value,
) -> Result<(), Failure> {
    let named = Named { resource, name };
    let checks = [
        (
            "uid",
            "UID",
            "The object might have been deleted and then recreated",
        ),
        (
            "resourceVersion",
            "ResourceVersion",
            "The object might have been modified",
        ),
    ];
    for (field, title, hint) in checks {
        let is = old["metadata"][field].as_str().unwrap_or_default();
        if let Some(wanted) = wanted[field].as_str().filter(|wanted| *wanted != is) {
            let why = format!(
                "the {title} in the precondition ({wanted}) does not match the {title} in record ({is}). {hint}"
            );
            return Err(named.conflict(&why));
        }
    }
    Ok(())
}

fn success(resource: &Resource, object: &Value) -> hyper::body::Bytes {
    let mut details = json!({
        "name": object["metadata"]["name"], "kind": resource.plural, "uid": object["metadata"]["uid"],
    });
    if !resource.group.is_empty() {
        details["group"] = json!(resource.group);
    }
    encode(&json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details,
    }))
}
