//! A marker with OpenKruise's finalizer, deleted: its entries and marks are gone before it is.

use std::sync::Arc;

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::Namespace;
use kube::Api;
use kube::api::{DeleteParams, ListParams, PostParams};
use leadsman_tests::scene::differs;
use leadsman_tests::{Scene, wait_for_deletion, wait_for_object};
use serde_json::json;

use crate::Installation;
use crate::marks::{idle, marked};
use crate::stage::PLACES;

const FINALIZER: &str = "kruise.io/node-pod-probe-cleanup";
/// Enough that some would be left if the marker went first.
const PODS: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];

/// Marker `m` with these finalizers, and pods that it has marked.
async fn marked_pods(scene: &Scene, finalizers: &[&str]) -> Result<()> {
    for pod in PODS {
        scene.pod(pod).await?;
    }
    scene.marker("m", idle()).await?;
    if !finalizers.is_empty() {
        let patch = json!({"metadata": {"finalizers": finalizers}});
        scene.edit_marker("m", patch).await?;
    }
    for pod in PODS {
        scene.report_verdict(pod, "m#Idle", "Succeeded").await?;
    }
    for pod in PODS {
        scene.wait_for_marks(pod, marked("Succeeded")).await?;
    }
    Ok(())
}

/// Fails if an entry or a mark is left at this moment.
async fn nothing_is_left(scene: &Scene) -> Result<()> {
    let probe = scene.probes().get(&scene.node).await?;
    let mut pods = probe.spec.pod_probes.iter();
    ensure!(
        pods.all(|pod| pod.namespace != scene.ns),
        "{:?}",
        probe.spec
    );
    for pod in scene.pods().list(&ListParams::default()).await? {
        differs(&pod, &marked(""))?;
    }
    Ok(())
}

async fn delete(scene: &Scene) -> Result<()> {
    let markers = scene.markers();
    markers.delete("m", &DeleteParams::default()).await?;
    Ok(())
}

/// How often the manager has changed marker `m` itself. A patch that meets a write of the status by chance conflicts, and is
/// sent again: the list of finalizers is replaced as a whole.
fn patches(installation: &Installation, ns: &str) -> Result<usize> {
    let requests = installation.plane.audit(installation.start)?;
    let ours = requests.iter().filter(|request| {
        let resource = (&*request.resource, &*request.subresource);
        resource == ("podprobemarkers", "")
            && request.verb == "patch"
            && request.user == leadsman_testkit::leadsman::MANAGER
            && request.namespace == ns
            && request.code != 409
    });
    Ok(ours.count())
}

// PPM-9, PPM-11, DEF-4
pub(crate) async fn a_marker_goes_after_its_entries_and_marks(
    installation: Arc<Installation>,
) -> Result<()> {
    let scene = Scene::new(&installation.client, "let-go").await?;
    marked_pods(&scene, &[FINALIZER]).await?;
    delete(&scene).await?;
    wait_for_deletion(&scene.markers(), "m").await?;
    nothing_is_left(&scene).await?;
    ensure!(patches(&installation, &scene.ns)? == 1, "not one write");
    Ok(())
}

// PPM-9
pub(crate) async fn finalizers_of_others_stay(installation: Arc<Installation>) -> Result<()> {
    let scene = Scene::new(&installation.client, "let-go-by-us").await?;
    let others = ["example.com/first", "example.com/last"];
    marked_pods(&scene, &[others[0], FINALIZER, others[1]]).await?;
    delete(&scene).await?;
    wait_for_object(
        &scene.markers(),
        "m",
        "others' finalizers alone",
        |marker| {
            let left = marker.metadata.finalizers.clone().unwrap_or_default();
            ensure!(left == others, "the finalizers are {left:?}");
            Ok(())
        },
    )
    .await?;
    nothing_is_left(&scene).await?;
    scene
        .edit_marker("m", json!({"metadata": {"finalizers": []}}))
        .await?;
    wait_for_deletion(&scene.markers(), "m").await
}

/// Here nobody runs the namespace controller: what it would delete, in the order that hurts most, is deleted by hand.
// PPM-9
pub(crate) async fn a_namespace_with_a_marker_can_be_deleted(
    installation: Arc<Installation>,
) -> Result<()> {
    let scene = Scene::new(&installation.client, "whole").await?;
    marked_pods(&scene, &[FINALIZER]).await?;
    let namespaces: Api<Namespace> = Api::all(scene.client.clone());
    namespaces
        .delete(&scene.ns, &DeleteParams::default())
        .await?;
    delete(&scene).await?;
    for pod in PODS {
        scene.delete_pod(pod).await?;
    }
    wait_for_deletion(&scene.markers(), "m").await?;
    scene.wait_for_entries(&[]).await?;
    let mut namespace = namespaces.get(&scene.ns).await?;
    namespace.spec.get_or_insert_default().finalizers = None;
    namespaces
        .replace_subresource("finalize", &scene.ns, &PostParams::default(), &namespace)
        .await?;
    wait_for_deletion(&namespaces, &scene.ns).await
}

/// As upstream's own tests have it.
// PPM-9
pub(crate) async fn clients_of_openkruise_find_the_finalizer(_: Arc<Installation>) -> Result<()> {
    let _place = PLACES.acquire().await?;
    let installation = Installation::raise_idle().await?;
    installation
        .start_manager_with(&["--compatibility=openkruise"])
        .await?;
    let scene = Scene::new(&installation.client, "kruise").await?;
    marked_pods(&scene, &[]).await?;
    wait_for_object(&scene.markers(), "m", "the finalizer", |marker| {
        let finalizers = marker.metadata.finalizers.clone().unwrap_or_default();
        ensure!(
            finalizers == [FINALIZER],
            "the finalizers are {finalizers:?}"
        );
        Ok(())
    })
    .await?;
    let patched = patches(&installation, &scene.ns)?;
    ensure!(patched == 1, "{patched} writes to set it");
    delete(&scene).await?;
    wait_for_deletion(&scene.markers(), "m").await?;
    nothing_is_left(&scene).await?;
    ensure!(
        patches(&installation, &scene.ns)? == 2,
        "not one write to remove it"
    );
    installation.end().await;
    Ok(())
}
