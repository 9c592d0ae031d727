//! `kubectl leadsman explain` about what real runtimes say.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use leadsman_testkit::{Cluster, leadsman};
use leadsman_tests::Way;
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
    let of = |probe: &str| {
        let mut causes = causes.iter();
        let cause = causes.find(|cause| cause["probe"] == probe);
        cause.with_context(|| format!("no cause of {probe}: {causes:#?}"))
    };
    Way::MissingCommand.is_told(of("missing")?)?;
    Way::HangingCommand.is_told(of("hanging")?)?;
    let closed = of("closed")?;
    let message = closed["message"].as_str().unwrap_or_default();
    ensure!(
        closed["reason"] == "ConnectionRefused" && message.contains("correct the port"),
        "{closed:#}"
    );
    Ok(())
}
