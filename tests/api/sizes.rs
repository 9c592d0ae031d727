//! One namespace's objects are as large as the API server takes them. The others get their marks, and the manager's memory does
//! not follow.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::api::PostParams;
use kube::{Api, Resource};
use leadsman_api::PodProbeMarker;
use leadsman_tests::{Scene, wait_for_answer};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::Installation;
use crate::marks::{idle, marked};

/// The manager's limit in the Helm chart is 512 MiB.
const MOST_MEMORY_KIB: u64 = 200 * 1024;

/// Makes objects, a few at a time.
async fn create_all<K>(objects: &Api<K>, manifests: Vec<Value>) -> Result<()>
where
    K: Resource + Clone + Serialize + DeserializeOwned + std::fmt::Debug,
{
    let created = manifests.into_iter().map(async |manifest| {
        let object = serde_json::from_value(manifest)?;
        objects.create(&PostParams::default(), &object).await?;
        anyhow::Ok(())
    });
    let created: Vec<_> = created.collect();
    stream::iter(created)
        .buffer_unordered(3)
        .try_collect()
        .await
}

/// A pod that is bound to no node.
fn pending_pod(name: &str, labels: &Value, text: &str) -> Value {
    json!({
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "automountServiceAccountToken": false,
            "containers": [{"name": "main", "image": "none", "env": [{"name": "TEXT", "value": text}]}],
        },
    })
}

/// A marker whose policies have about a megabyte.
fn large_marker(name: &str) -> Value {
    let annotations = |at: usize, state: &str| -> Value {
        let pairs = (0..4).map(|key| {
            (
                format!("large.io/p{at}-{key}"),
                json!(format!("{state}{}", "x".repeat(4_000))),
            )
        });
        Value::Object(pairs.collect())
    };
    let probes: Vec<_> = (0..32)
        .map(|at| {
            json!({
                "name": format!("p{at}"), "containerName": "main", "probe": {"tcpSocket": {"port": 1}},
                "markerPolicy": [
                    {"state": "Succeeded", "annotations": annotations(at, "s")},
                    {"state": "Failed", "annotations": annotations(at, "f")},
                ],
            })
        })
        .collect();
    json!({"metadata": {"name": name}, "spec": {"selector": {"matchLabels": {"app": "none"}}, "probes": probes}})
}

/// The most memory that the manager had so far, in KiB (`VmHWM` of proc(5)).
async fn peak_memory(installation: &Installation) -> Result<u64> {
    let manager = installation.manager.lock().await;
    let pid = manager.as_ref().and_then(leadsman_tests::Process::pid);
    let status = std::fs::read_to_string(format!("/proc/{}/status", pid.context("it runs")?))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let number = line.and_then(|line| line.split_whitespace().next());
    Ok(number.context("VmHWM")?.parse()?)
}

// PPM-11
pub(crate) async fn large_objects_of_one_namespace_keep_no_manager_from_marking(
    _world: Arc<Installation>,
) -> Result<()> {
    let installation = Installation::raise_idle().await?;
    let scene = Scene::new(&installation.client, "shop").await?;
    scene.pod("one").await?;
    scene.marker("m", idle()).await?;
    // Before the other by name, and so in the list.
    scene.namespace("crowd").await?;
    let client = || installation.client.clone();
    let pods: Api<Pod> = Api::namespaced(client(), "crowd");
    let text = "<".repeat(1_300_000);
    let large = (0..24).map(|at| pending_pod(&format!("text-{at}"), &json!({}), &text));
    create_all(&pods, large.collect()).await?;
    let labels = (0..25_000).map(|at| (format!("large{at}"), json!("")));
    let labels = Value::Object(labels.collect());
    let labelled = (0..24).map(|at| pending_pod(&format!("labels-{at}"), &labels, ""));
    create_all(&pods, labelled.collect()).await?;
    let markers: Api<PodProbeMarker> = Api::namespaced(client(), "crowd");
    create_all(
        &markers,
        (0..24)
            .map(|at| large_marker(&format!("large-{at}")))
            .collect(),
    )
    .await?;

    installation.start_manager().await?;
    scene.report_verdict("one", "m#Idle", "Succeeded").await?;
    scene.wait_for_marks("one", marked("Succeeded")).await?;
    let undecodable = r#"leadsman_undecodable_objects_total{kind="pod"} 24"#;
    wait_for_answer("pods of too many labels are counted", || async {
        let metrics = installation.get("/metrics").await?;
        Ok(metrics.contains(undecodable).then_some(()))
    })
    .await?;
    let peak = peak_memory(&installation).await?;
    println!("the manager's memory was {} MiB at most", peak / 1024);
    ensure!(peak < MOST_MEMORY_KIB, "the manager had {peak} KiB");
    installation.end().await;
    Ok(())
}
