//! `kubectl leadsman … -w`: commands that go on until they are stopped, and what they print meanwhile.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use leadsman_testkit::{ControlPlane, leadsman};
use leadsman_tests::{Process, Scene, wait_for_answer};
use serde_json::{Value, json};
use tokio::process::Command;

use crate::Installation;
use crate::marks::idle;

/// Starts a command that goes on. What it prints is its log.
fn start(plane: &ControlPlane, words: &[&str]) -> Result<Process> {
    let mut command = Command::new(leadsman::plugin()?);
    command
        .args(words)
        .env("KUBECONFIG", plane.admin_kubeconfig());
    let log = format!("logs/kubectl-{}.log", words.join("-").replace('/', "-"));
    Process::start(command, &plane.folder().join(log))
}

/// Waits until a command has printed a line with these words one after another. Returns all lines without what pads them.
async fn wait_for_line(process: &Process, line: &str) -> Result<Vec<String>> {
    let printed = || {
        let log = process.log()?;
        let lines = log
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
        anyhow::Ok(lines.collect::<Vec<_>>())
    };
    let seen = wait_for_answer(line, || async {
        let lines = printed()?;
        Ok(lines.iter().any(|own| own == line).then_some(lines))
    });
    seen.await
        .with_context(|| format!("it has printed {:#?}", printed()))
}

/// An event as an agent sends it.
fn event(name: &str, pod: &Pod, reason: &str, message: &str, time: &str) -> Result<Event> {
    let event = json!({
        "metadata": {"name": name},
        "involvedObject": {"apiVersion": "v1", "kind": "Pod", "namespace": pod.namespace(),
            "name": pod.name_any(), "uid": pod.uid()},
        "reason": reason, "message": message, "type": "Normal", "count": 1,
        "firstTimestamp": time, "lastTimestamp": time,
    });
    Ok(serde_json::from_value(event)?)
}

pub(crate) async fn a_history_goes_on_with_each_change_of_its_pod(
    installation: Arc<Installation>,
) -> Result<()> {
    let scene = Scene::new(&installation.client, "followed").await?;
    let (one, two) = (scene.pod("one").await?, scene.pod("two").await?);
    let events: Api<Event> = Api::namespaced(scene.client.clone(), &scene.ns);
    let send = async |name: &str, pod: &Pod, reason: &str, message: &str, time: &str| {
        let event = event(name, pod, reason, message, time)?;
        events.create(&PostParams::default(), &event).await?;
        anyhow::Ok(())
    };
    let (failed, succeeded) = ("KruiseProbeFailed", "KruiseProbeSucceeded");
    send("a", &one, failed, "m#p: it is busy", "2026-01-01T00:00:05Z").await?;
    let words = ["history", "one", "-n", "followed", "-o", "wide", "-w"];
    let history = start(&installation.plane, &words)?;
    let first = "2026-01-01T00:00:05Z m#p Failed 1 event it is busy";
    wait_for_line(&history, first).await?;

    let mut earlier = one.clone();
    earlier.metadata.uid = Some("of-an-earlier-pod".to_owned());
    send(
        "b",
        &two,
        failed,
        "m#p: of another pod",
        "2026-01-01T00:00:06Z",
    )
    .await?;
    send(
        "c",
        &earlier,
        failed,
        "m#p: of an earlier pod",
        "2026-01-01T00:00:06Z",
    )
    .await?;
    send(
        "d",
        &one,
        "Unhealthy",
        "m#p: of a kubelet",
        "2026-01-01T00:00:06Z",
    )
    .await?;
    // In the second of the newest change that the history has printed.
    send(
        "e",
        &one,
        succeeded,
        "m#q succeeded",
        "2026-01-01T00:00:05Z",
    )
    .await?;
    let second = "2026-01-01T00:00:05Z m#q Succeeded 1 event";
    wait_for_line(&history, second).await?;

    let edit = async |name: &str, event: Value| {
        let (params, patch) = (PatchParams::default(), Patch::Merge(event));
        events.patch(name, &params, &patch).await?;
        anyhow::Ok(())
    };
    // The same change of the verdict, which is no news.
    edit("e", json!({"metadata": {"labels": {"a": "b"}}})).await?;
    let again = json!({"count": 2, "lastTimestamp": "2026-01-01T00:00:09Z", "message": "m#p: it is busy again"});
    edit("a", again).await?;
    let third = "2026-01-01T00:00:09Z m#p Failed 2 event it is busy again";
    let lines = wait_for_line(&history, third).await?;
    let changes: Vec<_> = lines
        .iter()
        .filter(|line| line.contains(" event"))
        .collect();
    ensure!(changes == [first, second, third], "{lines:#?}");
    history.kill().await
}

pub(crate) async fn a_status_goes_on_with_each_marker_that_changes(
    installation: Arc<Installation>,
) -> Result<()> {
    let scene = Scene::new(&installation.client, "counted").await?;
    scene.pod("one").await?;
    scene.marker("m", idle()).await?;
    scene.wait_for_entries(&["one/m#Idle"]).await?;
    let status = start(&installation.plane, &["status", "-n", "counted", "-w"])?;
    let headings = "MARKER PROBE PODS SUCCEEDED FAILED UNKNOWN PENDING NEWEST STATE";
    wait_for_line(&status, headings).await?;
    for (state, counts) in [("Succeeded", "1 1 0 0 0"), ("Failed", "1 0 1 0 0")] {
        scene.report_verdict("one", "m#Idle", state).await?;
        wait_for_line(&status, &format!("m Idle {counts} - Probing")).await?;
    }
    let markers = scene.markers();
    markers.delete("m", &DeleteParams::default()).await?;
    let lines = wait_for_line(&status, "counted/m was deleted").await?;
    let count = |line: &str| lines.iter().filter(|own| *own == line).count();
    ensure!(count(headings) == 1, "{lines:#?}");
    status.kill().await
}
