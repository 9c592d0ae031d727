//! What the status of a set and the condition of its pods say.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::events::v1::Event;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use leadsman_tests::{wait_for_answer, wait_for_object};
use serde_json::json;

use super::world::{Place, World, condition};
use crate::Installation;

const UPGRADABLE: &str = "SidecarSetUpgradable";

// SCS-6, SCS-62, SCS-63, SCS-64, SDF-40
pub(crate) async fn counts_follow_pods_and_namespaces(_: Arc<Installation>) -> Result<()> {
    let place = Place::new(World::shared().await?, "counts").await?;
    place.label_namespace(json!({"sidecars": "yes"})).await?;
    let selected = json!({
        "namespace": null,
        "namespaceSelector": {"matchLabels": {"sidecars": "yes", "kubernetes.io/metadata.name": "counts"}},
        "updateStrategy": {"type": "NotUpdate"},
    });
    place.set("log:1", selected).await?;
    place.pods(["a", "b", "c"]).await?;
    place.wait_for_counts([3, 3, 3, 3]).await?;
    let not_ready = json!({"conditions": [{"type": "Ready", "status": "False"}]});
    place.scene.report_pod_status("a", not_ready).await?;
    place.wait_for_counts([3, 3, 2, 2]).await?;
    place.scene.delete_pod("a").await?;
    place.wait_for_counts([2, 2, 2, 2]).await?;
    let relabelled = json!({"metadata": {"labels": {"app": "other"}}});
    place.scene.edit("b", "kubectl", relabelled).await?;
    place.wait_for_counts([1, 1, 1, 1]).await?;
    place.label_namespace(json!({"sidecars": "no"})).await?;
    place.wait_for_counts([0, 0, 0, 0]).await?;
    place.label_namespace(json!({"sidecars": "yes"})).await?;
    place.wait_for_counts([1, 1, 1, 1]).await?;
    let over = json!({"phase": "Succeeded"});
    place.scene.report_pod_status("c", over).await?;
    place.wait_for_counts([0, 0, 0, 0]).await?;
    Ok(())
}

// SCS-47, SCS-66, SDF-39
pub(crate) async fn a_pod_that_cannot_be_upgraded_says_so_until_it_can(
    _: Arc<Installation>,
) -> Result<()> {
    let place = Place::new(World::shared().await?, "upgradable").await?;
    place.set("log:1", json!({})).await?;
    place.pods(["one"]).await?;
    place.wait_for_counts([1, 1, 1, 1]).await?;
    let with = |env: serde_json::Value| json!({"spec": {"containers": [{"name": "log", "image": "log:2", "env": env}]}});
    place
        .edit(with(json!([{"name": "LEVEL", "value": "debug"}])))
        .await?;
    place.wait_for_counts([1, 0, 1, 0]).await?;
    ensure!(
        place.count("log:1").await? == 1,
        "{:?}",
        place.images().await?
    );
    let says = async |status: &str, message: &str| {
        place
            .wait_for_pod("one", UPGRADABLE, |pod| {
                let found = condition(pod, UPGRADABLE).context("no condition")?;
                ensure!(
                    found == (status.to_owned(), message.to_owned()),
                    "{found:?}"
                );
                Ok(())
            })
            .await
    };
    says("False", r#"{"upgradable":false}"#).await?;
    // The edit is taken back; the image stays.
    place.edit(with(json!([]))).await?;
    place.wait_for_counts([1, 1, 1, 1]).await?;
    says("True", r#"{"upgradable":true}"#).await
}

// SCS-68, SDF-47
pub(crate) async fn an_event_of_the_set_names_pod_and_field(_: Arc<Installation>) -> Result<()> {
    // Of several things to tell the worst is told: the set has to be in force, and so a webhook to be called.
    let world = World::raise().await?;
    world.installation.grant_webhooks().await?;
    let place = Place::new(Arc::new(world), "told").await?;
    place.set("log:1", json!({})).await?;
    place.pods(["one"]).await?;
    place.wait_for_reason("InForce").await?;
    let env = json!([{"name": "LEVEL", "value": "debug"}]);
    let edit = json!({"spec": {"containers": [{"name": "log", "image": "log:1", "env": env}]}});
    place.edit(edit).await?;
    let events: Api<Event> = Api::namespaced(place.scene.client.clone(), "default");
    let note = wait_for_answer("an event of the set", || async {
        let events = events.list(&ListParams::default()).await?.items;
        let mut own = events.into_iter().filter(|event| {
            let regarding = event.regarding.as_ref();
            event.reason.as_deref() == Some("NotUpgradablePods")
                && regarding.is_some_and(|of| of.name.as_deref() == Some(place.name()))
        });
        Ok(own.next().and_then(|event| event.note))
    })
    .await?;
    ensure!(note.contains("one") && note.contains("env"), "{note}");
    Ok(())
}

// SCS-13, SDF-11
pub(crate) async fn a_pod_without_a_variable_that_is_transferred_is_counted_and_named(
    _: Arc<Installation>,
) -> Result<()> {
    let world = World::raise().await?;
    world.installation.grant_webhooks().await?;
    let place = Place::new(Arc::new(world), "transfer").await?;
    let transfer = json!([{"sourceContainerName": "main", "envName": "ROLE"}]);
    let container = json!({"name": "log", "image": "log:1", "transferEnv": transfer});
    place
        .set("log:1", json!({"containers": [container]}))
        .await?;
    place.wait_for_reason("InForce").await?;
    for (name, env) in [
        ("has", json!([{"name": "ROLE", "value": "leader"}])),
        ("lacks", json!([])),
    ] {
        let pod = json!({
            "metadata": {"name": name, "labels": {"app": place.name()}},
            "spec": {
                "nodeName": place.scene.node,
                "automountServiceAccountToken": false,
                "containers": [{"name": "main", "image": "app:1", "env": env}],
            },
        });
        let pod = serde_json::from_value(pod)?;
        place
            .scene
            .pods()
            .create(&PostParams::default(), &pod)
            .await?;
    }
    place.wait_for_counts([2, 2, 2, 2]).await?;
    let says = async |expected: &str| {
        wait_for_object(&place.world.sets(), place.name(), expected, |set| {
            let status = set.status.as_ref();
            let mut conditions = status.iter().flat_map(|status| &status.conditions);
            let ready = conditions.find(|condition| condition.type_ == "Ready");
            let message = &ready.context("no condition Ready")?.message;
            ensure!(message == expected, "{message}");
            Ok(())
        })
        .await
    };
    says(
        "new pods are injected; 1 pod without a variable of transferEnv: transfer/lacks has no \"ROLE\" from container \"main\"",
    )
    .await?;
    place.scene.delete_pod("lacks").await?;
    says("new pods are injected").await
}

// SCS-79, SDF-39
pub(crate) async fn a_deleted_set_leaves_containers_and_takes_its_key_along(
    _: Arc<Installation>,
) -> Result<()> {
    let place = Place::new(World::shared().await?, "deleted").await?;
    place.set("log:1", json!({})).await?;
    place.pods(["plain", "condemned"]).await?;
    place.wait_for_counts([2, 2, 2, 2]).await?;
    let env = json!([{"name": "LEVEL", "value": "debug"}]);
    let edit = json!({"spec": {"containers": [{"name": "log", "image": "log:1", "env": env}]}});
    place.edit(edit).await?;
    for pod in ["plain", "condemned"] {
        place
            .wait_for_pod(pod, UPGRADABLE, |pod| {
                let (status, _) = condition(pod, UPGRADABLE).context("no condition")?;
                ensure!(status == "False", "{status}");
                Ok(())
            })
            .await?;
    }
    let before = place.scene.pods().get("plain").await?;
    place.delete_set().await?;
    let after = place
        .wait_for_pod("plain", "that the condition goes", |pod| {
            let found = condition(pod, UPGRADABLE);
            ensure!(found.is_none(), "{found:?}");
            Ok(pod.clone())
        })
        .await?;
    ensure!(after.spec == before.spec, "{:?}", after.spec);
    ensure!(
        after.annotations() == before.annotations(),
        "{:?}",
        after.annotations()
    );
    Ok(())
}

// SDF-24, SDF-54, SDF-55
pub(crate) async fn a_set_that_is_wrong_says_why(_: Arc<Installation>) -> Result<()> {
    let place = Place::new(Arc::new(World::raise().await?), "wrong").await?;
    place.set("log:1", json!({})).await?;
    place.pods(["one"]).await?;
    place.wait_for_counts([1, 1, 1, 1]).await?;
    // No schema can say this: a value that is merged into others is to be JSON.
    let patch =
        json!([{"annotations": {"example.com/levels": "{"}, "patchPolicy": "MergePatchJson"}]);
    let containers = json!([{"name": "log", "image": "log:2"}]);
    let edit = Patch::Merge(json!({"spec": {"containers": containers, "patchPodMetadata": patch}}));
    // Nobody refuses it while the manager is away.
    place.world.installation.stop_manager().await?;
    let sets = place.world.sets();
    sets.patch(place.name(), &PatchParams::default(), &edit)
        .await?;
    place.world.start_manager().await?;
    let message = place.wait_for_reason("InvalidSpec").await?;
    ensure!(message.contains("example.com/levels"), "{message}");
    ensure!(
        place.count("log:1").await? == 1,
        "{:?}",
        place.images().await?
    );
    Ok(())
}
