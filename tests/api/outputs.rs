//! Values in the output of a probe, and verdicts that have to hold.

use std::collections::BTreeSet;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use jiff::SignedDuration;
use k8s_openapi::api::core::v1::{Pod, PodCondition};
use kube::api::{Patch, PatchParams};
use leadsman_tests::{History, Scene, document, wait_for_object};
use serde_json::{Value, json};

use crate::Installation;

/// The probes of the marker in a manifest of the examples.
fn probes_of_example(file: &str) -> Result<Value> {
    let path = document::root().join("examples").join(file);
    let text = std::fs::read_to_string(path)?;
    let marker = text.split("---\n").last().context("it is empty")?;
    let marker: Value = serde_norway::from_str(marker)?;
    Ok(marker["spec"]["probes"].clone())
}

fn condition(pod: &Pod, kind: &str) -> Option<PodCondition> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|one| one.type_ == kind).cloned()
}

// PPM-21, PPM-15
pub(crate) async fn a_service_follows_the_role_in_the_output(
    installation: Arc<Installation>,
) -> Result<()> {
    let scene = Scene::new(&installation.client, "outputs").await?;
    scene.pod("one").await?;
    let probes = probes_of_example("primary-from-output.yaml")?;
    let marker = scene.marker("m", probes.clone()).await?;
    // The API server keeps every field, and fills in none.
    let stored = serde_json::to_value(&marker.spec.probes)?;
    ensure!(stored == probes, "{stored} instead of {probes}");
    let entries = scene.wait_for_entries(&["one/m#role"]).await?;
    let output = entries[0].probes[0].output.as_ref();
    ensure!(
        output.is_some_and(|output| output.mismatch.as_deref() == Some("Unknown")),
        "{entries:?}"
    );
    let cost = "controller.kubernetes.io/pod-deletion-cost";
    let report = async |message: &str| {
        scene
            .report_verdict_with("one", "m#role", "Succeeded", message)
            .await
    };
    report("primary 7").await?;
    let primary = json!({"labels": {"role": "primary"}, "annotations": {cost: "100"}});
    let pod = scene.wait_for_marks("one", primary).await?;
    let shown = condition(&pod, "db.example.com/role").context("no condition")?;
    ensure!(
        shown.message.as_deref() == Some("primary since version 7"),
        "{shown:?}"
    );
    report("replica 8").await?;
    let replica = json!({"labels": {"role": "replica"}, "annotations": {cost: null}});
    scene.wait_for_marks("one", replica).await?;
    report("demoted").await?;
    let unknown =
        json!({"labels": {"role": null}, "conditions": {"db.example.com/role": "Unknown"}});
    scene.wait_for_marks("one", unknown).await?;
    // An expression that lets in what no label has.
    let mut probes = probes;
    probes[0]["output"]["matches"] = json!("^(?<role>.+) (?<version>[0-9]+)$");
    scene
        .edit_marker("m", json!({"spec": {"probes": probes}}))
        .await?;
    wait_for_object(&scene.probes(), &scene.node, "the new expression", |node| {
        let mut entries = node.spec.pod_probes.iter().flat_map(|pod| &pod.probes);
        let is_new = entries.any(|entry| {
            let output = entry.output.as_ref();
            output.is_some_and(|output| output.matches.starts_with("^(?<role>.+)"))
        });
        ensure!(is_new, "{:?}", node.spec);
        Ok(())
    })
    .await?;
    report("not one 9").await?;
    scene.wait_for_reason("m", "InvalidValue").await?;
    report("primary 10").await?;
    scene
        .wait_for_marks("one", json!({"labels": {"role": "primary"}}))
        .await?;
    scene.wait_for_reason("m", "Probing").await?;
    Ok(())
}

// PPM-23
pub(crate) async fn one_pod_at_a_time_is_the_primary(
    installation: Arc<Installation>,
) -> Result<()> {
    let scene = Scene::new(&installation.client, "primaries").await?;
    for pod in ["one", "two"] {
        scene.pod(pod).await?;
    }
    let probes = probes_of_example("primary-from-output.yaml")?;
    scene.marker("m", probes).await?;
    scene
        .wait_for_entries(&["one/m#role", "two/m#role"])
        .await?;
    let history = History::of(&installation.client, &scene.ns).await?;
    let report = async |pod: &str, output: &str| {
        scene
            .report_verdict_with(pod, "m#role", "Succeeded", output)
            .await
    };
    let role = |role: Option<&str>| json!({"labels": {"role": role}});
    report("two", "replica 7").await?;
    report("one", "primary 7").await?;
    scene.wait_for_marks("one", role(Some("primary"))).await?;
    let stale = scene.pods().get("one").await?.metadata.resource_version;
    // The first one goes on saying that it is the primary: its node is cut off.
    report("two", "primary 8").await?;
    scene.wait_for_marks("two", role(Some("primary"))).await?;
    scene.wait_for_marks("one", role(None)).await?;
    wait_for_object(&scene.markers(), "m", "who is the primary", |marker| {
        let status = marker.status.clone().unwrap_or_default();
        let holders = status.probes.first().map(|probe| probe.holders.clone());
        let holders = holders.unwrap_or_default();
        let [holder] = &holders[..] else {
            anyhow::bail!("{holders:?}");
        };
        ensure!(
            holder.pod == "two" && holder.version.as_deref() == Some("8") && holder.since.is_some(),
            "{holder:?}"
        );
        Ok(())
    })
    .await?;
    // An apply of a version from before, as a manager sends it that leads no more, is refused.
    let late = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {
        "name": "one", "resourceVersion": stale, "labels": {"role": "primary"}}});
    let params = PatchParams::apply("leadsman-podprobe").force();
    let refused = scene
        .pods()
        .patch_status("one", &params, &Patch::Apply(late))
        .await;
    ensure!(
        matches!(&refused, Err(kube::Error::Api(status)) if status.code == 409),
        "{refused:?}"
    );
    // The version stands on the pods: a new manager gives it to none that is older.
    installation.stop_manager().await?;
    scene.delete_pod("two").await?;
    installation.start_manager().await?;
    report("one", "primary 7").await?;
    scene.wait_for_reason("m", "Probing").await?;
    report("one", "primary 9").await?;
    scene.wait_for_marks("one", role(Some("primary"))).await?;
    let mut versions: Vec<Pod> = history.versions().await?.into_values().flatten().collect();
    versions.sort_by_key(|pod| {
        let version = pod.metadata.resource_version.as_deref();
        version.and_then(|version| version.parse::<u64>().ok())
    });
    let mut primaries = BTreeSet::new();
    for pod in versions {
        let name = pod.metadata.name.clone().unwrap_or_default();
        let is_primary = pod
            .metadata
            .labels
            .as_ref()
            .and_then(|labels| labels.get("role"))
            == Some(&"primary".to_owned());
        let is_gone = pod.metadata.deletion_timestamp.is_some();
        if is_primary && !is_gone {
            primaries.insert(name);
        } else {
            primaries.remove(&name);
        }
        ensure!(primaries.len() <= 1, "{primaries:?} at once");
    }
    Ok(())
}

// PRB-30, PPM-15
pub(crate) async fn a_file_reaches_the_agent_with_the_timing_of_its_probe(
    installation: Arc<Installation>,
) -> Result<()> {
    let scene = Scene::new(&installation.client, "heartbeats").await?;
    scene.pod("one").await?;
    let mut probes = probes_of_example("file-heartbeat.yaml")?;
    probes[0]["containerName"] = json!("main");
    let marker = scene.marker("m", probes.clone()).await?;
    let stored = serde_json::to_value(&marker.spec.probes)?;
    ensure!(stored == probes, "{stored} instead of {probes}");
    let entries = scene.wait_for_entries(&["one/m#state"]).await?;
    let entry = &entries[0].probes[0];
    ensure!(json!(entry.file) == probes[0]["file"], "{entry:?}");
    let probe = &entry.probe;
    ensure!(probe.period_seconds == Some(10) && probe.exec.is_none());
    scene
        .report_verdict_with("one", "m#state", "Succeeded", "busy 7")
        .await?;
    let busy =
        json!({"labels": {"work": "busy"}, "annotations": {"karpenter.sh/do-not-disrupt": "true"}});
    scene.wait_for_marks("one", busy).await?;
    Ok(())
}

// PPM-22
pub(crate) async fn an_idle_server_may_go_when_it_has_been_idle_across_a_restart(
    installation: Arc<Installation>,
) -> Result<()> {
    const HOLD: i64 = 5;
    let scene = Scene::new(&installation.client, "holds").await?;
    scene.pod("one").await?;
    let mut idle = probes_of_example("idle-for-ten-minutes.yaml")?;
    idle[0]["markerPolicy"][0]["holdSeconds"] = json!(HOLD);
    scene.marker("m", idle).await?;
    scene
        .report_verdict_with("one", "m#idle", "Failed", "in a match")
        .await?;
    scene
        .wait_for_marks("one", json!({"labels": {"idle": "false"}}))
        .await?;
    let history = History::of(&installation.client, &scene.ns).await?;
    scene
        .report_verdict_with("one", "m#idle", "Succeeded", "empty")
        .await?;
    let pod = wait_for_object(&scene.pods(), "one", "until when it holds", |pod| {
        let shown = condition(pod, "game.io/idle").context("no condition")?;
        let message = shown.message.unwrap_or_default();
        ensure!(
            shown.status == "False" && message.contains("counts from"),
            "{message}"
        );
        Ok(message)
    })
    .await?;
    let until = pod.split_once("counts from ").context("no time")?.1;
    let until: jiff::Timestamp = until.trim_end_matches(": empty").parse()?;
    installation.stop_manager().await?;
    installation.start_manager().await?;
    let pod = scene
        .wait_for_marks("one", json!({"labels": {"idle": "true"}}))
        .await?;
    let now = leadsman_process::clock::now();
    ensure!(now >= until, "marked at {now}, before {until}");
    ensure!(
        now.duration_since(until) < SignedDuration::from_secs(60),
        "marked at {now}, long after {until}: the restart began the hold again"
    );
    let shown = condition(&pod, "game.io/idle").context("no condition")?;
    ensure!(
        shown.last_transition_time.as_ref().map(|time| time.0) == Some(until),
        "{shown:?} instead of {until}"
    );
    history
        .never("no label idle", |pod| {
            let labels = pod.metadata.labels.as_ref();
            !labels.is_some_and(|labels| labels.contains_key("idle"))
        })
        .await?;
    // No hold: it is busy at once.
    scene
        .report_verdict_with("one", "m#idle", "Failed", "in a match")
        .await?;
    scene
        .wait_for_marks("one", json!({"labels": {"idle": "false"}}))
        .await?;
    Ok(())
}
