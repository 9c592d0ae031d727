//! The HTTP requests of a due write, and the events of their replies. Only here it is decided which verb, resource and
//! kind of patch a write uses.

use std::sync::Arc;

use http::request::Request as HttpRequest;
use jiff::Timestamp;
use k8s_openapi::api::events::v1::Event as KubernetesEvent;
use kube::Resource;
use kube::api::{DeleteParams, GetParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::Request as Builder;
use kube::core::request::Error as BuildError;
use leadsman_api::slim::Pod;
use leadsman_api::slim::revision::ControllerRevision;
use leadsman_api::{GROUP, SidecarSet};
use leadsman_control::{DecodeReply, Request, RequestKind, RightScope};
use leadsman_core::cluster::{ObjectName, Source};
use leadsman_core::sidecarset::event::{Event, EventNote, Write, WriteTarget};
use serde_json::{Value, json};

/// Under which the manager's writes stand in managedFields.
pub(super) const FIELD_MANAGER: &str = "leadsman-sidecarset";
/// The controller that events name, as `OpenKruise`'s do.
const EVENT_SOURCE: &str = "sidecarset-controller";

const fn cluster_request_kind(
    label: &'static str,
    group: &'static str,
    resource: &'static str,
    verb: &'static str,
) -> RequestKind {
    RequestKind {
        label,
        group,
        resource,
        verb,
        scope: RightScope::Cluster,
    }
}

const fn revision_request_kind(label: &'static str, verb: &'static str) -> RequestKind {
    RequestKind {
        scope: RightScope::OwnNamespace,
        ..cluster_request_kind(label, "apps", "controllerrevisions", verb)
    }
}

const UPGRADE_POD: RequestKind = cluster_request_kind("upgrade_pod", "", "pods", "patch");
const POD_CONDITION: RequestKind =
    cluster_request_kind("pod_upgradable_condition", "", "pods/status", "patch");
const SET_STATUS: RequestKind =
    cluster_request_kind("sidecarset_status", GROUP, "sidecarsets/status", "patch");
const SET_HASHES: RequestKind =
    cluster_request_kind("sidecarset_hashes", GROUP, "sidecarsets", "patch");
const EVENT: RequestKind =
    cluster_request_kind("sidecarset_event", "events.k8s.io", "events", "create");
const CREATE_REVISION: RequestKind = revision_request_kind("create_revision", "create");
/// The request that reads the object in the way of a creation.
const READ_REVISION: RequestKind = revision_request_kind("read_revision", "get");
const PATCH_REVISION: RequestKind = revision_request_kind("patch_revision", "patch");
const DELETE_REVISION: RequestKind = revision_request_kind("delete_revision", "delete");

/// All of them.
pub(super) const ALL: &[RequestKind] = &[
    UPGRADE_POD,
    POD_CONDITION,
    SET_STATUS,
    SET_HASHES,
    EVENT,
    CREATE_REVISION,
    READ_REVISION,
    PATCH_REVISION,
    DELETE_REVISION,
];

/// The request of a write that is due for a target. Revisions are in `namespace`.
pub(super) fn build_request(
    target: WriteTarget,
    write: Write,
    namespace: &str,
    now: Timestamp,
) -> Request<Event> {
    Request {
        kind: request_kind(&write),
        steps: request_of_write(&write, namespace, now).map(|step| vec![step]),
        reply: reply_decoder(&write),
        read_back: read_back_request(&write, namespace),
        measured: None,
        written: Event::Written(target.clone()),
        refused: Box::new(move |refusal| {
            Event::Refused(target, Box::new(write), refusal.into_reason())
        }),
    }
}

fn request_kind(write: &Write) -> RequestKind {
    match write {
        Write::Pod { .. } => UPGRADE_POD,
        Write::PodCondition { .. } => POD_CONDITION,
        Write::SetStatus { .. } => SET_STATUS,
        Write::SetHashes { .. } => SET_HASHES,
        Write::CreateRevision(_) => CREATE_REVISION,
        Write::PatchRevision { .. } => PATCH_REVISION,
        Write::DeleteRevision { .. } => DELETE_REVISION,
        Write::Event(_) => EVENT,
    }
}

/// How to read the object in a reply. None for a deletion: the watch shows when the object is gone, in order with later
/// events.
fn reply_decoder(write: &Write) -> Option<DecodeReply<Event>> {
    match write {
        Write::Pod { .. } | Write::PodCondition { .. } => Some(|body| {
            serde_json::from_slice::<Pod>(body).map(|pod| Event::Pod(Arc::new(pod), Source::Reply))
        }),
        Write::SetStatus { .. } | Write::SetHashes { .. } => Some(|body| {
            serde_json::from_slice::<SidecarSet>(body)
                .map(|set| Event::Set(Arc::new(set), Source::Reply))
        }),
        Write::CreateRevision(_) | Write::PatchRevision { .. } => Some(|body| {
            serde_json::from_slice::<ControllerRevision>(body)
                .map(|revision| Event::Revision(Arc::new(revision), Source::Reply))
        }),
        Write::DeleteRevision { .. } | Write::Event(_) => None,
    }
}

fn read_back_request(write: &Write, namespace: &str) -> Option<HttpRequest<Vec<u8>>> {
    let Write::CreateRevision(object) = write else {
        return None;
    };
    let name = object["metadata"]["name"].as_str()?;
    let revisions = objects_builder::<ControllerRevision>(namespace);
    revisions.get(name, &GetParams::default()).ok()
}

/// Requests for objects of a namespace.
fn objects_builder<K: Resource<DynamicType = ()>>(namespace: &str) -> Builder {
    Builder::new(K::url_path(&(), Some(namespace)))
}

fn sets_builder() -> Builder {
    Builder::new(SidecarSet::url_path(&(), None))
}

fn request_of_write(
    write: &Write,
    namespace: &str,
    now: Timestamp,
) -> Result<HttpRequest<Vec<u8>>, BuildError> {
    let patch_params = PatchParams {
        field_manager: Some(FIELD_MANAGER.to_owned()),
        ..PatchParams::default()
    };
    let pods = |pod: &ObjectName| objects_builder::<Pod>(&pod.namespace);
    match write {
        Write::Pod { pod, patch } => {
            // Strategic, so that a container is found by its name and all that the patch does not name stays
            // (`patchMergeKey` in `k8s.io/api/core/v1/types.go`).
            pods(pod).patch(&pod.name, &patch_params, &Patch::Strategic(patch))
        }
        Write::PodCondition { pod, patch } => pods(pod).patch_subresource(
            "status",
            &pod.name,
            &patch_params,
            &Patch::Strategic(patch),
        ),
        // No apply, for the reason of a marker's status: the CRD may be OpenKruise's.
        Write::SetStatus { set, patch } => {
            sets_builder().patch_subresource("status", set, &patch_params, &Patch::Merge(patch))
        }
        Write::SetHashes { set, patch } => {
            sets_builder().patch(set, &patch_params, &Patch::Merge(patch))
        }
        Write::CreateRevision(object) => {
            create_request(&objects_builder::<ControllerRevision>(namespace), object)
        }
        Write::PatchRevision { revision, patch } => {
            let revisions = objects_builder::<ControllerRevision>(&revision.namespace);
            revisions.patch(&revision.name, &patch_params, &Patch::Merge(patch))
        }
        Write::DeleteRevision {
            revision,
            uid,
            resource_version,
        } => {
            let delete = DeleteParams::background().preconditions(Preconditions {
                uid: Some(uid.clone()),
                resource_version: resource_version.clone(),
            });
            objects_builder::<ControllerRevision>(&revision.namespace)
                .delete(&revision.name, &delete)
        }
        Write::Event(note) => {
            let event = event_object(note, now);
            let namespace = event["metadata"]["namespace"].as_str().unwrap_or_default();
            create_request(&objects_builder::<KubernetesEvent>(namespace), &event)
        }
    }
}

fn create_request(objects: &Builder, object: &Value) -> Result<HttpRequest<Vec<u8>>, BuildError> {
    let post = PostParams {
        field_manager: Some(FIELD_MANAGER.to_owned()),
        ..PostParams::default()
    };
    let body = serde_json::to_vec(object).map_err(BuildError::SerializeBody)?;
    objects.create(&post, body)
}

/// An event about a set is in `default`, as of each object without a namespace
/// (`k8s.io/client-go/tools/events/event_recorder.go`, `makeEvent`).
fn event_object(note: &EventNote, now: Timestamp) -> Value {
    let EventNote {
        regarding,
        uid,
        is_warning,
        reason,
        note,
    } = note;
    let is_set = regarding.namespace.is_empty();
    let (version, kind, namespace) = if is_set {
        let version = SidecarSet::api_version(&());
        (version, "SidecarSet", "default")
    } else {
        ("v1".into(), "Pod", &*regarding.namespace)
    };
    let mut reference = json!({
        "apiVersion": version,
        "kind": kind,
        "name": &*regarding.name,
        "uid": uid,
    });
    if !is_set {
        reference["namespace"] = json!(&*regarding.namespace);
    }
    json!({
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {
            // The API server accepts a dash as the last character (`maskTrailingDash` in
            // `k8s.io/apimachinery/pkg/api/validation/generic.go`).
            "generateName": format!("{}-", regarding.name),
            "namespace": namespace,
        },
        // Go parses exactly six digits (`RFC3339Micro`, `k8s.io/apimachinery/pkg/apis/meta/v1/micro_time.go`). This
        // and the next two are required of a new event (`ValidateEventCreate`, `pkg/apis/core/validation/events.go`).
        "eventTime": format!("{now:.6}"),
        "reportingController": EVENT_SOURCE,
        "reportingInstance": FIELD_MANAGER,
        "action": "Upgrade",
        "type": if *is_warning { "Warning" } else { "Normal" },
        "reason": reason,
        "note": note,
        "regarding": reference,
    })
}

#[cfg(test)]
mod tests;
