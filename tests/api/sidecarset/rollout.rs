//! Which pods are upgraded, how many at a time, and with which writes.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use leadsman_testkit::leadsman::MANAGER;
use leadsman_tests::{History, wait_for_answer};
use serde_json::json;

use super::world::{Place, World, annotation, image, is_ready, restarts, running_image};
use crate::Installation;

const TEN: [&str; 10] = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"];

/// The most pods that were being upgraded at a time: their spec has the image, their status does not.
pub(super) fn most_at_once(versions: &BTreeMap<String, Vec<Pod>>, new: &str) -> usize {
    let mut in_order: Vec<_> = versions.values().flatten().collect();
    let version = |pod: &Pod| {
        pod.resource_version()
            .unwrap_or_default()
            .parse::<u64>()
            .unwrap_or_default()
    };
    in_order.sort_by_key(|pod| version(pod));
    let mut upgrading = BTreeMap::new();
    let mut most = 0;
    for pod in in_order {
        let is_upgrading = image(pod) == new && running_image(pod) != new;
        upgrading.insert(pod.name_any(), is_upgrading);
        most = most.max(upgrading.values().filter(|is| **is).count());
    }
    most
}

// SCS-46, SCS-49, SCS-50, SCS-53, SCS-62, SDF-50
pub(crate) async fn a_roll_out_keeps_to_its_budget_and_leaves_its_partition(
    _: Arc<Installation>,
) -> Result<()> {
    let place = Place::new(World::shared().await?, "budget").await?;
    let strategy = json!({"updateStrategy": {"maxUnavailable": 2, "partition": 4}});
    place.set("log:1", strategy).await?;
    place.pods(TEN).await?;
    place.wait_for_counts([10, 10, 10, 10]).await?;
    let history = History::of(&place.scene.client, place.name()).await?;
    let installation = &place.world.installation;
    let mark = installation.plane.audit_mark()?;
    place.upgrade_to("log:2").await?;
    place.wait_for_counts([10, 6, 10, 6]).await?;
    ensure!(
        place.count("log:1").await? == 4,
        "{:?}",
        place.images().await?
    );
    let most = most_at_once(&history.versions().await?, "log:2");
    ensure!(
        (1..=2).contains(&most),
        "{most} pods were upgraded at a time"
    );
    let requests = installation.plane.audit(mark)?;
    let mut patched: BTreeMap<String, usize> = BTreeMap::new();
    for request in requests.iter().filter(|request| {
        request.user == MANAGER && request.is_write() && request.namespace == place.name()
    }) {
        ensure!(
            request.kind() == "patch pods" || request.code == 409,
            "{request:?}"
        );
        *patched.entry(request.name.clone()).or_default() += usize::from(request.code < 300);
    }
    ensure!(
        patched.len() == 6 && patched.values().all(|count| *count == 1),
        "{patched:?}"
    );
    // The rest follows when the partition goes.
    place
        .edit(json!({"spec": {"updateStrategy": {"partition": 0}}}))
        .await?;
    place.wait_for_counts([10, 10, 10, 10]).await?;
    for pod in history
        .versions()
        .await?
        .values()
        .filter_map(|versions| versions.last())
    {
        let counts = [restarts(pod, "log"), restarts(pod, "main")];
        ensure!(counts == [1, 0], "{}: {counts:?}", pod.name_any());
    }
    Ok(())
}

// SCS-25, SCS-53, SDF-38
pub(crate) async fn an_upgrade_is_recorded_on_the_pod(_: Arc<Installation>) -> Result<()> {
    let place = Place::new(World::shared().await?, "recorded").await?;
    place.set("log:1", json!({})).await?;
    place.pods(["one"]).await?;
    let mut times = Vec::new();
    for new in ["log:2", "log:3"] {
        let before = place.scene.pods().get("one").await?;
        let set = place.upgrade_to(new).await?;
        let upgraded = place
            .wait_for_pod("one", new, |pod| {
                ensure!(image(pod) == new, "{}", image(pod));
                Ok(pod.clone())
            })
            .await?;
        let status = set.status.clone().unwrap_or_default();
        let hash = &annotation(&upgraded, "kruise.io/sidecarset-hash")?[place.name()];
        ensure!(
            Some(&hash["controllerRevision"])
                == status.latest_revision.map(serde_json::Value::from).as_ref(),
            "{hash}"
        );
        let state =
            &annotation(&upgraded, "kruise.io/sidecarset-inplace-update-state")?[place.name()];
        ensure!(state["revision"] == hash["hash"], "{state}");
        let id = before
            .status
            .and_then(|status| status.container_statuses)
            .unwrap_or_default();
        let id = id
            .into_iter()
            .find(|status| status.name == "log")
            .context("a status")?
            .image_id;
        ensure!(
            state["lastContainerStatuses"]["log"]["imageID"] == *id,
            "{state}"
        );
        times.push(state["updateTimestamp"].to_string());
        let count = if new == "log:2" { 1 } else { 2 };
        place
            .wait_for_pod("one", "restarted", |pod| {
                ensure!(restarts(pod, "log") == count, "{:?}", pod.status);
                Ok(())
            })
            .await?;
    }
    ensure!(times[0] <= times[1], "{times:?}");
    Ok(())
}

// SCS-51
pub(crate) async fn a_paused_roll_out_goes_no_further(_: Arc<Installation>) -> Result<()> {
    let place = Place::new(World::shared().await?, "paused").await?;
    place
        .set("log:1", json!({"updateStrategy": {"paused": true}}))
        .await?;
    place.pods(["one", "two"]).await?;
    place.upgrade_to("log:2").await?;
    place.wait_for_counts([2, 0, 2, 0]).await?;
    ensure!(
        place.count("log:1").await? == 2,
        "{:?}",
        place.images().await?
    );
    place
        .edit(json!({"spec": {"updateStrategy": {"paused": false}}}))
        .await?;
    place.wait_for_counts([2, 2, 2, 2]).await?;
    place
        .edit(json!({"spec": {"updateStrategy": {"type": "NotUpdate"}}}))
        .await?;
    place.upgrade_to("log:3").await?;
    place.wait_for_counts([2, 0, 2, 0]).await?;
    ensure!(
        place.count("log:2").await? == 2,
        "{:?}",
        place.images().await?
    );
    Ok(())
}

// SCS-50, SCS-55, SDF-37
pub(crate) async fn a_broken_image_stops_by_itself_and_another_one_heals(
    _: Arc<Installation>,
) -> Result<()> {
    let place = Place::new(World::shared().await?, "broken").await?;
    let half = json!({"updateStrategy": {"maxUnavailable": "50%"}});
    place.set("log:1", half).await?;
    place.pods(["a", "b", "c", "d"]).await?;
    place.wait_for_counts([4, 4, 4, 4]).await?;
    place.upgrade_to("log:broken").await?;
    place.wait_for_counts([4, 2, 2, 0]).await?;
    ensure!(
        place.count("log:1").await? == 2,
        "{:?}",
        place.images().await?
    );
    place.upgrade_to("log:2").await?;
    place.wait_for_counts([4, 4, 4, 4]).await?;
    ensure!(
        place.count("log:2").await? == 4,
        "{:?}",
        place.images().await?
    );
    Ok(())
}

// SCS-46
pub(crate) async fn a_selector_restricts_the_roll_out(_: Arc<Installation>) -> Result<()> {
    let place = Place::new(World::shared().await?, "selected").await?;
    let canary = json!({"updateStrategy": {"selector": {"matchLabels": {"canary": "yes"}}}});
    place.set("log:1", canary).await?;
    place.pods(["one", "two"]).await?;
    let labels = json!({"metadata": {"labels": {"canary": "yes"}}});
    place.scene.edit("two", "kubectl", labels.clone()).await?;
    place.upgrade_to("log:2").await?;
    place.wait_for_counts([2, 1, 2, 1]).await?;
    ensure!(
        place.images().await?["two"] == "log:2",
        "{:?}",
        place.images().await?
    );
    // A label that comes later counts as well.
    place.scene.edit("one", "kubectl", labels).await?;
    place.wait_for_counts([2, 2, 2, 2]).await?;
    Ok(())
}

// SDF-34
pub(crate) async fn a_pod_that_goes_in_mid_upgrade_frees_its_place(
    _: Arc<Installation>,
) -> Result<()> {
    let place = Place::new(World::shared().await?, "gone").await?;
    place.set("log:1", json!({})).await?;
    place.pods(["a", "b", "c", "d"]).await?;
    place.wait_for_counts([4, 4, 4, 4]).await?;
    place.upgrade_to("log:broken").await?;
    let mut seen: Vec<String> = Vec::new();
    for round in 0..4 {
        let next = wait_for_answer("the next pod has the image", || async {
            let images = place.images().await?;
            let with = images
                .into_iter()
                .filter(|(pod, image)| image == "log:broken" && !seen.contains(pod));
            let with: Vec<_> = with.map(|(pod, _)| pod).collect();
            ensure!(with.len() < 2, "maxUnavailable is 1: {with:?}");
            Ok(with.into_iter().next())
        })
        .await?;
        // The kubelet has nothing more to report of it.
        place
            .wait_for_pod(&next, "that its image cannot be pulled", |pod| {
                ensure!(!is_ready(pod), "{:?}", pod.status);
                Ok(())
            })
            .await?;
        match round {
            0 => place.scene.delete_pod(&next).await?,
            1 => drop(
                place
                    .scene
                    .edit(
                        &next,
                        "kubectl",
                        json!({"metadata": {"labels": {"app": "other"}}}),
                    )
                    .await?,
            ),
            2 => drop(
                place
                    .scene
                    .report_pod_status(&next, json!({"phase": "Failed"}))
                    .await?,
            ),
            _ => {}
        }
        seen.push(next);
    }
    place.upgrade_to("log:2").await?;
    place.wait_for_counts([1, 1, 1, 1]).await?;
    Ok(())
}

// SDF-57
pub(crate) async fn a_native_sidecar_is_upgraded_in_place(_: Arc<Installation>) -> Result<()> {
    let place = Place::new(World::shared().await?, "native").await?;
    let native =
        |image: &str| json!([{"name": "proxy", "image": image, "restartPolicy": "Always"}]);
    place
        .set("log:1", json!({"initContainers": native("proxy:1")}))
        .await?;
    place.pods(["one"]).await?;
    place.wait_for_counts([1, 1, 1, 1]).await?;
    place
        .edit(json!({"spec": {"initContainers": native("proxy:2")}}))
        .await?;
    place.wait_for_counts([1, 1, 1, 1]).await?;
    let pod = place.scene.pods().get("one").await?;
    let init = pod
        .status
        .and_then(|status| status.init_container_statuses)
        .unwrap_or_default();
    ensure!(
        init[0].image == "proxy:2" && init[0].restart_count == 1,
        "{init:?}"
    );
    Ok(())
}
