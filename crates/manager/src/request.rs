//! A due write as HTTP requests, and what their answers show. Here and nowhere else is decided which verb, which
//! resource and which kind of patch a write is.

use std::time::Duration;

use http::Method;
use http::request::Request as HttpRequest;
use kube::Resource;
use kube::api::{DeleteParams, GetParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::Request;
use kube::core::request::Error as BuildError;
use leadsman_api::slim::Pod;
use leadsman_api::{NodePodProbe, PodProbeMarker};
use leadsman_core::cluster::Source;
use leadsman_core::podprobe::event::{Event, PodMarks, Write};
use leadsman_core::podprobe::pod::FIELD_MANAGER;
use leadsman_lease::Leadership;
use leadsman_process::reply::{Cause, Disposition, Verb};
use leadsman_process::{ApiServer, clock};
use serde_json::json;
use tokio::sync::watch;

/// A request that has no answer by then is given up; whether it was carried out, the watch tells.
const TIMEOUT: Duration = Duration::from_secs(10);

/// What a write is, for metrics and messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum WriteKind {
    /// POST of a `NodePodProbe`.
    CreateNodePodProbe,
    /// PUT of a `NodePodProbe`.
    ReplaceNodePodProbe,
    /// DELETE of a `NodePodProbe`.
    DeleteNodePodProbe,
    /// PATCH of `pods/status`.
    PodMarks,
    /// PATCH of `podprobemarkers/status`.
    MarkerStatus,
    /// PATCH of `podprobemarkers`.
    MarkerFinalizers,
}

/// The rights that the writes need: API group, resource, verb.
pub const RIGHTS: [(&str, &str, &str); 6] = [
    (leadsman_api::GROUP, "nodepodprobes", "create"),
    (leadsman_api::GROUP, "nodepodprobes", "update"),
    (leadsman_api::GROUP, "nodepodprobes", "delete"),
    ("", "pods/status", "patch"),
    (leadsman_api::GROUP, "podprobemarkers", "patch"),
    (leadsman_api::GROUP, "podprobemarkers/status", "patch"),
];

/// What came of a write.
#[derive(Debug)]
pub(crate) struct Sent {
    /// What became of it.
    pub(crate) disposition: Disposition,
    /// The object as the last good answer showed it.
    pub(crate) observed: Option<Event>,
}

impl WriteKind {
    pub(crate) fn of(write: &Write) -> Self {
        match write {
            Write::CreateNodePodProbe(_) => Self::CreateNodePodProbe,
            Write::ReplaceNodePodProbe(_) => Self::ReplaceNodePodProbe,
            Write::DeleteNodePodProbe { .. } => Self::DeleteNodePodProbe,
            Write::PodMarks(_) => Self::PodMarks,
            Write::MarkerStatus { .. } => Self::MarkerStatus,
            Write::MarkerFinalizers { .. } => Self::MarkerFinalizers,
        }
    }
}

/// Sends a write and waits for the answer: [`TIMEOUT`] for each of its requests, but no longer than we lead.
pub(crate) async fn send(
    server: &ApiServer,
    write: &Write,
    leadership: &watch::Receiver<Leadership>,
) -> Sent {
    let mut sent = Sent {
        disposition: Disposition::Done,
        observed: None,
    };
    let requests = match requests(write) {
        Ok(requests) => requests,
        Err(error) => {
            let reason = error.to_string();
            sent.disposition = Disposition::Refused { reason };
            return sent;
        }
    };
    for request in requests {
        let (disposition, body) = answer(server, request, leadership).await;
        sent.disposition = disposition;
        match sent.disposition {
            Disposition::Done => {
                sent.observed = observed(write, &body);
            }
            Disposition::AlreadyExists { .. } => {
                // Somebody was quicker, or our own lost answer was: what is there decides what is due.
                sent.observed = read_back(server, write, leadership).await;
                break;
            }
            _ => break,
        }
    }
    sent
}

/// The object in the way of a creation, as it is now. None if it has gone again or cannot be read.
async fn read_back(
    server: &ApiServer,
    write: &Write,
    leadership: &watch::Receiver<Leadership>,
) -> Option<Event> {
    let Write::CreateNodePodProbe(object) = write else {
        return None;
    };
    let name = object.metadata.name.as_deref().unwrap_or_default();
    let get = node_pod_probes().get(name, &GetParams::default()).ok()?;
    match answer(server, get, leadership).await {
        (Disposition::Done, body) => observed(write, &body),
        (failed, _) => {
            tracing::debug!(
                name,
                reason = failed.reason(),
                "cannot read back the NodePodProbe that is there already"
            );
            None
        }
    }
}

async fn answer(
    server: &ApiServer,
    request: HttpRequest<Vec<u8>>,
    leadership: &watch::Receiver<Leadership>,
) -> (Disposition, Vec<u8>) {
    let left = leadership.borrow().time_left(clock::monotonic());
    let Some(left) = left else {
        return (unsent(), Vec::new());
    };
    let verb = verb(request.method());
    let reply = server.send(verb, request, left.min(TIMEOUT)).await;
    (reply.disposition, reply.body)
}

fn verb(method: &Method) -> Verb {
    match *method {
        Method::GET => Verb::Get,
        Method::POST => Verb::Create,
        Method::DELETE => Verb::Delete,
        _ => Verb::Update,
    }
}

fn unsent() -> Disposition {
    Disposition::Retry {
        cause: Cause::NoAnswer,
        after: None,
        reason: "not sent: this manager does not lead any more".to_owned(),
    }
}

fn node_pod_probes() -> Request {
    Request::new(NodePodProbe::url_path(&(), None))
}

/// The requests of a write, in the order in which they are sent.
fn requests(write: &Write) -> Result<Vec<HttpRequest<Vec<u8>>>, BuildError> {
    let post = PostParams {
        field_manager: Some(FIELD_MANAGER.to_owned()),
        ..PostParams::default()
    };
    let body =
        |object: &NodePodProbe| serde_json::to_vec(object).map_err(BuildError::SerializeBody);
    let request = match write {
        Write::CreateNodePodProbe(object) => node_pod_probes().create(&post, body(object)?),
        Write::ReplaceNodePodProbe(object) => {
            let name = object.metadata.name.as_deref().unwrap_or_default();
            node_pod_probes().replace(name, &post, body(object)?)
        }
        Write::DeleteNodePodProbe { name, uid } => {
            let delete = DeleteParams::default().preconditions(Preconditions {
                uid: Some(uid.clone()),
                resource_version: None,
            });
            node_pod_probes().delete(name, &delete)
        }
        Write::PodMarks(marks) => return marks_requests(marks),
        Write::MarkerStatus {
            marker,
            uid,
            status,
        } => {
            let patch = json!({"metadata": {"uid": uid}, "status": status});
            Request::new(PodProbeMarker::url_path(&(), Some(&marker.namespace))).patch_subresource(
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
            let patch = json!({"metadata": {
                "uid": uid, "resourceVersion": resource_version, "finalizers": finalizers,
            }});
            Request::new(PodProbeMarker::url_path(&(), Some(&marker.namespace))).patch(
                &marker.name,
                &patch_params(),
                &Patch::Merge(patch),
            )
        }
    };
    Ok(vec![request?])
}

/// The removal of what others co-own comes first: the apply's answer then shows the pod as it is to be.
fn marks_requests(marks: &PodMarks) -> Result<Vec<HttpRequest<Vec<u8>>>, BuildError> {
    let PodMarks {
        pod, remove, apply, ..
    } = marks;
    let pods = Request::new(Pod::url_path(&(), Some(&pod.namespace)));
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

/// What the answer to a successful write shows. The answer to a deletion shows nothing, nor does that to a write by which
/// the last finalizer goes: the watch tells when the object is gone, in order with what may come after it.
fn observed(write: &Write, body: &[u8]) -> Option<Event> {
    let event = match write {
        Write::CreateNodePodProbe(_) | Write::ReplaceNodePodProbe(_) => {
            serde_json::from_slice(body).map(|object| Event::NodePodProbe(object, Source::Reply))
        }
        Write::PodMarks(_) => {
            serde_json::from_slice(body).map(|object| Event::Pod(object, Source::Reply))
        }
        Write::MarkerStatus { .. } => {
            serde_json::from_slice(body).map(|object| Event::Marker(object, Source::Reply))
        }
        Write::MarkerFinalizers { finalizers, .. } if finalizers.is_empty() => return None,
        Write::MarkerFinalizers { .. } => {
            serde_json::from_slice(body).map(|object| Event::Marker(object, Source::Watch))
        }
        Write::DeleteNodePodProbe { .. } => return None,
    };
    event
        .inspect_err(|error| tracing::warn!(%error, "the answer to a write does not decode"))
        .ok()
}

#[cfg(test)]
mod tests;
