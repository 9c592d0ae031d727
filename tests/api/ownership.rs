//! Whose mark is it: one row for each way in which somebody else can own what a marker governs.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Patch, PatchParams, PostParams};
use leadsman_tests::{Scene, wait_for_object};
use serde_json::{Value, json};

use crate::Installation;

/// One label by each verdict: `role: main`, `role: secondary`.
fn role() -> Value {
    json!([{"name": "role", "containerName": "main", "podConditionType": "t.io/role",
        "probe": {"exec": {"command": ["true"]}},
        "markerPolicy": [
            {"state": "Succeeded", "labels": {"role": "main"}},
            {"state": "Failed", "labels": {"role": "secondary"}}]}])
}

fn labelled(role: impl Into<Value>) -> Value {
    let role: Value = role.into();
    json!({"labels": {"role": role}})
}

/// Claimed, marked by each verdict, taken away by Unknown: the same whoever wrote `role` before.
async fn follows_the_verdict(scene: &Scene, pod: &str) -> Result<()> {
    for (state, role) in [
        ("Succeeded", json!("main")),
        ("Failed", json!("secondary")),
        ("Unknown", Value::Null),
        ("Succeeded", json!("main")),
    ] {
        scene.report_verdict(pod, "m#role", state).await?;
        scene
            .wait_for_marks(pod, labelled(role))
            .await
            .with_context(|| format!("after {state}"))?;
    }
    Ok(())
}

/// A template's value is taken over, and not restored: once taken away from the template it was ours alone.
async fn templated(installation: &Installation, name: &str, value: &str) -> Result<()> {
    let scene = Scene::new(&installation.client, name).await?;
    scene
        .pod_with("one", json!({"metadata": {"labels": {"role": value}}}))
        .await?;
    scene.marker("m", role()).await?;
    scene.wait_for_entries(&["one/m#role"]).await?;
    // Nothing is removed before the first verdict.
    scene.wait_for_reason("m", "Probing").await?;
    scene.wait_for_marks("one", labelled(value)).await?;
    follows_the_verdict(&scene, "one").await?;
    scene.delete_marker("m").await?;
    let none = json!({"labels": {"role": null}, "conditions": {"t.io/role": null}});
    scene.wait_for_marks("one", none).await?;
    Ok(())
}

// PPM-8, PPM-9
pub(crate) async fn a_template_with_the_same_value_is_overruled(
    installation: Arc<Installation>,
) -> Result<()> {
    templated(&installation, "template-same", "main").await
}

// PPM-8, PPM-9
pub(crate) async fn a_template_with_another_value_is_overruled(
    installation: Arc<Installation>,
) -> Result<()> {
    templated(&installation, "template-other", "unset").await
}

// PPM-9
pub(crate) async fn a_co_owned_label_outlives_the_marker(
    installation: Arc<Installation>,
) -> Result<()> {
    let scene = Scene::new(&installation.client, "co-owned").await?;
    scene
        .pod_with("one", json!({"metadata": {"labels": {"role": "main"}}}))
        .await?;
    scene.marker("m", role()).await?;
    scene.report_verdict("one", "m#role", "Succeeded").await?;
    scene
        .wait_for_marks(
            "one",
            json!({"labels": {"role": "main"}, "conditions": {"t.io/role": "True"}}),
        )
        .await?;
    scene.delete_marker("m").await?;
    // The template said `main` too and was never contradicted: the label stays, the condition goes.
    scene
        .wait_for_marks(
            "one",
            json!({"labels": {"role": "main"}, "conditions": {"t.io/role": null}}),
        )
        .await?;
    scene.wait_for_entries(&[]).await?;
    let pod = scene.pods().get("one").await?;
    ensure!(
        owner(&pod, "leadsman-podprobe").is_none(),
        "an entry of ours is left: {:?}",
        pod.metadata.managed_fields
    );
    Ok(())
}

// PPM-8
pub(crate) async fn a_label_by_kubectl_follows_the_verdict(
    installation: Arc<Installation>,
) -> Result<()> {
    let scene = Scene::new(&installation.client, "kubectl-label").await?;
    scene.pod("one").await?;
    scene
        .edit(
            "one",
            "kubectl-label",
            json!({"metadata": {"labels": {"role": "main"}}}),
        )
        .await?;
    scene.marker("m", role()).await?;
    follows_the_verdict(&scene, "one").await?;
    // Again while the marker holds it, with the value that it has: now both own it.
    scene
        .edit(
            "one",
            "kubectl-label",
            json!({"metadata": {"labels": {"role": "main"}}}),
        )
        .await?;
    follows_the_verdict(&scene, "one").await
}

// PPM-8
pub(crate) async fn a_label_by_a_put_of_the_status_follows_the_verdict(
    installation: Arc<Installation>,
) -> Result<()> {
    let scene = Scene::new(&installation.client, "status-put").await?;
    scene.pod("one").await?;
    // As OpenKruise writes: the whole object, to the status subresource.
    put(&scene, "one", |pod| {
        pod.metadata
            .labels
            .get_or_insert_default()
            .insert("role".into(), "secondary".into());
        pod.status
            .get_or_insert_default()
            .conditions
            .get_or_insert_default()
            .push(k8s_openapi::api::core::v1::PodCondition {
                type_: "t.io/role".into(),
                status: "False".into(),
                ..Default::default()
            });
    })
    .await?;
    scene.marker("m", role()).await?;
    follows_the_verdict(&scene, "one").await?;
    put(&scene, "one", |pod| {
        pod.metadata
            .labels
            .get_or_insert_default()
            .insert("role".into(), "secondary".into());
    })
    .await?;
    scene.wait_for_marks("one", labelled("main")).await?;
    follows_the_verdict(&scene, "one").await?;
    // What such a writer co-owns goes with the marker, unlike a template's.
    put(&scene, "one", |_| ()).await?;
    scene.delete_marker("m").await?;
    scene
        .wait_for_marks(
            "one",
            json!({"labels": {"role": null}, "conditions": {"t.io/role": null}}),
        )
        .await?;
    Ok(())
}

// PPM-8, DEF-13
pub(crate) async fn a_mark_edited_by_hand_is_restored(
    installation: Arc<Installation>,
) -> Result<()> {
    let scene = Scene::new(&installation.client, "by-hand").await?;
    scene.pod("one").await?;
    scene.marker("m", role()).await?;
    scene.report_verdict("one", "m#role", "Succeeded").await?;
    scene.wait_for_marks("one", labelled("main")).await?;
    scene
        .edit(
            "one",
            "kubectl-edit",
            json!({"metadata": {"labels": {"role": "secondary"}}}),
        )
        .await?;
    scene.wait_for_marks("one", labelled("main")).await?;
    follows_the_verdict(&scene, "one").await
}

pub(crate) async fn ownership_is_restored_after_managed_fields_are_cleared(
    installation: Arc<Installation>,
) -> Result<()> {
    let scene = Scene::new(&installation.client, "cleared").await?;
    scene.pod("one").await?;
    scene.marker("m", role()).await?;
    scene.report_verdict("one", "m#role", "Succeeded").await?;
    scene.wait_for_marks("one", labelled("main")).await?;
    let clear = json!({"metadata": {"managedFields": [{}]}});
    scene
        .pods()
        .patch("one", &PatchParams::default(), &Patch::Merge(clear))
        .await?;
    // Ours again, by an apply that changes nothing but the ownership.
    wait_for_object(&scene.pods(), "one", "our entry", |pod| {
        let fields = owner(pod, "leadsman-podprobe").context("no entry of ours")?;
        ensure!(fields.to_string().contains("f:role"), "{fields}");
        Ok(())
    })
    .await?;
    follows_the_verdict(&scene, "one").await?;
    let clear = json!({"metadata": {"managedFields": [{}]}});
    scene
        .pods()
        .patch("one", &PatchParams::default(), &Patch::Merge(clear))
        .await?;
    scene.report_verdict("one", "m#role", "Unknown").await?;
    scene
        .wait_for_marks(
            "one",
            json!({"labels": {"role": null}, "conditions": {"t.io/role": "Unknown"}}),
        )
        .await?;
    Ok(())
}

/// The fields that `manager` owns, if it has an entry.
fn owner(pod: &Pod, manager: &str) -> Option<Value> {
    let entries = pod.metadata.managed_fields.as_ref()?;
    let entry = entries
        .iter()
        .find(|e| e.manager.as_deref() == Some(manager))?;
    entry.fields_v1.as_ref().map(|fields| fields.0.clone())
}

async fn put(scene: &Scene, name: &str, change: impl Fn(&mut Pod)) -> Result<()> {
    loop {
        let mut pod = scene.pods().get(name).await?;
        change(&mut pod);
        let params = PostParams {
            field_manager: Some("kruise-manager".into()),
            ..PostParams::default()
        };
        match scene.pods().replace_status(name, &params, &pod).await {
            Ok(_) => return Ok(()),
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// A webhook changes a pod after the API server has written down who owns what, so nobody owns what it adds; here the entry of
/// `managedFields` loses it.
// PPM-9
pub(crate) async fn what_nobody_owns_stays_when_our_last_key_goes(
    installation: Arc<Installation>,
) -> Result<()> {
    let scene = Scene::new(&installation.client, "unowned").await?;
    let injected = json!({"metadata": {"annotations": {"injected": "a,b"}}});
    scene.pod_with("one", injected).await?;
    let mut owners = scene.pods().get("one").await?.metadata.managed_fields;
    for owner in owners.iter_mut().flatten() {
        if let Some(metadata) = owner
            .fields_v1
            .as_mut()
            .map(|fields| &mut fields.0["f:metadata"])
            && let Some(metadata) = metadata.as_object_mut()
        {
            metadata.remove("f:annotations");
        }
    }
    let patch = json!({"metadata": {"managedFields": owners}});
    scene
        .pods()
        .patch("one", &PatchParams::default(), &Patch::Merge(patch))
        .await?;
    let cost = json!([{"name": "cost", "containerName": "main", "podConditionType": "t.io/cost",
        "probe": {"exec": {"command": ["true"]}},
        "markerPolicy": [{"state": "Succeeded", "annotations": {"cost": "1"}}]}]);
    scene.marker("m", cost).await?;
    for (state, cost) in [("Succeeded", json!("1")), ("Failed", Value::Null)] {
        scene.report_verdict("one", "m#cost", state).await?;
        let annotations = json!({"annotations": {"cost": cost, "injected": "a,b"}});
        scene.wait_for_marks("one", annotations).await?;
    }
    Ok(())
}
