//! An agent without a kubelet: a pod that a fake runtime runs, whose commands end as a case wants.

use anyhow::{Context, Result};
use kube::Client;
use leadsman_cri::fake::{Fake, ScriptedAnswer};
use leadsman_cri::wire::{ContainerState, ExecSyncResponse, NamespaceMode};
use leadsman_tests::Scene;
use serde_json::json;

use crate::marks::idle;

/// The node of the agents, and the pod on it: the fake runtime knows only one of this name.
pub(crate) const NODE: &str = "probed";
/// Namespace and name of the pod.
pub(crate) const PROBED: (&str, &str) = ("default", "web");

/// Makes the pod whose containers the runtime lists, on its node, and a marker that probes it each second.
pub(crate) async fn probed_pod(client: &Client, runtime: &Fake) -> Result<Scene> {
    let scene = Scene {
        client: client.clone(),
        ns: PROBED.0.to_owned(),
        node: NODE.to_owned(),
    };
    scene.add_node(NODE, json!({})).await?;
    let pod = scene.pod(PROBED.1).await?;
    let uid = pod.metadata.uid.context("a pod has a uid")?;
    let id = {
        let mut world = runtime.lock_world();
        world.set_network(&uid, &["10.1.2.3"], NamespaceMode::Pod);
        world.set_container(&uid, "main", 1, ContainerState::ContainerRunning)
    };
    commands_exit_with(runtime, 0);
    scene
        .report_pod_status(
            PROBED.1,
            json!({"containerStatuses": [{"name": "main", "ready": true, "started": true,
                "restartCount": 0, "image": "none", "imageID": "", "containerID": format!("containerd://{id}"),
                "state": {"running": {"startedAt": "1970-01-01T00:00:02Z"}}}]}),
        )
        .await?;
    let mut probes = idle();
    probes[0]["probe"]["periodSeconds"] = json!(1);
    probes[0]["probe"]["failureThreshold"] = json!(1);
    scene.marker("every-second", probes).await?;
    Ok(scene)
}

/// What every command ends with from now on.
pub(crate) fn commands_exit_with(runtime: &Fake, exit_code: i32) {
    runtime.lock_world().exec = Some(ScriptedAnswer::Ok(ExecSyncResponse {
        exit_code,
        ..ExecSyncResponse::default()
    }));
}
