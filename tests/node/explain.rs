//! `kubectl leadsman explain` about what real runtimes say.

use std::sync::Arc;

use anyhow::{Result, ensure};
use leadsman_testkit::{Cluster, leadsman};
use leadsman_tests::room::probe;
use serde_json::{Value, json};
use tokio::process::Command;

use crate::Room;

// PRB-13, PRB-16
pub(crate) async fn probes_that_cannot_succeed_are_explained(cluster: Arc<Cluster>) -> Result<()> {
    let room = Room::new(&cluster, "explained").await?;
    room.pod("one", json!({})).await?;
    let probes = json!([
        probe(
            "missing",
            json!({"exec": {"command": ["/no/such/command"]}})
        ),
        probe("hanging", json!({"exec": {"command": ["sleep", "60"]}})),
        probe("closed", json!({"tcpSocket": {"port": 9}})),
    ]);
    room.scene.marker("m", probes).await?;
    let failed = json!({"t.io/missing": "False", "t.io/hanging": "False", "t.io/closed": "False"});
    room.scene
        .wait_for_marks("one", json!({"conditions": failed}))
        .await?;
    let explained = Command::new(leadsman::program()?)
        .args(["explain", "one", "-n", "explained", "-o", "json"])
        .env("KUBECONFIG", cluster.bed.admin_kubeconfig())
        .output()
        .await?;
    let explained: Value = serde_json::from_slice(&explained.stdout)?;
    let causes = explained["causes"].as_array().cloned().unwrap_or_default();
    for (probe, reason, words) in [
        ("missing", "CommandNotFound", "correct exec.command"),
        ("hanging", "TimedOut", "raise timeoutSeconds"),
        ("closed", "ConnectionRefused", "correct the port"),
    ] {
        let cause = causes.iter().find(|cause| cause["probe"] == probe);
        let told = cause.is_some_and(|cause| {
            let message = cause["message"].as_str().unwrap_or_default();
            cause["reason"] == reason && message.contains(words)
        });
        ensure!(told, "{probe}: {causes:#?}");
    }
    Ok(())
}
