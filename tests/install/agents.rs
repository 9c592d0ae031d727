//! The DaemonSet of agents: rolled out anew, and nobody notices.

use std::sync::Arc;

use anyhow::{Context, Result};
use leadsman_testkit::Release;
use leadsman_testkit::release::Component;
use leadsman_tests::budget::{self, agent};
use leadsman_tests::wait_for_answer;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::room::{PODS, flip, roles_were};
use crate::{Room, install, marked_pods};

/// Probes of each pod, one a second, by which its agent is known to work.
const ROUNDS: u64 = 3;

// PPM-11, PRB-11
pub(crate) async fn a_roll_out_moves_no_mark_and_writes_no_status(
    release: Arc<Release>,
) -> Result<()> {
    install(&release, json!({})).await?;
    let (room, history) = marked_pods(&release, "rollout").await?;
    probed_more(&room).await?;
    let (mark, begun) = (release.bed.audit_mark()?, Instant::now());
    let agents = Component::Agent.workload();
    release.kubectl(&["rollout", "restart", agents]).await?;
    release.wait_for_rollout().await?;
    probed_more(&room).await?;
    // A request that is not listed here is one too many.
    let rows = [
        agent("list nodepodprobes", 2),
        agent("watch nodepodprobes", 2),
        budget::lease(),
    ];
    budget::keep(&release.bed.audit(mark)?, begun.elapsed(), &rows)?;
    flip(&room, "first", false).await?;
    flip(&room, "second", false).await?;
    roles_were(&history, [&["main", "secondary"]; 2]).await
}

/// Waits until each pod was asked some more times.
pub(crate) async fn probed_more(room: &Room) -> Result<()> {
    for pod in PODS {
        let before = probes_of(room, pod).await?;
        wait_for_answer("more probes", || async {
            let now = probes_of(room, pod).await?;
            Ok((now >= before + ROUNDS).then_some(()))
        })
        .await?;
    }
    Ok(())
}

/// How often a pod was asked for its role.
async fn probes_of(room: &Room, pod: &str) -> Result<u64> {
    let counts: Value = serde_json::from_str(&room.get(pod, "/counts").await?)?;
    let count = counts["http"]["/role"].as_u64();
    count.context("the target counts no probes")
}
