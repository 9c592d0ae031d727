//! Creations, updates and patches: how an object is stored, by the rules of its kind
//! (`k8s.io/apiserver/pkg/registry/generic/registry/store.go`, `pkg/registry/rest`).

use std::sync::Arc;

use http::StatusCode;
use serde_json::{Value, json};

use crate::change::{decode, empty_object, keep_equal_managers};
use crate::checks::{
    check_kind, check_metadata, check_namespace, check_type, check_update, refuse_causes,
};
use crate::request::{APPLY, Call};
use crate::resource::{Generation, Resource, copy_field};
use crate::server::{Answer, Connection};
use crate::status::{Failure, Named, StatusCause};
use crate::store::{Author, Object, ObjectKey, ObjectStore, encode, version_of};

/// How often a write is tried that finds the object changed under it.
const ATTEMPTS: usize = 5;

impl Connection {
    pub(crate) async fn create(
        &self,
        kind: usize,
        resource: &Resource,
        call: &Call,
    ) -> Result<Answer, Failure> {
        check_type(call, &["application/json"])?;
        let mut object = call.read_body()?;
        check_kind(resource, &object)?;
        let sent = object["metadata"].get("managedFields").cloned();
        decode(resource, &mut object);
        let metadata = &mut object["metadata"];
        if !metadata.is_object() {
            *metadata = json!({});
        }
        check_namespace(resource, metadata, call)?;
        self.name_object(resource, metadata)?;
        if version_of(&object) != 0 {
            let message = "resourceVersion should not be set on objects to be created";
            return Err(Failure::new(500, "", message));
        }
        let live = empty_object(resource);
        self.note_update(resource, call, &live, &mut object, sent.as_ref());
        self.store_new(kind, resource, call, object).await
    }

    /// Stores an object that does not exist.
    async fn store_new(
        &self,
        kind: usize,
        resource: &Resource,
        call: &Call,
        mut object: Value,
    ) -> Result<Answer, Failure> {
        let name = object["metadata"]["name"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        let named = Named {
            resource,
            name: &name,
        };
        self.check_namespace_exists(resource, call, named)?;
        object = self
            .mutate(resource, call, "CREATE", &name, object, None)
            .await?;
        let now = self.server.time();
        let uid = self.server.store().next_uid();
        let metadata = &mut object["metadata"];
        metadata["uid"] = json!(uid);
        metadata["creationTimestamp"] = now;
        for field in [
            "deletionTimestamp",
            "deletionGracePeriodSeconds",
            "generation",
            "resourceVersion",
        ] {
            metadata
                .as_object_mut()
                .map(|metadata| metadata.remove(field));
        }
        if resource.generation != Generation::Absent {
            metadata["generation"] = json!(1);
        }
        if resource.has_status {
            object.as_object_mut().map(|object| object.remove("status"));
        }
        (resource.admit)(&mut object);
        (resource.complete)(&mut object);
        refuse_causes(named, &(resource.validate)(&object, None, None))?;
        self.validate(resource, call, "CREATE", &name, &object, None)
            .await?;
        let key = ObjectKey {
            kind,
            namespace: call.namespace.clone(),
            name: name.clone(),
        };
        if call.is_dry_run() {
            return Ok(answer(StatusCode::CREATED, &object));
        }
        let mut store = self.server.store();
        if store.objects.contains_key(&key) {
            return Err(named.already_exists());
        }
        let stored = store
            .put(key, object, self.author(call))
            .ok_or_else(Failure::too_large_for_store)?;
        follow_crd(resource, &mut store, &stored.value);
        drop(store);
        self.server.wake_watches(Some(kind));
        Ok(stored_answer(StatusCode::CREATED, &stored))
    }

    /// A PUT or a patch.
    pub(crate) async fn update(
        &self,
        kind: usize,
        resource: &Resource,
        call: &Call,
    ) -> Result<Answer, Failure> {
        check_update(resource, call)?;
        let named = Named {
            resource,
            name: &call.name,
        };
        let key = ObjectKey {
            kind,
            namespace: call.namespace.clone(),
            name: call.name.clone(),
        };
        for _ in 0..ATTEMPTS {
            let old = self.server.store().objects.get(&key).cloned();
            let Some(old) = old else {
                let is_put = call.verb == "update" && resource.create_on_update;
                let object = match call.subresource {
                    None if call.content_type == APPLY => self.apply_anew(resource, call)?,
                    None if is_put => self.change(resource, call, &empty_object(resource))?,
                    _ => return Err(named.not_found()),
                };
                return self.store_new(kind, resource, call, object).await;
            };
            let mut new = self.change(resource, call, &old.value)?;
            (resource.admit)(&mut new);
            let mutated = self
                .mutate(resource, call, "UPDATE", &call.name, new, Some(&old.value))
                .await?;
            let new = prepare_update(resource, call, &old.value, mutated)?;
            self.validate(resource, call, "UPDATE", &call.name, &new, Some(&old.value))
                .await?;
            if let Some(answer) = self.commit(&key, resource, call, &old, new)? {
                return Ok(answer);
            }
        }
        Err(named.modified())
    }

    /// Stores an update, unless somebody else was first. None means that it is to be tried again.
    fn commit(
        &self,
        key: &ObjectKey,
        resource: &Resource,
        call: &Call,
        old: &Arc<Object>,
        new: Value,
    ) -> Result<Option<Answer>, Failure> {
        let mut store = self.server.store();
        let now = store.objects.get(key);
        if now.map(|now| now.version()) != Some(old.version()) {
            return Ok(None);
        }
        if new == *old.value {
            return Ok(Some(Answer::of_read(old.text())));
        }
        if call.is_dry_run() {
            return Ok(Some(answer(StatusCode::OK, &new)));
        }
        let author = self.author(call);
        let metadata = &old.value["metadata"];
        let has_finalizers = new["metadata"]["finalizers"]
            .as_array()
            .is_some_and(|list| !list.is_empty());
        let is_deleted = metadata.get("deletionTimestamp").is_some();
        let grace = metadata["deletionGracePeriodSeconds"]
            .as_i64()
            .unwrap_or_default();
        let code = StatusCode::OK;
        let answer =
            if is_deleted && grace == 0 && !has_finalizers && !keeps_namespace(resource, &new) {
                store.remove(key, author);
                Answer::Whole {
                    code,
                    body: encode(&new),
                    changed: Some(store.version),
                }
            } else {
                let stored = store
                    .put(key.clone(), new, author)
                    .ok_or_else(Failure::too_large_for_store)?;
                follow_crd(resource, &mut store, &stored.value);
                stored_answer(code, &stored)
            };
        drop(store);
        self.server.wake_watches(Some(key.kind));
        Ok(Some(answer))
    }

    pub(crate) fn author<'a>(&self, call: &'a Call) -> Author<'a> {
        Author {
            user: &call.user,
            verb: if call.content_type == APPLY {
                "apply"
            } else {
                call.verb
            },
            subresource: call.subresource.as_deref().unwrap_or_default(),
            request: Some(call.number),
            time: self.server.now(),
        }
    }
}

pub(crate) fn stored_answer(code: StatusCode, stored: &Object) -> Answer {
    Answer::Whole {
        code,
        body: stored.text(),
        changed: Some(stored.version()),
    }
}

fn answer(code: StatusCode, object: &Value) -> Answer {
    Answer::Whole {
        code,
        body: encode(object),
        changed: None,
    }
}

/// A namespace goes when the garbage collection has emptied it.
pub(crate) fn keeps_namespace(resource: &Resource, object: &Value) -> bool {
    let finalizers = object.pointer("/spec/finalizers").and_then(Value::as_array);
    resource.plural == "namespaces" && finalizers.is_some_and(|finalizers| !finalizers.is_empty())
}

/// `BeforeUpdate`: what an update cannot change is as it was.
fn prepare_update(
    resource: &Resource,
    call: &Call,
    old: &Value,
    mut new: Value,
) -> Result<Value, Failure> {
    let named = Named {
        resource,
        name: &call.name,
    };
    let subresource = call.subresource.as_deref();
    match version_of(&new) {
        0 if resource.unconditional_update => {}
        0 => {
            let cause = StatusCause::invalid(
                "metadata.resourceVersion",
                "Invalid value: 0: must be specified for an update",
            );
            return Err(named.invalid(&[cause]));
        }
        version if version != version_of(old) => return Err(named.modified()),
        _ => {}
    }
    let was = &old["metadata"];
    copy_field(&mut new["metadata"], was, "generation");
    resource.keep_unwritten(&mut new, old, subresource);
    // A request without a status has emptied it, where it may.
    if resource.counts(old, &new) {
        let generation = was["generation"].as_i64().unwrap_or_default();
        new["metadata"]["generation"] = json!(generation + 1);
    }
    let is = &mut new["metadata"];
    if is.get("uid").is_none() {
        copy_field(is, was, "uid");
    }
    for field in ["creationTimestamp", "resourceVersion"] {
        copy_field(is, was, field);
    }
    copy_field(is, was, "deletionTimestamp");
    if is.get("deletionGracePeriodSeconds").is_none() {
        copy_field(is, was, "deletionGracePeriodSeconds");
    }
    let mut causes = check_metadata(&new["metadata"], was);
    causes.extend((resource.validate)(&new, Some(old), subresource));
    refuse_causes(named, &causes)?;
    keep_equal_managers(&mut new, old);
    Ok(new)
}

/// Serves what a CRD defines, from the moment on when it is stored.
fn follow_crd(resource: &Resource, store: &mut ObjectStore, crd: &Value) {
    if resource.plural == "customresourcedefinitions"
        && let Some(defined) = Resource::from_crd(crd)
    {
        store.serve(defined);
    }
}
