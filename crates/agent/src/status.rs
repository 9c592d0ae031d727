//! One write of the status.

use std::time::Duration;

use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use leadsman_api::{NodePodProbe, NodePodProbeStatus};
use leadsman_core::podprobe::node::WriteEnd;
use serde_json::json;

/// For one request.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Why a status was not written, or is not known to be.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WriteError {
    #[error("cannot write the status of nodepodprobe {node}: {source}")]
    Refused { node: String, source: kube::Error },
    #[error("no answer to the status of nodepodprobe {node} within {} s", TIMEOUT.as_secs())]
    NoAnswer { node: String },
    #[error("the write of the status was lost: {0}")]
    Lost(#[from] tokio::task::JoinError),
}

/// Writes the whole status, as the only one who does: nothing in it depends on what is there. The object as it is after.
pub(crate) async fn write(
    client: Client,
    node: String,
    status: NodePodProbeStatus,
) -> Result<Box<NodePodProbe>, WriteError> {
    // Spelled out: an empty list must be written, too.
    let body = json!({"status": {"podProbeStatuses": status.pod_probe_statuses}});
    let api = Api::<NodePodProbe>::all(client);
    let (parameters, body) = (PatchParams::default(), Patch::Merge(&body));
    let patch = api.patch_status(&node, &parameters, &body);
    match tokio::time::timeout(TIMEOUT, patch).await {
        Ok(Ok(object)) => Ok(Box::new(object)),
        Ok(Err(source)) => Err(WriteError::Refused { node, source }),
        Err(_) => Err(WriteError::NoAnswer { node }),
    }
}

/// What a failed write means for the next.
pub(crate) fn failed(error: &WriteError) -> WriteEnd {
    let retry_after = match error {
        WriteError::Refused {
            source: kube::Error::Api(status),
            ..
        } => status
            .details
            .as_ref()
            .map(|details| Duration::from_secs(details.retry_after_seconds.into())),
        _ => None,
    };
    WriteEnd::Failed {
        retry_after,
        jitter: fastrand::f64(),
    }
}
