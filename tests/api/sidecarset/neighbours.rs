//! Pods that `OpenKruise` has injected and upgraded, as they were recorded.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::PostParams;
use serde_json::{Value, json};

use super::revisions::{documents, recorded};
use super::world::{Place, World, annotation, restarts};
use crate::Installation;

/// A recorded pod, bound to the place's node.
async fn adopt(place: &Place, mut pod: Value, name: &str) -> Result<Pod> {
    pod["metadata"]["name"] = json!(name);
    pod["metadata"]["namespace"] = json!(place.name());
    pod["metadata"]
        .as_object_mut()
        .context("metadata")?
        .remove("uid");
    pod["spec"]["nodeName"] = json!(place.scene.node);
    pod["spec"]["automountServiceAccountToken"] = json!(false);
    // The kubelets report another.
    pod.as_object_mut().context("a pod")?.remove("status");
    let pod: Pod = serde_json::from_value(pod)?;
    Ok(place
        .scene
        .pods()
        .create(&PostParams::default(), &pod)
        .await?)
}

// SCS-6, SCS-23, SCS-24, SCS-32
pub(crate) async fn pods_that_openkruise_injected_are_counted_and_upgraded(
    _: Arc<Installation>,
) -> Result<()> {
    // Pods know their set by its name. A world of its own: another case has a set of this name.
    let place = Place::new(Arc::new(World::raise().await?), "log-agent").await?;
    let spec = recorded!("01-sidecarset-stored")?.remove(0)["spec"].clone();
    let adopted = json!({"sidecarset.leadsman.io/adopt-pods": "true"});
    adopt(&place, recorded!("03-pod-injected")?.remove(0), "injected").await?;
    adopt(
        &place,
        recorded!("11-old-annotation-form")?.remove(0),
        "old-form",
    )
    .await?;
    place.set("", spec.clone()).await?;
    place
        .edit(json!({"metadata": {"annotations": adopted}}))
        .await?;
    place.wait_for_counts([2, 2, 2, 2]).await?;
    for name in ["injected", "old-form"] {
        let pod = place.scene.pods().get(name).await?;
        ensure!(
            restarts(&pod, "log-agent") == 0,
            "a change of the owner restarts nothing: {pod:?}"
        );
    }
    let mut containers = spec["containers"].clone();
    containers[0]["image"] = json!("registry.example/log-agent:1.1");
    place
        .edit(json!({"spec": {"containers": containers}}))
        .await?;
    place.wait_for_counts([2, 2, 2, 2]).await?;
    // The recorded upgrade, but for its times.
    let recorded: Pod = {
        let mut documents = recorded!("04-pod-upgraded-in-place")?;
        serde_json::from_value(documents.remove(0))?
    };
    let without_time = |mut value: Value| {
        for entry in value
            .as_object_mut()
            .into_iter()
            .flat_map(|sets| sets.values_mut())
        {
            entry["updateTimestamp"] = json!("");
        }
        value
    };
    let pod = place.scene.pods().get("injected").await?;
    for key in [
        "kruise.io/sidecarset-hash",
        "kruise.io/sidecarset-hash-without-image",
    ] {
        let (found, recorded) = (annotation(&pod, key)?, annotation(&recorded, key)?);
        ensure!(
            without_time(found.clone()) == without_time(recorded.clone()),
            "{key}: {found}\nrecorded: {recorded}"
        );
    }
    ensure!(
        restarts(&pod, "log-agent") == 1 && restarts(&pod, "app") == 0,
        "{pod:?}"
    );
    let list = pod.annotations().get("kruise.io/sidecarset-injected-list");
    ensure!(list.is_some_and(|list| list == "log-agent"), "{list:?}");
    Ok(())
}
