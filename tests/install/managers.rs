//! The Deployment of managers: one leads, and another goes on when it ends.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::api::DeleteParams;
use leadsman_testkit::Release;
use leadsman_testkit::release::Component;
use leadsman_tests::wait_for_answer;
use serde_json::json;
use tokio::time::Instant;

use crate::room::{flip, flip_during, roles_were};
use crate::{install, marked_pods};

/// The Lease's time by the chart's values; a successor that lists everything takes a moment more.
pub(crate) const LEASE: Duration = Duration::from_secs(15);
/// What a hand-over at once may take on a busy machine.
pub(crate) const AT_ONCE: Duration = Duration::from_secs(6);

pub(crate) async fn leader(release: &Release) -> Result<Pod> {
    let name = release.leader().await?.context("nobody leads")?;
    Ok(release.pods_api().get(&name).await?)
}

pub(crate) fn node_name(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref()
}

/// The id of a pod's only container.
pub(crate) fn container_id(pod: &Pod) -> Result<String> {
    let status = pod.status.clone().unwrap_or_default().container_statuses;
    let id = status.and_then(|all| all.into_iter().find_map(|it| it.container_id));
    id.context("the pod has no container")
}

/// Kills a pod's process behind the kubelet's back.
pub(crate) async fn kill(release: &Release, pod: &Pod) -> Result<()> {
    let node = node_name(pod).context("the pod has no node")?;
    let node = release.bed.node(node)?;
    node.stop_container(&container_id(pod)?).await
}

/// Deletes the leader, which gives its Lease back as it ends, and waits until another leads.
async fn hand_over(release: &Release) -> Result<()> {
    let leader = leader(release).await?.metadata.name;
    let leader = leader.context("a pod has a name")?;
    let pods = release.pods_api();
    pods.delete(&leader, &DeleteParams::default()).await?;
    wait_for_answer("another leader", || async {
        let next = release.leader().await?;
        Ok(next.filter(|next| *next != leader))
    })
    .await?;
    Ok(())
}

pub(crate) async fn a_killed_leader_is_succeeded_when_its_lease_ends(
    release: Arc<Release>,
) -> Result<()> {
    install(&release, json!({})).await?;
    let (room, history) = marked_pods(&release, "killed").await?;
    let (holder, leader) = (release.lease_holder().await?, leader(&release).await?);
    kill(&release, &leader).await?;
    let killed = Instant::now();
    flip(&room, "first", false).await?;
    let took = killed.elapsed();
    eprintln!("a flip after the leader was killed took {took:?}");
    ensure!(took < LEASE + AT_ONCE, "it took {took:?}");
    ensure!(
        release.lease_holder().await? != holder,
        "{holder:?} leads again"
    );
    flip(&room, "second", false).await?;
    roles_were(&history, [&["main", "secondary"]; 2]).await
}

pub(crate) async fn a_deleted_leader_is_succeeded_at_once(release: Arc<Release>) -> Result<()> {
    install(&release, json!({})).await?;
    let (room, history) = marked_pods(&release, "deleted").await?;
    let deleted = Instant::now();
    hand_over(&release).await?;
    flip(&room, "first", false).await?;
    let took = deleted.elapsed();
    eprintln!("a flip after the leader was deleted took {took:?}");
    ensure!(took < AT_ONCE, "it took {took:?}");
    flip(&room, "second", false).await?;
    roles_were(&history, [&["main", "secondary"]; 2]).await
}

pub(crate) async fn a_leader_that_is_cut_off_is_succeeded_and_writes_no_more(
    release: Arc<Release>,
) -> Result<()> {
    install(&release, json!({})).await?;
    let (room, history) = marked_pods(&release, "cut").await?;
    let [second] = release.bed.workers() else {
        bail!("the bed has not two nodes")
    };
    // The node that can be cut off is the second; managers are spread over both.
    if node_name(&leader(&release).await?) != Some(second.name()) {
        hand_over(&release).await?;
    }
    let cut_off = leader(&release).await?;
    ensure!(
        node_name(&cut_off) == Some(second.name()),
        "both managers were on the first node"
    );
    second.cut_network().await?;
    let cut = Instant::now();
    let flipped = flip(&room, "first", false).await;
    let took = cut.elapsed();
    second.heal_network().await?;
    flipped?;
    eprintln!("a flip after the leader was cut off took {took:?}");
    ensure!(took < LEASE + AT_ONCE, "it took {took:?}");
    release.wait_for_rollout().await?;
    flip(&room, "second", false).await?;
    flip(&room, "first", true).await?;
    let expected: [&[&str]; 2] = [&["main", "secondary", "main"], &["main", "secondary"]];
    roles_were(&history, expected).await
}

pub(crate) async fn a_rolling_update_under_flips_loses_and_repeats_none(
    release: Arc<Release>,
) -> Result<()> {
    install(&release, json!({})).await?;
    let (room, history) = marked_pods(&release, "update").await?;
    let mut updates = 0;
    let roles = flip_during(&room, || {
        updates += 1;
        async {
            let managers = Component::Manager.workload();
            release.kubectl(&["rollout", "restart", managers]).await?;
            release.wait_for_rollout().await
        }
    })
    .await?;
    eprintln!("{} flips during {updates} rolling updates", roles.len() - 1);
    roles_were(&history, [&roles, &["main"]]).await
}
