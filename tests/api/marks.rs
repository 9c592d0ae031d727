//! Verdicts in, marks on the pod out.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use kube::api::DeleteParams;
use leadsman_tests::{History, Scene, wait_for_object};
use serde_json::{Value, json};

use crate::Installation;

/// The manual's policies on `main`, by exec.
pub(crate) fn idle() -> Value {
    json!([{"name": "Idle", "containerName": "main", "podConditionType": "game.io/idle",
        "probe": {"exec": {"command": ["/home/game/idle.sh"]}},
        "markerPolicy": [
            {"state": "Succeeded", "labels": {"gameserver-idle": "true"},
             "annotations": {"controller.kubernetes.io/pod-deletion-cost": "-10"}},
            {"state": "Failed", "labels": {"gameserver-idle": "false"},
             "annotations": {"controller.kubernetes.io/pod-deletion-cost": "10"}}]}])
}

/// The marks of the manual's marker for each verdict.
pub(crate) fn marked(state: &str) -> Value {
    let (label, cost, condition) = match state {
        "Succeeded" => (json!("true"), json!("-10"), json!("True")),
        "Failed" => (json!("false"), json!("10"), json!("False")),
        "Unknown" => (Value::Null, Value::Null, json!("Unknown")),
        _ => (Value::Null, Value::Null, Value::Null),
    };
    json!({"labels": {"gameserver-idle": label},
        "annotations": {"controller.kubernetes.io/pod-deletion-cost": cost},
        "conditions": {"game.io/idle": condition}})
}

// PPM-6, PPM-7
pub(crate) async fn verdicts_mark_and_unknown_takes_away(
    installation: Arc<Installation>,
) -> Result<()> {
    let scene = Scene::new(&installation.client, "verdicts").await?;
    scene.pod("one").await?;
    scene.marker("m", idle()).await?;
    for state in ["Succeeded", "Failed", "Unknown", "Failed"] {
        scene
            .report_verdict_with("one", "m#Idle", state, "words")
            .await?;
        scene.wait_for_marks("one", marked(state)).await?;
    }
    let pod = scene.pods().get("one").await?;
    let conditions = pod.status.and_then(|s| s.conditions).unwrap_or_default();
    let condition = conditions
        .iter()
        .find(|c| c.type_ == "game.io/idle")
        .context("no condition")?;
    ensure!(
        condition.message.as_deref() == Some("words"),
        "{condition:?}"
    );
    ensure!(
        condition.last_probe_time.is_some() && condition.last_transition_time.is_some(),
        "{condition:?}"
    );
    Ok(())
}

// PPM-6
pub(crate) async fn a_message_alone_keeps_the_transition_time(
    installation: Arc<Installation>,
) -> Result<()> {
    let scene = Scene::new(&installation.client, "message").await?;
    scene.pod("one").await?;
    scene.marker("m", idle()).await?;
    let condition = async |message: &str| {
        scene
            .report_verdict_with("one", "m#Idle", "Failed", message)
            .await?;
        wait_for_object(&scene.pods(), "one", &format!("message {message}"), |pod| {
            let conditions = pod
                .status
                .as_ref()
                .and_then(|s| s.conditions.clone())
                .unwrap_or_default();
            let found = conditions
                .into_iter()
                .find(|c| c.type_ == "game.io/idle")
                .context("no condition")?;
            ensure!(found.message.as_deref() == Some(message), "{found:?}");
            Ok(found)
        })
        .await
    };
    let first = condition("one match").await?;
    let second = condition("two matches").await?;
    ensure!(
        first.last_transition_time == second.last_transition_time,
        "{first:?} became {second:?}"
    );
    Ok(())
}

// PPM-7
pub(crate) async fn one_policy_alone_marks_one_state(
    installation: Arc<Installation>,
) -> Result<()> {
    let scene = Scene::new(&installation.client, "one-policy").await?;
    scene.pod("one").await?;
    let healthy =
        |state: &str, label: Value| (state.to_owned(), json!({"labels": {"healthy": label}}));
    scene
        .marker(
            "m",
            json!([{"name": "p", "containerName": "main", "probe": {"exec": {"command": ["true"]}},
            "markerPolicy": [{"state": "Succeeded", "labels": {"healthy": "true"}}]}]),
        )
        .await?;
    for (state, marks) in [
        healthy("Succeeded", json!("true")),
        healthy("Failed", Value::Null),
        healthy("Succeeded", json!("true")),
    ] {
        scene.report_verdict("one", "m#p", &state).await?;
        scene.wait_for_marks("one", marks).await?;
    }
    Ok(())
}

pub(crate) async fn without_a_verdict_marks_stay(installation: Arc<Installation>) -> Result<()> {
    let scene = Scene::new(&installation.client, "hold").await?;
    scene.pod("one").await?;
    scene.pod("two").await?;
    scene.marker("m", idle()).await?;
    scene.report_verdict("one", "m#Idle", "Succeeded").await?;
    scene.wait_for_marks("one", marked("Succeeded")).await?;
    let history = History::of(&scene.client, &scene.ns).await?;
    // A wiped status, then a deleted object: nothing is known any more, so nothing changes.
    let wiped = kube::api::Patch::Merge(json!({"status": {"podProbeStatuses": null}}));
    scene
        .probes()
        .patch_status(&scene.node, &kube::api::PatchParams::default(), &wiped)
        .await?;
    scene
        .probes()
        .delete(&scene.node, &DeleteParams::default())
        .await?;
    scene
        .wait_for_entries(&["one/m#Idle", "two/m#Idle"])
        .await?;
    // Another pod's verdict went all the way meanwhile.
    scene.report_verdict("two", "m#Idle", "Failed").await?;
    scene.wait_for_marks("two", marked("Failed")).await?;
    scene.wait_for_marks("one", marked("Succeeded")).await?;
    history
        .never("a mark of `one` was touched", |pod| {
            pod.metadata.name.as_deref() == Some("one")
                && leadsman_tests::scene::differs(pod, &marked("Succeeded")).is_err()
        })
        .await
}

// PPM-12
pub(crate) async fn a_verdict_about_something_else_marks_nothing(
    installation: Arc<Installation>,
) -> Result<()> {
    let scene = Scene::new(&installation.client, "stale").await?;
    scene.pod("one").await?;
    scene.pod("two").await?;
    scene.marker("m", idle()).await?;
    let history = History::of(&scene.client, &scene.ns).await?;
    // A verdict made for another revision, and one for an entry that nobody asked for.
    let uid = scene
        .pods()
        .get("one")
        .await?
        .metadata
        .uid
        .unwrap_or_default();
    scene
        .wait_for_entries(&["one/m#Idle", "two/m#Idle"])
        .await?;
    let state = |name: &str, revision: &str| {
        json!({"name": name, "state": "Succeeded", "revision": revision, "message": "",
               "lastProbeTime": "2026-01-01T00:00:00Z", "lastTransitionTime": "2026-01-01T00:00:00Z"})
    };
    let status = json!({"status": {"podProbeStatuses": [{"name": "one", "namespace": scene.ns, "uid": uid,
        "probeStates": [state("m#Idle", "of another handler"), state("m#Other", "x"), state("malformed", "x")]}]}});
    let params = kube::api::PatchParams::default();
    scene
        .probes()
        .patch_status(&scene.node, &params, &kube::api::Patch::Merge(status))
        .await?;
    scene.report_verdict("two", "m#Idle", "Succeeded").await?;
    scene.wait_for_marks("two", marked("Succeeded")).await?;
    history
        .never("a stale verdict was marked", |pod| {
            pod.metadata.name.as_deref() == Some("one")
                && leadsman_tests::scene::differs(pod, &marked("")).is_err()
        })
        .await
}

// DEF-2
pub(crate) async fn two_probes_of_one_container_mark_each_for_itself(
    installation: Arc<Installation>,
) -> Result<()> {
    let scene = Scene::new(&installation.client, "two-probes").await?;
    scene.pod("one").await?;
    let probe = |name: &str| {
        json!({"name": name, "containerName": "main", "podConditionType": format!("t.io/{name}"),
               "probe": {"exec": {"command": ["true"]}}})
    };
    scene.marker("m", json!([probe("a"), probe("b")])).await?;
    scene.report_verdict("one", "m#a", "Succeeded").await?;
    scene.report_verdict("one", "m#b", "Failed").await?;
    scene
        .wait_for_marks(
            "one",
            json!({"conditions": {"t.io/a": "True", "t.io/b": "False"}}),
        )
        .await?;
    Ok(())
}

// PPM-9, DEF-13
pub(crate) async fn an_edited_policy_changes_its_marks(
    installation: Arc<Installation>,
) -> Result<()> {
    let scene = Scene::new(&installation.client, "policy").await?;
    scene.pod("one").await?;
    scene.marker("m", idle()).await?;
    scene.report_verdict("one", "m#Idle", "Succeeded").await?;
    scene.wait_for_marks("one", marked("Succeeded")).await?;
    let mut probes = idle();
    probes[0]["markerPolicy"] = json!([{"state": "Succeeded", "labels": {"idle": "yes"}}]);
    probes[0]["podConditionType"] = json!("game.io/free");
    scene
        .edit_marker("m", json!({"spec": {"probes": probes}}))
        .await?;
    scene
        .wait_for_marks(
            "one",
            json!({"labels": {"idle": "yes", "gameserver-idle": null},
            "annotations": {"controller.kubernetes.io/pod-deletion-cost": null},
            "conditions": {"game.io/idle": null, "game.io/free": "True"}}),
        )
        .await?;
    Ok(())
}

// PPM-9, DEF-4
pub(crate) async fn a_deleted_marker_takes_everything_along(
    installation: Arc<Installation>,
) -> Result<()> {
    let scene = Scene::new(&installation.client, "deleted").await?;
    scene.pod("one").await?;
    scene.marker("m", idle()).await?;
    scene.report_verdict("one", "m#Idle", "Failed").await?;
    scene.wait_for_marks("one", marked("Failed")).await?;
    scene.delete_marker("m").await?;
    scene.wait_for_entries(&[]).await?;
    scene.wait_for_marks("one", marked("")).await?;
    Ok(())
}

// PPM-10, DEF-19
pub(crate) async fn the_older_of_two_markers_wins(installation: Arc<Installation>) -> Result<()> {
    let scene = Scene::new(&installation.client, "conflict").await?;
    scene.pod("one").await?;
    scene.marker("older", idle()).await?;
    // Creation times have whole seconds; the name decides within one.
    scene.marker("younger", idle()).await?;
    scene
        .report_verdict("one", "younger#Idle", "Failed")
        .await?;
    scene
        .report_verdict("one", "older#Idle", "Succeeded")
        .await?;
    scene.wait_for_marks("one", marked("Succeeded")).await?;
    let history = History::of(&scene.client, &scene.ns).await?;
    scene.wait_for_reason("older", "Probing").await?;
    let loser = scene.wait_for_reason("younger", "Conflict").await?;
    let message = loser.status.unwrap_or_default().conditions[0]
        .message
        .clone();
    ensure!(
        message.contains("older"),
        "the loser is not told by whom: {message}"
    );
    scene
        .report_verdict("one", "younger#Idle", "Succeeded")
        .await?;
    scene.delete_marker("older").await?;
    scene.wait_for_reason("younger", "Probing").await?;
    scene.wait_for_marks("one", marked("Succeeded")).await?;
    history
        .never("the loser wrote", |pod| {
            leadsman_tests::scene::differs(pod, &marked("Failed")).is_ok()
        })
        .await
}

// PPM-8, DEF-13
pub(crate) async fn a_mark_taken_away_comes_back(installation: Arc<Installation>) -> Result<()> {
    let scene = Scene::new(&installation.client, "repaired").await?;
    scene.pod("one").await?;
    scene.marker("m", idle()).await?;
    scene.report_verdict("one", "m#Idle", "Succeeded").await?;
    scene.wait_for_marks("one", marked("Succeeded")).await?;
    scene
        .edit(
            "one",
            "kubectl",
            json!({"metadata": {"labels": {"gameserver-idle": null}}}),
        )
        .await?;
    scene.wait_for_marks("one", marked("Succeeded")).await?;
    let edited = scene
        .edit(
            "one",
            "kubectl",
            json!({"metadata": {"labels": {"gameserver-idle": "maybe"}}}),
        )
        .await?;
    ensure!(
        edited.metadata.labels.unwrap_or_default()["gameserver-idle"] == "maybe",
        "the edit was refused"
    );
    scene.wait_for_marks("one", marked("Succeeded")).await?;
    Ok(())
}

// PPM-8, DEF-17
pub(crate) async fn marks_of_others_stay(installation: Arc<Installation>) -> Result<()> {
    let scene = Scene::new(&installation.client, "others").await?;
    scene
        .pod_with("one", json!({"metadata": {"annotations": {"mine": "1"}}}))
        .await?;
    scene
        .report_pod_status(
            "one",
            json!({"conditions": [{"type": "t.io/theirs", "status": "True"}], "hostIP": "10.0.0.1",
            "qosClass": "BestEffort"}),
        )
        .await?;
    let before = scene.pods().get("one").await?;
    scene.marker("m", idle()).await?;
    scene.report_verdict("one", "m#Idle", "Succeeded").await?;
    let after = scene.wait_for_marks("one", marked("Succeeded")).await?;
    let theirs = |pod: &k8s_openapi::api::core::v1::Pod| {
        let mut pod = serde_json::to_value(pod).unwrap_or_default();
        pod["metadata"]["managedFields"] = Value::Null;
        pod["metadata"]["resourceVersion"] = Value::Null;
        if let Some(labels) = pod["metadata"]["labels"].as_object_mut() {
            labels.remove("gameserver-idle");
        }
        if let Some(annotations) = pod["metadata"]["annotations"].as_object_mut() {
            annotations.remove("controller.kubernetes.io/pod-deletion-cost");
        }
        let conditions = pod["status"]["conditions"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let kept: Vec<_> = conditions
            .into_iter()
            .filter(|c| c["type"] != "game.io/idle")
            .collect();
        pod["status"]["conditions"] = json!(kept);
        pod
    };
    ensure!(
        theirs(&before) == theirs(&after),
        "{:#} became {:#}",
        theirs(&before),
        theirs(&after)
    );
    Ok(())
}
