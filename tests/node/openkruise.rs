//! A node that OpenKruise's daemon has probed until now, with real containers.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use leadsman_tests::{History, openkruise, wait_for_deletion, wait_for_object};
use serde_json::{Value, json};

use leadsman_testkit::Cluster;

use crate::Room;

const PODS: [&str; 2] = ["idle", "busy"];
/// Longer than the longest period of the markers, twice: so every probe has come to a verdict of its own.
const ROUNDS: Duration = Duration::from_secs(7);

// PPM-6, PPM-8, PPM-18, DEF-8
/// Manager and agent start for the first time over OpenKruise's statuses and marks: no mark changes, and the pod that is
/// Ready by a marker stays so. Then they do their work, and all of it goes with the markers.
pub(crate) async fn a_first_start_over_openkruises_statuses_changes_no_mark(
    cluster: Arc<Cluster>,
) -> Result<()> {
    let room = Room::new(&cluster, "from-openkruise").await?;
    let scene = &room.scene;
    room.wait_until_alone().await?;
    cluster.stop_agent().await?;
    cluster.stop_manager().await?;
    for pod in PODS {
        let mut over = openkruise::annotations();
        over["spec"] = json!({"readinessGates": [{"conditionType": "game.io/idle"}]});
        room.pod(pod, over).await?;
    }
    room.exec("idle", "main", &["touch", "/tmp/idle"]).await?;
    room.set("idle", "role=main").await?;
    // A second later than the containers' start, as it is after a while.
    tokio::time::sleep(Duration::from_secs(1)).await;
    openkruise::leave_behind(scene).await?;
    wait_until_ready(&room, "idle", "True").await?;
    wait_until_ready(&room, "busy", "False").await?;
    let history = History::of(&cluster.client, &scene.ns).await?;
    cluster.start_manager().await?;
    cluster.start_agent().await?;
    // Their own verdicts about their own entries.
    wait_for_object(
        &scene.probes(),
        &scene.node,
        "verdicts of leadsman's agent",
        |probe| {
            let status = probe.status.clone().unwrap_or_default().pod_probe_statuses;
            let verdicts: Vec<_> = status.iter().flat_map(|pod| &pod.probe_states).collect();
            ensure!(verdicts.len() == 6, "{} verdicts", verdicts.len());
            ensure!(
                verdicts.iter().all(|verdict| verdict.revision.is_some()),
                "{verdicts:?}"
            );
            Ok(())
        },
    )
    .await?;
    for marker in ["idle", "web"] {
        scene.wait_for_reason(marker, "Probing").await?;
    }
    tokio::time::sleep(ROUNDS).await;
    openkruise::nothing_flapped(&history, &PODS).await?;
    // And they work.
    room.exec("idle", "main", &["rm", "/tmp/idle"]).await?;
    scene
        .wait_for_marks("idle", marks("false", "10", "False"))
        .await?;
    wait_until_ready(&room, "idle", "False").await?;
    room.exec("busy", "main", &["touch", "/tmp/idle"]).await?;
    scene
        .wait_for_marks("busy", marks("true", "-10", "True"))
        .await?;
    wait_until_ready(&room, "busy", "True").await?;
    for marker in ["idle", "web"] {
        scene.delete_marker(marker).await?;
        wait_for_deletion(&scene.markers(), marker).await?;
    }
    scene.wait_for_entries(&[]).await?;
    for pod in PODS {
        let none = json!({"labels": {"gameserver-idle": null, "page": null},
            "annotations": {"controller.kubernetes.io/pod-deletion-cost": null},
            "conditions": {"game.io/idle": null, "game.io/port": null}});
        scene.wait_for_marks(pod, none).await?;
    }
    Ok(())
}

fn marks(idle: &str, cost: &str, status: &str) -> Value {
    json!({"labels": {"gameserver-idle": idle}, "conditions": {"game.io/idle": status},
        "annotations": {"controller.kubernetes.io/pod-deletion-cost": cost}})
}

async fn wait_until_ready(room: &Room, pod: &str, status: &str) -> Result<()> {
    let conditions = json!({"conditions": {"Ready": status}});
    room.scene.wait_for_marks(pod, conditions).await?;
    Ok(())
}
