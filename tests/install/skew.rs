//! Two versions on one cluster: this one, and an earlier commit's chart and image, which
//! `cargo xtask test install --earlier COMMIT` builds. Without that commit these cases are left out.
//!
//! The pods of each version have that version's arguments, as in a roll-out that has come half way: agents that are
//! replaced only when they are deleted, managers whose Deployment is paused.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::api::DeleteParams;
use leadsman_testkit::audit::Mark;
use leadsman_testkit::release::Component;
use leadsman_testkit::{Release, leadsman};
use leadsman_tests::room::{is_main, probe};
use leadsman_tests::scene::merge;
use leadsman_tests::{History, wait_for_answer};
use serde_json::{Value, json};

use crate::agents::probed_more;
use crate::room::{PODS, flip, flip_during, roles_were, values};
use crate::{Room, install, marked_pods};

/// There are so many managers, and so many agents: one on each node.
const EACH: usize = 2;
/// What ends the name of this commit's image.
const OURS: &str = concat!("leadsman:", env!("CARGO_PKG_VERSION"));

fn earlier() -> Result<leadsman::Earlier> {
    leadsman::earlier()?.context("`--earlier COMMIT` builds an earlier commit")
}

/// What ends the name of the earlier commit's image.
fn theirs() -> Result<String> {
    Ok(format!("leadsman:{}", earlier()?.tag))
}

/// The earlier commit in the place of what is installed, with these values beside its chart's own.
async fn install_earlier(release: &Release, over: Value) -> Result<()> {
    let earlier = earlier()?;
    let mut all = values(json!({"image": {"tag": earlier.tag}}));
    merge(&mut all, over);
    release.install_from(&earlier.chart, &all, &[]).await
}

/// Waits until all pods of a component are ready and of this image.
async fn wait_for_image(release: &Release, component: Component, image: &str) -> Result<()> {
    let is_ready = |pod: &Pod| {
        let conditions = pod.status.iter().flat_map(|it| it.conditions.iter());
        let mut conditions = conditions.flatten();
        conditions.any(|it| it.type_ == "Ready" && it.status == "True")
    };
    let has_image = |pod: &Pod| {
        let mut containers = pod.spec.iter().flat_map(|spec| &spec.containers);
        containers.all(|it| it.image.as_ref().is_some_and(|it| it.ends_with(image)))
    };
    wait_for_answer(&format!("{component:?}s of {image}"), || async {
        let pods = release.pods(component).await?;
        let all = pods.iter().all(|pod| is_ready(pod) && has_image(pod));
        Ok((all && pods.len() == EACH).then_some(()))
    })
    .await
}

/// Holds managers and agents to what they do together: verdicts that change, a marker that comes and goes, a container
/// whose verdict is void.
async fn they_work_together(room: &Room, history: &History) -> Result<()> {
    flip(room, "first", false).await?;
    flip(room, "second", false).await?;
    flip(room, "first", true).await?;
    let later = probe(
        "later",
        json!({"httpGet": {"path": "/role", "port": "web"}}),
    );
    room.scene.marker("later", json!([later])).await?;
    for (pod, status) in PODS.iter().zip(["True", "False"]) {
        let marks = json!({"conditions": {"t.io/later": status}});
        room.scene.wait_for_marks(pod, marks).await?;
    }
    let markers = room.scene.markers();
    markers.delete("later", &DeleteParams::default()).await?;
    for pod in PODS {
        let marks = json!({"conditions": {"t.io/later": null}});
        room.scene.wait_for_marks(pod, marks).await?;
    }
    let expected: [&[&str]; 2] = [&["main", "secondary", "main"], &["main", "secondary"]];
    roles_were(history, expected).await?;
    // What answers then is no main.
    room.kill_container("first", "main").await?;
    room.scene.wait_for_marks("first", is_main(false)).await?;
    Ok(())
}

/// Holds leadsman's accounts to have written nothing but the Lease since then.
fn nothing_was_written(release: &Release, since: Mark) -> Result<()> {
    let requests = release.bed.audit(since)?.into_iter();
    let writes = requests.filter(|it| {
        it.user
            .starts_with("system:serviceaccount:leadsman-system:")
            && !["get", "list", "watch"].contains(&it.verb.as_str())
            && it.resource != "leases"
    });
    let writes: Vec<_> = writes.map(|it| format!("{} {}", it.verb, it.uri)).collect();
    ensure!(writes.is_empty(), "written: {writes:#?}");
    Ok(())
}

// PPM-11
pub(crate) async fn upgrades_and_rollbacks_under_flips_lose_and_repeat_none(
    release: Arc<Release>,
) -> Result<()> {
    install_earlier(&release, json!({})).await?;
    release.wait_for_rollout().await?;
    let (room, history) = marked_pods(&release, "upgrade").await?;
    let mut times = 0;
    let roles = flip_during(&room, || {
        times += 1;
        async {
            install(&release, json!({})).await?;
            release.helm(&["rollback", "leadsman"]).await?;
            release.wait_for_rollout().await
        }
    })
    .await?;
    wait_for_image(&release, Component::Manager, &theirs()?).await?;
    let flips = roles.len() - 1;
    eprintln!("{flips} flips during {times} upgrades, and as many rollbacks");
    roles_were(&history, [&roles, &["main"]]).await
}

// PPM-11, PRB-11
pub(crate) async fn without_a_flip_an_upgrade_and_a_rollback_write_nothing(
    release: Arc<Release>,
) -> Result<()> {
    install_earlier(&release, json!({})).await?;
    release.wait_for_rollout().await?;
    let (room, history) = marked_pods(&release, "quiet").await?;
    room.scene.wait_for_reason("m", "Probing").await?;
    probed_more(&room).await?;
    let mark = release.bed.audit_mark()?;
    install(&release, json!({})).await?;
    probed_more(&room).await?;
    nothing_was_written(&release, mark).context("upgrade")?;
    let mark = release.bed.audit_mark()?;
    release.helm(&["rollback", "leadsman"]).await?;
    release.wait_for_rollout().await?;
    probed_more(&room).await?;
    nothing_was_written(&release, mark).context("rollback")?;
    roles_were(&history, [&["main"]; 2]).await
}

pub(crate) async fn new_managers_work_with_earlier_agents(release: Arc<Release>) -> Result<()> {
    let on_delete = json!({"agent": {"updateStrategy": {"type": "OnDelete"}}});
    // First what replaces the agents of the case before.
    install_earlier(&release, json!({})).await?;
    release.wait_for_rollout().await?;
    install_earlier(&release, on_delete.clone()).await?;
    let (room, history) = marked_pods(&release, "new-managers").await?;
    release.install(&values(on_delete)).await?;
    wait_for_image(&release, Component::Manager, OURS).await?;
    wait_for_image(&release, Component::Agent, &theirs()?).await?;
    they_work_together(&room, &history).await?;
    wait_for_image(&release, Component::Agent, &theirs()?).await
}

pub(crate) async fn earlier_managers_work_with_new_agents(release: Arc<Release>) -> Result<()> {
    let managers = Component::Manager.workload();
    install_earlier(&release, json!({})).await?;
    release.wait_for_rollout().await?;
    let (room, history) = marked_pods(&release, "new-agents").await?;
    release.kubectl(&["rollout", "pause", managers]).await?;
    let together = async {
        release.install(&values(json!({}))).await?;
        release.wait_for_rollout_of(Component::Agent).await?;
        wait_for_image(&release, Component::Agent, OURS).await?;
        wait_for_image(&release, Component::Manager, &theirs()?).await?;
        they_work_together(&room, &history).await
    };
    let outcome = together.await;
    release.kubectl(&["rollout", "resume", managers]).await?;
    outcome?;
    wait_for_image(&release, Component::Manager, OURS).await?;
    flip(&room, "second", true).await
}
