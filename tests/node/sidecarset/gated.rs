//! A roll-out that a probe stops: the image starts, and does not work.

use std::sync::Arc;

use anyhow::{Result, ensure};
use leadsman_tests::wait_for_object;

use super::{
    Cluster, History, Pod, Room, SIDE, Set, condition, expect_restarts, has_release, json,
    pods_with, release_that_answers, sidecar,
};

/// The condition that a marker sets, and a readiness gate of the pods.
const SHIPS: &str = "t.io/ships";
/// A release that starts, and answers that it is not well.
const SICK: &str = "sick";

// SCS-50, SDF-58, PPM-18, PRB-10
pub(crate) async fn a_probe_of_the_sidecar_stops_a_roll_out_until_the_image_is_good(
    cluster: Arc<Cluster>,
) -> Result<()> {
    let room = Room::new(&cluster, "gated-roll-out").await?;
    // Three failures in a row, of five seconds each: a busy machine closes the gate of no pod that is well.
    let probe = json!({"httpGet": {"path": "/healthz", "port": 7000}, "periodSeconds": 1,
        "timeoutSeconds": 5, "failureThreshold": 3});
    let probes = json!([{"name": "ships", "containerName": SIDE, "podConditionType": SHIPS, "probe": probe}]);
    room.scene.marker("ships", probes).await?;
    let set = Set::create(&room, json!({"containers": [sidecar("1")]})).await?;
    set.annotate("sidecarset.leadsman.io/min-ready-seconds", "10")
        .await?;
    let names = ["a", "b", "c"];
    let gated = json!({"spec": {"readinessGates": [{"conditionType": SHIPS}]}});
    pods_with(&room, &names, &gated).await?;
    set.wait_for_counts([3, 3, 3, 3]).await?;

    let history = History::of(&cluster.client, &room.scene.ns).await?;
    set.release(SICK).await?;
    let is_stopped = |pod: &Pod| {
        has_release(pod, SICK)
            && condition(pod, SHIPS).0 == "False"
            && condition(pod, "ContainersReady").0 == "True"
            && condition(pod, "Ready").0 == "False"
    };
    history
        .wait_for_version("the probe keeps a pod from being ready", is_stopped)
        .await?;
    // Of the others none has to wait any more, but for the one that is not ready.
    set.wait_for_counts([3, 1, 2, 0]).await?;
    set.release("1").await?;
    for name in names {
        wait_for_object(&room.scene.pods(), name, "it well", |pod| {
            ensure!(
                has_release(pod, "1") && condition(pod, SHIPS).0 == "True",
                "{:?}",
                pod.status
            );
            Ok(())
        })
        .await?;
    }
    set.wait_for_counts([3, 3, 3, 3]).await?;
    let sick = history.most_at_once(|pod| has_release(pod, SICK)).await?;
    ensure!(sick == 1, "{sick} pods got the image");
    // Those that never had it are not restarted for going back.
    let mut had_it = Vec::new();
    for (name, versions) in history.versions().await? {
        if versions.iter().any(|pod| has_release(pod, SICK)) {
            had_it.push(name);
        }
    }
    for name in names {
        let restarts = if had_it.iter().any(|own| own == name) {
            2
        } else {
            0
        };
        expect_restarts(&room, &[name], restarts, 0).await?;
        ensure!(release_that_answers(&room, name).await? == "1", "{name}");
    }
    Ok(())
}
