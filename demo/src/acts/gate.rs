//! A readiness gate: the kubelet waits for the marker's condition.

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;

use super::{NAMESPACE, condition, listed};
use crate::cluster::Demo;
use crate::see::{Look, named, see};
use crate::tell::Tell;

const POD: &str = "cache";
const WARM: &str = "example.com/warm";

pub(super) async fn play(cluster: &Demo, tell: &Tell) -> Result<()> {
    Tell::title("A cache whose readinessGates name the marker's condition");
    let since = tell.step(
        "nothing more: it was applied above",
        &format!("its container is ready, {WARM} is False, so the pod is not Ready"),
    );
    conditions(cluster, tell, since, ["True", "False", "False"]).await?;
    let pods = Api::<Pod>::namespaced(cluster.client.clone(), NAMESPACE);
    let address = pods
        .get(POD)
        .await?
        .status
        .and_then(|status| status.pod_ip)
        .context("a running pod has an address")?;
    let since = tell.step(
        "POST /set?tcp=open to its own port: it is warm and listens",
        &format!("{WARM} True, and the pod is Ready"),
    );
    cluster
        .bed
        .post_from_inside(&format!("http://{address}:8080/set?tcp=open"))
        .await?;
    conditions(cluster, tell, since, ["True", "True", "True"]).await
}

/// Waits for the status of the three conditions: containers ready, warm, pod ready.
async fn conditions(
    cluster: &Demo,
    tell: &Tell,
    since: std::time::Instant,
    expected: [&str; 3],
) -> Result<()> {
    let pods = Api::<Pod>::namespaced(cluster.client.clone(), NAMESPACE);
    let kinds = ["ContainersReady", WARM, "Ready"];
    let words = see(&pods, named(POD), |pods| {
        let found = |pod: &Pod| kinds.map(|kind| condition(pod, kind).to_owned());
        let words = listed(pods.values(), |pod| {
            kinds
                .iter()
                .zip(found(pod))
                .map(|(kind, status)| format!("{kind} {status}"))
                .collect::<Vec<_>>()
                .join(", ")
        });
        match pods.get(POD) {
            Some(pod) if found(pod) == expected => Look::Seen(words),
            _ => Look::NotYet(words),
        }
    })
    .await?;
    tell.seen(since, &words);
    Ok(())
}
