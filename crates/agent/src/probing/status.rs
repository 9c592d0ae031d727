//! One write of the status of the node's `NodePodProbe`.

use std::time::Duration;

use kube::Resource;
use kube::api::{Patch, PatchParams};
use kube::core::Request;
use leadsman_api::{NodePodProbe, NodePodProbeStatus};
use leadsman_core::podprobe::node::StatusWriteEnd;
use leadsman_process::reply::Disposition;
use leadsman_process::{ApiServer, Backoff};
use serde_json::json;

use crate::request::{self, FIELD_MANAGER};

/// The back-off of writes, from the begin of a failed one to the begin of the next.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(5));

/// Why a status is not written, or not known to be.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StatusWriteError {
    #[error("writing the status of NodePodProbe {node} failed: {}", disposition.explain_reason())]
    Failed {
        node: String,
        disposition: Disposition,
    },
    #[error(
        "the reply to the write of the status of NodePodProbe {node} cannot be decoded: {source}"
    )]
    Undecodable {
        node: String,
        source: serde_json::Error,
    },
    #[error("the task that writes the status ended without a result: {0}")]
    Lost(#[from] tokio::task::JoinError),
}

/// The object after a write of its status.
pub(crate) type StatusWrite = Result<Box<NodePodProbe>, StatusWriteError>;

/// Writes the whole status without a resourceVersion: the agent is its only writer, and the new status does not depend
/// on the old one. Returns the object after the write.
pub(crate) async fn write_status(
    server: ApiServer,
    node: String,
    status: NodePodProbeStatus,
) -> StatusWrite {
    // Not the type itself: it omits an empty list, which must be written too.
    let body = json!({"status": {"podProbeStatuses": status.pod_probe_statuses}});
    // No apply: where the CRD lacks one of the fields, as OpenKruise's does, the API server fails an apply that has
    // it, and drops it from a merge patch.
    let patch = Request::new(NodePodProbe::url_path(&(), None)).patch_subresource(
        "status",
        &node,
        &PatchParams {
            field_manager: Some(FIELD_MANAGER.to_owned()),
            ..PatchParams::default()
        },
        &Patch::Merge(&body),
    );
    let (disposition, body) = request::send_request(&server, patch).await;
    match disposition {
        Disposition::Done => serde_json::from_slice(&body)
            .map_err(|source| StatusWriteError::Undecodable { node, source }),
        failed => Err(StatusWriteError::Failed {
            node,
            disposition: failed,
        }),
    }
}

/// The API server's reply to a write. `None` if nobody knows it.
pub(crate) fn disposition_of(written: &StatusWrite) -> Option<&Disposition> {
    match written {
        Ok(_) | Err(StatusWriteError::Undecodable { .. }) => Some(&Disposition::Done),
        Err(StatusWriteError::Failed { disposition, .. }) => Some(disposition),
        Err(StatusWriteError::Lost(_)) => None,
    }
}

/// Whether the status of an object names anything that cannot be probed.
pub(crate) fn shows_unprobed(object: &NodePodProbe) -> bool {
    let mut pods = object.status.iter().flat_map(|s| &s.pod_probe_statuses);
    pods.any(|pod| !pod.cannot_probe.is_empty())
}

/// The end of a write that has failed so many times in a row. `random` is in 0 to 1.
pub(crate) fn failed_write(error: &StatusWriteError, failures: u32, random: f64) -> StatusWriteEnd {
    let backoff = BACKOFF.delay(failures, random);
    let retry_after = match error {
        // However often it is sent, it stays too large.
        StatusWriteError::Failed {
            disposition: Disposition::TooLarge { .. },
            ..
        } => return StatusWriteEnd::TooLarge { backoff },
        StatusWriteError::Failed { disposition, .. } => disposition.retry_after(),
        StatusWriteError::Undecodable { .. } | StatusWriteError::Lost(_) => None,
    };
    StatusWriteEnd::Failed {
        backoff,
        retry_after,
    }
}
