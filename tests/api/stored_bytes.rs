//! Objects near the limit of etcd: what a tenant writes into them takes six times the bytes there, and keeps nobody else
//! from being probed or marked.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use kube::api::{Patch, PatchParams};
use leadsman_api::{NodePodProbe, NodePodProbeStatus};
use leadsman_cri::fake::{Fake, ScriptedAnswer};
use leadsman_cri::wire::ExecSyncResponse;
use leadsman_tests::{Scene, wait_for_object};
use serde_json::{Value, json};

use crate::Installation;
use crate::fake_runtime::{NODE, PROBED, probed_pod};
use crate::marks::idle;
use crate::rights::Started;
use crate::stage::PLACES;

/// Markers of a pod whose every message is a kilobyte of `<`, and the probes of each.
const PRINTING: (usize, usize) = (10, 30);
/// Bytes of a message, at most.
const MESSAGE: usize = 1024;

/// The API server stores `<` as `\u003c`, so what takes 400 KiB on its way would take 1.9 MB in etcd.
// PRB-17, DEF-23
pub(crate) async fn what_a_pod_prints_keeps_no_status_from_being_written(
    _: Arc<Installation>,
) -> Result<()> {
    let _place = PLACES.acquire().await?;
    let installation = Installation::raise().await?;
    let runtime = Fake::start();
    let scene = probed_pod(&installation.client, &runtime).await?;
    runtime.lock_world().exec = Some(ScriptedAnswer::Ok(ExecSyncResponse {
        stdout: "<".repeat(MESSAGE).into_bytes().into(),
        ..ExecSyncResponse::default()
    }));
    let (markers, probes) = PRINTING;
    for marker in 0..markers {
        let probes: Vec<Value> = (0..probes)
            .map(|probe| {
                json!({"name": format!("p{probe}"), "containerName": "main",
                    "podConditionType": format!("t.io/m{marker}-p{probe}"),
                    "probe": {"exec": {"command": ["print"]}, "periodSeconds": 10, "failureThreshold": 1}})
            })
            .collect();
        scene.marker(&format!("m{marker}"), json!(probes)).await?;
    }
    let plane = &installation.plane;
    let kubeconfig = plane.kubeconfig_for("system:admin", &["system:masters"])?;
    let agent = Started::agent(plane, "printed", &kubeconfig, NODE, &runtime.socket_path()).await?;
    // With the one probe that the pod has beside them.
    let written = wait_for_object(&scene.probes(), NODE, "all verdicts", |object| {
        let states = states_of(object);
        ensure!(
            states.len() == markers * probes + 1,
            "{} verdicts",
            states.len()
        );
        ensure!(
            states
                .iter()
                .all(|(state, length)| state == "Succeeded" && *length < MESSAGE),
            "{states:?}"
        );
        Ok(object.clone())
    })
    .await?;
    agent.end().await?;
    refuses_whole_messages(&scene, written).await?;
    installation.end().await;
    Ok(())
}

/// The state and the length of the message of each verdict of the pod.
fn states_of(object: &NodePodProbe) -> Vec<(String, usize)> {
    let pods = object.status.iter().flat_map(|s| &s.pod_probe_statuses);
    let pods = pods.filter(|pod| pod.name == PROBED.1);
    pods.flat_map(|pod| &pod.probe_states)
        .map(|state| {
            (
                state.state.clone(),
                state.message.as_deref().unwrap_or_default().len(),
            )
        })
        .collect()
}

/// The API server takes no status with all that the probes print, and says so as the agent expects it.
async fn refuses_whole_messages(scene: &Scene, written: NodePodProbe) -> Result<()> {
    let mut status: NodePodProbeStatus = written.status.context("it has one")?;
    for state in status
        .pod_probe_statuses
        .iter_mut()
        .flat_map(|pod| &mut pod.probe_states)
    {
        state.message = Some("<".repeat(MESSAGE));
    }
    let sent = serde_json::to_vec(&status)?.len();
    ensure!(sent < 512 * 1024, "{sent} bytes on their way");
    let patch = Patch::Merge(json!({"status": status}));
    let answer = scene
        .probes()
        .patch_status(NODE, &PatchParams::default(), &patch)
        .await;
    let Err(kube::Error::Api(refusal)) = answer else {
        anyhow::bail!("it is accepted: {answer:?}");
    };
    let is_expected =
        refusal.code == 500 && refusal.message.contains("etcdserver: request is too large");
    ensure!(is_expected, "{refusal:?}");
    Ok(())
}

/// Each marker alone is taken by the API server; their entries together would not be.
// PPM-13
pub(crate) async fn what_a_command_takes_when_it_is_stored_keeps_no_neighbour_from_being_probed(
    installation: Arc<Installation>,
) -> Result<()> {
    let scene = Scene::new(&installation.client, "ampersands").await?;
    let word = "&".repeat(15 * 1024);
    for marker in ["one", "two"] {
        let probes: Vec<Value> = (0..12)
            .map(|probe| {
                json!({"name": format!("p{probe}"), "containerName": "main",
                    "podConditionType": format!("t.io/{marker}-{probe}"),
                    "probe": {"exec": {"command": [word]}}})
            })
            .collect();
        scene.marker(marker, json!(probes)).await?;
    }
    scene.pod("large").await?;
    scene.wait_for_reason("one", "TooManyProbes").await?;
    let beside = Scene {
        client: scene.client.clone(),
        ns: "ampersands-beside".to_owned(),
        node: scene.node.clone(),
    };
    beside.namespace(&beside.ns).await?;
    beside.pod("small").await?;
    beside.marker("m", idle()).await?;
    beside.wait_for_entries(&["small/m#Idle"]).await?;
    beside.wait_for_reason("m", "Probing").await?;
    scene.wait_for_entries(&[]).await?;
    Ok(())
}
