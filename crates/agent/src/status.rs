//! One write of the status.

use std::time::Duration;

use kube::Resource;
use kube::api::{Patch, PatchParams};
use kube::core::Request;
use leadsman_api::{NodePodProbe, NodePodProbeStatus};
use leadsman_core::podprobe::node::StatusWriteEnd;
use leadsman_process::reply::Disposition;
use leadsman_process::{ApiServer, Backoff};
use serde_json::json;

use crate::request;

/// From the begin of a failed write to the begin of the next.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(5));

/// Why a status was not written, or is not known to be.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WriteError {
    #[error("cannot write the status of nodepodprobe {node}: {reason}")]
    Failed {
        node: String,
        reason: String,
        /// How long the API server asked to be left alone.
        retry_after: Option<Duration>,
    },
    #[error("the reply to the status of nodepodprobe {node} cannot be decoded: {source}")]
    Undecodable {
        node: String,
        source: serde_json::Error,
    },
    #[error("the write of the status was lost: {0}")]
    Lost(#[from] tokio::task::JoinError),
}

/// Writes the whole status, as the only one who does: nothing in it depends on what is there. The object as it is after.
pub(crate) async fn write(
    server: ApiServer,
    node: String,
    status: NodePodProbeStatus,
) -> Result<Box<NodePodProbe>, WriteError> {
    // Spelled out: an empty list must be written, too.
    let body = json!({"status": {"podProbeStatuses": status.pod_probe_statuses}});
    let patch = Request::new(NodePodProbe::url_path(&(), None)).patch_subresource(
        "status",
        &node,
        &PatchParams::default(),
        &Patch::Merge(&body),
    );
    let (disposition, body) = request::send(&server, patch).await;
    match disposition {
        Disposition::Done => {
            serde_json::from_slice(&body).map_err(|source| WriteError::Undecodable { node, source })
        }
        failed => Err(WriteError::Failed {
            node,
            reason: failed.reason().unwrap_or_default().to_owned(),
            retry_after: failed.slow_down(),
        }),
    }
}

/// Whether the status of an object says of anything that it cannot be probed.
pub(crate) fn shows_unprobed(object: &NodePodProbe) -> bool {
    let mut pods = object.status.iter().flat_map(|s| &s.pod_probe_statuses);
    pods.any(|pod| !pod.cannot_probe.is_empty())
}

/// The end of a write that has failed so many times in a row.
pub(crate) fn failed(error: &WriteError, failures: u32) -> StatusWriteEnd {
    let retry_after = match error {
        WriteError::Failed { retry_after, .. } => *retry_after,
        WriteError::Undecodable { .. } | WriteError::Lost(_) => None,
    };
    StatusWriteEnd::Failed {
        backoff: BACKOFF.delay(failures, fastrand::f64()),
        retry_after,
    }
}
