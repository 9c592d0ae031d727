//! `kubectl leadsman doctor` against the API server: with all rights and with none, and with what is broken.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use kube::Api;
use kube::api::{Patch, PatchParams};
use leadsman_api::NodePodProbe;
use leadsman_tests::Scene;
use leadsman_tests::document::expect_shown;
use serde_json::{Value, json};

use crate::Installation;
use crate::explain::run;
use crate::marks::{idle, marked};
use crate::stage::PLACES;

/// The results of the checks, as `CHECK RESULT`, and whether all is well.
async fn results(installation: &Installation, flags: &[&str]) -> Result<(Vec<String>, Value)> {
    let words = [&["doctor", "-o", "json"], flags].concat();
    let printed = run(&installation.plane, &words).await?;
    let answer: Value = serde_json::from_str(&printed.out).context(printed.err)?;
    ensure!(
        answer["healthy"] == printed.success,
        "the exit status differs from {answer:#}"
    );
    let checks = answer["checks"].as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let pairs = checks
        .iter()
        .map(|check| format!("{} {}", text(&check["check"]), text(&check["result"])));
    Ok((pairs.collect(), answer))
}

/// The manager is a process here, and agents' pods are objects that nobody runs.
pub(crate) async fn what_is_broken_is_found(_world: Arc<Installation>) -> Result<()> {
    let _place = PLACES.acquire().await?;
    let installation = Installation::raise().await?;
    let scene = Scene::new(&installation.client, "patient").await?;
    scene.pod("one").await?;
    scene.marker("m", idle()).await?;
    let ready = |status: &str| {
        json!({"phase": "Running", "conditions": [
            {"type": "Ready", "status": status, "lastTransitionTime": "2026-01-01T00:00:00Z"}]})
    };
    scene.add_agent().await?;
    scene.report_verdict("one", "m#Idle", "Succeeded").await?;
    scene.wait_for_marks("one", marked("Succeeded")).await?;
    let (found, answer) = results(&installation, &[]).await?;
    ensure!(answer["healthy"] == true, "{answer:#}");
    for expected in [
        "api-server ok",
        "crds ok",
        "openkruise ok",
        "leader ok",
        "manager-pods note",
        "agent-pods ok",
        "agent-nodes ok",
        "agent-reports ok",
        "webhook ok",
        "marks ok",
    ] {
        ensure!(
            found.iter().any(|it| it == expected),
            "{expected}: {found:?}"
        );
    }
    without_rights(&installation).await?;

    scene.report_agent_status(ready("False")).await?;
    scene.add_node("patient-bare", json!({})).await?;
    installation.stop_manager().await?;
    report_of_long_ago(&scene).await?;
    let (found, answer) = results(&installation, &[]).await?;
    for expected in [
        "leader",
        "agent-pods",
        "agent-nodes",
        "agent-reports",
        "marks",
    ] {
        let problem = format!("{expected} problem");
        ensure!(found.contains(&problem), "{problem}: {answer:#}");
    }
    let printed = run(&installation.plane, &["doctor"]).await?;
    ensure!(!printed.success, "{}", printed.out);
    eprintln!("{}", printed.out);
    expect_shown("docs/kubectl.md", "kubectl leadsman doctor", &printed.out)?;
    installation.end().await;
    Ok(())
}

/// A verdict that turned long ago, and that no manager has marked.
async fn report_of_long_ago(scene: &Scene) -> Result<()> {
    scene
        .report_verdict_with("one", "m#Idle", "Failed", "it is busy")
        .await?;
    let probes: Api<NodePodProbe> = Api::all(scene.client.clone());
    let mut status = serde_json::to_value(probes.get(&scene.node).await?.status)?;
    let state = &mut status["podProbeStatuses"][0]["probeStates"][0];
    state["lastTransitionTime"] = json!("2026-01-01T00:00:00Z");
    let patch = Patch::Merge(json!({"status": status}));
    let params = PatchParams::default();
    probes.patch_status(&scene.node, &params, &patch).await?;
    Ok(())
}

/// Nothing can be read but what everybody may, so nothing is a problem and the rights are named.
async fn without_rights(installation: &Installation) -> Result<()> {
    let (found, answer) = results(installation, &["--as", "nobody"]).await?;
    ensure!(answer["healthy"] == true, "{answer:#}");
    ensure!(found.contains(&"api-server ok".to_owned()), "{found:?}");
    for (check, right) in [
        ("leader", "missing right: get leases.coordination.k8s.io"),
        (
            "agent-pods",
            "missing right: list pods in namespace leadsman-system",
        ),
        (
            "agent-reports",
            "missing right: list podprobemarkers.apps.kruise.io at the cluster scope",
        ),
        ("openkruise", "cannot"),
    ] {
        let checks = answer["checks"].as_array().context("no checks")?;
        let own = checks.iter().find(|it| it["check"] == check);
        let own = own.with_context(|| format!("no check {check}"))?;
        let message = own["message"].as_str().unwrap_or_default();
        ensure!(
            own["result"] == "unread" && message.contains(right),
            "{own:#}"
        );
    }
    Ok(())
}
