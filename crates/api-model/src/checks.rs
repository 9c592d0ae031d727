//! Checks that refuse a request before anything is stored.

use serde_json::{Value, json};

use crate::request::{APPLY, Call, JSON, MERGE, STRATEGIC};
use crate::resource::Resource;
use crate::server::Connection;
use crate::status::{Failure, Named, StatusCause};
use crate::store::ObjectKey;

/// The letters of generated names (`k8s.io/apimachinery/pkg/util/rand`).
const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";

impl Connection {
    pub(crate) fn name_object(
        &self,
        resource: &Resource,
        metadata: &mut Value,
    ) -> Result<(), Failure> {
        let text = |field: &str| metadata[field].as_str().filter(|text| !text.is_empty());
        if text("name").is_some() {
            return Ok(());
        }
        let Some(prefix) = text("generateName") else {
            let named = Named { resource, name: "" };
            return Err(named.invalid(&[StatusCause {
                reason: "FieldValueRequired",
                field: "metadata.name".to_owned(),
                message: "Required value: name or generateName is required".to_owned(),
            }]));
        };
        let mut store = self.server.store();
        let letters = (0..5).filter_map(|_| store.random.choice(LETTERS)).copied();
        let name = format!("{prefix}{}", letters.map(char::from).collect::<String>());
        metadata["name"] = json!(name);
        Ok(())
    }

    /// The admission plugin `NamespaceLifecycle`.
    pub(crate) fn check_namespace_exists(
        &self,
        resource: &Resource,
        call: &Call,
        named: Named<'_>,
    ) -> Result<(), Failure> {
        let store = self.server.store();
        let Some(kind) = store
            .find_kind("", "v1", "namespaces")
            .filter(|_| resource.namespaced)
        else {
            return Ok(());
        };
        let key = ObjectKey {
            kind,
            namespace: String::new(),
            name: call.namespace.clone(),
        };
        let Some(namespace) = store.objects.get(&key) else {
            let missing = Named {
                resource: &store.resources[kind],
                name: &call.namespace,
            };
            return Err(missing.not_found());
        };
        if namespace.value["metadata"]
            .get("deletionTimestamp")
            .is_some()
        {
            let why = format!(
                "unable to create new content in namespace {} because it is being terminated",
                call.namespace
            );
            return Err(named.forbidden(&why));
        }
        Ok(())
    }
}

pub(crate) fn check_type(call: &Call, accepted: &[&str]) -> Result<(), Failure> {
    let sent = call
        .content_type
        .split(';')
        .next()
        .unwrap_or_default()
        .trim();
    if accepted.contains(&sent) || (sent.is_empty() && call.verb != "patch") {
        return Ok(());
    }
    let message = format!(
        "the body of the request was in an unknown format - accepted media types include: {}",
        accepted.join(", ")
    );
    Err(Failure::new(415, "UnsupportedMediaType", message))
}

pub(crate) fn check_kind(resource: &Resource, object: &Value) -> Result<(), Failure> {
    let is = |field: &str, wanted: &str| object.get(field).is_none_or(|value| value == wanted);
    if object.is_object() && is("kind", &resource.kind) && is("apiVersion", &resource.api_version())
    {
        return Ok(());
    }
    let message = format!(
        "the API version in the data ({}) does not match the expected API version ({})",
        object["apiVersion"].as_str().unwrap_or_default(),
        resource.api_version()
    );
    Err(Failure::bad_request(message))
}

pub(crate) fn check_namespace(
    resource: &Resource,
    metadata: &mut Value,
    call: &Call,
) -> Result<(), Failure> {
    if !resource.namespaced {
        return Ok(());
    }
    match metadata["namespace"].as_str() {
        None | Some("") => metadata["namespace"] = json!(call.namespace),
        Some(namespace) if namespace == call.namespace => {}
        Some(_) => {
            let message = "the namespace of the provided object does not match the namespace sent on the request";
            return Err(Failure::bad_request(message));
        }
    }
    Ok(())
}

/// Name and namespace of the body are those of the path.
pub(crate) fn check_names(
    resource: &Resource,
    call: &Call,
    object: &mut Value,
) -> Result<(), Failure> {
    let metadata = &mut object["metadata"];
    match metadata["name"].as_str() {
        None | Some("") => metadata["name"] = json!(call.name),
        Some(name) if name == call.name => {}
        Some(name) => {
            let message = format!(
                "the name of the object ({name}) does not match the name on the URL ({})",
                call.name
            );
            return Err(Failure::bad_request(message));
        }
    }
    check_namespace(resource, metadata, call)
}

/// The uid of a PUT is a precondition.
pub(crate) fn check_uid(
    resource: &Resource,
    call: &Call,
    new: &Value,
    old: &Value,
) -> Result<(), Failure> {
    let uid = |object: &Value| {
        object["metadata"]["uid"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    };
    let (wanted, is) = (uid(new), uid(old));
    if wanted.is_empty() || wanted == is {
        return Ok(());
    }
    let named = Named {
        resource,
        name: &call.name,
    };
    let why =
        format!("Precondition failed: UID in precondition: {wanted}, UID in object meta: {is}");
    Err(named.conflict(&why))
}

/// `ValidateObjectMetaAccessorUpdate`, `k8s.io/apimachinery/pkg/api/validation/objectmeta.go`.
pub(crate) fn check_metadata(new: &Value, old: &Value) -> Vec<StatusCause> {
    let mut causes = Vec::new();
    for field in ["name", "namespace", "uid"] {
        if new[field] != old[field] {
            let message = format!("Invalid value: {}: field is immutable", new[field]);
            causes.push(StatusCause::invalid(&format!("metadata.{field}"), message));
        }
    }
    let list = |metadata: &Value| {
        metadata["finalizers"]
            .as_array()
            .cloned()
            .unwrap_or_default()
    };
    let before = list(old);
    let added: Vec<_> = list(new)
        .into_iter()
        .filter(|one| !before.contains(one))
        .collect();
    if old.get("deletionTimestamp").is_some() && !added.is_empty() {
        let added: Vec<_> = added.iter().map(Value::to_string).collect();
        causes.push(StatusCause {
            reason: "FieldValueForbidden",
            field: "metadata.finalizers".to_owned(),
            message: format!(
                "Forbidden: no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}",
                added.join(", ")
            ),
        });
    }
    // Both the registry and the strategy of the kind say it.
    causes.extend(causes.clone());
    causes
}

pub(crate) fn refuse_causes(named: Named<'_>, causes: &[StatusCause]) -> Result<(), Failure> {
    if causes.is_empty() {
        return Ok(());
    }
    Err(named.invalid(causes))
}

pub(crate) fn check_update(resource: &Resource, call: &Call) -> Result<(), Failure> {
    if call.verb == "update" {
        return check_type(call, &["application/json"]);
    }
    let all = [JSON, MERGE, STRATEGIC, APPLY];
    let without_strategic = [JSON, MERGE, APPLY];
    check_type(
        call,
        if resource.is_custom {
            &without_strategic
        } else {
            &all
        },
    )?;
    if call.content_type == APPLY && call.parameter("fieldManager").is_empty() {
        let message = "PatchOptions.meta.k8s.io \"\" is invalid: fieldManager: Required value: is required for apply patch";
        return Err(Failure::new(422, "Invalid", message));
    }
    if call.content_type != APPLY && !call.parameter("force").is_empty() {
        let message = "PatchOptions.meta.k8s.io \"\" is invalid: force: Forbidden: may not be specified for non-apply patch";
        return Err(Failure::new(422, "Invalid", message));
    }
    Ok(())
}
