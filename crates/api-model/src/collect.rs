//! The work of Kubernetes' controllers after deletions: garbage collection by `ownerReferences`, and the emptying of
//! namespaces. The harness says when, a step at a time.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::ApiServer;
use crate::delete::{DeleteOptions, FOREGROUND, ORPHAN};
use crate::store::{Author, Object, ObjectKey, ObjectStore};

const COLLECTOR: &str = "system:serviceaccount:kube-system:generic-garbage-collector";

impl ApiServer {
    /// Carries out what is due after deletions, each object once. Returns how many objects were changed; a further step may
    /// have more to do.
    pub fn collect_garbage(&self) -> usize {
        let by = Author {
            user: COLLECTOR,
            verb: "delete",
            subresource: "",
            request: None,
            time: self.now(),
        };
        let mut store = self.store();
        let before = store.version;
        let keys: Vec<_> = store.objects.keys().cloned().collect();
        let owners = uids(&store);
        let mut changed = 0;
        for key in keys {
            let version = store.version;
            store.collect(&key, &owners, by);
            changed += usize::from(store.version > version);
        }
        let is_changed = store.version > before;
        drop(store);
        if is_changed {
            self.wake_watches(None);
        }
        changed
    }
}

/// The uids of all objects, with their keys.
fn uids(store: &ObjectStore) -> BTreeMap<String, ObjectKey> {
    let objects = store.objects.iter();
    let uids = objects.filter_map(|(key, object)| {
        let uid = object.value["metadata"]["uid"].as_str()?;
        Some((uid.to_owned(), key.clone()))
    });
    uids.collect()
}

impl ObjectStore {
    fn collect(&mut self, key: &ObjectKey, owners: &BTreeMap<String, ObjectKey>, by: Author<'_>) {
        let Some(object) = self.objects.get(key).cloned() else {
            return;
        };
        let metadata = &object.value["metadata"];
        let is_deleting = metadata.get("deletionTimestamp").is_some();
        if is_deleting && self.resources[key.kind].plural == "namespaces" {
            return self.empty_namespace(key, &object, by);
        }
        if is_deleting {
            return self.finish_policy(key, &object, by);
        }
        let references = metadata["ownerReferences"].as_array();
        let Some(references) = references.filter(|references| !references.is_empty()) else {
            return;
        };
        let lives = |reference: &Value| {
            let uid = reference["uid"].as_str().unwrap_or_default();
            let owner = owners.get(uid).and_then(|owner| self.objects.get(owner));
            // An owner that goes in the foreground waits for its dependents.
            owner.is_some_and(|owner| {
                !has_finalizer(&owner.value, FOREGROUND)
                    || owner.value["metadata"].get("deletionTimestamp").is_none()
            })
        };
        if !references.iter().any(lives) {
            self.delete(key, &DeleteOptions::default(), by);
        }
    }

    /// Removes a finalizer of the garbage collection once its work is done.
    fn finish_policy(&mut self, key: &ObjectKey, owner: &Arc<Object>, by: Author<'_>) {
        let uid = &owner.value["metadata"]["uid"];
        let is_of = |reference: &Value| reference["uid"] == *uid;
        let is_dependent = |object: &Arc<Object>| {
            let references = object.value["metadata"]["ownerReferences"].as_array();
            references.into_iter().flatten().any(is_of)
        };
        let dependents: Vec<_> = self
            .objects
            .iter()
            .filter(|(_, object)| is_dependent(object))
            .map(|(key, object)| (key.clone(), Arc::clone(object)))
            .collect();
        if has_finalizer(&owner.value, ORPHAN) {
            for (key, object) in dependents {
                let mut freed = (*object.value).clone();
                if let Some(Value::Array(references)) = freed["metadata"].get_mut("ownerReferences")
                {
                    references.retain(|reference| !is_of(reference));
                }
                self.put(key, freed, by);
            }
            self.remove_finalizer(key, &owner.value, ORPHAN, by);
        } else if has_finalizer(&owner.value, FOREGROUND) && dependents.is_empty() {
            self.remove_finalizer(key, &owner.value, FOREGROUND, by);
        }
    }

    fn remove_finalizer(
        &mut self,
        key: &ObjectKey,
        object: &Value,
        finalizer: &str,
        by: Author<'_>,
    ) {
        let mut left = object.clone();
        let finalizers = left["metadata"]["finalizers"].as_array_mut();
        let is_last = finalizers.is_some_and(|finalizers| {
            finalizers.retain(|one| one != finalizer);
            finalizers.is_empty()
        });
        if is_last {
            self.remove(key, by);
        } else {
            self.put(key.clone(), left, by);
        }
    }

    fn empty_namespace(&mut self, key: &ObjectKey, namespace: &Arc<Object>, by: Author<'_>) {
        let inside: Vec<_> = self
            .objects
            .keys()
            .filter(|inside| inside.namespace == key.name)
            .cloned()
            .collect();
        if inside.is_empty() {
            let mut emptied = (*namespace.value).clone();
            emptied["spec"] = json!({});
            if has_finalizers(&emptied) {
                self.put(key.clone(), emptied, by);
            } else {
                self.remove(key, by);
            }
            return;
        }
        for key in inside {
            let is_deleting =
                |object: &Arc<Object>| object.value["metadata"].get("deletionTimestamp").is_some();
            if self
                .objects
                .get(&key)
                .is_some_and(|object| !is_deleting(object))
            {
                self.delete(&key, &DeleteOptions::default(), by);
            }
        }
    }
}

fn has_finalizer(object: &Value, finalizer: &str) -> bool {
    let finalizers = object["metadata"]["finalizers"].as_array();
    finalizers.is_some_and(|finalizers| finalizers.iter().any(|one| one == finalizer))
}

fn has_finalizers(object: &Value) -> bool {
    object["metadata"]["finalizers"]
        .as_array()
        .is_some_and(|finalizers| !finalizers.is_empty())
}
