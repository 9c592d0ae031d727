//! A node that dies with all that runs on it, and comes back.

use std::sync::Arc;

use anyhow::{Result, bail, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kube::Api;
use kube::api::{ListParams, PostParams};
use leadsman_testkit::Release;
use leadsman_tests::room::{is_main, role};
use leadsman_tests::scene::differs;
use leadsman_tests::{wait_for_answer, wait_for_object};
use serde_json::{Value, json};

use crate::room::flip;
use crate::{Room, install, marked_pods};

/// A Deployment of one pod that prefers this node.
fn mover(room: &Room, node: &str) -> Value {
    let mut template = room.manifest("unused", json!({"metadata": {"labels": {"app": "mover"}}}));
    template["metadata"]["name"] = Value::Null;
    let hostname = json!({"key": "kubernetes.io/hostname", "operator": "In", "values": [node]});
    template["spec"]["affinity"] = json!({"nodeAffinity": {
        "preferredDuringSchedulingIgnoredDuringExecution": [
            {"weight": 100, "preference": {"matchExpressions": [hostname]}}]}});
    json!({"metadata": {"name": "mover"}, "spec": {"replicas": 1,
        "selector": {"matchLabels": {"app": "mover"}}, "template": template}})
}

/// Waits until a pod of the Deployment on this node is marked.
async fn marked_on(room: &Room, node: &str) -> Result<()> {
    let choice = ListParams::default().labels("app=mover");
    wait_for_answer(&format!("a marked pod on {node}"), || async {
        let pods = room.scene.pods().list(&choice).await?.items;
        let is_there = |pod: &Pod| {
            let place = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
            place == Some(node) && differs(pod, &is_main(false)).is_ok()
        };
        Ok(pods.iter().any(is_there).then_some(()))
    })
    .await
}

// PRB-11
pub(crate) async fn a_pod_moves_from_a_node_that_dies_and_is_marked_there(
    release: Arc<Release>,
) -> Result<()> {
    install(&release, json!({})).await?;
    let (room, history) = marked_pods(&release, "dies").await?;
    let [second] = release.bed.workers() else {
        bail!("the bed has not two nodes")
    };
    let deployments: Api<Deployment> = Api::namespaced(release.client.clone(), "dies");
    let deployment = serde_json::from_value(mover(&room, second.name()))?;
    deployments
        .create(&PostParams::default(), &deployment)
        .await?;
    let selector = json!({"matchLabels": {"app": "mover"}});
    room.scene
        .marker_of("mover", selector, json!([role()]))
        .await?;
    marked_on(&room, second.name()).await?;
    second.kill().await?;
    let marked_elsewhere = async {
        marked_on(&room, release.bed.node_name()).await?;
        flip(&room, "first", false).await?;
        // What nobody can ask stays as it was.
        history
            .never("a pod of the dead node lost its mark", |pod| {
                pod.metadata.name.as_deref() == Some("second")
                    && differs(pod, &is_main(true)).is_err()
            })
            .await
    };
    let marked_elsewhere = marked_elsewhere.await;
    second.start().await?;
    marked_elsewhere?;
    wait_for_object(&room.scene.pods(), "second", "its new container", |pod| {
        let status = pod.status.clone().unwrap_or_default();
        let containers = status.container_statuses.unwrap_or_default();
        let runs = |it: &ContainerStatus| {
            it.restart_count == 1 && it.state.as_ref().is_some_and(|it| it.running.is_some())
        };
        ensure!(
            containers.iter().all(runs) && status.pod_ip.is_some(),
            "{containers:?}"
        );
        Ok(())
    })
    .await?;
    // Its container is new, and so is its answer.
    room.scene.wait_for_marks("second", is_main(false)).await?;
    release.wait_for_rollout().await?;
    flip(&room, "second", true).await
}
