//! The manager starts again, or is killed while pods are being upgraded.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use kube::ResourceExt;
use leadsman_testkit::leadsman::MANAGER;
use leadsman_tests::{History, wait_for_answer};
use serde_json::json;

use super::world::{Place, World, restarts};
use crate::Installation;

const TWELVE: [&str; 12] = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"];

// SCS-63, SDF-34, SDF-38
pub(crate) async fn a_manager_killed_in_mid_roll_out_restarts_no_container_twice(
    _: Arc<Installation>,
) -> Result<()> {
    let place = Place::new(Arc::new(World::raise().await?), "killed").await?;
    let installation = &place.world.installation;
    place
        .set("log:1", json!({"updateStrategy": {"maxUnavailable": 2}}))
        .await?;
    place.pods(TWELVE).await?;
    place.wait_for_counts([12; 4]).await?;
    let history = History::of(&place.scene.client, place.name()).await?;
    let patch = json!({"spec": {"containers": [{"name": "log", "image": "log:2"}]}});
    let (params, patch) = (
        kube::api::PatchParams::default(),
        kube::api::Patch::Merge(patch),
    );
    place
        .world
        .sets()
        .patch(place.name(), &params, &patch)
        .await?;
    for some in [3, 7] {
        wait_for_answer("some pods have the new image", || async {
            Ok((place.count("log:2").await? >= some).then_some(()))
        })
        .await?;
        let manager = installation.manager.lock().await.take();
        manager.context("a manager runs")?.kill().await?;
        place.world.start_manager().await?;
    }
    place.wait_for_counts([12; 4]).await?;
    let versions = history.versions().await?;
    let most = super::rollout::most_at_once(&versions, "log:2");
    ensure!(most <= 2, "{most} pods were upgraded at a time");
    for pod in versions.values().filter_map(|versions| versions.last()) {
        ensure!(
            restarts(pod, "log") == 1,
            "{}: {:?}",
            pod.name_any(),
            pod.status
        );
    }
    // A start with nothing to do writes nothing but its Lease.
    installation.grant_webhooks().await?;
    place.wait_for_reason("InForce").await?;
    installation.stop_manager().await?;
    let mark = installation.plane.audit_mark()?;
    let since = installation.log_length();
    place.world.start_manager().await?;
    installation
        .wait_for_log(since, "feature=\"sidecarset\"")
        .await?;
    // It has seen all that was there when it writes for a pod that comes after it.
    place.pods(["fence"]).await?;
    place.wait_for_counts([13; 4]).await?;
    let requests = installation.plane.audit(mark)?;
    let writes = requests.iter().filter(|request| {
        request.user == MANAGER && request.is_write() && request.resource != "leases"
    });
    let writes: Vec<_> = writes
        .map(|request| (request.kind(), request.name.clone()))
        .collect();
    let is_expected = |(kind, name): &(String, String)| {
        kind == "patch sidecarsets/status" && name == place.name()
    };
    ensure!(writes.iter().all(is_expected), "{writes:?}");
    wait_for_answer("the pods as metrics", || async {
        let metrics = installation.get("/metrics").await?;
        let shown = ["matched", "updated_ready"]
            .map(|state| format!("leadsman_sidecarset_pods{{state=\"{state}\"}} 13\n"));
        Ok(shown
            .iter()
            .all(|line| metrics.contains(line))
            .then_some(()))
    })
    .await
}
