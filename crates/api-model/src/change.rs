//! The change of an object by a request, before the rules of its kind: bodies, patches and applies, and who owns which field
//! then.

use serde_json::{Value, json};

use crate::builtin::drop_empty;
use crate::checks::{check_kind, check_names, check_uid};
use crate::fields::FieldSet;
use crate::managers::{Manager, Managers, Ownership};
use crate::patch::{json_patch, merge_patch, strategic_merge};
use crate::request::{APPLY, Call, JSON, MERGE};
use crate::resource::{Resource, copy_field};
use crate::server::Connection;
use crate::status::{Failure, Named};

impl Connection {
    /// The object as the request would have it.
    pub(crate) fn change(
        &self,
        resource: &Resource,
        call: &Call,
        old: &Value,
    ) -> Result<Value, Failure> {
        let body = call.read_body()?;
        if call.content_type == APPLY {
            return self.apply(resource, call, old, &body);
        }
        let mut new = if call.verb == "update" {
            check_kind(resource, &body)?;
            let mut new = body;
            check_names(resource, call, &mut new)?;
            check_uid(resource, call, &new, old)?;
            new
        } else {
            let mut new = old.clone();
            match call.content_type.as_str() {
                MERGE => merge_patch(&mut new, &body),
                JSON => json_patch(&mut new, &body)?,
                _ => {
                    let (Value::Object(new), Value::Object(patch)) = (&mut new, &body) else {
                        return Err(Failure::bad_request("a patch is an object"));
                    };
                    strategic_merge(new, patch, &resource.schema)?;
                }
            }
            check_names(resource, call, &mut new)?;
            new
        };
        let sent = new["metadata"].get("managedFields").cloned();
        decode(resource, &mut new);
        self.note_update(resource, call, old, &mut new, sent.as_ref());
        Ok(new)
    }

    /// An apply to nothing.
    pub(crate) fn apply_anew(&self, resource: &Resource, call: &Call) -> Result<Value, Failure> {
        let body = call.read_body()?;
        let object = self.apply(resource, call, &empty_object(resource), &body)?;
        if let Some(uid) = body.pointer("/metadata/uid").and_then(Value::as_str) {
            let named = Named {
                resource,
                name: &call.name,
            };
            let why = format!(
                "uid mismatch: the provided object specified uid {uid}, and no existing object was found"
            );
            return Err(named.conflict(&why));
        }
        Ok(object)
    }

    fn apply(
        &self,
        resource: &Resource,
        call: &Call,
        live: &Value,
        config: &Value,
    ) -> Result<Value, Failure> {
        let mut config = config.clone();
        check_kind(resource, &config)?;
        if config["apiVersion"].as_str() != Some(&resource.api_version()) {
            let message = format!(
                "Incorrect version specified in apply patch. Specified patch version: {}, expected: {}",
                config["apiVersion"].as_str().unwrap_or_default(),
                resource.api_version()
            );
            return Err(Failure::bad_request(message));
        }
        check_names(resource, call, &mut config)?;
        if config["metadata"].get("managedFields").is_some() {
            return Err(Failure::bad_request("metadata.managedFields must be nil"));
        }
        if let Some(field) = resource.schema.find_undeclared(&config) {
            let message = format!(
                "failed to create typed patch object ({}/{}; {}, Kind={}): {field}: field not declared in schema",
                call.namespace,
                call.name,
                resource.api_version(),
                resource.kind
            );
            return Err(Failure::new(500, "", message));
        }
        let (live, mut managers) = without_managers(live);
        let reset = resource.reset_fields(call.subresource.as_deref());
        let by = self.ownership(resource, call, &reset, true);
        if managers.is_empty() {
            // Fields that exist belong to somebody all the same (`skipnonapplied.go`).
            let mut before = self.ownership(resource, call, &reset, false);
            before.manager.name = String::from("before-first-apply");
            managers.note_update(&without_managers(&empty_object(resource)).0, &live, &before);
        }
        let mut new = managers.apply(&live, &config, call.is_set("force"), &by)?;
        decode(resource, &mut new);
        set_managers(&mut new, &managers);
        Ok(new)
    }

    fn ownership<'a>(
        &self,
        resource: &'a Resource,
        call: &Call,
        reset: &'a FieldSet,
        is_apply: bool,
    ) -> Ownership<'a> {
        Ownership {
            schema: &resource.schema,
            reset,
            manager: Manager {
                name: call.manager(),
                is_apply,
                api_version: resource.api_version(),
                subresource: call.subresource.clone(),
            },
            now: self.server.time(),
        }
    }

    /// Notes in `metadata.managedFields` what an update has changed. `sent` are those of the request.
    pub(crate) fn note_update(
        &self,
        resource: &Resource,
        call: &Call,
        old: &Value,
        new: &mut Value,
        sent: Option<&Value>,
    ) {
        let (live, stored) = without_managers(old);
        // A client that sends none keeps those that are stored, and one that sends an empty list
        // resets them (`fieldmanager.go`).
        let is_reset = sent
            .and_then(Value::as_array)
            .is_some_and(|sent| match &sent[..] {
                [] => true,
                [one] => one.as_object().is_some_and(serde_json::Map::is_empty),
                _ => false,
            });
        let mut managers = match sent {
            _ if call.subresource.is_some() => stored,
            Some(_) if is_reset => Managers::default(),
            Some(sent) => Managers::read(Some(sent)),
            None => stored,
        };
        let (content, _) = without_managers(new);
        let reset = resource.reset_fields(call.subresource.as_deref());
        let by = self.ownership(resource, call, &reset, false);
        // An object that nobody owned before the update is nobody's after it (`skipnonapplied.go`).
        if !managers.is_empty() || live["metadata"].get("uid").is_none() {
            managers.note_update(&live, &content, &by);
        }
        *new = content;
        set_managers(new, &managers);
    }
}

/// An object of the kind that has nothing yet.
pub(crate) fn empty_object(resource: &Resource) -> Value {
    let mut live = resource.skeleton.clone();
    live["apiVersion"] = json!(resource.api_version());
    live["kind"] = json!(resource.kind);
    if !resource.is_custom {
        live["metadata"] = json!({});
    }
    live
}

/// Changes JSON as the API server does when it reads it.
pub(crate) fn decode(resource: &Resource, object: &mut Value) {
    if resource.is_custom {
        if let Some(metadata) = object.get_mut("metadata") {
            drop_empty(metadata);
        }
        resource.schema.prune(object);
        resource.schema.fill_in(object);
    } else {
        let raw: Vec<_> = resource
            .raw_fields
            .iter()
            .filter_map(|field| Some((*field, object.get_mut(field)?.take())))
            .collect();
        drop_empty(object);
        for (field, value) in raw {
            object[field] = value;
        }
        for (field, value) in resource.skeleton.as_object().into_iter().flatten() {
            if object.get(field).is_none() {
                object[field] = value.clone();
            }
        }
        (resource.normalize)(object);
    }
    object["apiVersion"] = json!(resource.api_version());
    object["kind"] = json!(resource.kind);
}

fn without_managers(object: &Value) -> (Value, Managers) {
    let mut object = object.clone();
    let managed = object
        .get_mut("metadata")
        .and_then(Value::as_object_mut)
        .and_then(|metadata| metadata.remove("managedFields"));
    let managers = Managers::read(managed.as_ref());
    (object, managers)
}

fn set_managers(object: &mut Value, managers: &Managers) {
    if let Some(managed) = managers.to_value() {
        object["metadata"]["managedFields"] = managed;
    }
}

/// Another time of the same owners is no change (`IgnoreManagedFieldsTimestampsTransformer`).
pub(crate) fn keep_equal_managers(new: &mut Value, old: &Value) {
    let (content, managers) = without_managers(new);
    let (before, owned) = without_managers(old);
    if content == before && managers.equals_but_for_times(&owned) {
        copy_field(&mut new["metadata"], &old["metadata"], "managedFields");
    }
}
