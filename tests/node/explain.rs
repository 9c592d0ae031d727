//! `kubectl leadsman explain` about what real runtimes say.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use leadsman_core::podprobe::history::{HistoryHead, ProbeHistory, RecordedRun, RunResult};
use leadsman_testkit::{Cluster, leadsman};
use leadsman_tests::Way;
use leadsman_tests::room::probe;
use leadsman_tests::wait_for_answer;
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
    let explained = Command::new(leadsman::plugin()?)
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

// PRB-13, PRB-16, PRB-26
pub(crate) async fn recent_runs_say_how_long_each_took_and_why_it_failed(
    cluster: Arc<Cluster>,
) -> Result<()> {
    let room = Room::new(&cluster, "recent").await?;
    room.pod("one", json!({})).await?;
    let probes = json!([
        probe(
            "failing",
            json!({"exec": {"command": ["sh", "-c", "echo no; exit 1"]}, "timeoutSeconds": 30})
        ),
        probe("hanging", json!({"exec": {"command": ["sleep", "60"]}})),
        probe(
            "open",
            json!({"tcpSocket": {"port": "raw"}, "timeoutSeconds": 30})
        ),
    ]);
    room.scene.marker("m", probes).await?;
    let told = wait_for_answer("two runs of each probe", || async {
        let told = recent_runs(&cluster, "recent").await?;
        let is_enough = |probe: &ProbeHistory| probe.runs.len() >= 2;
        Ok((told.len() == 3 && told.iter().all(is_enough)).then_some(told))
    })
    .await?;
    for (name, result, words, at_least) in [
        ("failing", RunResult::Failed, "no\n", 0.0),
        ("hanging", RunResult::Failed, "timed out", 1.0),
        ("open", RunResult::Succeeded, "", 0.0),
    ] {
        let probe = told.iter().find(|probe| &*probe.probe == name);
        let probe = probe.with_context(|| format!("{name}: {told:#?}"))?;
        let is_told = |run: &RecordedRun| {
            let output = run.output.as_deref().unwrap_or_default();
            run.result == result && output.contains(words) && run.duration_seconds > at_least
        };
        ensure!(probe.runs.iter().any(is_told), "{probe:#?}");
    }
    room.scene.delete_pod("one").await?;
    wait_for_answer("the runs of a deleted pod to go", || async {
        let told = recent_runs(&cluster, "recent").await?;
        Ok(told.is_empty().then_some(()))
    })
    .await
}

/// What `leadsman-agent history` prints beside the agent.
async fn recent_runs(cluster: &Cluster, namespace: &str) -> Result<Vec<ProbeHistory>> {
    let told = Command::new(leadsman::agent_program()?)
        .args(["history", "--namespace", namespace, "--history-socket"])
        .arg(cluster.history_socket())
        .output()
        .await?;
    let error = String::from_utf8_lossy(&told.stderr);
    ensure!(told.status.success(), "{error}");
    let mut lines = told.stdout.split(|byte| *byte == b'\n');
    let head: HistoryHead = serde_json::from_slice(lines.next().unwrap_or_default())?;
    let probes = lines.take(head.probes).map(serde_json::from_slice);
    Ok(probes.collect::<Result<_, _>>()?)
}
