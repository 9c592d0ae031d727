//! The manager ends, starts, and finds a world that went on without it.

use std::sync::Arc;

use anyhow::{Result, ensure};
use kube::api::{DeleteParams, Patch, PatchParams};
use leadsman_tests::{History, Scene, see};
use serde_json::json;

use crate::World;
use crate::marks::{idle, marked};

pub(crate) async fn a_marker_deleted_while_it_is_down(world: Arc<World>) -> Result<()> {
    let scene = Scene::new(&world.client, "down").await?;
    scene.pod("one").await?;
    scene.pod("two").await?;
    scene.marker("m", idle()).await?;
    scene.verdict("one", "m#Idle", "Succeeded", "").await?;
    scene.marks("one", marked("Succeeded")).await?;
    world.stop_manager().await?;
    scene
        .markers()
        .delete("m", &DeleteParams::default())
        .await?;
    scene
        .edit(
            "two",
            "kubectl",
            json!({"metadata": {"labels": {"app": "other"}}}),
        )
        .await?;
    world.start_manager().await?;
    scene.entries(&[]).await?;
    scene.marks("one", marked("")).await?;
    Ok(())
}

pub(crate) async fn a_verdict_reported_while_it_is_down(world: Arc<World>) -> Result<()> {
    let scene = Scene::new(&world.client, "missed").await?;
    scene.pod("one").await?;
    scene.marker("m", idle()).await?;
    scene.verdict("one", "m#Idle", "Succeeded", "").await?;
    scene.marks("one", marked("Succeeded")).await?;
    world.stop_manager().await?;
    scene.verdict("one", "m#Idle", "Failed", "").await?;
    world.start_manager().await?;
    scene.marks("one", marked("Failed")).await?;
    Ok(())
}

pub(crate) async fn a_restart_with_nothing_to_do_writes_nothing(world: Arc<World>) -> Result<()> {
    let scene = Scene::new(&world.client, "restart").await?;
    for pod in ["one", "two", "three"] {
        scene.pod(pod).await?;
    }
    scene.marker("m", idle()).await?;
    for (pod, state) in [
        ("one", "Succeeded"),
        ("two", "Failed"),
        ("three", "Unknown"),
    ] {
        scene.verdict(pod, "m#Idle", state, "").await?;
        scene.marks(pod, marked(state)).await?;
    }
    scene
        .entries(&["one/m#Idle", "two/m#Idle", "three/m#Idle"])
        .await?;
    see(&scene.markers(), "m", "the counts", |marker| {
        let status = marker.status.clone().unwrap_or_default();
        let counts = status
            .probes
            .first()
            .map(|p| (p.succeeded, p.failed, p.unknown, p.pending));
        ensure!(counts == Some((1, 1, 1, 0)), "the status is {status:?}");
        Ok(())
    })
    .await?;
    world.stop_manager().await?;
    let before = world.writes()?;
    world.start_manager().await?;
    // It has looked at everything when an edit that it must answer has been answered.
    scene
        .edit_marker("m", json!({"metadata": {"labels": {"looked": "1"}}}))
        .await?;
    scene.pod("four").await?;
    scene
        .entries(&["one/m#Idle", "two/m#Idle", "three/m#Idle", "four/m#Idle"])
        .await?;
    scene.reason("m", "Probing").await?;
    let after = world.writes()?;
    let unasked: Vec<_> = after[before.len()..]
        .iter()
        .filter(|write| !write.contains(&scene.node) && !write.contains("podprobemarkers/m/"))
        .collect();
    ensure!(unasked.is_empty(), "a restart wrote {unasked:#?}");
    let pods: Vec<_> = after[before.len()..]
        .iter()
        .filter(|write| write.contains(" pods/"))
        .collect();
    ensure!(pods.is_empty(), "a restart wrote pods: {pods:#?}");
    Ok(())
}

pub(crate) async fn an_outage_of_the_api_server_changes_no_pod(world: Arc<World>) -> Result<()> {
    let scene = Scene::new(&world.client, "outage").await?;
    scene.pod("one").await?;
    scene.marker("m", idle()).await?;
    scene.verdict("one", "m#Idle", "Succeeded", "").await?;
    scene.marks("one", marked("Succeeded")).await?;
    let history = History::of(&scene.client, &scene.ns).await?;
    world.restart_apiserver().await?;
    scene.marks("one", marked("Succeeded")).await?;
    scene.verdict("one", "m#Idle", "Failed", "").await?;
    scene.marks("one", marked("Failed")).await?;
    history.never("marks were away", |pod| {
        leadsman_tests::scene::differs(pod, &marked("Succeeded")).is_err()
            && leadsman_tests::scene::differs(pod, &marked("Failed")).is_err()
    })
}

pub(crate) async fn leftovers_without_a_marker(world: Arc<World>) -> Result<()> {
    let scene = Scene::new(&world.client, "leftovers").await?;
    let pod = scene.pod("one").await?;
    // Entries that nobody claims, as another writer may have left them.
    let entry = json!({"name": "one", "namespace": scene.ns, "uid": pod.metadata.uid, "IP": "10.1.2.3",
        "probes": [{"name": "gone#p", "containerName": "main", "probe": {"exec": {"command": ["true"]}}}]});
    scene.entries(&[]).await?;
    let patch = Patch::Merge(json!({"spec": {"podProbes": [entry]}}));
    scene
        .probes()
        .patch(&scene.node, &PatchParams::default(), &patch)
        .await?;
    scene.entries(&[]).await?;
    Ok(())
}
