//! The HTTP requests of a due write, and the events of their replies. Only here it is decided which verb, resource and
//! kind of patch a write uses.

use std::sync::Arc;

use http::request::Request as HttpRequest;
use kube::Resource;
use kube::api::{DeleteParams, GetParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::Request as Builder;
use kube::core::request::Error as BuildError;
use leadsman_api::slim::Pod;
use leadsman_api::{GROUP, NodePodProbe, PodProbeMarker};
use leadsman_control::{DecodeReply, Request, RequestKind, RightScope};
use leadsman_core::cluster::Source;
use leadsman_core::podprobe::event::{Event, PodMarks, Write, WriteTarget};
use leadsman_core::podprobe::pod::FIELD_MANAGER;
use serde_json::json;

const CREATE_NODE_POD_PROBE: RequestKind = RequestKind {
    label: "create_nodepodprobe",
    group: GROUP,
    resource: "nodepodprobes",
    verb: "create",
    scope: RightScope::Cluster,
};
/// The request that reads the object in the way of a creation.
const READ_NODE_POD_PROBE: RequestKind = RequestKind {
    label: "read_nodepodprobe",
    group: GROUP,
    resource: "nodepodprobes",
    verb: "get",
    scope: RightScope::Cluster,
};
const REPLACE_NODE_POD_PROBE: RequestKind = RequestKind {
    label: "replace_nodepodprobe",
    group: GROUP,
    resource: "nodepodprobes",
    verb: "update",
    scope: RightScope::Cluster,
};
const DELETE_NODE_POD_PROBE: RequestKind = RequestKind {
    label: "delete_nodepodprobe",
    group: GROUP,
    resource: "nodepodprobes",
    verb: "delete",
    scope: RightScope::Cluster,
};
const POD_MARKS: RequestKind = RequestKind {
    label: "pod_marks",
    group: "",
    resource: "pods/status",
    verb: "patch",
    scope: RightScope::Cluster,
};
const MARKER_STATUS: RequestKind = RequestKind {
    label: "marker_status",
    group: GROUP,
    resource: "podprobemarkers/status",
    verb: "patch",
    scope: RightScope::Cluster,
};
const MARKER_FINALIZERS: RequestKind = RequestKind {
    label: "marker_finalizers",
    group: GROUP,
    resource: "podprobemarkers",
    verb: "patch",
    scope: RightScope::Cluster,
};

/// All of them.
pub(super) const ALL: &[RequestKind] = &[
    CREATE_NODE_POD_PROBE,
    READ_NODE_POD_PROBE,
    REPLACE_NODE_POD_PROBE,
    DELETE_NODE_POD_PROBE,
    POD_MARKS,
    MARKER_STATUS,
    MARKER_FINALIZERS,
];

/// The request of a write that is due for a target.
pub(super) fn build_request(target: WriteTarget, write: Write) -> Request<Event> {
    Request {
        kind: request_kind(&write),
        steps: request_steps(&write),
        reply: reply_decoder(&write),
        read_back: read_back_request(&write),
        measured: None,
        written: Event::Written(target.clone()),
        refused: Box::new(move |refusal| Event::Refused(target, Box::new(write), refusal)),
    }
}

fn request_kind(write: &Write) -> RequestKind {
    match write {
        Write::CreateNodePodProbe(_) => CREATE_NODE_POD_PROBE,
        Write::ReplaceNodePodProbe(_) => REPLACE_NODE_POD_PROBE,
        Write::DeleteNodePodProbe { .. } => DELETE_NODE_POD_PROBE,
        Write::PodMarks(_) => POD_MARKS,
        Write::MarkerStatus { .. } => MARKER_STATUS,
        Write::MarkerFinalizers { .. } => MARKER_FINALIZERS,
    }
}

/// How to read the object in a reply. None for a deletion, and for a write that removes the last finalizer: the watch
/// shows when the object is gone, in order with later events.
fn reply_decoder(write: &Write) -> Option<DecodeReply<Event>> {
    match write {
        Write::CreateNodePodProbe(_) | Write::ReplaceNodePodProbe(_) => Some(|body| {
            serde_json::from_slice(body)
                .map(|object| Event::NodePodProbe(Arc::new(object), Source::Reply))
        }),
        Write::PodMarks(_) => Some(|body| {
            serde_json::from_slice(body).map(|pod| Event::Pod(Arc::new(pod), Source::Reply))
        }),
        Write::MarkerFinalizers { finalizers, .. } if finalizers.is_empty() => None,
        Write::MarkerStatus { .. } | Write::MarkerFinalizers { .. } => Some(|body| {
            serde_json::from_slice(body)
                .map(|marker| Event::Marker(Arc::new(marker), Source::Reply))
        }),
        Write::DeleteNodePodProbe { .. } => None,
    }
}

fn read_back_request(write: &Write) -> Option<HttpRequest<Vec<u8>>> {
    let Write::CreateNodePodProbe(object) = write else {
        return None;
    };
    let name = object.metadata.name.as_deref()?;
    node_pod_probes_builder()
        .get(name, &GetParams::default())
        .ok()
}

fn node_pod_probes_builder() -> Builder {
    Builder::new(NodePodProbe::url_path(&(), None))
}

/// The requests of a write, in the order in which they are sent.
fn request_steps(write: &Write) -> Result<Vec<HttpRequest<Vec<u8>>>, BuildError> {
    let post = PostParams {
        field_manager: Some(FIELD_MANAGER.to_owned()),
        ..PostParams::default()
    };
    let body =
        |object: &NodePodProbe| serde_json::to_vec(object).map_err(BuildError::SerializeBody);
    let request = match write {
        Write::CreateNodePodProbe(object) => node_pod_probes_builder().create(&post, body(object)?),
        Write::ReplaceNodePodProbe(object) => {
            let name = object.metadata.name.as_deref().unwrap_or_default();
            node_pod_probes_builder().replace(name, &post, body(object)?)
        }
        // The uid restricts it to the object that was observed: a node of the same name may have
        // come back with a new one.
        Write::DeleteNodePodProbe { name, uid } => {
            let delete = DeleteParams::default().preconditions(Preconditions {
                uid: Some(uid.clone()),
                resource_version: None,
            });
            node_pod_probes_builder().delete(name, &delete)
        }
        Write::PodMarks(marks) => return marks_steps(marks),
        Write::MarkerStatus {
            marker,
            uid,
            resource_version,
            status,
        } => {
            // The uid keeps a marker from getting the status of a predecessor of its name. The
            // version is needed because a merge patch replaces the whole list of conditions, and
            // those of others must not be lost. An apply is not possible: where the CRD lacks one
            // of the fields, as OpenKruise's does, the API server fails an apply that has it, and
            // drops it from a merge patch.
            let patch = json!({
                "metadata": {"uid": uid, "resourceVersion": resource_version}, "status": status,
            });
            Builder::new(PodProbeMarker::url_path(&(), Some(&marker.namespace))).patch_subresource(
                "status",
                &marker.name,
                &patch_params(),
                &Patch::Merge(patch),
            )
        }
        Write::MarkerFinalizers {
            marker,
            uid,
            resource_version,
            finalizers,
        } => {
            // A merge patch replaces the whole list, hence the resourceVersion: finalizers of others must not be lost.
            let patch = json!({"metadata": {
                "uid": uid, "resourceVersion": resource_version, "finalizers": finalizers,
            }});
            Builder::new(PodProbeMarker::url_path(&(), Some(&marker.namespace))).patch(
                &marker.name,
                &patch_params(),
                &Patch::Merge(patch),
            )
        }
    };
    Ok(vec![request?])
}

/// The patch that removes marks which others co-own comes first, so that the reply to the apply shows the final state.
fn marks_steps(marks: &PodMarks) -> Result<Vec<HttpRequest<Vec<u8>>>, BuildError> {
    let PodMarks {
        pod, remove, apply, ..
    } = marks;
    let pods = Builder::new(Pod::url_path(&(), Some(&pod.namespace)));
    let remove = remove.as_ref().map(|patch| {
        pods.patch_subresource(
            "status",
            &pod.name,
            &patch_params(),
            &Patch::Strategic(patch),
        )
    });
    let apply = apply.as_ref().map(|configuration| {
        pods.patch_subresource(
            "status",
            &pod.name,
            // The apply is forced: a key that another manager has with another value would be a
            // conflict (409), and a governed key is to be what the verdict says, whoever has it.
            &patch_params().force(),
            &Patch::Apply(configuration),
        )
    });
    remove.into_iter().chain(apply).collect()
}

fn patch_params() -> PatchParams {
    PatchParams {
        field_manager: Some(FIELD_MANAGER.to_owned()),
        ..PatchParams::default()
    }
}

#[cfg(test)]
mod tests;
